"""A Shoot with IPv6 alone: its nodes, pods and Services have no address of IPv4."""

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import pytest

from tests.landscape import pods
from tests.landscape.conftest import Landscape
from tests.landscape.pods import PROBE
from tests.landscape.shoots import Shoot, eventually
from tests.landscape.test_dual_stack import Cluster, await_answers, families, given
from tests.landscape.test_load_balancers import asked, own_address, served
from tests.landscape.test_ssh import command, ended

pytestmark = [pytest.mark.landscape, pytest.mark.slow]

RECONCILIATION = 240
HIBERNATION = 300

ADDRESSES = """
import subprocess
shown = subprocess.run(["ip", "-oneline", "address", "show", "dev", "eth0", "scope", "global"],
                       check=True, capture_output=True, text=True).stdout
print(*(line.split()[2] for line in shown.splitlines()))
"""
"""Prints the families of a pod's addresses, as ``ip`` names them."""

ASK = """
import ssl, urllib.request
context = ssl.create_default_context(cafile="/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
with urllib.request.urlopen("https://kubernetes.default.svc/readyz", context=context, timeout=10) as answer:
    print(answer.read().decode())
"""
"""Asks the API server by the name of its Service."""

RESOLVE = """
import socket, sys
print(*sorted({each[4][0] for each in socket.getaddrinfo(sys.argv[1], 1)}))
"""
"""Prints all addresses of a name."""


