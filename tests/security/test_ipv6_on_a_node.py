"""Pods that connect by IPv6, at the link-local addresses that the kernel gives to each interface.

Network namespaces stand for a node and its pods. A port without a server refuses a connection, which shows that packets
have passed in both directions. The first test shows that nothing but the agent's tables stands in the way.
"""

import json
import subprocess
import sys
from functools import partial

import pytest

from tests.unit.kube.waiting import until
from tests.unit.network_policy_agent.test_on_a_node import (
    GATEWAY,
    A,
    B,
    Node,
    network,
    pytestmark,
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
    try:
        one.connect(address)
    except ConnectionRefusedError:
        print("reached")
    except OSError:
        print("not reached")
"""


@pytest.fixture
async def node(network: Node) -> Node:
    """A node without the agent's tables."""
    for family in ("ip", "ip6"):
        run(network, GATEWAY, "nft", f"add table {family} {table.NAME}; delete table {family} {table.NAME}")
    network.written = None
    for pod, interface in ((A, "eth0"), (B, "eth0"), (GATEWAY, BRIDGE)):
        await until(partial(link_local, network, pod, interface))
    return network


def run(node: Node, pod: str, *argv: str) -> str:
    return subprocess.run(node.inside(pod, *argv), check=True, capture_output=True, text=True).stdout


def link_local(node: Node, pod: str, interface: str) -> str:
    """The address of an interface; empty until the kernel may use it."""
    said = run(node, pod, "ip", "-6", "-json", "address", "show", "dev", interface, "scope", "link", "-tentative")
    found = [info["local"] for each in json.loads(said) for info in each.get("addr_info", ())]
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
    await table.apply(table.without_ipv6(BRIDGE), ["nsenter", f"--net=/run/netns/{node.name}"])


async def test_without_the_agent_pods_and_the_node_answer_by_ipv6(node: Node) -> None:
    assert reached(node) == ["pod", "node"]


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_a_closed_pod_reaches_neither_a_pod_nor_its_node_by_ipv6(node: Node) -> None:
    """Policies name addresses of IPv4. An attacker has tried before, so the kernel knows the neighbours."""
    assert reached(node) == ["pod", "node"]

    await enforce(node)

    assert reached(node) == []


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
async def test_a_pod_finds_no_neighbour_by_ipv6(node: Node) -> None:
    """No packet of neighbour discovery passes. By router advertisements, a pod would become the gateway of others."""
    await enforce(node)
    for pod in (A, B):
        run(node, pod, "ip", "-6", "neighbour", "flush", "dev", "eth0")

    reached(node)

    said = run(node, B, "ip", "-6", "-json", "neighbour", "show", "nud", "reachable")
    assert json.loads(said or "[]") == []
