"""How a Seed is reconciled and deleted, from its watcher to the gardenlet's activities, on a real Temporal server."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.garden.flows import FlowActivities
from activities.garden.seeds import GardenSeedActivities
from api import resources
from api.constants import SEED_LEASE_NAMESPACE
from api.contracts.flows import SeedFlowInput
from api.contracts.operations import GARDEN_QUEUE, SeedTask, TaskResult, seed_queue
from kube.cache import Key
from kube.objects import owner_reference
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.controller_manager.watchers import seeds
from workers.controller_manager.watchers.seeds import SeedWatcher
from workers.lib.registry import _activities_of
from workflows.seed import SEED_FLOWS, BootstrapSeed, DeleteSeed

SEEDS, SHOOTS = resources.SEED.path(), resources.SHOOT.path()
NAME = "seed-w"
DEPLOYED = {
    "deploy_seed_crds",
    "deploy_seed_resource_manager",
    "deploy_seed_gateway",
    "deploy_seed_ingress_dns",
    "deploy_backup_bucket",
    "deploy_seed_excess_capacity",
    "deploy_seed_extensions",
}
GRAPHS = {each.workflow.__name__: each.graph for each in SEED_FLOWS.values()}


def tasks_of_gardenlet(kind: str) -> list[str]:
    task = SeedTask(name=NAME, uid="", generation=1, trigger="")
    activities = GRAPHS[kind](SeedFlowInput(task=task)).activities
    return [name for name, queue in activities.items() if queue == seed_queue(NAME)]


class World:
    """A garden with one Seed, its watcher and the garden's worker; tests play the gardenlet."""

    def __init__(self, client: Client, api: ApiServer) -> None:
        self.api = api
        self.temporal = client
        self.garden = Garden(api)
        api.remove(SEEDS, "seed-1")  # else its flow would run, too
        self.done: Counter[str] = Counter()
        self.before: Callable[[str], Any] = lambda name: None
        """Called before a task of the gardenlet; it may wait or raise."""
        self.watcher = SeedWatcher(self.garden.client, self.garden.caches, client)
        self.uid = f"5eed-{id(self)}"

        @activity.defn(dynamic=True)
        async def play(args: Sequence[RawValue]) -> TaskResult:
            name = activity.info().activity_type
            if (waiting := self.before(name)) is not None:
                await waiting
            if name == "report_seed_ready":
                status = {
                    "observedGeneration": self.seed["metadata"]["generation"],
                    "lastOperation": {"state": "Succeeded", "type": "Create"},
                }
                api.change(SEEDS, NAME, None, {"status": status})
            self.done[name] += 1
            return TaskResult()

        self.gardenlet = Worker(client, task_queue=seed_queue(NAME), activities=[play])
        self.controller_manager = Worker(
            client,
            task_queue=GARDEN_QUEUE,
            workflows=[BootstrapSeed, DeleteSeed],
            activities=_activities_of(
                GardenSeedActivities(self.garden.client, self.garden.caches), FlowActivities(self.garden.client)
            ),
        )

    @property
    def seed(self) -> dict[str, Any]:
        return self.api.objects[SEEDS, None, NAME]

    @property
    def operation(self) -> dict[str, Any]:
        return dict((self.seed.get("status") or {}).get("lastOperation") or {})

    @property
    def handle(self) -> Any:
        return self.temporal.get_workflow_handle(f"seed/{NAME}/{self.uid}")

    def put(self, **metadata: Any) -> None:
        self.api.put(SEEDS, {"metadata": {"name": NAME, "uid": self.uid, **metadata}, "spec": {}})

    def annotate(self, operation: str) -> None:
        asked = {"gardener.cloud/operation": operation}
        self.api.change(SEEDS, NAME, None, {"metadata": {"annotations": asked}})

    async def delete(self) -> None:
        await self.garden.client.delete(resources.SEED, NAME)

    def is_gone(self) -> bool:
        return (SEEDS, None, NAME) not in self.api.objects


