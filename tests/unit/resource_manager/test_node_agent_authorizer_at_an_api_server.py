"""Rights of node agents, as a real API server decides about them that asks the node-agent authorizer."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.components import node_agent_policy
from api.resources import (
    CERTIFICATE_SIGNING_REQUEST,
    LEASE,
    MACHINE,
    NODE,
    POD,
    SECRET,
)
from kube.cache import Cache
from kube.client import KubeClient
from kube.errors import ApiError
from tests.gardens import new_authority
from tests.node_agents import (
    AGENT_USER,
    AGENTS,
    FORMER_RULES,
    IMPOSTOR,
    NAMESPACE,
    POOLS,
    STRANGER,
    Shoot,
    asks,
    decision,
    granted,
    machine,
    refused,
    requested,
)
from tests.unit.kube.waiting import until
from tests.unit.node_agent.fake_system import FakeSystem
from tests.unit.resource_manager.test_webhooks_at_an_api_server import is_shown_by
from workers.lib import serving
from workers.node_agent.agent import NodeAgent
from workers.node_agent.config import NodeAgentConfig

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

OWN, OTHER = "machine-a", "machine-b"
READ = ("get", "list", "watch")
CSRS, LEASES = "certificatesigningrequests.certificates.k8s.io", "leases.coordination.k8s.io"


@pytest.fixture(scope="module")
def shoot(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[Shoot]:
    with Shoot(tmp_path_factory.mktemp("shoot")).running() as running:
        yield running


@pytest.fixture
async def admin(shoot: Shoot) -> AsyncIterator[KubeClient]:
    async with shoot.server.client() as client:
        yield client


@pytest.fixture
async def authorizer(shoot: Shoot, admin: KubeClient) -> AsyncIterator[None]:
    async with shoot.resource_manager(admin):
        await asks(shoot)
        yield


async def allowed(admin: KubeClient, verbs: tuple[str, ...], resource: str, name: str = "", **more: Any) -> list[str]:
    """The verbs that are allowed. The others are denied, so that RBAC is not asked."""
    found = {verb: await decision(admin, verb, resource, name, **more) for verb in verbs}
    for verb, status in found.items():
        assert bool(status.get("denied")) != status["allowed"], f"{verb}: {status}"
    return [verb for verb, status in found.items() if status["allowed"]]


EVERY = (*READ, "create", "update", "patch", "delete", "deletecollection")


@pytest.mark.row("node-agent access", "nodes, nodes/status: get, patch, update its own; list and watch its own by name")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_has_its_own_node(admin: KubeClient) -> None:
    assert await allowed(admin, EVERY, "nodes", OWN) == [*READ, "update", "patch"]
    assert await allowed(admin, EVERY, "nodes", OWN, subresource="status") == ["get", "update", "patch"]
    assert await allowed(admin, EVERY, "nodes", OWN, subresource="proxy") == []
    assert await allowed(admin, EVERY, "nodes", OTHER) == []
    assert await allowed(admin, EVERY, "nodes") == []


@pytest.mark.row("node-agent access", "the Node is that of the Machine's label node, or else has the Machine's name")
@pytest.mark.usefixtures("authorizer")
async def test_the_machine_names_the_node(admin: KubeClient) -> None:
    await admin.apply(machine("machine-c", "pool-c", node="node-c"), manager="test")

    async def follows() -> bool:
        return bool(await allowed(admin, ("get",), "nodes", "node-c", machine="machine-c"))

    await until(follows, 10)
    assert await allowed(admin, ("get",), "nodes", "machine-c", machine="machine-c") == []
    await admin.delete(MACHINE, "machine-c", NAMESPACE)


@pytest.mark.row("node-agent access", "leases: get, list, watch, create, update, patch its own in kube-system")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_has_its_own_lease(admin: KubeClient) -> None:
    place = {"namespace": "kube-system"}
    everything = [*READ, "create", "update", "patch"]
    assert await allowed(admin, EVERY, LEASES, f"gardener-node-agent-{OWN}", **place) == everything
    assert await allowed(admin, EVERY, LEASES, f"gardener-node-agent-{OWN}", namespace="default") == []
    for name in (f"gardener-node-agent-{OTHER}", "kube-scheduler", ""):
        assert await allowed(admin, EVERY, LEASES, name, **place) == []


@pytest.mark.row("node-agent access", "secrets: get, list, watch its pool's Secret and gardener-valitail by name")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_reads_the_secret_of_its_pool(admin: KubeClient) -> None:
    place = {"namespace": "kube-system"}
    for name in (POOLS[OWN], "gardener-valitail"):
        assert await allowed(admin, EVERY, "secrets", name, **place) == list(READ)
    assert await allowed(admin, EVERY, "secrets", POOLS[OWN], namespace="default") == []
    for name in (POOLS[OTHER], "bootstrap-token-abcdef", ""):
        assert await allowed(admin, EVERY, "secrets", name, **place) == []


@pytest.mark.row("node-agent access", "secrets: a Machine that gets another Secret loses the former one")
@pytest.mark.usefixtures("authorizer")
async def test_a_machine_with_another_secret_loses_the_former_one(admin: KubeClient) -> None:
    place = {"namespace": "kube-system", "machine": "machine-c"}
    await admin.apply(machine("machine-c", "pool-c"), manager="test")
    await until(lambda: allowed(admin, ("get",), "secrets", "pool-c", **place), 10)

    await admin.apply(machine("machine-c", "pool-d"), manager="test")
    await until(lambda: allowed(admin, ("get",), "secrets", "pool-d", **place), 10)
    # The API server keeps the answer about "get" for 30 s.
    assert await allowed(admin, ("list", "watch"), "secrets", "pool-c", **place) == []
    await admin.delete(MACHINE, "machine-c", NAMESPACE)


@pytest.mark.row("node-agent access", "certificatesigningrequests: create; get, list, watch its own by name")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_waits_for_its_own_certificate(shoot: Shoot, admin: KubeClient) -> None:
    """The way in which node agents renew their certificates: create, get, then list and watch by the name."""
    await requested(admin, "of-another", f"{AGENT_USER}{OWN}")
    async with shoot.agent(OWN) as agent:
        await requested(agent, "own", f"{AGENT_USER}{OWN}")
        assert (await agent.get(CERTIFICATE_SIGNING_REQUEST, "own"))["spec"]["username"] == f"{AGENT_USER}{OWN}"
        async with Cache(agent, CERTIFICATE_SIGNING_REQUEST, fields="metadata.name=own") as cache:
            await cache.synced(10)
            await admin.patch(CERTIFICATE_SIGNING_REQUEST, "own", None, {"metadata": {"labels": {"seen": "true"}}})
            await until(lambda: "seen" in (cache.get("own") or {})["metadata"].get("labels", {}), 10)

    assert await allowed(admin, EVERY, CSRS, "own") == [*READ, "create"]
    for name in ("of-another", "none", ""):
        assert await allowed(admin, EVERY, CSRS, name) == ["create"]
    assert await allowed(admin, ("update", "patch"), CSRS, "own", subresource="approval") == []


@pytest.mark.row("node-agent access", "events: create, patch in all namespaces")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_writes_events(admin: KubeClient) -> None:
    for resource in ("events", "events.events.k8s.io"):
        assert await allowed(admin, EVERY, resource, namespace="default") == ["create", "patch"]


@pytest.mark.row("node-agent access", "pods: list, watch with spec.nodeName of its Node; get, delete on its Node")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_has_the_pods_of_its_node(shoot: Shoot, admin: KubeClient) -> None:
    place = {"namespace": "default"}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", **place}}
    await admin.apply(account, manager="test")
    for node in POOLS:
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{node}", **place}, "spec": spec}
        await admin.apply(pod, manager="test")

    assert await allowed(admin, EVERY, "pods", f"on-{OWN}", **place) == ["get", "delete"]
    assert await allowed(admin, EVERY, "pods", f"on-{OTHER}", **place) == []
    async with shoot.agent(OWN) as agent:
        assert await agent.list(POD, "default", fields=f"spec.nodeName={OWN}")
        for fields in (f"spec.nodeName={OTHER}", f"spec.nodeName!={OTHER}", ""):
            assert await refused(agent.list(POD, "default", fields=fields))


@pytest.mark.row("node-agent access", "a node agent does all its work with these rights and under its policy")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_does_its_work(shoot: Shoot, admin: KubeClient, tmp_path: Path) -> None:
    """It waits for Secret and Node by watches, and writes Node and Lease."""
    for each in node_agent_policy.objects():
        await admin.apply(each, manager="test")
    (tmp_path / "machine-name").write_text(OTHER)
    config = NodeAgentConfig(
        server=shoot.server.url,
        ca_file=Path("/ca.crt"),
        secret_name=POOLS[OTHER],
        kubernetes_version="1.37.1",
        state_directory=tmp_path,
    )
    text = json.dumps({"spec": {"files": [], "units": []}}).encode()
    data = {"data": {"osc.yaml": base64.b64encode(text).decode()}}
    await admin.patch(SECRET, POOLS[OTHER], "kube-system", data)

    async def reported() -> bool:
        annotations = (await admin.get(NODE, OTHER))["metadata"].get("annotations") or {}
        lease = await admin.find(LEASE, f"gardener-node-agent-{OTHER}", "kube-system")
        return annotations.get("checksum/cloud-config-data") == hashlib.sha256(text).hexdigest() and lease is not None

    async with shoot.agent(OTHER) as client:
        agent = NodeAgent(client, config, OTHER, FakeSystem(tmp_path / "root"), start_seconds=1, stable_seconds=0.05)
        tasks = [asyncio.create_task(each) for each in (agent.run(), agent.keep_lease())]
        try:
            await until(reported, 20)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.row("node-agent access", "authorizeWithSelectors false: no lists and watches of pods")
async def test_pods_are_not_listed_where_reviews_lack_selectors(shoot: Shoot, admin: KubeClient) -> None:
    async with shoot.resource_manager(admin, authorize_with_selectors=False), shoot.agent(OTHER) as agent:
        await asks(shoot)
        assert await refused(agent.list(POD, "default", fields=f"spec.nodeName={OTHER}"))


@pytest.mark.row("node-agent access", "the rights go with the Machine; all else is denied, whatever roles allow")
@pytest.mark.usefixtures("authorizer")
async def test_a_node_agent_without_machine_may_do_nothing(admin: KubeClient) -> None:
    for verb, resource in (("create", "events"), ("create", CSRS), ("list", "nodes")):
        assert await allowed(admin, (verb,), resource, machine="gone") == []
    assert await allowed(admin, EVERY, "configmaps", namespace="kube-system") == []


@pytest.mark.row("node-agent access", "other users, and paths without a resource: no opinion")
@pytest.mark.usefixtures("authorizer")
async def test_the_authorizer_decides_about_no_one_else(shoot: Shoot, admin: KubeClient) -> None:
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    async with granted(admin, STRANGER, rules, kind="User"), shoot.server.client(STRANGER) as stranger:
        await until(lambda: _may(stranger.list(NODE)), 10)
        assert await refused(stranger.list(SECRET, "kube-system"))
    async with granted(admin, IMPOSTOR, rules, kind="User"), shoot.server.client(IMPOSTOR) as impostor:
        await until(lambda: _may(impostor.list(NODE)), 10)
    async with shoot.agent(OWN) as agent:
        assert (await agent.request("GET", "/version"))["major"] == "1"


@pytest.mark.row("node-agent access", "no resource manager: refused until it answers; roles of earlier versions count")
async def test_a_node_agent_tries_again_until_the_authorizer_answers(shoot: Shoot, admin: KubeClient) -> None:
    await admin.create(machine("late", "pool-c"))
    await admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "late"}})
    async with shoot.agent("late") as agent:
        with pytest.raises(ApiError, match="500"):  # not 403, because an authorizer did not answer
            await agent.get(NODE, "late")
        async with granted(admin, AGENTS, FORMER_RULES):
            await until(lambda: _may(agent.get(NODE, OTHER)), 10)
            assert not (await decision(admin, "delete", "nodes")).get("denied")
            async with shoot.resource_manager(admin):
                # The API server keeps no answers of RBAC: it asks the authorizer about the next request.
                await until(lambda: refused(agent.get(NODE, OTHER)), 10)
                assert (await decision(admin, "delete", "nodes"))["denied"]
                assert (await agent.get(NODE, "late"))["metadata"]["name"] == "late"


@pytest.mark.row("node-agent access", "a new certificate authority: no restart, requests are allowed all the time")
async def test_a_new_authority_needs_no_restart(
    shoot: Shoot, admin: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle first, then the certificate, as the gardenlet orders them when the authority is rotated."""
    monkeypatch.setattr(serving.ServingCertificate.follow, "__defaults__", (0.05,))
    old, new = shoot.authority, new_authority("new ca")
    async with shoot.resource_manager(admin):
        await asks(shoot)
        shoot.mount(old, new)
        await until(lambda: _reloaded(shoot, admin, 1), 90)
        shoot.show(new)
        shoot.authority = new
        await until(lambda: is_shown_by(new, shoot.port), 10)
        # Each review differs from the others, because the API server keeps answers for 30 s.
        for number in range(20):
            assert await allowed(admin, ("create",), "events", namespace=f"before-{number}")
        shoot.mount(new)
        await until(lambda: _reloaded(shoot, admin, 2), 90)
        for number in range(20):
            assert await allowed(admin, ("create",), "events", namespace=f"after-{number}")
    # The next resource manager is asked by a new connection, which has to trust the new authority alone.
    async with shoot.resource_manager(admin), shoot.agent(OTHER) as agent:
        await until(lambda: _may(agent.get(NODE, OTHER)), 10)


async def _reloaded(shoot: Shoot, admin: KubeClient, times: int) -> bool:
    """Whether the API server has read the list of authorizers again."""
    metric = "apiserver_authorization_config_controller_automatic_reloads_total{"
    text = str(await admin.request("GET", "/metrics"))
    found = [line for line in text.splitlines() if line.startswith(metric) and 'status="success"' in line]
    return bool(found) and float(found[0].rpartition(" ")[2]) >= times


async def _may(request: Any) -> bool:
    try:
        await request
    except ApiError:
        return False
    return True
