"""Pods that connect by IPv6, at the link-local addresses that the kernel gives to each interface.

Network namespaces stand for a node and its pods. A port without a server refuses a connection, which shows that packets
have passed in both directions. The first test shows that nothing but the agent's tables stands in the way.
"""

import json
import subprocess
import sys
from functools import partial
from ipaddress import ip_network

import pytest

from tests.connections import ADVERTISE
from tests.unit.kube.waiting import until
from tests.unit.network_policy_agent.test_on_a_node import (
    GATEWAY,
    NETWORK,
    NETWORK_V6,
    OUTSIDE,
    A,
    B,
    C,
    Node,
    network,
    pytestmark,
    v6,
)
from tests.unit.network_policy_agent.test_policies import policy
from workers.network_policy_agent import table

__all__ = ["network", "pytestmark"]

BRIDGE = "cni0"
CONNECT = """
import socket, sys
address = socket.getaddrinfo(sys.argv[1], 9, socket.AF_INET6, socket.SOCK_STREAM)[0][4]
with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one:
    one.settimeout(0.5)
    if sys.argv[2:]:
        one.bind((sys.argv[2], 0))
    try:
        one.connect(address)
    except ConnectionRefusedError:
        print("reached")
    except OSError:
        print("not reached")
"""
"""Connects to an address, from the address of a second argument."""


@pytest.fixture
async def node(network: Node) -> Node:
    """A node without the agent's tables."""
    for family in ("ip", "ip6"):
        run(network, GATEWAY, "nft", f"add table {family} {table.NAME}; delete table {family} {table.NAME}")
    network.written, network.networks = None, Node.networks
    for pod, interface in ((A, "eth0"), (B, "eth0"), (GATEWAY, BRIDGE)):
        await until(partial(link_local, network, pod, interface))
    return network


def run(node: Node, pod: str, *argv: str) -> str:
    return subprocess.run(node.inside(pod, *argv), check=True, capture_output=True, text=True).stdout


def link_local(node: Node, pod: str, interface: str) -> str:
    """The address of an interface; empty until the kernel may use it."""
    said = run(node, pod, "ip", "-6", "-json", "address", "show", "dev", interface, "scope", "link", "-tentative")
    found = [info["local"] for each in json.loads(said) for info in each.get("addr_info", ()) if info]
    return found[0] if found else ""


def reached(node: Node) -> list[str]:
    """Names of those that answer pod B: another pod of its bridge, and the node."""
    targets = {"pod": link_local(node, A, "eth0"), "node": link_local(node, GATEWAY, BRIDGE)}
    found = []
    for name, address in targets.items():
        assert address
        if run(node, B, sys.executable, "-IS", "-c", CONNECT, f"{address}%eth0") == "reached\n":
            found.append(name)
    return found


async def enforce(node: Node) -> None:
    """Write all tables, as the agent does when it starts, and close all pods."""
    await node.enforce(policy())


@pytest.fixture(params=["IPv4", "both families"])
def families(node: Node, request: pytest.FixtureRequest) -> str:
    """The families of the addresses that pods have."""
    pods = [ip_network(NETWORK), ip_network(NETWORK_V6)]
    node.networks = pods if request.param == "both families" else pods[:1]
    return str(request.param)


