"""A seed is made ready and retired by its gardenlet's activities, against API servers in memory.

The gardenlet is killed after each of its writes: the write is done, and the answer is lost.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from api import resources
from api.constants import CONFIRMATION_DELETION, TIMESTAMP
from api.contracts.flows import SeedFlowInput
from api.contracts.operations import OperationType, SeedTask, seed_queue
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.backup_buckets import BackupBucketController
from workers.lib import registry
from workflows.flow import activity_name
from workflows.seed import bootstrap_seed_flow, delete_seed_flow

TRIGGER = "2026-11-21T10:00:00.000000Z"
BOOTSTRAP = SeedTask(name="seed-1", uid="5eed", generation=1, trigger=TRIGGER)
DELETE = BOOTSTRAP.model_copy(update={"operation": OperationType.DELETE, "trigger": "2026-11-21T11:00:00.000000Z"})
SEEDS, SECRETS, NAMESPACES = resources.SEED.path(), "/api/v1/secrets", "/api/v1/namespaces"
BUCKETS = resources.CORE_BACKUP_BUCKET.path()
CRDS = resources.CUSTOM_RESOURCE_DEFINITION.path()
EXTENSIONS = {each.path() for each in (resources.DNS_RECORD, resources.BACKUP_BUCKET, resources.EXTENSION)}
WRITES = ("POST", "PUT", "PATCH", "DELETE")
DNS = {"type": "local", "credentialsRef": {"name": "credentials", "namespace": "garden"}}
SPEC = {
    "provider": {"type": "local", "region": "local"},
    "dns": {"provider": DNS, "internal": {"domain": "internal.test"}},
    "ingress": {"domain": "ingress.seed-1.test", "controller": {"kind": "nginx"}},
    "backup": {"provider": "local", "credentialsRef": {"name": "credentials", "namespace": "garden"}},
}
MANDATORY = {(NAMESPACES, None, "kube-system"), (SECRETS, "garden", "of-an-operator")}


class Cluster(ApiServer):
    """A seed whose controllers do at once what they are asked for; it can kill its client after a write."""

    def __init__(self) -> None:
        super().__init__()
        self.victim: asyncio.Task[Any] | None = None
        self.writes_left = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        answer = await super()._handle(request)
        if request.method in WRITES:
            self.writes_left -= 1
            if self.writes_left == 0 and self.victim is not None:
                self.victim.cancel()
        return answer

    async def control(self) -> None:
        """Run the controllers until cancelled."""
        while True:
            for place, obj in list(self.objects.items()):
                if place in self.objects:
                    self._control(place, obj)
            await asyncio.sleep(0.005)

    def _control(self, place: Any, obj: dict[str, Any]) -> None:
        path, namespace, name = place
        metadata, status = obj["metadata"], obj.get("status") or {}
        if namespace is not None and (NAMESPACES, None, namespace) not in self.objects and namespace != "garden":
            self._drop(place)
        elif path == CRDS and not status:
            self.change(path, name, None, {"status": {"conditions": [{"type": "Established", "status": "True"}]}})
        elif path == "/apis/apps/v1/deployments" and not status:
            counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), obj["spec"]["replicas"])
            self.change(path, name, namespace, {"status": {"observedGeneration": metadata["generation"], **counts}})
        elif path == "/api/v1/services" and obj["spec"].get("type") == "LoadBalancer" and not status:
            self.change(path, name, namespace, {"status": {"loadBalancer": {"ingress": [{"ip": "198.18.2.2"}]}}})
        elif path in EXTENSIONS and "deletionTimestamp" in metadata:
            assert metadata["annotations"][CONFIRMATION_DELETION] == "true"
            self.change(path, name, namespace, {"metadata": {"finalizers": None}})
        elif path in EXTENSIONS and "gardener.cloud/operation" in metadata.get("annotations", {}):
            asked = metadata["annotations"].get(TIMESTAMP, TRIGGER)
            operation = {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": asked}
            done = {"observedGeneration": metadata["generation"], "lastOperation": operation}
            heard = {"annotations": {"gardener.cloud/operation": None}, "finalizers": ["of-its-controller"]}
            self.change(path, name, namespace, {"metadata": heard, "status": done})


class World:
    def __init__(self, garden: ApiServer, seed: Cluster) -> None:
        self.garden = garden
        self.seed = seed

    async def run(self, task: SeedTask, *, killed: bool) -> None:
        """Run the gardenlet's tasks of an operation, in their order."""
        build = delete_seed_flow if task.operation is OperationType.DELETE else bootstrap_seed_flow
        for name, queue in build(SeedFlowInput(task=task)).activities.items():
            if name == "delete_garden_backup_bucket":
                await self._delete_bucket()
            elif queue == seed_queue(task.name):
                await self._killed(name, task) if killed else await self.once(name, task)

    async def _delete_bucket(self) -> None:
        """Delete the garden's BackupBucket, as a task of the garden does."""
        if self.garden.find(BUCKETS, BOOTSTRAP.uid):
            self.garden.change(BUCKETS, BOOTSTRAP.uid, None, {"metadata": {"deletionTimestamp": TRIGGER}})
        await until(lambda: not self.garden.find(BUCKETS, BOOTSTRAP.uid))

    async def once(self, name: str, task: SeedTask) -> None:
        """Run one activity in a process of its own, whose caches are empty."""
        async with self.garden.client() as garden, self.seed.client() as seed:
            clusters = Clusters(garden, seed, "seed-1")
            offered = registry.seed_activities(clusters, vpn_network="192.168.1.0/24")
            run = next(each for each in offered if activity_name(each) == name)
            try:
                async with asyncio.timeout(20):
                    await run(task)
            finally:
                await clusters.close()

    async def _killed(self, name: str, task: SeedTask) -> None:
        """The first run is killed after its first write, the second one after its second write, and so on."""
        for number in range(1, 200):
            self.seed.writes_left = number
            self.seed.victim = asyncio.create_task(self.once(name, task))
            with contextlib.suppress(asyncio.CancelledError):
                await self.seed.victim
                return
        raise AssertionError(f"{name} never ends")

    def left(self) -> set[Any]:
        """Objects in the seed that were not there before."""
        return {each for each in self.seed.objects if each not in MANDATORY}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GardenServer().running() as garden, Cluster().running() as seed:

        def answer(asked: web.Request) -> web.Response | None:
            return web.json_response({"gitVersion": "v1.37.1"}) if asked.path == "/version" else None

        seed.answer = answer
        seed.put(NAMESPACES, {"metadata": {"name": "kube-system"}})
        seed.put(SECRETS, {"metadata": {"name": "of-an-operator"}}, "garden")
        garden.put(SEEDS, {"metadata": {"name": "seed-1", "uid": "5eed"}, "spec": SPEC})
        garden.put(SECRETS, {"metadata": {"name": "credentials"}, "data": {"key": "dGVzdA=="}}, "garden")
        async with garden.client() as of_garden, seed.client() as of_seed:
            clusters = Clusters(of_garden, of_seed, "seed-1")
            buckets = BackupBucketController(clusters)
            controllers = [asyncio.create_task(each) for each in (seed.control(), buckets.run())]
            yield World(garden, seed)
            for each in controllers:
                each.cancel()
            await asyncio.gather(*controllers, return_exceptions=True)
            await clusters.close()


