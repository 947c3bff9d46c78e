"""On a landscape: the token of a Shoot's Prometheus, and what a blackbox-exporter sends to the target of a probe."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
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
    token: str

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Status and content of the API server's answer; without content where it upgrades the connection."""
        published = self.shoot.garden("get", "configmap", f"{self.shoot.name}.ca-cluster", "-o", "json")
        url = f"https://{self.shoot.host_names[1]}{path}"
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        return https.get(self.shoot, url, json.loads(published)["data"]["ca.crt"], sent)


@pytest.fixture(scope="module")
def thief(shoot: Shoot) -> Thief:
    secret = shoot.control_plane("get", "secret", f"shoot-access-{prometheus.NAME}", "-o", "json")
    return Thief(shoot, decoded(json.loads(secret))["token"].decode())


@pytest.fixture(scope="module")
def node(shoot: Shoot) -> str:
    return min(name for pool in shoot.nodes().values() for name in pool)


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
def test_the_token_of_prometheus_runs_no_command_in_a_pod(shoot: Shoot, thief: Thief, node: str) -> None:
    """A kubelet takes a websocket's GET for `nodes/proxy get`, where kubectl needs `pods/exec create`."""
    of_node = ("get", "pods", "-A", "--field-selector", f"spec.nodeName={node},status.phase=Running", "-o", "json")
    pod = json.loads(shoot.kubectl(*of_node))["items"][0]
    place = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{pod['spec']['containers'][0]['name']}"

    for target in (node, f"{node}:10250", f"https:{node}:10250"):
        path = f"/api/v1/nodes/{target}/proxy/exec/{place}?command=id&output=1"
        assert thief.get(path, WEBSOCKET)[0] == 403, target


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
@pytest.mark.parametrize(
    "path",
    [
        "/proxy/pods",
        "/proxy/configz",
        "/proxy/logs/",
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
