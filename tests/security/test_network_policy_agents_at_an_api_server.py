"""The agent that enforces NetworkPolicies on the nodes of a Shoot, with its own token at a real API server.

The token is on every node, so an attacker with root on one node has it.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from activities.provider_local import network_policies
from api import resources
from api.resources import Resource
from kube.client import KubeClient
from kube.errors import Forbidden
from tests import api_servers
from tests.gardens import ApiServer
from tests.unit.kube.waiting import until
from workers.network_policy_agent.process import pod_networks

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

TOKEN = "/api/v1/namespaces/kube-system/serviceaccounts/network-policy-agent/token"


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("server"), {})
    with made.running():
        yield made


@pytest.fixture
async def agent(server: ApiServer) -> AsyncIterator[KubeClient]:
    """A client with the token that the agent's pods have."""
    async with server.client() as admin:
        await api_servers.ready(admin)
        await until(lambda: admin.find(resources.NAMESPACE, "kube-system"), 60)
        for each in network_policies.manifests("api.test"):
            await admin.apply(each, manager="test")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = await admin.request("POST", TOKEN, body=request)
        async with server.client(answer["status"]["token"]) as client:
            await until(lambda: _may_list(client, resources.POD), 60)
            yield client


async def test_the_agent_reads_what_policies_depend_on_and_nothing_else(agent: KubeClient) -> None:
    for read in (resources.POD, resources.NAMESPACE, resources.NODE, resources.NETWORK_POLICY):
        assert await _may_list(agent, read), read.plural
    for hidden in (resources.SECRET, resources.CONFIG_MAP, resources.SERVICE, resources.DAEMON_SET):
        assert not await _may_list(agent, hidden), hidden.plural


async def test_the_agent_changes_no_policy_and_no_pod(agent: KubeClient) -> None:
    with pytest.raises(Forbidden):
        await agent.delete(resources.NETWORK_POLICY, "any", "kube-system")
    with pytest.raises(Forbidden):
        await agent.delete(resources.POD, "any", "kube-system")
    with pytest.raises(Forbidden):
        await agent.request("POST", TOKEN, body={})


async def test_the_agent_finds_the_pod_network_of_its_node(server: ApiServer, agent: KubeClient) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "one"},
        "spec": {"podCIDR": "100.96.3.0/24", "podCIDRs": ["100.96.3.0/24"]},
    }
    async with server.client() as admin:
        await admin.create(node)

    assert [str(each) for each in await pod_networks(agent, "one")] == ["100.96.3.0/24"]


async def _may_list(client: KubeClient, resource: Resource) -> bool:
    try:
        await client.list(resource)
    except Forbidden:
        return False
    return True
