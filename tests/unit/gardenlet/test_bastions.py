"""A gardenlet creates the host of a Bastion in the cloud, and keeps it as long as the garden has the Bastion."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from activities.clusters import Clusters
from api import resources
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.bastions import BastionController

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
BASTIONS = "/apis/operations.gardener.cloud/v1alpha1/bastions"
HOSTS = "/apis/extensions.gardener.cloud/v1alpha1/bastions"
NAMESPACE, CONTROL_PLANE = "garden-a", "shoot--a--b"
HOST = HOSTS.replace("bastions", f"namespaces/{CONTROL_PLANE}/bastions/alice")
UID = "operations.gardener.cloud/bastion-uid"
FORCE = "confirmation.gardener.cloud/force-deletion"
SHOOT = {
    "metadata": {"name": "b", "namespace": NAMESPACE},
    "spec": {"seedName": "seed-1", "provider": {"type": "local", "workers": [{"name": "pool"}]}},
    "status": {"seedName": "seed-1", "technicalID": CONTROL_PLANE},
}
BASTION = {
    "apiVersion": "operations.gardener.cloud/v1alpha1",
    "kind": "Bastion",
    "metadata": {"name": "alice", "namespace": NAMESPACE, "uid": "u-1"},
    "spec": {
        "shootRef": {"name": "b"},
        "seedName": "seed-1",
        "providerType": "local",
        "sshPublicKey": "ssh-ed25519 AAAA alice",
        "ingress": [{"ipBlock": {"cidr": "203.0.113.0/24"}}],
    },
}
SERVED = {
    "observedGeneration": 1,
    "lastOperation": {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": "2126-01-01T00:00:00Z"},
    "ingress": {"ip": "198.51.100.7"},
}


class World:
    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed
        self.clusters = Clusters(garden.client(), seed.client(), "seed-1")
        garden.put(SHOOTS, SHOOT)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(BastionController(self.clusters).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def host(self, wanted: Any = bool) -> Any:
        return await self._becomes(self.clusters.seed_caches, resources.BASTION, CONTROL_PLANE, wanted)

    async def bastion(self, wanted: Any) -> Any:
        return await self._becomes(self.clusters.garden_caches, resources.OPERATIONS_BASTION, NAMESPACE, wanted)

    async def condition(self, status: str, reason: str) -> str:
        """Its message, once it is so."""

        def said(bastion: Any) -> bool:
            [ready] = ((bastion or {}).get("status") or {}).get("conditions") or [{}]
            return (ready.get("status"), ready.get("reason")) == (status, reason)

        bastion = await self.bastion(said)
        return str(bastion["status"]["conditions"][0]["message"])

    async def _becomes(self, caches: Any, resource: Any, namespace: str, wanted: Any) -> Any:
        """The object, once ``wanted`` says yes to it."""
        return await caches.of(resource).wait_for("alice", namespace, lambda obj: wanted(obj) and (obj or True), 10)

    def writes(self) -> int:
        return sum(method != "GET" for method, _ in self.garden.requests + self.seed.requests)

    def serve(self, **status: Any) -> None:
        """As the cloud's extension does."""
        [live] = [obj for (path, _, _), obj in self.seed.objects.items() if path == HOSTS]
        done = {**SERVED, "observedGeneration": live["metadata"]["generation"], **status}
        heard = {"annotations": {"gardener.cloud/operation": None}, "finalizers": ["extensions.gardener.cloud/bastion"]}
        self.seed.change(HOSTS, "alice", CONTROL_PLANE, {"metadata": heard, "status": done})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        world = World(garden, seed)
        yield world
        await world.clusters.close()


