"""Two processes of a Shoot's resource manager at a real API server, with their configuration and rights in a seed."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from activities.components import resource_manager
from activities.components.base import to_json
from api.resources import CONFIG_MAP, LEASE
from kube.client import KubeClient, Object
from tests.api_servers import free_port, process
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.at_api_server import Manager

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(240, func_only=True),
]
NAMESPACE = "shoot--local--two"
SOURCE = f"system:serviceaccount:{NAMESPACE}:gardener-resource-manager"
TARGET = "system:serviceaccount:kube-system:gardener-resource-manager"
_RIGHTS = ("ServiceAccount", "Role", "RoleBinding")
_MANIFESTS = resource_manager.objects(resource_manager.ResourceManager(NAMESPACE, "generic", replicas=2))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {SOURCE: "", TARGET: "system:masters"})
    with made.running():
        yield made


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[KubeClient]:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await server.prepare_seed(namespace, *(each for each in _MANIFESTS if each["kind"] in _RIGHTS))
    async with server.client(ADMIN) as client:
        yield client


@contextlib.asynccontextmanager
async def replica(server: ApiServer, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with the configuration of its pod, but kubeconfigs of this test, once it is ready."""
    port = free_port()
    for user, name in ((SOURCE, "source"), (TARGET, "target")):
        (directory / name).write_text(json.dumps(server.kubeconfig(user)))
    [file] = [each for each in _MANIFESTS if each["kind"] == "ConfigMap"]
    config = json.loads(file["data"]["config.yaml"])
    config["sourceClientConnection"]["kubeconfig"] = "source"
    config["targetClientConnection"]["kubeconfig"] = "target"
    config["server"] = {"health": {"address": "127.0.0.1", "port": port}}
    config["webhooks"] = {}  # they need a certificate, and no replica needs to lead for them
    (directory / "config.yaml").write_text(to_json(config))
    gardener = Path(sys.executable).with_name("gardener")
    async with (
        process(directory, gardener, "worker", "resource-manager", "--config", "config.yaml") as started,
        aiohttp.ClientSession() as session,
    ):

        async def ready() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    return answer.status == 200
            await asyncio.sleep(0.1)  # the clock of a poll
            return False

        await until(ready, 60)
        yield started


@pytest.mark.row("configuration", "leaderElection: one replica works; another takes over when it is killed")
async def test_another_replica_takes_over_when_the_leader_is_killed(
    admin: KubeClient, server: ApiServer, tmp_path: Path
) -> None:
    async def leader() -> int:
        """Id of the process that holds the Lease; 0 if none does."""
        lease = await admin.find(LEASE, "gardener-resource-manager", NAMESPACE) or {"spec": {}}
        held = str(lease["spec"].get("holderIdentity") or "")
        return int(held.split("_")[-2]) if held else 0

    manager = Manager(admin, NAMESPACE)
    for each in ("one", "two"):
        (tmp_path / each).mkdir()
    async with replica(server, tmp_path / "one") as one:
        await until(lambda: _is(leader, one.pid), 60)
        async with replica(server, tmp_path / "two") as two:
            await manager.write(config_map("before"))
            await manager.runs()
            assert await leader() == one.pid

            os.kill(one.pid, signal.SIGKILL)
            await manager.write(config_map("after"), name="two")
            await until(lambda: _is(leader, two.pid), 60)
            await manager.runs("two")
            assert await admin.find(CONFIG_MAP, "after", NAMESPACE)

            os.kill(two.pid, signal.SIGTERM)
            assert await two.wait() == 0
            assert await leader() == 0, "a process that stops releases its Lease"


async def _is(found: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await found() == wanted


def config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}
