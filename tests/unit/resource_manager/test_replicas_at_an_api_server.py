"""Two processes of a Shoot's resource manager at a real API server, with their configuration and rights in a seed."""

import asyncio
import base64
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
from activities.components import resource_manager_webhooks as registration
from activities.components.base import to_json
from activities.secrets.crypto import KeyPair
from api.resources import CONFIG_MAP, LEASE, MANAGED_RESOURCE, MUTATING_WEBHOOK_CONFIGURATION, POD
from api.times import micro_timestamp
from kube.client import KubeClient, Object
from tests.api_servers import free_port, process
from tests.gardens import ADMIN, ApiServer, new_authority, show_certificate
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
async def replica(
    server: ApiServer, directory: Path, webhooks: Object | None = None, webhook_port: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with the configuration of its pod, but kubeconfigs of this test, once it is ready.

    ``webhooks``: those to serve, with the certificate in ``directory``.
    """
    port = free_port()
    for user, name in ((SOURCE, "source"), (TARGET, "target")):
        (directory / name).write_text(json.dumps(server.kubeconfig(user)))
    [file] = [each for each in _MANIFESTS if each["kind"] == "ConfigMap"]
    config = json.loads(file["data"]["config.yaml"])
    config["sourceClientConnection"]["kubeconfig"] = "source"
    config["targetClientConnection"]["kubeconfig"] = "target"
    config["server"] = {"health": {"address": "127.0.0.1", "port": port}}
    config["webhooks"] = webhooks or {}
    if webhooks:
        address = {"bindAddress": "127.0.0.1", "port": webhook_port}
        config["server"]["webhooks"] = {**address, "tls": {"serverCertDir": "."}}
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


@pytest.mark.row("configuration", "leaderElection: a process without Lease writes nothing, but answers webhooks")
async def test_a_process_that_lost_its_lease_serves_webhooks_alone_until_it_leads_again(
    admin: KubeClient, server: ApiServer, tmp_path: Path
) -> None:
    """A leader may lose its Lease while its API server is slow. New pods must not wait for its restart."""
    manager, port, authority = Manager(admin, NAMESPACE), free_port(), new_authority("ca")
    show_certificate(tmp_path, authority)
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": False}
    await admin.apply({**account, "metadata": {"name": "silent", "namespace": "kube-system"}}, manager="test")
    wanted: Object = {
        "projectedTokenMount": {"enabled": True},
        "nodeAgentAuthorizer": {"enabled": True, "machineNamespace": NAMESPACE},
    }
    async with replica(server, tmp_path, wanted, port) as process:
        await _register(admin, port, authority)
        await until(lambda: _mounts_token(admin), 30)
        await manager.write(config_map("leads"), name="leads")
        await manager.runs("leads")

        await _hold(admin, "another process", 3600)
        log = tmp_path / "gardener.log"
        await until(lambda: "stopped leading" in log.read_text(), 30)
        versions = await _versions(admin, "leads")
        await manager.write(config_map("meanwhile"), name="meanwhile")
        await admin.delete(CONFIG_MAP, "leads", NAMESPACE)
        for _ in range(30):
            assert await _mounts_token(admin)
            assert await _denies_strangers_of_the_machine(port)
        assert (await manager.get("meanwhile")).get("status") is None
        assert await admin.find(CONFIG_MAP, "meanwhile", NAMESPACE) is None
        assert await admin.find(CONFIG_MAP, "leads", NAMESPACE) is None, "a deleted object is applied by the leader"
        assert await _versions(admin, "leads") == versions
        assert await _holder(admin) == "another process"

        await _hold(admin, "", 1)
        await manager.runs("meanwhile")
        assert await admin.find(CONFIG_MAP, "meanwhile", NAMESPACE)
        await manager.until(bool, CONFIG_MAP, "leads")
        assert process.returncode is None
        assert int((await _holder(admin)).split("_")[-2]) == process.pid
        assert await _mounts_token(admin)
    await admin.delete(MUTATING_WEBHOOK_CONFIGURATION, registration.OF_SHOOT)


async def _register(admin: KubeClient, port: int, authority: KeyPair) -> None:
    bundle = base64.b64encode(authority.certificate).decode()

    def client(path: str) -> Object:
        return {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}

    names = (registration.PROJECTED_TOKEN_MOUNT,)
    await admin.apply(registration.configuration(registration.Registered(names, client, shoot=True)), manager="test")


async def _mounts_token(admin: KubeClient) -> bool:
    """Whether the webhook changes a new pod of kube-system, as a dry run."""
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", "namespace": "kube-system"}}
    pod["spec"] = {"serviceAccountName": "silent", "containers": [{"name": "one", "image": "i"}]}
    made = await admin.request("POST", POD.path("kube-system"), query={"dryRun": "All"}, body=pod)
    return any(each["name"] == "kube-api-access-gardener" for each in made["spec"].get("volumes") or ())


async def _denies_strangers_of_the_machine(port: int) -> bool:
    """Whether the authorizer answers, here about a node agent without Machine."""
    spec = {
        "user": "gardener.cloud:node-agent:machine:gone",
        "groups": ["gardener.cloud:node-agents"],
        "resourceAttributes": {"verb": "get", "resource": "nodes", "name": "other"},
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    url = f"https://127.0.0.1:{port}{registration.NODE_AGENT_AUTHORIZER_PATH}"
    async with aiohttp.ClientSession() as session, session.post(url, json=review, ssl=False) as answer:
        status: Object = (await answer.json())["status"]
        return status["denied"] is True


async def _hold(admin: KubeClient, holder: str, seconds: int) -> None:
    """Let a process hold the Lease, whichever process holds it now. An empty holder releases the Lease."""
    held = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": micro_timestamp()}
    await admin.patch(LEASE, "gardener-resource-manager", NAMESPACE, {"spec": held})


async def _holder(admin: KubeClient) -> str:
    lease = await admin.get(LEASE, "gardener-resource-manager", NAMESPACE)
    return str(lease["spec"]["holderIdentity"])


async def _versions(admin: KubeClient, name: str) -> str:
    found = await admin.get(MANAGED_RESOURCE, name, NAMESPACE)
    return str(found["metadata"]["resourceVersion"])


async def _is(found: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await found() == wanted


def config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}