def shape(objects: dict[Any, Any]) -> dict[Any, Any]:
    """Objects without what differs from one run to the next."""
    return {place: {key: value for key, value in obj.items() if key not in ("metadata", "status")}
            for place, obj in objects.items()}  # fmt: skip


@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed after each write"])
async def test_nothing_but_what_operators_have_put_there_is_left(world: World, killed: bool) -> None:
    await world.run(BOOTSTRAP, killed=False)
    system = {"apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "Extension", "spec": {"class": "seed"}}
    metadata = {"name": "system", "annotations": {}, "finalizers": ["of-its-controller"]}
    world.seed.put(resources.EXTENSION.path(), {**system, "metadata": metadata}, "garden")
    assert len(world.left()) > 40
    world.garden.change(SEEDS, "seed-1", None, {"metadata": {"deletionTimestamp": TRIGGER, "finalizers": ["gardener"]}})
    await world.run(DELETE, killed=killed)
    assert world.left() == {(NAMESPACES, None, "garden")}, "the gardenlet itself runs in namespace garden"


async def test_a_seed_that_was_killed_after_each_write_is_ready_like_another(world: World) -> None:
    await world.run(BOOTSTRAP, killed=False)
    undisturbed = shape(world.seed.objects)
    for place in [each for each in world.seed.objects if each not in MANDATORY]:
        world.seed._drop(place)
    await world.run(BOOTSTRAP, killed=True)
    assert shape(world.seed.objects) == undisturbed


async def test_a_seed_that_was_never_reconciled_is_retired_at_once(world: World) -> None:
    """Its kinds do not exist."""

    def answer(asked: web.Request) -> web.Response | None:
        ours = ("extensions.gardener.cloud", "druid.gardener.cloud", "machine.sapcloud.io", "resources.gardener.cloud")
        return web.json_response({"kind": "Status", "code": 404}, status=404) if _group(asked) in ours else None

    world.seed.answer = answer
    await world.run(DELETE, killed=False)
    assert world.left() == set()


def _group(asked: web.Request) -> str:
    return [*asked.path.split("/"), "", ""][2]


async def test_kinds_with_objects_stay_and_the_error_names_the_objects(world: World) -> None:
    await world.run(BOOTSTRAP, killed=False)
    world.seed.put(resources.ETCD.path(), {"metadata": {"name": "main"}, "spec": {}}, "shoot--a--b")
    world.seed.put(NAMESPACES, {"metadata": {"name": "shoot--a--b"}})
    with pytest.raises(ApplicationError, match=r"BackupBucket 5eed; .*Etcd shoot--a--b/main"):
        await world.once("delete_seed_crds", DELETE)
    assert world.seed.find(CRDS, "etcds.druid.gardener.cloud") is not None
    assert world.seed.find(CRDS, "backupbuckets.extensions.gardener.cloud") is not None


@pytest.mark.parametrize(
    "name", ["deploy_seed_crds", "deploy_seed_gateway", "deploy_seed_ingress_dns", "deploy_backup_bucket"]
)
async def test_nothing_is_deployed_for_a_seed_that_is_being_deleted(world: World, name: str) -> None:
    """Its deletion would not find what a late activity of an earlier flow deploys."""
    world.garden.change(SEEDS, "seed-1", None, {"metadata": {"deletionTimestamp": TRIGGER, "finalizers": ["gardener"]}})
    with pytest.raises(ApplicationError, match="Seed seed-1 is being deleted") as refused:
        await world.once(name, BOOTSTRAP)
    assert refused.value.non_retryable
    assert world.left() == set()
