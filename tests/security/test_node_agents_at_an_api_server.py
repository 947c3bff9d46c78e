"""Root on one machine asks with the credentials of its node agent, at a real API server with the authorizer.

The group of node agents also has broad roles, as an owner or an earlier version could leave them. No admission policy
runs, so the authorizer alone refuses.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from prometheus_client import generate_latest

from api.resources import CERTIFICATE_SIGNING_REQUEST, LEASE, NODE, SECRET
from kube.client import KubeClient
from tests.node_agents import (
    AGENT_USER,
    AGENTS,
    FORMER_RULES,
    NAMESPACE,
    POOLS,
    Shoot,
    asks,
    granted,
    lease,
    refused,
    requested,
)

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

OWN, OTHER = "machine-a", "machine-b"


@pytest.fixture(scope="module")
def shoot(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[Shoot]:
    with Shoot(tmp_path_factory.mktemp("shoot")).running() as running:
        yield running


@pytest.fixture
async def admin(shoot: Shoot) -> AsyncIterator[KubeClient]:
    async with shoot.server.client() as client, granted(client, AGENTS, FORMER_RULES), shoot.resource_manager(client):
        await asks(shoot)
        yield client


@pytest.fixture
async def agent(shoot: Shoot, admin: KubeClient) -> AsyncIterator[KubeClient]:
    async with shoot.agent(OWN) as client:
        yield client


ADDRESS = {"status": {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]}}
UPDATED = {"metadata": {"labels": {"node.machine.sapcloud.io/update-result": "successful"}}}
REBOOT = {"metadata": {"annotations": {"worker.gardener.cloud/restart-systemd-services": "reboot.target"}}}
ATTACKS: dict[str, Callable[[KubeClient], Awaitable[object]]] = {
    "reads the Secret of another pool": lambda agent: agent.get(SECRET, POOLS[OTHER], "kube-system"),
    "lists all Secrets": lambda agent: agent.list(SECRET, "kube-system"),
    "lists Secrets with another name": lambda agent: agent.list(
        SECRET, "kube-system", fields=f"metadata.name!={POOLS[OWN]}"
    ),
    "reads its own pool's Secret elsewhere": lambda agent: agent.get(SECRET, POOLS[OWN], NAMESPACE),
    "reads another Node": lambda agent: agent.get(NODE, OTHER),
    "lists all Nodes": lambda agent: agent.list(NODE),
    "patches another Node": lambda agent: agent.patch(NODE, OTHER, None, REBOOT),
    "tells the result of the in-place update of another Node": lambda agent: agent.patch(NODE, OTHER, None, UPDATED),
    "patches the status of another Node": lambda agent: agent.request(
        "PATCH",
        f"{NODE.path()}/{OTHER}/status",
        body=ADDRESS,
        content_type="application/merge-patch+json",
    ),
    "deletes its own Node": lambda agent: agent.delete(NODE, OWN),
    "takes the Lease of the scheduler": lambda agent: agent.apply_blindly(lease("kube-scheduler"), manager="attack"),
    "creates a Lease of a leader": lambda agent: agent.create(lease("kube-controller-manager")),
    "applies a Lease of a leader": lambda agent: agent.apply_blindly(lease("cloud-controller"), manager="attack"),
    "reads the Lease of the scheduler": lambda agent: agent.get(LEASE, "kube-scheduler", "kube-system"),
    "reads the request of another": lambda agent: agent.get(CERTIFICATE_SIGNING_REQUEST, "of-another"),
    "lists all requests": lambda agent: agent.list(CERTIFICATE_SIGNING_REQUEST),
    "lists the request of another by name": lambda agent: agent.list(
        CERTIFICATE_SIGNING_REQUEST, fields="metadata.name=of-another"
    ),
    "approves its own request": lambda agent: agent.request(
        "PATCH",
        f"{CERTIFICATE_SIGNING_REQUEST.path()}/own/approval",
        body={"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}]}},
        content_type="application/merge-patch+json",
    ),
}


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_node_agent_asks_for_what_is_not_its_own_and_is_refused(
    agent: KubeClient, admin: KubeClient, attack: str
) -> None:
    if await admin.find(CERTIFICATE_SIGNING_REQUEST, "own") is None:
        await requested(agent, "own", f"{AGENT_USER}{OWN}")
        await requested(admin, "of-another", f"{AGENT_USER}{OTHER}")
    before = [await admin.find(NODE, each) for each in POOLS]

    assert await refused(ATTACKS[attack](agent))
    assert [await admin.find(NODE, each) for each in POOLS] == before


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
async def test_a_node_agent_says_by_a_label_of_its_node_that_it_is_of_another_pool_and_is_refused(
    agent: KubeClient, admin: KubeClient
) -> None:
    """The kubelet writes labels of its Node, and root on the machine has the kubelet's credentials, too."""
    label = {"worker.gardener.cloud/gardener-node-agent-secret-name": POOLS[OTHER]}
    await admin.patch(NODE, OWN, None, {"metadata": {"labels": label}})
    assert await refused(agent.get(SECRET, POOLS[OTHER], "kube-system"))
    assert (await agent.get(SECRET, POOLS[OWN], "kube-system"))["metadata"]["name"] == POOLS[OWN]


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
async def test_the_node_agent_of_a_deleted_machine_asks_for_its_former_node_and_is_refused(
    shoot: Shoot, admin: KubeClient
) -> None:
    """Its certificate is valid for up to 30 days."""
    async with shoot.agent("gone") as agent:
        await admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gone"}}, manager="test")
        assert await refused(agent.get(NODE, "gone"))
        assert await refused(agent.apply_blindly(lease("gardener-node-agent-gone"), manager="attack"))


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
async def test_a_node_agent_floods_the_authorizer_with_resources_of_any_name_and_the_metrics_stay_small(
    agent: KubeClient, admin: KubeClient
) -> None:
    """A label for each resource would fill the memory of the resource manager."""
    before = len(generate_latest())
    for number in range(50):
        assert await refused(agent.request("GET", f"/api/v1/namespaces/kube-system/made-up-{number}"))
    assert b"made-up" not in generate_latest()
    assert len(generate_latest()) < before + 2000
