"""ManagedSeedSets at a real API server: replicas come, roll and go one at a time, also with a process that dies."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api import constants, resources
from api.access import CONTROLLER_MANAGERS, OPERATORS
from api.core.v1beta1.project import Project
from api.meta import KubeObject
from api.validation.operations import check_dual_approval
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import Forbidden, Invalid
from kube.kubeconfig import endpoint_of
from tests.gardens import PROCESS, ApiServer
from tests.unit.admission.test_managed_seed_sets import scaler
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.seed_sets import GARDEN, Died, MortalClient, World, managed_seed_set
from tests.unit.kube.waiting import until
from workers.controller_manager.managed_seed_sets import ManagedSeedSetConfig, run_managed_seed_set_controller
from workers.controller_manager.seed_autoscalers import SeedAutoscalerConfig, run_seed_autoscaler_controller

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(240, func_only=True),
]
Object = dict[str, Any]


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    with tempfile.TemporaryDirectory() as directory:
        made = ApiServer(Path(directory), {PROCESS: f"{OPERATORS},{CONTROLLER_MANAGERS}"})
        with made.running():
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": GARDEN}}
            asyncio.run(made.prepare(namespace))
            yield made


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    async with server.client() as admin:
        made = World(admin)
        await made.clear()
        try:
            yield made
        finally:
            await made.caches.close()


@pytest.fixture
async def process(server: ApiServer) -> AsyncIterator[KubeClient]:
    """The client of the controller-manager, with its rights alone."""
    async with server.client(PROCESS) as client:
        yield client


async def test_a_set_makes_a_shoot_then_a_managed_seed_for_each_replica_one_at_a_time(world, process):
    await world.admin.create(managed_seed_set(replicas=2))
    seen = []
    for _ in range(12):
        assert await world.reconcile(process) is None
        pending = (await world.status()).get("pendingReplica") or {}
        seen.append((sorted(await world.shoots()), sorted(await world.managed_seeds()), pending.get("reason")))
        await world.turn()

    assert seen[:4] == [
        (["pool-0"], [], "ShootReconciling"),
        (["pool-0"], ["pool-0"], "ManagedSeedPreparing"),
        (["pool-0", "pool-1"], ["pool-0"], "ShootReconciling"),
        (["pool-0", "pool-1"], ["pool-0", "pool-1"], "ManagedSeedPreparing"),
    ]
    status = await world.status()
    numbers = {key: status[key] for key in ("replicas", "readyReplicas", "nextReplicaNumber", "updatedReplicas")}
    assert numbers == {"replicas": 2, "readyReplicas": 2, "nextReplicaNumber": 2, "updatedReplicas": 2}
    assert "pendingReplica" not in status
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "ReplicasReady": "True",
        "RolledOut": "True",
    }
    shoot = (await world.shoots())["pool-1"]
    assert shoot["spec"]["dns"]["domain"] == "pool-1.example.org"
    assert (await world.managed_seeds())["pool-1"]["spec"]["shoot"] == {"name": "pool-1"}
    scale = await world.admin.get(resources.MANAGED_SEED_SET, "pool", GARDEN, subresource="scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (2, {"replicas": 2, "selector": "pool=local"})


async def _life(world: World, client: Any) -> None:
    """Life of a set: it grows to two, rolls new templates, shrinks to one, and is deleted."""
    await world.admin.create(managed_seed_set(replicas=2))
    await world.settle(client)
    await world.change({"spec": {"shootTemplate": {"spec": {"purpose": "infrastructure"}}}})
    await world.settle(client)
    shoots = await world.shoots()
    assert [each["spec"].get("purpose") for each in shoots.values()] == ["infrastructure"] * 2
    assert shoots.keys() == (await world.managed_seeds()).keys()
    await world.change({"spec": {"replicas": 1}})
    await world.settle(client)
    assert (await world.shoots()).keys() == (await world.managed_seeds()).keys() == (await world.seeds()).keys()
    assert len(await world.shoots()) == 1
    await world.admin.delete(resources.MANAGED_SEED_SET, "pool", GARDEN)
    await world.settle(client)


async def _assert_gone_and_nothing_doubled(world: World) -> None:
    assert await world.admin.find(resources.MANAGED_SEED_SET, "pool", GARDEN) is None
    assert (await world.shoots(), await world.managed_seeds(), await world.seeds()) == ({}, {}, {})
    kinds = ("Shoot", "ManagedSeed")
    made = {key: uids for key, uids in world.uids.items() if key[0] in kinds}
    assert all(len(uids) == 1 for uids in made.values()), "an ordinal was used twice"
    assert sorted(made) == [(kind, name) for kind in ("ManagedSeed", "Shoot") for name in ("pool-0", "pool-1")]


@pytest.mark.slow
async def test_a_process_killed_between_two_writes_goes_on_and_doubles_nothing(world, server):
    """The process dies before its nth write; the next one goes on. Each 16th write of the life of a set is tried."""
    await _die_at_each(world, server, range(0, await _writes(world, server), 16))


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
async def test_a_process_killed_between_any_two_writes_goes_on_and_doubles_nothing(world, server):
    await _die_at_each(world, server, range(await _writes(world, server)))


async def _writes(world: World, server: ApiServer) -> int:
    """Number of writes in the life of a set, if the process does not die."""
    writes = 10_000 - await _run(world, server, 10_000)
    assert writes > 20, "the life of a set has fewer writes than this test thinks"
    return writes


async def _die_at_each(world: World, server: ApiServer, places: range) -> None:
    for lives in places:
        await world.clear()
        assert await _run(world, server, lives) == 0, f"the process did not die at write {lives}"


async def _run(world: World, server: ApiServer, lives: int) -> int:
    """Live through the life of a set; the first process has so many writes. Returns the number that it has left."""
    mortal = MortalClient(endpoint_of(server.kubeconfig(PROCESS)))
    mortal.lives = lives
    clients: list[KubeClient] = [mortal]
    original = world.reconcile

    async def reconcile(client: Any, name: str = "pool", config: Any = None) -> Exception | None:
        try:
            return await original(clients[-1], name, config)
        except Died:
            clients.append(server.client(PROCESS))
            return await original(clients[-1], name, config)

    world.reconcile = reconcile  # type: ignore[method-assign]
    try:
        await _life(world, None)
        await _assert_gone_and_nothing_doubled(world)
    finally:
        world.reconcile = original  # type: ignore[method-assign]
        for each in clients:
            await each.close()
    return mortal.lives


async def test_a_seed_in_use_or_protected_stays_and_the_condition_says_why(world, process):
    await world.admin.create(managed_seed_set(replicas=2))
    await world.settle(process)
    shoot = changed(SHOOT, "metadata", {"name": "guest", "namespace": GARDEN})
    guest = await world.admin.create(changed(shoot, "spec.seedName", "pool-0"))
    protection = {"metadata": {"annotations": {constants.PROTECT_FROM_DELETION: "true"}}}
    await world.admin.patch(resources.MANAGED_SEED, "pool-1", GARDEN, protection)
    await world.change({"spec": {"replicas": 1}})
    await world.settle(process)

    assert set(await world.managed_seeds()) == {"pool-0", "pool-1"}
    ready = next(each for each in (await world.status())["conditions"] if each["type"] == "ReplicasReady")
    assert ready["reason"] == "ScaleInBlocked"
    assert "pool-0: its Seed has 1 Shoots" in ready["message"]

    await world.admin.patch(resources.SHOOT, "guest", GARDEN, {"metadata": {"finalizers": None}})
    await world.admin.delete(resources.SHOOT, "guest", GARDEN, uid=guest["metadata"]["uid"])
    await world.settle(process)
    assert set(await world.managed_seeds()) == set(await world.shoots()) == {"pool-1"}


async def test_an_update_stops_at_the_partition_and_going_back_makes_the_old_revision_the_newest(world, process):
    await world.admin.create(managed_seed_set(replicas=2, revisionHistoryLimit=1))
    await world.settle(process)
    first = (await world.status())["currentRevision"]
    await world.change({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 1}}}})
    for purpose in ("infrastructure", "production", "development"):
        await world.change({"spec": {"shootTemplate": {"spec": {"purpose": purpose}}}})
        await world.settle(process)

    shoots = await world.shoots()
    assert [each["spec"].get("purpose") for each in shoots.values()] == ["evaluation", "development"]
    status = await world.status()
    counted = {key: status[key] for key in ("currentRevision", "currentReplicas", "updatedReplicas")}
    assert counted == {"currentRevision": first, "currentReplicas": 1, "updatedReplicas": 1}
    revisions = await world.admin.list(resources.CONTROLLER_REVISION, GARDEN)
    assert len(revisions) == 3, "the current one, the updated one, and one of history"

    await world.change({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
    await world.change({"spec": {"shootTemplate": {"spec": {"purpose": "evaluation"}}}})
    await world.settle(process)
    newest = max(await world.admin.list(resources.CONTROLLER_REVISION, GARDEN), key=lambda each: each["revision"])
    assert newest["metadata"]["name"] == first == (await world.status())["currentRevision"]
    assert [each["spec"]["purpose"] for each in (await world.shoots()).values()] == ["evaluation"] * 2
    assert all(len(uids) == 1 for uids in world.uids.values()), "an update recreates nothing"


async def test_a_set_adopts_what_another_one_has_left_and_releases_what_loses_its_labels(world, process):
    await world.admin.create(managed_seed_set(replicas=2))
    await world.settle(process)
    # The garbage collector does this for `kubectl delete --cascade=orphan`.
    await world.admin.delete(resources.MANAGED_SEED_SET, "pool", GARDEN, propagation="Orphan")
    await world.settle(process)
    assert len(await world.shoots()) == 2, "nothing is deleted while the finalizer orphan is there"
    for resource in (resources.SHOOT, resources.MANAGED_SEED, resources.CONTROLLER_REVISION):
        for each in await world.admin.list(resource, GARDEN):
            if resource == resources.CONTROLLER_REVISION:
                await world.admin.delete(resource, each["metadata"]["name"], GARDEN)
            else:
                place = resource, each["metadata"]["name"], GARDEN
                await world.admin.patch(*place, {"metadata": {"ownerReferences": None}})
    await world.change({"metadata": {"finalizers": ["gardener"]}})
    await world.settle(process)
    assert await world.admin.find(resources.MANAGED_SEED_SET, "pool", GARDEN) is None
    assert len(await world.shoots()) == 2

    await world.admin.create(managed_seed_set(replicas=2))
    await world.settle(process)
    assert (await world.status())["readyReplicas"] == 2
    await world.admin.patch(resources.SHOOT, "pool-1", GARDEN, {"metadata": {"labels": {"pool": "other"}}})
    await world.settle(process)

    shoots = await world.shoots()
    assert set(shoots) == {"pool-0", "pool-1", "pool-2"}
    assert not shoots["pool-1"]["metadata"].get("ownerReferences")
    assert not (await world.managed_seeds())["pool-1"]["metadata"].get("ownerReferences")
    assert all(len(uids) == 1 for uids in world.uids.values()), "adoption recreates nothing"


async def test_a_foreign_shoot_with_the_name_of_a_replica_is_left_alone(world, process):
    foreign = await world.admin.create(changed(SHOOT, "metadata", {"name": "pool-0", "namespace": GARDEN}))
    await world.admin.create(managed_seed_set())
    obstacle = await world.reconcile(process)

    assert "is not of this set" in str(obstacle)
    await world.settle(process)
    shoots = await world.shoots()
    assert shoots["pool-0"]["metadata"]["uid"] == foreign["metadata"]["uid"]
    assert "ownerReferences" not in shoots["pool-0"]["metadata"]
    assert set(await world.managed_seeds()) == {"pool-1"}


async def test_a_refused_shoot_uses_no_ordinal_and_is_told(world, process, server):
    """The set has no other way to tell that a template was admitted once, and is refused today."""
    await world.admin.create(managed_seed_set())
    refusing = _RefusingClient(endpoint_of(server.kubeconfig(PROCESS)))
    try:
        for _ in range(3):
            assert isinstance(await world.reconcile(refusing), Forbidden)
    finally:
        await refusing.close()
    status = await world.status()
    assert (status["nextReplicaNumber"], status.get("pendingReplica")) == (0, None)
    assert status["conditions"][0]["reason"] == "StepFailed"
    assert "cannot create Shoot pool-0" in status["conditions"][0]["message"]
    await world.settle(process)
    assert set(await world.shoots()) == {"pool-0"}


async def test_a_process_killed_before_or_after_the_creation_of_a_shoot_leaves_no_gap(world, process, server):
    """The pending replica is in the status already, its ordinal is not."""
    await world.admin.create(managed_seed_set())
    # The first process writes finalizer, revision and pending replica; the second one creates the Shoot.
    for writes, created in ((3, 0), (1, 1)):
        mortal = MortalClient(endpoint_of(server.kubeconfig(PROCESS)))
        mortal.lives = writes
        try:
            with pytest.raises(Died):
                await world.reconcile(mortal)
        finally:
            await mortal.close()
        status = await world.status()
        assert (status["pendingReplica"]["name"], status.get("nextReplicaNumber")) == ("pool-0", None)
        assert len(await world.shoots()) == created
    await world.settle(process)

    assert set(await world.shoots()) == set(await world.managed_seeds()) == {"pool-0"}
    assert (await world.status())["nextReplicaNumber"] == 1


class _RefusingClient(KubeClient):
    """A client whose Shoots admission refuses."""

    async def apply_blindly(self, obj: Any, **kwargs: Any) -> Any:
        if obj["kind"] == "Shoot":
            raise Forbidden(403, "Forbidden", "creating Shoot", "quota exceeded")
        return await super().apply_blindly(obj, **kwargs)


async def test_a_set_whose_project_requires_two_users_tells_how_to_scale_it_in(world, process, server):
    """The set confirms the deletion of the Shoot, so it may not delete the Shoot, too."""
    await world.admin.create(managed_seed_set())
    await world.settle(process)
    await world.change({"spec": {"replicas": 0}})
    careful = _CarefulClient(endpoint_of(server.kubeconfig(PROCESS)))
    try:
        await world.settle(careful)
    finally:
        await careful.close()
    [told, *_] = (await world.status())["conditions"]
    assert told["reason"] == "StepFailed"
    assert "delete the Shoot as a user, by `kubectl -n garden delete shoot pool-0`" in told["message"]
    assert "leave out the Shoots of the set" in told["message"]

    [shoot] = (await world.shoots()).values()
    assert shoot["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"] == "true"
    await world.admin.delete(resources.SHOOT, "pool-0", GARDEN)
    await world.settle(process)
    assert not await world.shoots()
    assert (await world.status())["conditions"][0]["reason"] == "AllReplicasReady"


class _CarefulClient(KubeClient):
    """A client of a user who may not delete the Shoots whose deletion it has confirmed."""

    async def delete(self, res: resources.Resource, name: str, namespace: str | None = None, **rest: Any) -> bool:
        if res != resources.SHOOT:
            return await super().delete(res, name, namespace, **rest)
        project = Project.model_validate(
            {
                "metadata": {"name": "garden"},
                "spec": {"dualApprovalForDeletion": [{"resource": "shoots", "selector": {}}]},
            }
        )
        shoot = KubeObject.model_validate({"metadata": {"name": name}})
        raise Forbidden(403, "Forbidden", "deleting Shoot", str(check_dual_approval(shoot, project, PROCESS)))


@pytest.mark.parametrize(
    "change",
    [
        {"revisionHistoryLimit": 3},
        {"shootTemplate": {"spec": {"region": "elsewhere"}}},
        {"replicas": -1},
        {"updateStrategy": {"type": "OnDelete"}},
    ],
    ids=str,
)
async def test_the_schema_refuses_changes_that_no_replica_could_follow(world, change):
    await world.admin.create(managed_seed_set())

    with pytest.raises(Invalid):
        await world.change({"spec": change})


async def test_a_failed_shoot_is_retried_three_times_and_then_waits_for_a_person(world, process):
    await world.admin.create(managed_seed_set())
    world.failing = {"pool-0"}
    retries = []
    for number in range(8):
        world.failed_at = f"2126-01-01T00:{number:02}:00Z"
        await world.reconcile(process)
        annotations = (await world.shoots())["pool-0"]["metadata"].get("annotations") or {}
        retries.append(annotations.get(constants.OPERATION) == "retry")
        await world.turn()

    assert retries == [False, True, True, True, False, False, False, False]
    pending = (await world.status())["pendingReplica"]
    assert (pending["reason"], pending["retries"]) == ("ShootReconcileFailed", 3)
    world.failing = set()
    await world.settle(process)
    assert (await world.status())["readyReplicas"] == 1


async def test_the_controller_wakes_up_by_itself_and_an_autoscaler_scales_the_set(world, process):
    """Both controllers as the controller-manager runs them, with a load that needs a second seed."""
    await world.admin.create(managed_seed_set())
    caches = Caches(process)
    parts = (
        run_managed_seed_set_controller(process, caches, ManagedSeedSetConfig()),
        run_seed_autoscaler_controller(process, caches, SeedAutoscalerConfig(sync_period=timedelta(seconds=0.1))),
    )
    tasks = [asyncio.create_task(each) for each in parts]
    try:

        async def ready(number: int) -> bool:
            await world.turn()
            return bool((await world.status()).get("readyReplicas") == number)

        await until(lambda: ready(1), 60)
        capacity = {"status": {"allocatable": {"shoots": "2"}}}
        await world.admin.patch(resources.SEED, "pool-0", None, capacity, subresource="status")
        await world.admin.create(scaler())
        guest = changed(changed(SHOOT, "metadata", {"name": "guest", "namespace": GARDEN}), "spec.seedName", "pool-0")
        await world.admin.create(guest)
        await world.admin.create(changed(guest, "metadata.name", "guest2"))
        await until(lambda: ready(2), 60)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await caches.close()

    assert (await world.set_())["spec"]["replicas"] == 2
    status = (await world.admin.get(resources.SEED_AUTOSCALER, "pool", GARDEN))["status"]
    assert (status["usedShoots"], status["lastScaleTime"][:2]) == (2, "20")
