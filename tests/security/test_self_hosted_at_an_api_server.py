"""Tokens, workers and the controllers of a self-hosted Shoot, at a real API server with its authorizers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from activities.components import self_hosted_controller
from activities.components.operating_system_config import rbac
from activities.self_hosted import control_plane
from api.access import bootstrap_token, machine_bootstrap_group
from api.resources import (
    CERTIFICATE_SIGNING_REQUEST,
    DNS_RECORD,
    LEASE,
    NODE,
    POD,
    SECRET,
    SELF_HOSTED_SHOOT_EXPOSURE,
)
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from tests import api_servers
from tests.gardens import ApiServer
from tests.node_agents import lease, refused
from tests.security.signing import KUBELET_SIGNER, cn, manifest, o, pem
from tests.unit.kube.waiting import until
from tests.unit.self_hosted.test_join import Etcd
from workers.cli.shoot_join import _group_of, _keys
from workers.lib.leader import LeaderElectionConfig, run_as_leader
from workers.resource_manager.csr_approver import CSRApprover
from workers.self_hosted.controller import ControlPlaneNodes

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

WORKER = "system:node:worker-1"
TOKENS = {"worker": "aaaaaa.0123456789abcdef", "control-plane": "bbbbbb.0123456789abcdef"}
EXPIRED, WRONG = "cccccc.0123456789abcdef", "aaaaaa.0123456789abcdee"
MINE = {"nodeName": "worker-1", "addresses": [{"type": "InternalIP", "address": "198.18.8.9"}]}
EXPOSURE = {
    "apiVersion": SELF_HOSTED_SHOOT_EXPOSURE.api_version,
    "kind": SELF_HOSTED_SHOOT_EXPOSURE.kind,
    "metadata": {"name": "alone", "namespace": "kube-system"},
    "spec": {"type": "local", "port": 443, "endpoints": [MINE]},
}

RECORD = {
    "apiVersion": DNS_RECORD.api_version,
    "kind": DNS_RECORD.kind,
    "metadata": {"name": "alone-external", "namespace": "kube-system"},
    "spec": {
        "type": "local",
        "secretRef": {"name": control_plane.DNS_SECRET, "namespace": "kube-system"},
        "name": "api.alone.example.org",
        "recordType": "A",
        "values": ["198.18.8.9"],
    },
}


def _secret(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "kube-system"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(
        tmp_path_factory.mktemp("shoot"),
        {WORKER: "system:nodes", self_hosted_controller.USER: ""},
        flags=("--enable-bootstrap-token-auth",),
        authorization=("--authorization-mode", "Node,RBAC"),
    )
    with made.running():
        asyncio.run(_prepare(made))
        yield made


async def _prepare(server: ApiServer) -> None:
    later, earlier = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(minutes=1)
    groups = {
        "worker": machine_bootstrap_group("worker-1"),
        "control-plane": f"{machine_bootstrap_group('cp-2')},{_group_of('bbbbbb')}",
    }
    of_tokens = [
        bootstrap_token(name, TOKENS[name][:6], TOKENS[name][7:], later, group) for name, group in groups.items()
    ]
    await server.prepare_seed(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}},
        *rbac(),
        *self_hosted_controller.rights(control_plane.CREDENTIALS_SECRET, control_plane.DNS_SECRET),
        *of_tokens,
        bootstrap_token("expired", EXPIRED[:6], EXPIRED[7:], earlier, groups["worker"]),
        *_keys("join-bbbbbb", "bbbbbb", "sealed"),
        *_keys("join-dddddd", "dddddd", "sealed for another machine"),
        _secret(control_plane.CREDENTIALS_SECRET),
        _secret(control_plane.DNS_SECRET),
        _secret("of-a-user"),
        EXPOSURE,
        RECORD,
    )


@pytest.fixture
async def controller(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with server.client(self_hosted_controller.USER) as client:
        yield client


async def test_a_leading_controller_approves_a_joining_kubelet_and_lets_a_deleted_node_leave(
    server: ApiServer, controller: KubeClient
) -> None:
    """Its rights are enough for all that it does."""
    for number in (1, 2):
        async with server.client() as admin:
            await admin.apply(control_plane.marked(f"cp-{number}"), manager="test")
            addresses = [{"type": "InternalIP", "address": f"198.18.8.{number}"}]
            status = {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]}
            await admin.patch(NODE, f"cp-{number}", None, {"status": status}, subresource="status")
    caches, etcd = Caches(controller), Etcd("cp-1", "cp-2")
    approver = CSRApprover(
        source=controller, target=controller, target_caches=caches, machine_namespace=None, tokens_of_nodes=True
    )
    nodes = ControlPlaneNodes(controller, caches, etcd, "alone", "alone-external")  # type: ignore[arg-type]
    election = LeaderElectionConfig(leader_elect=True, resource_namespace="kube-system")
    work = run_as_leader(controller, election, self_hosted_controller.NAME, approver.run(), nodes.run())
    running = asyncio.create_task(work)
    try:
        async with api_servers.client(server.port, TOKENS["worker"]) as kubelet, server.client() as admin:
            request = manifest("joins", pem(o("system:nodes"), cn(WORKER)), user="", groups=[], signer=KUBELET_SIGNER)
            request["spec"] = {key: request["spec"][key] for key in ("request", "signerName", "usages")}
            await kubelet.create(request)
            await until(lambda: _approved(admin, "joins"), 30)
            await until(lambda: _endpoints(admin, ["cp-1", "cp-2"]), 30)
            await until(lambda: _values(admin, ["198.18.8.1", "198.18.8.2"]), 30)
            await admin.delete(NODE, "cp-2")
            await until(lambda: _gone(admin, "cp-2"), 30)
            assert etcd.names == ["cp-1"]
            await until(lambda: _endpoints(admin, ["cp-1"]), 30)
            await until(lambda: _values(admin, ["198.18.8.1"]), 30)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()


async def _approved(admin: KubeClient, name: str) -> bool:
    conditions = (await admin.get(CERTIFICATE_SIGNING_REQUEST, name)).get("status", {}).get("conditions") or ()
    return [each["type"] for each in conditions] == ["Approved"]


async def _endpoints(admin: KubeClient, names: list[str]) -> bool:
    found = await admin.get(SELF_HOSTED_SHOOT_EXPOSURE, "alone", "kube-system")
    return [each["nodeName"] for each in found["spec"]["endpoints"]] == names


async def _values(admin: KubeClient, values: list[str]) -> bool:
    found = await admin.get(DNS_RECORD, "alone-external", "kube-system")
    return bool(found["spec"]["values"] == values)


async def _gone(admin: KubeClient, name: str) -> bool:
    return await admin.find(NODE, name) is None


Attack = Callable[[KubeClient], Awaitable[object]]
CREDENTIALS = control_plane.CREDENTIALS_SECRET
TAKEN = {"spec": {"endpoints": [MINE]}}
OF_ALL: dict[str, Attack] = {
    "reads the credentials for the cloud": lambda client: client.get(SECRET, CREDENTIALS, "kube-system"),
    "reads the keys for a machine": lambda client: client.get(SECRET, "join-dddddd", "kube-system"),
    "reads the token of another machine": lambda client: client.get(SECRET, "bootstrap-token-bbbbbb", "kube-system"),
    "lists all Secrets": lambda client: client.list(SECRET, "kube-system"),
    "deletes a node of the control plane": lambda client: client.delete(NODE, "cp-1"),
    "takes the connections of clients": lambda client: client.patch(
        SELF_HOSTED_SHOOT_EXPOSURE, "alone", "kube-system", TAKEN
    ),
    "takes the name of the API server": lambda client: client.patch(
        DNS_RECORD, "alone-external", "kube-system", {"spec": {"values": ["198.18.8.9"]}}
    ),
    "reads the key of the zone": lambda client: client.get(SECRET, control_plane.DNS_SECRET, "kube-system"),
    "stops the controllers": lambda client: client.apply_blindly(lease(self_hosted_controller.NAME), manager="attack"),
    "makes a token": lambda client: client.create(
        bootstrap_token("mine", "eeeeee", "0123456789abcdef", datetime.now(UTC), machine_bootstrap_group("cp-9"))
    ),
}


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
@pytest.mark.parametrize("attack", OF_ALL.values(), ids=OF_ALL)
@pytest.mark.parametrize("user", [*TOKENS.values(), WORKER], ids=["token", "token-with-keys", "kubelet"])
async def test_a_machine_of_a_self_hosted_shoot_is_refused_when_it(
    server: ApiServer, user: str, attack: Attack
) -> None:
    async with api_servers.client(server.port, user) as client:
        assert await refused(attack(client))


async def test_the_token_of_a_machine_of_the_control_plane_reads_its_own_keys(server: ApiServer) -> None:
    async with api_servers.client(server.port, TOKENS["control-plane"]) as client:
        assert await client.get(SECRET, "join-bbbbbb", "kube-system")


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
@pytest.mark.parametrize("token", [EXPIRED, WRONG], ids=["expired", "guessed"])
async def test_a_token_that_is_not_valid_asks_for_the_certificate_of_a_machine(server: ApiServer, token: str) -> None:
    request = manifest("forged", pem(o("system:nodes"), cn(WORKER)), user="", groups=[], signer=KUBELET_SIGNER)
    async with api_servers.client(server.port, token) as client:
        with pytest.raises(ApiError) as answered:
            await client.create(request)
    assert answered.value.status == 401


BROKEN: dict[str, Attack] = {
    "reads a Secret of a user": lambda client: client.get(SECRET, "of-a-user", "kube-system"),
    "lists all Secrets": lambda client: client.list(SECRET, "kube-system"),
    "reads the credentials of another namespace": lambda client: client.get(SECRET, CREDENTIALS, "default"),
    "makes a pod": lambda client: client.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", "namespace": "kube-system"}, "spec": {}}
    ),
    "lists the pods of users": lambda client: client.list(POD),
    "changes a pod of the control plane": lambda client: client.patch(POD, "etcd", "kube-system", {"spec": {}}),
    "deletes a node": lambda client: client.delete(NODE, "cp-1"),
    "takes the Lease of the scheduler": lambda client: client.patch(
        LEASE, "kube-scheduler", "kube-system", {"spec": {"holderIdentity": "mine"}}
    ),
}


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
@pytest.mark.parametrize("attack", BROKEN.values(), ids=BROKEN)
async def test_a_broken_controller_of_a_self_hosted_shoot_is_refused_when_it(
    controller: KubeClient, attack: Attack
) -> None:
    try:
        assert await refused(attack(controller))
    except NotFound:
        pytest.fail("the controller may read what does not exist")
