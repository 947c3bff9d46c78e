"""Pods that crashed while a component was away, at a real API server, which evaluates the selectors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.clusters import Clusters
from api import resources
from kube.client import KubeClient
from tests.gardens import ApiServer
from tests.unit.api.shoots import SEED
from tests.unit.care.test_watchdog import DISABLED
from tests.unit.kube.waiting import until
from workers.gardenlet.care import Weeder, watchdog, weeder
from workers.gardenlet.config import WatchdogConfig

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

NAMESPACE = "shoot--a--b"
API_SERVER = {"app": "kubernetes", "role": "apiserver", "gardener.cloud/role": "controlplane"}
CONTROLLER = {"app": "kubernetes", "role": "controller-manager", "gardener.cloud/role": "controlplane"}
VPN = {"app": "vpn-seed-server", "gardener.cloud/role": "controlplane"}
ETCD = {"app": "etcd-statefulset", "role": "main", "gardener.cloud/role": "controlplane"}
CRASHED = {"waiting": {"reason": "CrashLoopBackOff"}}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(Path(tmp_path_factory.mktemp("seed")), {})
    with made.running():
        namespaces = ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},)
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        metadata = {"name": "default", "namespace": NAMESPACE}
        asyncio.run(made.prepare(*namespaces, {**account, "metadata": metadata}))
        yield made


class World:
    """A seed that is a garden, too."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.clusters = Clusters(client, client, "seed-1")

    async def seed(self, **settings: Any) -> None:
        spec = {**SEED["spec"], "settings": settings}
        await self.client.apply({**SEED, "spec": spec}, manager="test")

    async def pod(self, name: str, labels: dict[str, str], state: dict[str, Any]) -> None:
        container = {"name": "main", "image": "a"}
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
        spec = {"containers": [container], "automountServiceAccountToken": False}
        await self.client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, manager="test")
        told = {"name": "main", "image": "a", "imageID": "", "restartCount": 1, "ready": False, "state": state}
        status = {"status": {"phase": "Running", "containerStatuses": [told]}}
        await self.client.patch(resources.POD, name, NAMESPACE, status, subresource="status")

    async def serves(self, service: str, ready: bool) -> None:
        labels = {"kubernetes.io/service-name": service}
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service, "namespace": NAMESPACE, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": ready}}],
        }
        await self.client.apply(slice_, manager="test")

    async def pods(self) -> set[str]:
        return {each["metadata"]["name"] for each in await self.client.list(resources.POD, NAMESPACE)}

    async def returns(self, service: str) -> None:
        """The pods of a Service become ready, in a later second than pods were created: times of pods have seconds."""
        await self.serves(service, ready=False)
        created = datetime.now(UTC).replace(microsecond=0)
        await until(lambda: datetime.now(UTC).replace(microsecond=0) > created)
        await self.serves(service, ready=True)

    @contextlib.asynccontextmanager
    async def weeding(self) -> AsyncIterator[Weeder]:
        made = Weeder(self.clusters, WatchdogConfig())
        task = asyncio.create_task(made.run())
        await made._slices.synced()
        await made._seeds.synced()
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    async with server.client() as client:
        made = World(client)
        await made.seed()
        for name in ("etcd-main-client", "kube-apiserver"):
            await made.serves(name, ready=False)
        yield made
        for name in await made.pods():
            await client.delete(resources.POD, name, NAMESPACE, grace_seconds=0)
        await made.clusters.close()


async def test_pods_that_need_the_api_server_are_restarted_once_it_is_back(world: World) -> None:
    for name, labels, state in (
        ("controller", CONTROLLER, CRASHED),
        ("vpn", VPN, CRASHED),
        ("running", VPN, RUNNING),
        ("api-server", API_SERVER, CRASHED),
        ("etcd", ETCD, CRASHED),
        ("foreign", {"app": "other"}, CRASHED),
    ):
        await world.pod(name, labels, state)

    async with world.weeding():
        await world.returns("kube-apiserver")
        await until(lambda: _are(world, {"running", "api-server", "etcd", "foreign"}))


async def test_the_api_server_is_restarted_once_its_etcd_is_back(world: World) -> None:
    await world.pod("controller", CONTROLLER, CRASHED)
    await world.pod("api-server", API_SERVER, CRASHED)

    async with world.weeding():
        await world.returns("etcd-main-client")
        await until(lambda: _are(world, {"controller"}))


async def test_a_pod_that_crashes_later_is_restarted_and_a_younger_one_is_not(world: World) -> None:
    """A pod that is younger than the return of its dependency crashes for a reason of its own, again and again."""
    await world.pod("late", CONTROLLER, RUNNING)

    async with world.weeding() as running:
        await world.returns("kube-apiserver")
        await until(lambda: running._weeding)
        await until(_seconds_pass())
        await world.pod("young", VPN, CRASHED)
        await world.pod("late", CONTROLLER, CRASHED)
        await until(lambda: _are(world, {"young"}))


async def test_a_weeder_that_is_switched_off_deletes_no_pod(world: World) -> None:
    await world.seed(dependencyWatchdog=DISABLED)
    await world.pod("vpn", VPN, CRASHED)

    async with world.weeding() as running:
        await world.returns("kube-apiserver")
        await world.serves("etcd-main-client", ready=True)
        await until(lambda: _was_read(running, "etcd-main-client"))
        assert running._weeding == set()
    assert await world.pods() == {"vpn"}


def _was_read(running: Weeder, service: str) -> bool:
    """Whether the weeder has read that a Service is back, and everything before it."""
    live = running._slices.get(service, NAMESPACE)
    return live is not None and weeder.has_ready_endpoint(live) and running._returned.empty()


def _seconds_pass() -> Any:
    started = datetime.now(UTC).replace(microsecond=0)
    return lambda: (datetime.now(UTC).replace(microsecond=0) - started).total_seconds() >= 1


async def _are(world: World, names: set[str]) -> bool:
    return await world.pods() == names


@pytest.mark.parametrize("part", [watchdog.PROBER, watchdog.WEEDER])
def test_both_parts_are_on_by_default(part: str) -> None:
    assert watchdog.is_switched_on({"spec": {}}, part)
    assert watchdog.is_switched_on(None, part)
    assert not watchdog.is_switched_on({"spec": {"settings": {"dependencyWatchdog": DISABLED}}}, part)
