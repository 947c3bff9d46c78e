"""An attacker has a gardenlet act in the control-plane namespace of another Shoot."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.clusters import Clusters
from activities.seed.namespace import is_foreign
from activities.seed.survey import SurveyActivities
from api import resources
from api.constants import SHOOT_UID
from api.contracts.flows import FlowInput, ShootFacts, Survey
from api.contracts.operations import LEAVING, ForwardTask, OperationType, ShootRef, ShootTask
from api.contracts.rotation import Kind, SurveyRequest
from kube.cache import Caches
from kube.client import KubeClient
from tests.unit.kube.api_server import ApiServer
from workers.gardenlet.namespace_guard import UNGUARDED, NamespaceGuard
from workers.lib import registry
from workflows.flow import Flow, activity_name
from workflows.shoot.delete import delete_flow
from workflows.shoot.migrate import migrate_flow

NAMESPACES = "/api/v1/namespaces"
VICTIM = ShootRef(namespace="garden-y", name="demo", uid="victim")
ATTACKER = ShootRef(namespace="garden-x", name="demo", uid="attacker")


def task(shoot: ShootRef = ATTACKER, technical_id: str = "shoot--y--demo", **fields: Any) -> ShootTask:
    known: dict[str, Any] = {"seed": "seed-1", "generation": 1, "operation": OperationType.DELETE}
    return ShootTask(shoot=shoot, technical_id=technical_id, **known | fields)


class Gardenlet:
    """The worker of a seed that has the control plane of the victim."""

    def __init__(self, api: ApiServer, client: KubeClient, caches: Caches) -> None:
        self.api = api
        clusters = SimpleNamespace(seed=client, seed_caches=caches, seed_name="seed-1")
        self.guard = NamespaceGuard(cast(Clusters, clusters))

    async def does(self, subject: object, name: str = "delete_worker") -> bool:
        """Run an activity; raises what the guard says against it."""
        done = False

        async def act(_: object) -> None:
            nonlocal done
            done = True

        class Last(ActivityInboundInterceptor):
            def __init__(self) -> None:
                pass

            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                return await input.fn(*input.args)

        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, activity_type=name)
        worker = self.guard.intercept_activity(Last())
        asked = ExecuteActivityInput(fn=act, args=[subject], executor=None, headers={})
        await environment.run(worker.execute_activity, asked)
        return done


@pytest.fixture
async def gardenlet() -> AsyncIterator[Gardenlet]:
    async with ApiServer().running() as api, api.client() as client:
        api.put(NAMESPACES, {"metadata": {"name": "shoot--y--demo", "annotations": {SHOOT_UID: VICTIM.uid}}})
        caches = Caches(client)
        yield Gardenlet(api, client, caches)
        await caches.close()


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
@pytest.mark.parametrize(
    "subject",
    [
        task(),
        ForwardTask(task=task(), address="198.18.0.1"),
        SurveyRequest(shoot=ATTACKER, technical_id="shoot--y--demo", seed="seed-1", kind=Kind.SSH_KEYPAIR),
    ],
    ids=lambda subject: type(subject).__name__,
)
async def test_a_task_names_the_namespace_of_another_shoot_and_is_refused(
    gardenlet: Gardenlet, subject: object
) -> None:
    """Tasks come from Temporal, and the technical ID in them may come from a status."""
    with pytest.raises(
        ApplicationError, match="belongs to the Shoot with uid victim, not to Shoot garden-x/demo"
    ) as no:
        await gardenlet.does(subject)

    assert (no.value.type, no.value.non_retryable) == ("ForeignNamespace", True)


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
@pytest.mark.parametrize("namespace", ["garden", "kube-system", "shoot--y--other", "shoot--demo", "a--shoot--y--demo"])
async def test_a_task_names_a_namespace_that_cannot_be_the_shoots_and_is_refused(
    gardenlet: Gardenlet, namespace: str
) -> None:
    """Also by the activity that gives a namespace to a Shoot."""
    for name in ("delete_worker", "deploy_namespace"):
        with pytest.raises(ApplicationError, match="is not a control plane of a Shoot named demo"):
            await gardenlet.does(task(technical_id=namespace), name)


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
async def test_a_task_names_a_namespace_that_belongs_to_no_shoot_and_is_refused(gardenlet: Gardenlet) -> None:
    """Objects that an operator created in a namespace of such a name do not belong to the Shoot."""
    gardenlet.api.put(NAMESPACES, {"metadata": {"name": "shoot--z--demo"}})

    with pytest.raises(ApplicationError, match="belongs to no Shoot"):
        await gardenlet.does(task(technical_id="shoot--z--demo"))


async def test_a_shoot_acts_in_its_own_namespace_and_asks_the_api_server_for_nothing(gardenlet: Gardenlet) -> None:
    own = task(VICTIM)
    assert await gardenlet.does(own), "the first look is at the API server, while the cache fills"
    await gardenlet.guard._clusters.seed_caches.of(resources.NAMESPACE).synced(10)
    asked = len(gardenlet.api.requests)

    assert await gardenlet.does(own)
    assert len(gardenlet.api.requests) == asked


async def test_a_namespace_that_is_not_there_is_no_reason_to_refuse(gardenlet: Gardenlet) -> None:
    assert await gardenlet.does(task(technical_id="shoot--x--demo"))


@pytest.mark.parametrize("operation", list(OperationType))
async def test_a_new_shoot_waits_until_an_earlier_one_of_its_name_is_gone(
    gardenlet: Gardenlet, operation: OperationType
) -> None:
    """Tasks that delete objects would wait for their end in vain."""
    with pytest.raises(ApplicationError) as no:
        await gardenlet.does(task(operation=operation))

    assert no.value.non_retryable == (operation in LEAVING)


@pytest.mark.parametrize("name", sorted(UNGUARDED))
async def test_objects_known_by_uid_are_cleaned_up_next_to_another_shoot(gardenlet: Gardenlet, name: str) -> None:
    """A Shoot must be able to go though its name is taken: its backups, for example."""
    assert await gardenlet.does(task(), name)


def test_only_activities_of_a_seed_are_exempt() -> None:
    clusters = cast(Clusters, SimpleNamespace(seed=None, garden=None, seed_caches=None))
    offered = {activity_name(each) for each in registry.seed_activities(clusters, vpn_network="10.0.0.0/8")}

    assert offered >= UNGUARDED


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
@pytest.mark.parametrize(("uid", "foreign"), [("attacker", True), ("victim", False)])
async def test_a_status_names_the_namespace_of_another_shoot_and_controllers_leave_it_alone(
    gardenlet: Gardenlet, uid: str, foreign: bool
) -> None:
    """Care, watchdog, Bastions and ShootStates find control planes by the status, and do not use the guard."""
    cache = gardenlet.guard._clusters.seed_caches.of(resources.NAMESPACE)
    await cache.synced(10)

    assert is_foreign(cache, {"metadata": {"uid": uid}, "status": {"technicalID": "shoot--y--demo"}}) is foreign


@pytest.mark.attack(actor="T3", asset="A3", finding=6)
@pytest.mark.parametrize("flow", [delete_flow, migrate_flow], ids=["delete", "migrate"])
@pytest.mark.parametrize("workerless", [True, False])
def test_a_shoot_is_deleted_or_moved_in_the_namespace_of_another_one_which_loses_nothing(
    flow: Callable[[FlowInput, Survey], Flow], workerless: bool
) -> None:
    """Deleting the attacker's Shoot must neither delete the machines of the victim nor wait for them for ever."""
    survey = Survey(namespace=False, cluster=False, control_plane=False, controller_manager=False, foreign=True)
    moving = task(destination="seed-2")

    there = flow(FlowInput(task=moving, facts=ShootFacts(workerless=workerless)), survey).activities

    assert "delete_namespace" in there
    assert {name for name, queue in there.items() if queue == "seed-seed-1"} <= UNGUARDED


@pytest.mark.attack(actor="T3", asset="A3", finding=6)
async def test_a_survey_distinguishes_the_namespace_of_another_shoot_from_an_absent_one(gardenlet: Gardenlet) -> None:
    """The flow leaves out what it would do in that namespace."""
    activities = SurveyActivities(gardenlet.guard._clusters)

    found = [
        await ActivityEnvironment().run(activities.survey, task(technical_id=f"shoot--{each}--demo")) for each in "xy"
    ]

    assert [(each.namespace, each.foreign) for each in found] == [(False, False), (False, True)]
