"""On a landscape: the token of a Shoot's Prometheus, and what a blackbox-exporter sends to the target of a probe."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest

from activities.components import exporters, prometheus
from tests.landscape import https, monitoring, pods
from tests.landscape.shoots import Shoot, decoded, eventually

pytestmark = pytest.mark.landscape

WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
}
LISTENER = """
import http.server
class Listener(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked:", *(f"{name}={value}" for name, value in self.headers.items()), flush=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8080), Listener).serve_forever()
"""
"""Prints the headers of each request that it gets."""


@dataclass(frozen=True)
class Thief:
    """A client with the token of Prometheus."""

    shoot: Shoot
    token: str = field(repr=False)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Status and content of the API server's answer; without content where it upgrades the connection."""
        published = self.shoot.garden("get", "configmap", f"{self.shoot.name}.ca-cluster", "-o", "json")
        url = f"https://{self.shoot.host_names[1]}{path}"
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        return https.get(self.shoot, url, json.loads(published)["data"]["ca.crt"], sent)


@pytest.fixture(scope="module")
def node(shoot: Shoot) -> str:
    return min(name for pool in shoot.nodes().values() for name in pool)


@pytest.fixture(scope="module")
def thief(shoot: Shoot, node: str) -> Thief:
    """Waits until the API server of a new Shoot knows the policy: it learns the role a second or two before."""
    secret = shoot.control_plane("get", "secret", f"shoot-access-{prometheus.NAME}", "-o", "json")
    thief = Thief(shoot, decoded(json.loads(secret))["token"].decode())
    eventually(lambda: thief.get(f"/api/v1/nodes/{node}/proxy/healthz")[0] == 403, "the policy is in force", 30)
    return thief


@pytest.fixture(scope="module")
def container(shoot: Shoot, node: str) -> str:
    """A running container of the node, as kubelets name it in paths."""
    of_node = ("get", "pods", "-A", "--field-selector", f"spec.nodeName={node},status.phase=Running", "-o", "json")
    pod = json.loads(shoot.kubectl(*of_node))["items"][0]
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{pod['spec']['containers'][0]['name']}"


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
@pytest.mark.parametrize("what", ["exec", "containerLogs", "attach"])
def test_the_token_of_prometheus_gets_into_no_container(thief: Thief, node: str, container: str, what: str) -> None:
    """A kubelet takes `nodes/proxy get` for a websocket, too, where kubectl needs `pods/exec create`."""
    for target in (node, f"{node}:10250", f"https:{node}:10250"):
        path = f"/api/v1/nodes/{target}/proxy/{what}/{container}?command=id&output=1"
        for headers in ({}, WEBSOCKET):
            status, answer = thief.get(path, headers)
            assert status == 403, answer


def test_an_administrator_reads_the_log_by_the_path_that_is_refused_to_prometheus(
    shoot: Shoot, node: str, container: str
) -> None:
    """Otherwise the refusal would say nothing of the policy."""
    shoot.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/containerLogs/{container}?tailLines=1")
    assert "kubelet" in shoot.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/configz")


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
@pytest.mark.parametrize(
    "path",
    [
        "/proxy/pods",
        "/proxy/configz",
        "/proxy/logs/",
        "/proxy/logs/?query=kubelet",
        "/proxy/metrics/../pods",
        "/proxy/metrics%2f..%2fpods",
        "/proxy?path=/pods",
        ":10250/proxy/metrics/cadvisor/../../pods",
        ":16909/proxy/",
        ":10249/proxy/metrics",
    ],
)
def test_the_token_of_prometheus_reads_nothing_of_a_node_but_metrics(thief: Thief, node: str, path: str) -> None:
    status, answer = thief.get(f"/api/v1/nodes/{node}{path}")

    assert status == 403, answer


@pytest.mark.parametrize("path", ["/proxy/metrics", "/proxy/metrics/cadvisor", ":16909/proxy/metrics"])
def test_the_token_of_prometheus_reads_metrics_of_a_node(thief: Thief, node: str, path: str) -> None:
    status, answer = thief.get(f"/api/v1/nodes/{node}{path}")

    assert status == 200
    assert b"# HELP" in answer


@pytest.fixture
def listener(shoot: Shoot) -> Iterator[str]:
    """URL of a server in the Shoot that says in its log what it was sent."""
    items = [pods.namespace(), pods.python("listener", 1, LISTENER), pods.service("listener", 80)]
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    shoot.kubectl("-n", pods.PROBE, "rollout", "status", "deployment/listener", "--timeout=90s")
    yield f"http://listener.{pods.PROBE}.svc.cluster.local"
    shoot.kubectl("-n", pods.PROBE, "delete", "deployment/listener", "service/listener")


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
def test_a_server_that_a_blackbox_exporter_is_told_to_probe_gets_no_token(shoot: Shoot, listener: str) -> None:
    service = f"{exporters.NAMESPACE}/services/{exporters.BLACKBOX_EXPORTER}:probe"
    query = f"module={exporters.KUBERNETES_SERVICE}&target={quote(listener, safe='')}"
    path = f"/api/v1/namespaces/{service}/proxy/probe?{query}"

    def asked() -> str:
        shoot.kubectl("get", "--raw", path)
        log = shoot.kubectl("-n", pods.PROBE, "logs", "deployment/listener")
        return next((line for line in log.splitlines() if line.startswith("asked:")), "")

    headers = eventually(asked, "the exporter has asked the listener", 30)
    assert "User-Agent=Blackbox" in headers
    assert "Authorization" not in headers


def test_prometheus_still_sees_nodes_and_the_way_to_the_api_server(shoot: Shoot) -> None:
    host, words = monitoring.access(shoot)

    def seen() -> set[str]:
        _, found = monitoring.ask(shoot, "up == 1", host, words)
        return {each["metric"]["job"] for each in found}

    eventually(lambda: seen() >= monitoring.JOBS, "all jobs are scraped", 90)
    _, reached = monitoring.ask(shoot, 'probe_success{job="blackbox-exporter-k8s-service-check"}', host, words)
    assert [each["value"][1] for each in reached] == ["1"]
