"""What is done with extension objects of any kind, against an API server in memory."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from activities.kube.cache import Caches
from activities.kube.clusters import ClusterView
from activities.seed import extension_kinds as kinds
from activities.seed.extension_kinds import Kind
from activities.seed.extension_objects import ExtensionObject
from activities.seed.extensions import ExtensionActivities, Extensions
from api.operations import OperationType, ShootRef, ShootTask
from tests.unit.kube.api_server import ApiServer
from workers import registry

NAMESPACE = "shoot--local--demo"
SHOOT: dict[str, Any] = {
    "metadata": {"name": "demo", "namespace": "garden-local"},
    "spec": {"kubernetes": {"version": "1.37.1"}, "provider": {"type": "local", "workers": []}},
}
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
    trigger="2026-11-21T10:00:00.000000Z",
)
NETWORKS = "/apis/extensions.gardener.cloud/v1alpha1/networks"
DNS_RECORDS = "/apis/extensions.gardener.cloud/v1alpha1/dnsrecords"


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def clusters(seed: ApiServer) -> AsyncIterator[Any]:
    async with seed.client() as client:
        caches = Caches(client)

        async def cluster(_: str) -> ClusterView:
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": SHOOT}})

        yield SimpleNamespace(seed=client, seed_caches=caches, cluster=cluster)
        await caches.close()


def wanted(kind: Kind, name: str) -> ExtensionObject:
    return ExtensionObject(kind.resource, name, kind.place(TASK), {"type": "local"})


def done(seed: ApiServer, path: str, name: str) -> None:
    """What a controller writes when it is done."""
    status = {
        "observedGeneration": 1,
        "lastOperation": {"type": "Create", "state": "Succeeded", "lastUpdateTime": "2026-11-21T10:00:01Z"},
    }
    change = {"metadata": {"annotations": {"gardener.cloud/operation": None}}, "status": status}
    seed.change(path, name, NAMESPACE, change)


async def test_what_is_deployed_is_waited_for_and_deleted(clusters: Any, seed: ApiServer) -> None:
    extensions = Extensions(clusters)
    await extensions.deploy(kinds.NETWORK, TASK, [wanted(kinds.NETWORK, "demo")])
    waiting = asyncio.create_task(extensions.ready(kinds.NETWORK, TASK))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    done(seed, NETWORKS, "demo")
    (live,) = await asyncio.wait_for(waiting, 10)
    assert live["metadata"]["name"] == "demo"
    await extensions.delete(kinds.NETWORK, TASK)
    await asyncio.wait_for(extensions.wait_deleted(kinds.NETWORK, TASK), 10)
    assert seed.find(NETWORKS, "demo", NAMESPACE) is None


async def test_a_second_deployment_of_the_same_operation_writes_nothing(clusters: Any, seed: ApiServer) -> None:
    extensions = Extensions(clusters)
    await extensions.deploy(kinds.NETWORK, TASK, [wanted(kinds.NETWORK, "demo")])
    before = seed.find(NETWORKS, "demo", NAMESPACE)
    await extensions.deploy(kinds.NETWORK, TASK, [wanted(kinds.NETWORK, "demo")])
    assert seed.find(NETWORKS, "demo", NAMESPACE) == before


async def test_a_name_in_the_dns_is_deleted_and_waited_for_in_one_task(clusters: Any, seed: ApiServer) -> None:
    """Nothing of the other name is touched."""
    extensions = Extensions(clusters)
    for role in ("internal", "external"):
        seed.put(DNS_RECORDS, {"metadata": {"name": f"demo-{role}", "namespace": NAMESPACE}, "spec": {}})
    delete = extensions.operations(kinds.EXTERNAL_DNS)["delete_external_dns"]
    await asyncio.wait_for(delete(kinds.EXTERNAL_DNS, TASK), 10)
    assert [name for path, _, name in seed.objects if path == DNS_RECORDS] == ["demo-internal"]


async def test_deleting_what_is_not_there_is_done_at_once(clusters: Any) -> None:
    extensions = Extensions(clusters)
    for kind in kinds.KINDS:
        await extensions.delete(kind, TASK)
        await asyncio.wait_for(extensions.wait_deleted(kind, TASK), 10)


def test_every_kind_has_its_tasks(clusters: Any) -> None:
    offered = {registry.activity_name(each) for each in registry._activities_of(ExtensionActivities(clusters))}
    for kind in kinds.KINDS:
        assert offered.issuperset(Extensions(clusters).operations(kind))
