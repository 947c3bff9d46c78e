"""A Shoot with IPv4 and IPv6."""

import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from api import images
from api.decisions import dual_stack
from tests.connections import CONNECT
from tests.landscape import pods
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually
from tests.landscape.test_load_balancers import Balanced, address_of, asked

pytestmark = [pytest.mark.landscape, pytest.mark.slow]

BOTH = ["IPv4", "IPv6"]
PORT = 8080
RECONCILIATION = 240
REPLACEMENT = 900
"""Seconds for a reconciliation that replaces all machines."""

SERVE = """
import socket, sys, threading
def serve(listener):
    while True:
        connection, _ = listener.accept()
        connection.close()
one = socket.create_server(("0.0.0.0", int(sys.argv[1])))
other = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6)
threading.Thread(target=serve, args=[one], daemon=True).start()
print("ready", flush=True)
serve(other)
"""
"""Takes connections of both families. Argument: the port."""

RESOLVE = """
import socket, sys
for family in (socket.AF_INET, socket.AF_INET6):
    print(*sorted({each[4][0] for each in socket.getaddrinfo(sys.argv[1], 1, family)}))
"""
"""Prints the addresses of a name: those of IPv4 in the first line, those of IPv6 in the second one."""

Manifest = dict[str, Any]


def _pod(name: str, node: str) -> Manifest:
    container = {
        "name": "main",
        "image": images.GARDENER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", SERVE, str(PORT)],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
    }


@dataclass
class Cluster:
    shoot: Shoot

    def apply(self, *objects: Manifest) -> None:
        self.shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, *arguments: str) -> Manifest:
        found: Manifest = json.loads(self.shoot.kubectl("get", *arguments, "-o", "json"))
        return found

    def addresses(self, pod: str) -> list[str]:
        return [each["ip"] for each in self.get("pod", pod)["status"]["podIPs"]]

    def reached(self, client: str, *addresses: str) -> set[str]:
        """Addresses that take a connection from a pod."""
        targets = [f"{address}/{address}/{PORT}" for address in addresses]
        found = self.shoot.kubectl("exec", client, "--", "python3", "-c", CONNECT, *targets)
        return set(found.split())

    def await_reached(self, client: str, wanted: set[str], *addresses: str) -> None:
        eventually(lambda: self.reached(client, *addresses) == wanted, f"{client} reaches {wanted} alone", 30)


def families(addresses: list[str]) -> list[int]:
    return [ipaddress.ip_address(each).version for each in addresses]