@pytest.fixture(scope="module")
def cluster(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Shoot with two nodes, a DNS server on each of them, a pod on each, and a Service of one pod."""
    shoot = Shoot(landscape, "six", tmp_path_factory.mktemp("six"))
    manifest = shoot.manifest(machines=2, systemComponents={"nodeLocalDNS": {"enabled": True}})
    networking = manifest["spec"]["networking"]
    manifest["spec"]["networking"] = {"type": networking["type"], "ipFamilies": ["IPv6"]}
    with shoot.created(manifest):
        made = Cluster(shoot)
        made.serve()
        yield made
        assert_nothing_left(shoot)


def assert_nothing_left(shoot: Shoot) -> None:
    assert any(shoot.traces().values())
    shoot.delete()
    # The gateway deletes its copy of a configuration a moment after the namespace is gone.
    eventually(lambda: not any(shoot.traces().values()), "nothing is left", 30)
    assert not any(resolved(shoot, name) for name in shoot.host_names)


def resolved(shoot: Shoot, name: str) -> list[str]:
    """Addresses of IPv6 that the landscape's DNS has for a name."""
    server = shoot.landscape.facts["dns"]["server"]
    answer = dns.query.udp(dns.message.make_query(name, "AAAA"), server, timeout=5)
    return [each.to_text() for one in answer.answer for each in one]


def test_nodes_pods_and_services_have_addresses_of_ipv6_alone(cluster: Cluster) -> None:
    for node in cluster.get("nodes")["items"]:
        internal = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
        assert families(internal) == [6]
        assert [ipaddress.ip_network(each).version for each in node["spec"]["podCIDRs"]] == [6]
    for each in cluster.get("pods", "-A")["items"]:
        assert families([found["ip"] for found in each["status"]["podIPs"]]) == [6], each["metadata"]["name"]
    for each in cluster.get("services", "-A")["items"]:
        addresses = [found for found in each["spec"]["clusterIPs"] if found != "None"]
        assert set(families(addresses)) <= {6}, each["metadata"]["name"]
    networking = cluster.shoot.get()["status"]["networking"]
    assert [len(networking[each]) for each in ("nodes", "pods", "services")] == [1, 1, 1]
    assert cluster.shoot.kubectl("exec", "near", "--", "python3", "-c", ADDRESSES).split() == ["inet6"]


@pytest.mark.parametrize(("client", "server"), [("near", "far"), ("far", "near")])
def test_pods_of_two_nodes_reach_each_other(cluster: Cluster, client: str, server: str) -> None:
    addresses = cluster.addresses(server)

    assert cluster.reached(client, *addresses) == set(addresses)


def test_a_service_answers_pods_of_both_nodes(cluster: Cluster) -> None:
    addresses = cluster.get("service", "near")["spec"]["clusterIPs"]

    for client in ("near", "far"):
        cluster.await_reached(client, set(addresses), *addresses)


@pytest.mark.parametrize("client", ["near", "far"])
def test_pods_resolve_names_and_reach_their_api_server(cluster: Cluster, client: str) -> None:
    inside, outside = (
        cluster.shoot.kubectl("exec", client, "--", "python3", "-c", RESOLVE, name)
        for name in ("near.default.svc.cluster.local", cluster.shoot.host_names[0])
    )

    assert inside.split() == cluster.get("service", "near")["spec"]["clusterIPs"]
    assert outside.split() == resolved(cluster.shoot, cluster.shoot.host_names[0])
    assert cluster.shoot.kubectl("exec", client, "--", "python3", "-c", ASK).strip() == "ok"


def test_the_api_server_reaches_nodes_and_pods(cluster: Cluster) -> None:
    """It uses the tunnel for logs and for the metrics server, whose API pods serve."""
    assert "ready" in cluster.shoot.kubectl("logs", "far")

    def measured() -> bool:
        return len(cluster.shoot.kubectl("top", "nodes", "--no-headers").splitlines()) == 2

    eventually(measured, "the metrics server has measured both nodes", 90)


def test_a_network_policy_closes_a_pod(cluster: Cluster) -> None:
    cluster.assert_a_policy_closes_near()


def test_a_load_balancer_answers_from_outside_until_its_service_is_deleted(cluster: Cluster) -> None:
    with served(cluster.shoot) as balanced:
        balanced.service("one")
        balanced.service("local", externalTrafficPolicy="Local")
        one, local = [address for name in ("one", "local") for address in given(balanced, name, 6)]
        await_answers([local], {local: own_address(local)})
        eventually(lambda: asked(one), "the Service answers", 30)

        balanced.shoot.kubectl("-n", PROBE, "delete", "service", "one", "local", "--timeout=30s")
        assert not balanced.in_cloud()
        assert not asked(one)


def test_a_bastion_leads_to_a_node(cluster: Cluster, tmp_path: Path) -> None:
    """Users reach the bastion by IPv4, and the bastion reaches the node by IPv6."""
    node = sorted(name for nodes in cluster.shoot.nodes().values() for name in nodes)[0]
    status, output, errors = ended(command(cluster.shoot, tmp_path, node, "--", "uname -n"))

    assert (status, output.split()) == (0, [node]), errors


def test_a_reconciliation_changes_nothing_in_the_cluster(cluster: Cluster) -> None:
    before = _state(cluster)
    cluster.shoot.reconcile(RECONCILIATION)

    assert _state(cluster) == before
    types = {each["type"] for each in cluster.shoot.get()["status"].get("constraints") or ()}
    assert not types & {"DualStackNodesMigrationReady", "DNSServiceMigrationReady"}


def _state(cluster: Cluster) -> dict[str, Any]:
    """Nodes, and generations of the workloads of the system."""
    workloads = cluster.get("-n", "kube-system", "daemonsets,deployments")["items"]
    nodes = cluster.get("nodes")["items"]
    return {
        **{each["metadata"]["name"]: each["metadata"]["uid"] for each in nodes},
        **{each["metadata"]["name"]: each["metadata"]["generation"] for each in workloads},
    }


@pytest.mark.timeout(1200)
def test_a_shoot_that_was_hibernated_has_its_networks_again(cluster: Cluster) -> None:
    shoot = cluster.shoot
    cluster.apply(pods.namespace(), pods.python("again", 1, "import time; time.sleep(9999)", ready=pods.ALIVE))
    networking = shoot.get()["status"]["networking"]
    shoot.change({"hibernation": {"enabled": True}})
    shoot.wait_until_reconciled(HIBERNATION)
    shoot.change({"hibernation": {"enabled": False}})
    shoot.wait_until_reconciled(HIBERNATION)

    assert shoot.get()["status"]["networking"] == networking
    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/again", "--timeout=120s", timeout=130)
    found = shoot.kubectl("-n", PROBE, "exec", "deployment/again", "--", "python3", "-c", ASK)
    assert found.strip() == "ok"


def test_networks_of_ipv4_and_other_families_are_refused(cluster: Cluster) -> None:
    for change, reason in (
        ({"ipFamilies": ["IPv4", "IPv6"]}, "IPv4 cannot be added"),
        ({"pods": "100.112.0.0/16"}, "names no networks"),
    ):
        with pytest.raises(pytest.fail.Exception, match=reason):
            cluster.shoot.change({"networking": change})
    live = json.dumps(cluster.shoot.get()["spec"]["networking"])
    assert "100." not in live