async def test_without_the_agent_pods_and_the_node_answer_by_ipv6(node: Node) -> None:
    assert reached(node) == ["pod", "node"]


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_a_closed_pod_reaches_neither_a_pod_nor_its_node_by_ipv6(node: Node, families: str) -> None:
    """Policies name no link-local addresses. An attacker has tried before, so the kernel knows the neighbours."""
    assert reached(node) == ["pod", "node"]

    await enforce(node)

    assert reached(node) == []
    assert node.reached(B, *(f"tcp/{v6(each)}/8080" for each in (A, GATEWAY, OUTSIDE))) == set()


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_a_closed_pod_is_not_reached_at_an_address_that_no_policy_names(node: Node) -> None:
    """A server answers at its link-local address, too, and the client may send from an address that is known."""
    target, bind = link_local(node, A, "eth0"), v6(B)
    assert run(node, B, sys.executable, "-IS", "-c", CONNECT, f"{target}%eth0", bind) == "reached\n"
    node.networks = [ip_network(NETWORK), ip_network(NETWORK_V6)]

    await node.enforce(policy(selector={"matchLabels": {"app": "server"}}, types=["Ingress"]))

    assert run(node, B, sys.executable, "-IS", "-c", CONNECT, f"{target}%eth0", bind) == "not reached\n"
    assert run(node, B, sys.executable, "-IS", "-c", CONNECT, v6(C), bind) == "reached\n", "it is open for others"


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_a_pod_that_gives_itself_an_address_reaches_nothing_by_it(node: Node) -> None:
    """A pod with the right to change its network leaves its rules behind if its other address has none."""
    node.networks = [ip_network(NETWORK), ip_network(NETWORK_V6)]
    await node.enforce()
    run(node, B, "ip", "address", "add", "fd00:96::bad/64", "dev", "eth0", "nodad")
    run(node, B, "ip", "address", "add", "fd00:bad::1/64", "dev", "eth0", "nodad")
    run(node, GATEWAY, "ip", "route", "add", "fd00:bad::/64", "dev", BRIDGE)
    try:
        found = {
            source: [
                run(node, B, sys.executable, "-IS", "-c", CONNECT, v6(each), source).strip()
                for each in (A, GATEWAY, OUTSIDE)
            ]
            for source in (v6(B), "fd00:96::bad", "fd00:bad::1")
        }
    finally:
        run(node, GATEWAY, "ip", "route", "delete", "fd00:bad::/64", "dev", BRIDGE)
        for each in ("fd00:96::bad/64", "fd00:bad::1/64"):
            run(node, B, "ip", "address", "delete", each, "dev", "eth0")

    assert found == {
        v6(B): ["reached"] * 3,
        "fd00:96::bad": ["not reached"] * 3,
        "fd00:bad::1": ["not reached"] * 3,
    }


def advertised(node: Node, pod: str) -> int:
    """Router advertisements that a pod has received."""
    lines = run(node, pod, "cat", "/proc/net/snmp6").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Icmp6InRouterAdvertisements"))


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_no_pod_becomes_the_gateway_of_others(node: Node, families: str) -> None:
    before = {each: advertised(node, each) for each in (A, C, GATEWAY)}
    run(node, B, sys.executable, "-IS", "-c", ADVERTISE)
    await until(lambda: all(advertised(node, each) == before[each] + 1 for each in (A, C)))

    await enforce(node)
    before = {each: advertised(node, each) for each in (A, C, GATEWAY)}
    dropped = counted(node)
    run(node, B, sys.executable, "-IS", "-c", ADVERTISE)

    await until(lambda: counted(node) > dropped)
    assert {each: advertised(node, each) for each in (A, C, GATEWAY)} == before


def counted(node: Node) -> int:
    """Packets to the node that the table of IPv6 has dropped. A bridge gives multicast to the node last."""
    said = json.loads(run(node, GATEWAY, "nft", "-j", "list", "chain", "ip6", table.NAME, "input"))
    rules = [each["rule"]["expr"] for each in said["nftables"] if "rule" in each]
    return sum(part["counter"]["packets"] for each in rules for part in each if "counter" in part)


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_a_pod_finds_no_neighbour_by_ipv6(node: Node) -> None:
    """No packet of neighbour discovery passes where pods have no addresses of IPv6."""
    await enforce(node)
    for pod in (A, B):
        run(node, pod, "ip", "-6", "neighbour", "flush", "dev", "eth0")

    reached(node)

    said = run(node, B, "ip", "-6", "-json", "neighbour", "show", "nud", "reachable")
    assert json.loads(said or "[]") == []
