"""A Shoot with IPv4 and IPv6."""

import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from api import images
from api.decisions import dual_stack
from tests.connections import CONNECT
from tests.landscape import pods
from tests.landscape.conftest import Landscape
from tests.landscape.pods import PROBE
from tests.landscape.shoots import Shoot, eventually
from tests.landscape.test_load_balancers import Balanced, Visitor, address_of, addresses_of, asked, own_address, served

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


def pod(name: str, node: str) -> Manifest:
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

    def serve(self, **more: str) -> None:
        """Run pods ``near`` and ``far`` on a node each, and a Service of ``near`` with these further fields."""
        one, two = sorted(node for nodes in self.shoot.nodes().values() for node in nodes)
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "near", "namespace": "default"},
            "spec": {"selector": {"app": "near"}, "ports": [{"port": PORT}], **more},
        }
        self.apply(pod("near", one), pod("far", two), service)
        self.shoot.kubectl("wait", "--for=condition=Ready", "pods", "near", "far", "--timeout=60s")

    def addresses(self, pod: str) -> list[str]:
        return [each["ip"] for each in self.get("pod", pod)["status"]["podIPs"]]

    def reached(self, client: str, *addresses: str) -> set[str]:
        """Addresses that take a connection from a pod."""
        targets = [f"{address}/{address}/{PORT}" for address in addresses]
        found = self.shoot.kubectl("exec", client, "--", "python3", "-c", CONNECT, *targets)
        return set(found.split())

    def await_reached(self, client: str, wanted: set[str], *addresses: str) -> None:
        eventually(lambda: self.reached(client, *addresses) == wanted, f"{client} reaches {wanted} alone", 30)

    def assert_a_policy_closes_near(self) -> None:
        """``far`` reaches no address of ``near`` while a NetworkPolicy closes it, and all of them afterwards."""
        addresses = self.addresses("near")
        closed = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "closed", "namespace": "default"},
            "spec": {"podSelector": {"matchLabels": {"app": "near"}}, "policyTypes": ["Ingress"]},
        }
        self.apply(closed)
        try:
            self.await_reached("far", set(), *addresses)
        finally:
            self.shoot.kubectl("delete", "networkpolicy", "closed")
        self.await_reached("far", set(addresses), *addresses)


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
        made.serve(ipFamilyPolicy="RequireDualStack")
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
    cluster.assert_a_policy_closes_near()


# Load balancers


@pytest.fixture(scope="module")
def balanced(cluster: Cluster) -> Iterator[Balanced]:
    with served(cluster.shoot) as made:
        yield made


def given(balanced: Balanced, name: str, *wanted: int) -> list[str]:
    """Addresses of a Service, once they are of these families."""

    def found() -> list[str] | None:
        addresses = addresses_of(balanced.wait(name))
        return addresses if families(addresses) == list(wanted) else None

    return eventually(found, f"Service {name} has addresses of {wanted}", 30)


def await_answers(addresses: list[str], wanted: dict[str, str]) -> None:
    eventually(lambda: {each: asked(each) for each in addresses} == wanted, f"the answers are {wanted}", 30)


def test_a_load_balancer_has_an_address_of_each_family_until_its_service_is_deleted(balanced: Balanced) -> None:
    spec = {"externalTrafficPolicy": "Local", "ipFamilyPolicy": "RequireDualStack"}
    balanced.service("both", **spec)
    balanced.service("turned", **spec, ipFamilies=BOTH[::-1])
    balanced.service("second", **spec | {"ipFamilyPolicy": "SingleStack"}, ipFamilies=["IPv6"])
    addresses = [*given(balanced, "both", 4, 6), *given(balanced, "turned", 6, 4), *given(balanced, "second", 6)]
    assert len(set(addresses)) == 5

    # A pod sees its client, by either family.
    await_answers(addresses, {each: own_address(each) for each in addresses})

    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "both", "turned", "second", "--timeout=30s")
    assert not balanced.in_cloud()
    assert not any(asked(each) for each in addresses)


def test_a_load_balancer_gets_and_loses_the_address_of_a_family(balanced: Balanced) -> None:
    first = address_of(balanced.service("changed", ipFamilyPolicy="SingleStack"))
    eventually(lambda: asked(first), "the Service answers", 30)

    balanced.service("changed", ipFamilyPolicy="PreferDualStack")
    both = given(balanced, "changed", 4, 6)
    assert both[0] == first
    eventually(lambda: all(asked(each) for each in both), "both addresses answer", 30)

    balanced.service("changed", ipFamilyPolicy="SingleStack")
    assert given(balanced, "changed", 4) == [first]
    eventually(lambda: not asked(both[1]), "the other address is gone", 30)
    assert asked(first)
    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "changed", "--timeout=30s")


def test_only_the_sources_of_a_family_reach_its_address(balanced: Balanced) -> None:
    """A family without a source range is closed, not open."""
    spec = {"externalTrafficPolicy": "Local", "ipFamilyPolicy": "RequireDualStack"}
    balanced.service("closed", **spec, loadBalancerSourceRanges=["203.0.113.0/24"])
    addresses = given(balanced, "closed", 4, 6)
    own = {each: own_address(each) for each in addresses}
    one, two = (ipaddress.ip_network(each).with_prefixlen for each in own.values())

    balanced.service("closed", **spec, loadBalancerSourceRanges=[one])
    await_answers(addresses, {**own, addresses[1]: ""})
    balanced.service("closed", **spec, loadBalancerSourceRanges=[two])
    await_answers(addresses, {**own, addresses[0]: ""})
    balanced.service("closed", **spec, loadBalancerSourceRanges=[one, two])
    await_answers(addresses, own)
    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "closed", "--timeout=30s")


def test_a_source_range_of_a_family_that_the_service_has_not_is_refused(balanced: Balanced) -> None:
    balanced.make("refused", loadBalancerSourceRanges=["203.0.113.0/24", "2001:db8::/32"])

    def told() -> bool:
        events = json.loads(balanced.shoot.kubectl("-n", PROBE, "get", "events", "-o", "json"))["items"]
        return any("the Service has no address of IPv6" in each["message"] for each in events)

    eventually(told, "an Event tells the reason", 30)
    assert not balanced.in_cloud()
    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "refused", "--timeout=30s")


# A Shoot that has run with IPv4


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

    print(visitor)
    assert visitor.failed == []
    assert families(single.get("-n", "kube-system", "service", "kube-dns")["spec"]["clusterIPs"]) == [4, 6]
    one, _ = sorted(node["metadata"]["name"] for node in nodes)
    single.apply(pod("near", one))
    shoot.kubectl("wait", "--for=condition=Ready", "pod/near", "--timeout=60s")
    addresses = single.addresses("near")
    assert families(addresses) == [4, 6]
    single.await_reached("near", set(addresses), *addresses)


def _constraints(shoot: Shoot) -> dict[str, str]:
    """Status of the constraints of the change."""
    found = shoot.get()["status"].get("constraints") or ()
    return {each["type"]: each["status"] for each in found if each["type"] in dual_stack.CONSTRAINTS}