async def test_a_host_is_ordered_and_its_address_is_written_into_the_bastion(world: World) -> None:
    world.garden.put(BASTIONS, BASTION)
    async with world.running():
        host = await world.host()
        assert host["spec"]["type"] == "local"
        assert host["spec"]["ingress"] == BASTION["spec"]["ingress"]  # type: ignore[index]
        assert "ssh-ed25519 AAAA alice" in base64.b64decode(host["spec"]["userData"]).decode()
        assert host["metadata"]["labels"] == {UID: "u-1"}
        assert host["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
        await world.condition("Progressing", "Reconciling")
        world.serve()
        await world.condition("True", "SuccessfullyReconciled")
        bastion = await world.bastion(lambda obj: obj["status"].get("ingress"))
    assert bastion["status"]["ingress"] == {"ip": "198.51.100.7"}
    assert bastion["status"]["observedGeneration"] == bastion["metadata"]["generation"]
    assert bastion["metadata"]["finalizers"] == ["gardener"]


async def test_the_gardenlet_after_a_killed_one_repeats_no_order_and_no_event(world: World) -> None:
    world.garden.put(BASTIONS, BASTION)
    async with world.running():
        await world.host()
        world.serve()
        await world.condition("True", "SuccessfullyReconciled")
    writes, looks = world.writes(), world.seed.count("GET", HOST)
    async with world.running():
        await until(lambda: world.seed.count("GET", HOST) > looks)
        world.garden.change(BASTIONS, "alice", NAMESPACE, {"metadata": {"labels": {"seen": "true"}}})
        await until(lambda: world.seed.count("GET", HOST) > looks + 1)
    assert world.writes() == writes


async def test_changed_sources_are_ordered_with_the_original_key(world: World) -> None:
    world.garden.put(BASTIONS, BASTION)
    async with world.running():
        before = await world.host()
        world.serve()
        await world.condition("True", "SuccessfullyReconciled")
        other = [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
        world.garden.change(BASTIONS, "alice", NAMESPACE, {"spec": {"ingress": other}})
        after = await world.host(lambda obj: obj["spec"]["ingress"] == other)
        await world.condition("Progressing", "Reconciling")
    assert after["spec"]["userData"] == before["spec"]["userData"]
    assert after["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"


async def test_reports_of_the_cloud_are_written_into_the_condition(world: World) -> None:
    world.garden.put(BASTIONS, BASTION)
    async with world.running():
        await world.host()
        error = {"description": "no address left", "codes": ["ERR_INFRA_QUOTA_EXCEEDED"]}
        world.serve(lastError=error, lastOperation={**SERVED["lastOperation"], "state": "Error"})  # type: ignore[dict-item]
        assert "no address left" in await world.condition("False", "FailedReconciling")


@pytest.mark.parametrize("forced", [False, True])
async def test_a_bastion_is_deleted_after_its_host(world: World, forced: bool) -> None:
    world.garden.put(BASTIONS, BASTION)
    async with world.running():
        await world.host()
        world.serve()
        await world.condition("True", "SuccessfullyReconciled")
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {FORCE: "true"} if forced else {}}
        world.garden.change(BASTIONS, "alice", NAMESPACE, {"metadata": going})
        host = await world.host(lambda obj: "deletionTimestamp" in obj["metadata"])
        await world.condition("False", "DeletionInProgress")
        assert world.garden.find(BASTIONS, "alice", NAMESPACE), "its host is still there"
        world.seed.change(HOSTS, "alice", CONTROL_PLANE, {"metadata": {"finalizers": None}})
        await world.bastion(lambda obj: obj is None)
    assert (host["metadata"]["annotations"].get(FORCE) == "true") is forced
    assert host["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"] == "true"


async def test_the_host_of_an_earlier_bastion_is_deleted_first(world: World) -> None:
    old = {"metadata": {"name": "alice", "namespace": CONTROL_PLANE, "labels": {UID: "u-0"}}, "spec": {"ingress": []}}
    world.seed.put(HOSTS, {**old, "apiVersion": resources.BASTION.api_version, "kind": "Bastion"})
    world.garden.put(BASTIONS, BASTION)
    async with world.running():
        await world.host(lambda obj: obj is None)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["gardener"]}},
        {"spec": {"provider": {"workersSettings": {"sshAccess": {"enabled": False}}}}},
        {"status": {"seedName": "seed-2"}},
    ],
    ids=["it is being deleted", "SSH access is disabled", "not here yet"],
)
async def test_no_host_is_created_for_a_shoot_without_ssh_access(world: World, change: dict[str, Any]) -> None:
    world.garden.change(SHOOTS, "b", NAMESPACE, change)
    world.garden.put(BASTIONS, BASTION)
    asked = SHOOTS.replace("shoots", f"namespaces/{NAMESPACE}/shoots/b")
    async with world.running():
        await until(lambda: world.garden.count("GET", asked))
    assert not [path for method, path in world.seed.requests if method != "GET"]