@pytest.fixture(scope="module")
def cluster(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Shoot that is created with both families, with two nodes and a pod on each."""
    shoot = Shoot(landscape, "dual", tmp_path_factory.mktemp("dual"))
    manifest = shoot.manifest(machines=2)
    manifest["spec"]["networking"]["ipFamilies"] = BOTH
    with shoot.created(manifest):
        made = Cluster(shoot)
        one, two = sorted(node for nodes in shoot.nodes().values() for node in nodes)
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "near", "namespace": "default"},
            "spec": {"selector": {"app": "near"}, "ipFamilyPolicy": "RequireDualStack", "ports": [{"port": PORT}]},
        }
        made.apply(_pod("near", one), _pod("far", two), service)
        shoot.kubectl("wait", "--for=condition=Ready", "pods", "near", "far", "--timeout=60s")
        yield made


def test_nodes_and_pods_have_an_address_of_each_family(cluster: Cluster) -> None:
    for node in cluster.get("nodes")["items"]:
        internal = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
        assert families(internal) == [4, 6]
        assert len(node["spec"]["podCIDRs"]) == 2
    assert families(cluster.addresses("near")) == [4, 6]
    networking = cluster.shoot.get()["status"]["networking"]
    assert [len(networking[each]) for each in ("nodes", "pods", "services")] == [2, 2, 2]


@pytest.mark.parametrize(("client", "server"), [("near", "far"), ("far", "near")])
def test_pods_of_two_nodes_reach_each_other_by_both_families(cluster: Cluster, client: str, server: str) -> None:
    addresses = cluster.addresses(server)

    assert cluster.reached(client, *addresses) == set(addresses)


def test_a_service_answers_at_both_of_its_addresses(cluster: Cluster) -> None:
    addresses = cluster.get("service", "near")["spec"]["clusterIPs"]

    assert families(addresses) == [4, 6]
    for client in ("near", "far"):
        cluster.await_reached(client, set(addresses), *addresses)


def test_the_dns_answers_for_both_families(cluster: Cluster) -> None:
    name = "near.default.svc.cluster.local"
    found = cluster.shoot.kubectl("exec", "far", "--", "python3", "-c", RESOLVE, name).split()

    assert found == cluster.get("service", "near")["spec"]["clusterIPs"]
    assert len(cluster.get("-n", "kube-system", "service", "kube-dns")["spec"]["clusterIPs"]) == 2


def test_a_network_policy_closes_both_families(cluster: Cluster) -> None:
    addresses = cluster.addresses("near")
    closed = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": "near"}}, "policyTypes": ["Ingress"]},
    }
    cluster.apply(closed)
    try:
        cluster.await_reached("far", set(), *addresses)
    finally:
        cluster.shoot.kubectl("delete", "networkpolicy", "closed")
    cluster.await_reached("far", set(addresses), *addresses)


# A Shoot that has run with IPv4


@dataclass
class Visitor:
    """A client outside the cluster that asks a Service ten times a second."""

    address: str
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    """When requests failed."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator["Visitor"]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            if asked(self.address):
                self.answered += 1
            else:
                self.failed.append(time.strftime("%T"))


@pytest.fixture
def single(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Shoot with IPv4 and two nodes."""
    shoot = Shoot(landscape, "single", tmp_path_factory.mktemp("single"))
    with shoot.created(shoot.manifest(machines=2)):
        yield Cluster(shoot)


@pytest.mark.timeout(1800)
def test_a_shoot_changes_to_both_families_while_its_service_answers(single: Cluster) -> None:
    shoot, balanced = single.shoot, Balanced(single.shoot)
    web = pods.python("balanced", 2, pods.WEB, linger=pods.LINGER_SECONDS)
    balanced.apply(pods.namespace(), web, pods.budget("balanced", minAvailable=1))
    address = address_of(balanced.service("public"))
    eventually(lambda: asked(address), "the Service answers", 60)
    before = {node["metadata"]["uid"] for node in single.get("nodes")["items"]}

    with Visitor(address).asking() as visitor:
        shoot.change({"networking": {"ipFamilies": BOTH}})
        shoot.wait_until_reconciled(REPLACEMENT)
        assert _constraints(shoot) == {dual_stack.NODES_READY: "True"}
        nodes = single.get("nodes")["items"]
        assert not before & {node["metadata"]["uid"] for node in nodes}, "all machines were replaced"
        assert all(len(node["spec"]["podCIDRs"]) == 2 for node in nodes)
        assert visitor.failed == [], "machines are replaced one after the other"
        shoot.reconcile(RECONCILIATION)
        assert _constraints(shoot) == {dual_stack.DNS_READY: "Progressing"}
        # A reconciliation waits a minute for the new pods of CoreDNS. If they take longer, the next one sees them.
        for _ in range(3):
            shoot.reconcile(RECONCILIATION)
            if _constraints(shoot) == {dual_stack.DNS_READY: "True"}:
                break
        shoot.reconcile(RECONCILIATION)
        assert not _constraints(shoot)

    assert visitor.failed == [], f"{visitor.answered} requests were answered"
    assert families(single.get("-n", "kube-system", "service", "kube-dns")["spec"]["clusterIPs"]) == [4, 6]
    one, _ = sorted(node["metadata"]["name"] for node in nodes)
    single.apply(_pod("near", one))
    shoot.kubectl("wait", "--for=condition=Ready", "pod/near", "--timeout=60s")
    addresses = single.addresses("near")
    assert families(addresses) == [4, 6]
    single.await_reached("near", set(addresses), *addresses)


def _constraints(shoot: Shoot) -> dict[str, str]:
    """Status of the constraints of the change."""
    found = shoot.get()["status"].get("constraints") or ()
    return {each["type"]: each["status"] for each in found if each["type"] in dual_stack.CONSTRAINTS}