@pytest.fixture
async def world(temporal: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(seeds, "RETRY_SECONDS", 0.1)
    async with ApiServer().running() as api:
        world = World(temporal, api)
        try:
            async with world.controller_manager, world.garden.running(world.watcher.run()):
                yield world
        finally:
            with contextlib.suppress(Exception):
                await world.handle.terminate()
            await world.garden.caches.close()
            await world.garden.client.close()


async def test_a_seed_waits_for_its_gardenlet_and_is_reconciled_once_for_each_request(world: World) -> None:
    """A request that comes while a workflow runs is for the next one: the first may be past what it is about."""
    may_end = asyncio.Event()
    world.before = lambda name: may_end.wait() if name == "report_seed_ready" else None
    world.put()
    await until(lambda: Key(None, NAME) in world.watcher._running)
    await until(lambda: world.operation.get("state") == "Processing")
    assert world.seed["metadata"]["finalizers"] == ["gardener"]
    async with world.gardenlet:
        await until(lambda: set(world.done) >= DEPLOYED)
        world.annotate("reconcile")
        may_end.set()
        await until(lambda: world.done["report_seed_ready"] == 2)
        await until(lambda: Key(None, NAME) not in world.watcher._running)
    assert not world.seed["metadata"].get("annotations")
    assert world.api.find("/api/v1/namespaces", f"seed-{NAME}") is not None
    assert set(world.done.values()) == {2}


async def test_a_deleted_seed_waits_until_it_is_unused_and_says_why(world: World) -> None:
    """Admission refuses such a deletion; this one has slipped through."""
    world.api.put(SHOOTS, {"metadata": {"name": "a"}, "spec": {"seedName": NAME}}, "garden-dev")
    world.put(finalizers=["gardener"])
    await world.delete()
    async with world.gardenlet:
        await until(lambda: "it hosts Shoots: garden-dev/a; move them" in world.operation.get("description", ""), 30)
        assert world.operation["type"] == "Delete"
        assert not world.done
        world.api.remove(SHOOTS, "a", "garden-dev")
        await until(world.is_gone, 60)
    assert set(world.done) == set(tasks_of_gardenlet("DeleteSeed"))


async def test_nothing_of_a_deleted_seed_is_left_in_the_garden(world: World) -> None:
    world.put()
    secret = {"metadata": {"name": "mail", "labels": {"gardener.cloud/role": "alerting"}}, "data": {"a": "Yg=="}}
    world.api.put("/api/v1/secrets", secret, "garden")
    before = {each for each in world.api.objects if each[2] != NAME}
    async with world.gardenlet:
        await until(lambda: world.done["report_seed_ready"] == 1)
        assert world.api.find("/api/v1/secrets", "mail", f"seed-{NAME}") is not None
        owner = owner_reference(resources.SEED, NAME, world.uid, controller=False)
        lease = {"metadata": {"name": NAME, "ownerReferences": [owner]}}
        world.api.put(resources.LEASE.path(), lease, SEED_LEASE_NAMESPACE)
        world.api.put(resources.CORE_BACKUP_BUCKET.path(), {"metadata": {"name": world.uid}, "spec": {}})
        installed = {"metadata": {"name": "provider-x"}, "spec": {"seedRef": {"name": NAME}}}
        world.api.put(resources.CONTROLLER_INSTALLATION.path(), installed)
        await world.delete()
        await until(world.is_gone)
        await until(lambda: Key(None, NAME) not in world.watcher._running)
    left = set(world.api.objects) - before
    assert {each for each in left if each[1] != f"seed-{NAME}"} == set(), "the namespace controller empties namespaces"


async def test_a_deletion_ends_a_reconciliation_that_retries_an_error(world: World) -> None:
    def fail(name: str) -> None:
        if name == "deploy_seed_gateway":
            raise ApplicationError("the load balancer has no address", type="NotReady")

    world.before = fail
    world.put()
    async with world.gardenlet:
        await until(lambda: "the load balancer has no address" in world.operation.get("description", ""), 30)
        assert world.operation["progress"] > 0
        await world.delete()
        await until(world.is_gone, 30)
    assert "deploy_seed_ingress_dns" not in world.done


@pytest.mark.parametrize("kind", GRAPHS)
async def test_each_task_fails_for_good_once_and_no_finished_task_runs_again(world: World, kind: str) -> None:
    """Without a user: the controller-manager starts the next attempt itself."""
    failed: set[str] = set()

    def fail_once(name: str) -> None:
        if name not in failed:
            failed.add(name)
            raise ApplicationError(f"{name} does not work", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)

    world.before = fail_once
    deletes = kind == "DeleteSeed"
    world.put(**({"finalizers": ["gardener"]} if deletes else {}))
    if deletes:
        await world.delete()
    async with world.gardenlet:
        await until(lambda: world.is_gone() if deletes else world.operation.get("state") == "Succeeded", 60)
    assert failed == set(tasks_of_gardenlet(kind))
    assert dict(world.done) == dict.fromkeys(tasks_of_gardenlet(kind), 1)


@pytest.mark.parametrize("kind", GRAPHS)
async def test_each_task_loses_its_gardenlet_once_and_is_continued(world: World, kind: str) -> None:
    lost: set[str] = set()

    def die_once(name: str) -> None:
        if name not in lost:
            lost.add(name)
            at_once = timedelta(milliseconds=20)
            raise ApplicationError("its worker has died", type="WorkerShutdown", next_retry_delay=at_once)

    world.before = die_once
    deletes = kind == "DeleteSeed"
    world.put(**({"finalizers": ["gardener"]} if deletes else {}))
    if deletes:
        await world.delete()
    async with world.gardenlet:
        await until(lambda: world.is_gone() if deletes else world.operation.get("state") == "Succeeded", 60)
        await until(lambda: Key(None, NAME) not in world.watcher._running)
    assert lost == set(tasks_of_gardenlet(kind))
    assert dict(world.done) == dict.fromkeys(tasks_of_gardenlet(kind), 1)
    assert (await world.handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_failure_is_written_to_the_seed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "RETRY_SECONDS", 600.0)

    def fail(name: str) -> None:
        if name == "deploy_backup_bucket":
            raise ApplicationError("no such bucket", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)

    world.before = fail
    world.put()
    async with world.gardenlet:
        await until(lambda: world.operation.get("state") == "Error")
        assert world.operation["description"] == "Create failed at attempt 1: deploy_backup_bucket: no such bucket"
        await until(lambda: Key(None, NAME) not in world.watcher._running)
        world.before = lambda name: None
        world.annotate("retry")
        await until(lambda: world.operation.get("state") == "Succeeded")
    assert world.done["deploy_seed_gateway"] == 1, "it is kept"
