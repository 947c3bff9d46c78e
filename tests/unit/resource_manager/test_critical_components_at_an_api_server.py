"""The taint of new nodes at a real API server: when it goes, and what an Event says until then."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from api.resources import CSI_NODE, DAEMON_SET, EVENT, NAMESPACE, NODE, POD
from kube.cache import Caches
from kube.client import KubeClient, Object
from tests.api_servers import ready
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until
from workers.resource_manager.critical_components import CriticalComponents, runs_on, slim

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

TAINT = {"key": "node.gardener.cloud/critical-components-not-ready", "effect": "NoSchedule"}
CRITICAL = {"node.gardener.cloud/critical-component": "true"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    # No controller of this test creates ServiceAccounts, which the plugin would want.
    made = ApiServer(tmp_path_factory.mktemp("shoot"), {}, flags=("--disable-admission-plugins", "ServiceAccount"))
    with made.running():
        asyncio.run(_prepared(made))
        yield made


async def _prepared(server: ApiServer) -> None:
    async with server.client() as admin:
        await ready(admin)

        async def exists() -> bool:
            return await admin.find(NAMESPACE, "kube-system") is not None

        await until(exists, 30)


class Nodes:
    """Writes Nodes, DaemonSets and pods, which the controller watches."""

    def __init__(self, admin: KubeClient) -> None:
        self.admin = admin

    async def join(self, name: str, labels: Object | None = None, taints: list[Object] | None = None) -> None:
        """As a kubelet registers a Node."""
        spec = {"taints": [*(taints or []), TAINT]}
        metadata = {"name": name, "labels": labels or {}}
        await self.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})

    async def taints(self, name: str) -> list[str]:
        node = await self.admin.get(NODE, name)
        return [each["key"] for each in node["spec"].get("taints") or () if "kubernetes.io" not in each["key"]]

    async def is_released(self, name: str) -> bool:
        return TAINT["key"] not in await self.taints(name)

    async def daemon_set(self, name: str, **pod: Any) -> str:
        labels = {**CRITICAL, "app": name}
        spec = {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}], **pod}
        made = await self.admin.create(
            {
                "apiVersion": DAEMON_SET.api_version,
                "kind": DAEMON_SET.kind,
                "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
                "spec": {
                    "selector": {"matchLabels": {"app": name}},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            }
        )
        return str(made["metadata"]["uid"])

    async def pod(self, name: str, node: str, owner: str = "", annotations: Object | None = None) -> None:
        owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "o", "uid": owner, "controller": True}]
        metadata = {"name": name, "namespace": "kube-system", "labels": CRITICAL, "annotations": annotations or {}}
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        await self.admin.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata | ({"ownerReferences": owners} if owner else {}),
                "spec": spec,
            }
        )

    async def gets_ready(self, name: str) -> None:
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        await self.admin.patch(POD, name, "kube-system", {"status": status}, subresource="status")

    async def event(self, node: str, reason: str) -> str:
        """Wait for an Event about the node; returns its text."""
        found: list[str] = []

        async def there() -> bool:
            events = await self.admin.list(EVENT, None, fields=f"involvedObject.name={node},reason={reason}")
            found[:] = [str(each["message"]) for each in events]
            return bool(found)

        await until(there, 20)
        return found[-1]

    async def released(self, name: str) -> None:
        async def done() -> bool:
            return await self.is_released(name)

        await until(done, 20)


@pytest.fixture
async def nodes(server: ApiServer) -> AsyncIterator[Nodes]:
    async with server.client(ADMIN) as admin:
        made = Nodes(admin)
        caches = Caches(admin, keep=slim)
        controller = asyncio.create_task(CriticalComponents(admin, caches, backoff=0.5).run())
        yield made
        controller.cancel()
        await asyncio.gather(controller, return_exceptions=True)
        await caches.close()
        for kind in (NODE, POD, DAEMON_SET):
            for each in await admin.list(kind):
                await admin.delete(kind, each["metadata"]["name"], each["metadata"].get("namespace"), grace_seconds=0)


@pytest.mark.row("node critical components", "every DaemonSet that is schedulable there has its pod")
async def test_a_node_waits_for_the_pod_of_each_critical_daemon_set(nodes: Nodes) -> None:
    owner = await nodes.daemon_set("kube-proxy")
    await nodes.join("n", taints=[{"key": "of-the-pool", "value": "1", "effect": "NoSchedule"}])
    text = await nodes.event("n", "UnscheduledNodeCriticalDaemonSets")
    assert "kube-system/kube-proxy" in text
    assert not await nodes.is_released("n")

    await nodes.pod("kube-proxy-1", "n", owner)
    await nodes.gets_ready("kube-proxy-1")
    await nodes.released("n")
    assert await nodes.taints("n") == ["of-the-pool"]
    await nodes.event("n", "NodeCriticalComponentsReady")


@pytest.mark.row("node critical components", "all pods with the label on the node are Ready")
async def test_a_node_waits_until_its_critical_pods_are_ready(nodes: Nodes) -> None:
    await nodes.pod("elsewhere", "other")
    await nodes.pod("here", "m")
    await nodes.join("m")
    assert "kube-system/here" in await nodes.event("m", "UnreadyNodeCriticalPods")
    assert not await nodes.is_released("m")

    await nodes.gets_ready("here")
    await nodes.released("m")


@pytest.mark.row("node critical components", "each driver of wait-for-csi-node-* is in the CSINode")
async def test_a_node_waits_for_its_storage_drivers(nodes: Nodes) -> None:
    await nodes.pod("driver", "c", annotations={"node.gardener.cloud/wait-for-csi-node-x": "x.example.org"})
    await nodes.gets_ready("driver")
    await nodes.join("c")
    assert "x.example.org" in await nodes.event("c", "UnreadyRequiredCSIDrivers")
    assert not await nodes.is_released("c")

    drivers = [{"name": "x.example.org", "nodeID": "c", "topologyKeys": []}]
    await nodes.admin.create(
        {"apiVersion": CSI_NODE.api_version, "kind": "CSINode", "metadata": {"name": "c"}, "spec": {"drivers": drivers}}
    )
    await nodes.released("c")
    await nodes.admin.delete(CSI_NODE, "c")


@pytest.mark.row("node critical components", "a DaemonSet that does not run on the node holds nothing up")
async def test_a_node_waits_for_no_daemon_set_of_other_nodes(nodes: Nodes) -> None:
    await nodes.daemon_set("of-another-pool", nodeSelector={"pool": "b"})
    await nodes.daemon_set("intolerant", tolerations=[])
    await nodes.join("s", {"pool": "a"}, taints=[{"key": "dedicated", "effect": "NoExecute"}])

    await nodes.released("s")


def needs(term: Object) -> Object:
    """A pod with this term of a required node affinity."""
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("pod", "runs"),
    [
        ({}, True),
        ({"nodeSelector": {"a": "2"}}, False),
        ({"nodeName": "other"}, False),
        (needs({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}), True),
        (needs({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}), False),
        (needs({"matchExpressions": [{"key": "a", "operator": "Exists"}]}), True),
        (needs({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}), False),
        (needs({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}), False),
        (needs({"matchExpressions": [{"key": "a", "operator": "Lt", "values": ["2"]}]}), True),
        (needs({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), True),
        (needs({}), False),
    ],
)
def test_a_pod_of_a_daemon_set_runs_where_its_rules_allow(pod: Object, runs: bool) -> None:
    node = {"metadata": {"name": "n", "labels": {"a": "1"}}, "spec": {"taints": [TAINT]}}

    assert runs_on(pod, node) is runs
