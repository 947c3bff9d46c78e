"""A DNS server on each node: its addresses, its upstream servers, and when it is deployed."""

import base64
import json
import re
from typing import Any

import pytest

from activities.components import node_local_dns
from api.core.v1beta1.shoot import NodeLocalDNS
from tests.unit.components.test_control_plane import SHOOT, TASK, World, world

__all__ = ["world"]

CLUSTER_DNS = "100.68.0.10"
UPSTREAM = "{$KUBE_DNS_UPSTREAM_SERVICE_HOST}"
NAME = "shoot-core-node-local-dns"


def server(*, ipvs: bool = False, **settings: Any) -> node_local_dns.Server:
    return node_local_dns.Server(NodeLocalDNS(enabled=True, **settings), CLUSTER_DNS, ipvs)


def zones(of: node_local_dns.Server) -> dict[str, str]:
    """The Corefile's blocks."""
    corefile = next(each for each in node_local_dns.objects(of) if each["kind"] == "ConfigMap")["data"]["Corefile"]
    return dict(re.findall(r"^(\S+):53 \{\n(.*?)^\}\n", corefile, re.MULTILINE | re.DOTALL))


def asked(block: str) -> str:
    (found,) = re.findall(r"forward \. (.*?) \{\n    (\w+)\n", block)
    return " ".join(found)


@pytest.mark.parametrize(
    ("settings", "cluster", "outside"),
    [
        ({}, f"{UPSTREAM} force_tcp", "/etc/resolv.conf force_tcp"),
        ({"force_tcp_to_cluster_dns": False}, f"{UPSTREAM} prefer_udp", "/etc/resolv.conf force_tcp"),
        ({"force_tcp_to_upstream_dns": False}, f"{UPSTREAM} force_tcp", "/etc/resolv.conf prefer_udp"),
        ({"disable_forward_to_upstream_dns": True}, f"{UPSTREAM} force_tcp", f"{UPSTREAM} force_tcp"),
        ({"ipvs": True}, f"{CLUSTER_DNS} force_tcp", "/etc/resolv.conf force_tcp"),
    ],
)
def test_node_local_dns_forwards_by_zone_and_protocol(settings: dict[str, Any], cluster: str, outside: str) -> None:
    blocks = zones(server(**settings))

    assert list(blocks) == ["cluster.local", "in-addr.arpa", "ip6.arpa", "."]
    assert {asked(blocks[zone]) for zone in ("cluster.local", "in-addr.arpa", "ip6.arpa")} == {cluster}
    assert asked(blocks["."]) == outside


@pytest.mark.parametrize(("ipvs", "addresses"), [(False, ["169.254.20.10", CLUSTER_DNS]), (True, ["169.254.20.10"])])
def test_the_dns_addresses_are_added_to_the_node_before_the_server_starts(ipvs: bool, addresses: list[str]) -> None:
    objects = {each["kind"]: each for each in node_local_dns.objects(server(ipvs=ipvs))}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    (first,) = pod["initContainers"]
    way = json.loads(objects["ConfigMap"]["data"]["config.yaml"])

    assert {f"bind {' '.join(addresses)}" in block for block in zones(server(ipvs=ipvs)).values()} == {True}
    assert re.findall(r"ip address replace (\S+)/32 dev lo", first["command"][-1]) == addresses
    assert way["addresses"] == addresses
    assert way["server"] == "http://169.254.20.10:8099/health"
    assert pod["hostNetwork"]
    assert "health 169.254.20.10:8099" in zones(server(ipvs=ipvs))["cluster.local"]


def test_with_ipv6_alone_the_server_has_addresses_of_ipv6() -> None:
    of_ipv6 = node_local_dns.Server(NodeLocalDNS(enabled=True), "fd12:3456:789a:100::a")
    objects = {each["kind"]: each for each in node_local_dns.objects(of_ipv6)}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    way = json.loads(objects["ConfigMap"]["data"]["config.yaml"])

    addresses = ["fd30:1319:f1e:230b::1", "fd12:3456:789a:100::a"]
    assert {f"bind {' '.join(addresses)}" in block for block in zones(of_ipv6).values()} == {True}
    assert re.findall(r"ip address replace (\S+)/128 dev lo", pod["initContainers"][0]["command"][-1]) == addresses
    assert way["server"] == "http://[fd30:1319:f1e:230b::1]:8099/health"
    assert "health [fd30:1319:f1e:230b::1]:8099" in zones(of_ipv6)["cluster.local"]
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["host"] == "fd30:1319:f1e:230b::1"


def test_the_upstream_is_a_separate_service_of_coredns() -> None:
    """By the cluster's DNS address it would ask itself."""
    service = next(each for each in node_local_dns.objects(server()) if each["kind"] == "Service")

    assert service["metadata"]["name"] == "kube-dns-upstream"
    assert service["spec"]["selector"] == {"k8s-app": "kube-dns"}
    assert [(each["protocol"], each["port"], each["targetPort"]) for each in service["spec"]["ports"]] == [
        ("UDP", 53, 8053),
        ("TCP", 53, 8053),
    ]
    assert "clusterIP" not in service["spec"]


async def test_node_local_dns_is_deployed_and_removed_by_the_spec(world: World) -> None:
    kinds = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
    world.pin({**SHOOT, "spec": {**SHOOT["spec"], "systemComponents": {"nodeLocalDNS": {"enabled": True}}}})
    await world.system.deploy_node_local_dns(TASK)
    data = world.secret(f"managedresource-{NAME}")["data"]
    made = {json.loads(base64.b64decode(text))["kind"] for text in data.values()}

    assert made == {"ServiceAccount", "ConfigMap", "Service", "DaemonSet"}
    world.pin(SHOOT)
    assert (await world.system.deploy_node_local_dns(TASK)).note == "not wanted"
    assert world.seed.find(kinds, NAME, TASK.technical_id) is None
