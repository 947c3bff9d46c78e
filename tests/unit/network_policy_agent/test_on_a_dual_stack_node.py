"""Policies in a kernel, for pods with addresses of both families."""

from ipaddress import ip_network
from typing import Any

import pytest

from tests.unit.network_policy_agent.test_on_a_node import (
    ALL_OF_A,
    GATEWAY,
    NETWORK,
    NETWORK_V6,
    OUTSIDE,
    STATES,
    UNKNOWN,
    A,
    B,
    C,
    Node,
    listed,
    network,
    pytestmark,
    v6,
)
from tests.unit.network_policy_agent.test_policies import policy
from workers.network_policy_agent import table

__all__ = ["network", "pytestmark"]

ALL_OF_A_V6 = tuple(each.replace(A, v6(A)) for each in ALL_OF_A)
BOTH = (*ALL_OF_A, *ALL_OF_A_V6)
SERVER = {"matchLabels": {"app": "server"}}


@pytest.fixture
async def node(network: Node) -> Node:
    """A node with the agent's tables for both families."""
    network.written, network.networks = None, (ip_network(NETWORK), ip_network(NETWORK_V6))
    await network.enforce()
    return network


async def test_without_a_policy_all_pods_are_open(node: Node) -> None:
    outside = {f"tcp/{each}/8080" for each in (OUTSIDE, v6(OUTSIDE))}

    assert node.reached(B, *BOTH, *outside) == {*BOTH, *outside}
    assert node.reached(OUTSIDE, *BOTH) == set(BOTH)


@pytest.mark.parametrize("own_node", [True, False])
async def test_a_closed_pod_accepts_connections_of_its_node_alone(node: Node, own_node: bool) -> None:
    node.written = None
    await node.enforce(policy(selector=SERVER, types=["Ingress"]), own_node=own_node)

    assert [node.reached(each, *BOTH) for each in (B, C, OUTSIDE)] == [set()] * 3
    assert node.reached(GATEWAY, *BOTH) == set(BOTH), "the kubelet probes it"
    assert node.reached(A, *BOTH) == set(BOTH), "a pod reaches itself"
    assert node.reached(A, f"tcp/{v6(B)}/8080") == {f"tcp/{v6(B)}/8080"}, "it may open connections"


async def test_a_pod_closed_for_egress_opens_no_connection(node: Node) -> None:
    targets = [f"tcp/{each}/8080" for one in (A, OUTSIDE, GATEWAY) for each in (one, v6(one))]
    assert node.reached(B, *targets) == set(targets)

    await node.enforce(policy(selector={"matchLabels": {"app": "client"}}, types=["Egress"]))

    assert node.reached(B, *targets) == set()
    assert node.reached(A, f"tcp/{v6(B)}/8080") == {f"tcp/{v6(B)}/8080"}, "it answers"


async def test_a_pod_reaches_its_own_node_where_policies_do_not_limit_that(node: Node) -> None:
    node.written = None
    await node.enforce(policy(), own_node=False)

    targets = [f"tcp/{v6(each)}/8080" for each in (GATEWAY, A)]
    assert node.reached(B, *targets) == {targets[0]}


IPV6 = {"cidr": "::/0", "except": ["fd00:203::/64", f"{v6(B)}/128"]}
ROWS: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "pods": ({"from": [{"podSelector": {}}]}, {B: BOTH}),
    "a block of IPv4": ({"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, dict.fromkeys((B, C, OUTSIDE), ALL_OF_A)),
    "a block of IPv6": ({"from": [{"ipBlock": {"cidr": "fd00:203::/64"}}]}, {OUTSIDE: ALL_OF_A_V6}),
    "a block of IPv6 with exceptions": ({"from": [{"ipBlock": IPV6}]}, {C: ALL_OF_A_V6}),
    "a port": ({"ports": [{"port": 8081}]}, dict.fromkeys((B, C, OUTSIDE), (ALL_OF_A[1], ALL_OF_A_V6[1]))),
    "a named port": ({"ports": [{"port": "web"}]}, dict.fromkeys((B, C, OUTSIDE), (ALL_OF_A[0], ALL_OF_A_V6[0]))),
    "a protocol": (
        {"ports": [{"protocol": "UDP"}]},
        dict.fromkeys((B, C, OUTSIDE), (ALL_OF_A[3], ALL_OF_A_V6[3])),
    ),
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_pod_accepts_what_a_rule_allows(node: Node, name: str) -> None:
    rule, allowed = ROWS[name]
    await node.enforce(policy(selector=SERVER, types=["Ingress"], ingress=[rule]))

    for source in (B, C, OUTSIDE):
        assert node.reached(source, *BOTH) == set(allowed.get(source, ()))


async def test_a_pod_that_the_agent_does_not_know_reaches_nothing_and_nothing_reaches_it(node: Node) -> None:
    targets = [f"tcp/{v6(each)}/8080" for each in (A, OUTSIDE, GATEWAY)]
    assert node.reached(UNKNOWN, *targets) == set()
    assert [node.reached(each, f"tcp/{v6(UNKNOWN)}/8080") for each in (B, OUTSIDE)] == [set()] * 2

    await node.enforce(unknown="")

    assert node.reached(UNKNOWN, *targets) == set(targets)
    assert node.reached(B, f"tcp/{v6(UNKNOWN)}/8080") == {f"tcp/{v6(UNKNOWN)}/8080"}


async def test_differences_lead_to_the_tables_that_are_written_as_a_whole(node: Node) -> None:
    for number, state in enumerate([*STATES, *reversed(STATES)]):
        await node.enforce(*state, unknown=B if number % 2 else UNKNOWN)
        changed, rules = [listed(node, each) for each in ("ip", "ip6")], node.written
        node.written = None
        await node.enforce(*state, unknown=B if number % 2 else UNKNOWN)
        assert changed == [listed(node, each) for each in ("ip", "ip6")]
        assert rules is not None
        assert node.written is not None
        assert table.difference(rules, node.written, node.networks) == []
