"""Rules that NetworkPolicies make, against an evaluation of the policies themselves."""

import random
from ipaddress import IPv4Address
from typing import Any

import pytest

from tests.network_policies import Cluster
from tests.network_policies import Pod as OfTheTests
from workers.network_policy_agent.policies import Pod, Rules, compute, read

NAMESPACES = {"a": {"team": "red"}, "b": {"team": "blue"}, "c": {}}
PORTS = {"web": 8080, "metrics": 9090}


def policy(name="p", namespace="a", selector=None, types=("Ingress", "Egress"), **rules):
    spec = {"podSelector": selector or {}, "policyTypes": list(types), **rules}
    return {"metadata": {"name": name, "namespace": namespace, "uid": "u"}, "spec": spec}


def pods():
    found: list[Any] = []
    for number, namespace in enumerate(NAMESPACES):
        for app in ("server", "client"):
            ports = {"web": 8080 + number} if app == "server" else {}
            address = f"100.96.{number}.{len(found) + 1}"
            found.append((namespace, app, address, {"app": app, "tier": str(number)}, ports))
    return found


PODS = [
    Pod(namespace, name, (address,), labels, {(port, "tcp"): number for port, number in ports.items()}, is_local=True)
    for namespace, name, address, labels, ports in pods()
]
SAME = {
    address: OfTheTests(namespace, name, labels, address, ports) for namespace, name, address, labels, ports in pods()
}


def allows(rules: Rules, source: str, target: str, port: int, protocol: str = "tcp") -> bool:
    """Whether nftables passes the first packet of a connection."""
    ends = ((rules.egress, source, target), (rules.ingress, target, source))
    return all(
        own not in chains
        or any(_holds(rules, each, peer, target, port, protocol) for each in rules.chains[chains[own]])
        for chains, own, peer in ends
    )


def _holds(rules, match, peer, target, port, protocol):
    inside = match.peers in rules.pods and peer in rules.pods[match.peers]
    for first, last in rules.networks.get(match.peers, ()):
        inside = inside or IPv4Address(first) <= IPv4Address(peer) <= IPv4Address(last)
    return (
        (not match.peers or inside)
        and match.protocol in ("", protocol)
        and (not match.ports or any(first <= port <= last for first, last in match.ports))
        and (not match.servers or (target, protocol, port) in rules.servers[match.servers])
    )


def made(*policies):
    return compute([read(each) for each in policies], NAMESPACES, PODS)


@pytest.mark.parametrize("seed", range(40))
def test_rules_allow_what_the_policies_allow(seed):
    dice = random.Random(seed)

    def selector():
        return dice.choice(
            [
                {},
                {"matchLabels": {"app": "server"}},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": ["client"]}]},
                {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["1"]}]},
            ]
        )

    def peer():
        block = {"cidr": "100.96.0.0/16", "except": dice.sample(["100.96.1.0/24", "100.96.2.0/25", "100.96.0.1/32"], 2)}
        of_namespaces = dice.choice([{}, {"matchLabels": {"team": "red"}}, {"matchExpressions": [NOT_BLUE]}])
        return dice.choice(
            [
                {"ipBlock": block},
                {"ipBlock": {"cidr": "203.0.113.0/24"}},
                {"podSelector": selector()},
                {"namespaceSelector": of_namespaces},
                {"namespaceSelector": of_namespaces, "podSelector": selector()},
            ]
        )

    def port():
        return dice.choice(
            [
                {"port": 8080},
                {"port": "web"},
                {"port": 8000, "endPort": 8081},
                {"protocol": "UDP", "port": 8080},
                {"protocol": "TCP"},
            ]
        )

    def rules(field):
        return [
            {field: [peer() for _ in range(dice.randint(0, 2))], "ports": [port() for _ in range(dice.randint(0, 2))]}
            for _ in range(dice.randint(0, 2))
        ]

    policies = [
        policy(
            str(number),
            dice.choice(list(NAMESPACES)),
            selector(),
            dice.choice([("Ingress",), ("Egress",), ("Ingress", "Egress")]),
            ingress=rules("from"),
            egress=rules("to"),
        )
        for number in range(5)
    ]
    expected, found = Cluster(tuple(policies), NAMESPACES), made(*policies)
    ends = [*SAME, "203.0.113.7", "198.51.100.7"]
    for source in ends:
        for target in ends:
            if source == target or not {source, target} & SAME.keys():
                continue
            for number in (8080, 8081, 8082, 9090):
                for protocol in ("TCP", "UDP"):
                    ours = allows(found, source, target, number, protocol.lower())
                    theirs = expected.allows(SAME.get(source, source), SAME.get(target, target), number, protocol)
                    assert ours == theirs, (source, target, number, protocol)


NOT_BLUE = {"key": "team", "operator": "NotIn", "values": ["blue"]}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"from": [{"nodeSelector": {}}]}, "from[0].nodeSelector is not supported"),
        ({"from": [{}]}, "from[0] is not supported"),
        ({"users": []}, "users is not supported"),
        ({"ports": [{"port": 1, "protocol": "GRE"}]}, "ports[0].protocol GRE is not supported"),
        ({"ports": [{"port": 1, "name": "x"}]}, "ports[0].name is not supported"),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "only": "x"}}]}, "more than an ipBlock"),
        ({"from": [{"ipBlock": {"cidr": "nonsense"}}]}, "from[0].ipBlock"),
        ({"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}]}, "operator Gt"),
    ],
)
def test_a_rule_that_cannot_be_read_allows_nothing_and_is_named(rule, said):
    whole = {"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}
    both = policy(types=["Ingress"], ingress=[rule, whole])

    assert [said in fault and "ingress[0]" in fault for fault in read(both).faults] == [True]
    found = made(both)
    assert allows(found, "203.0.113.7", PODS[0].addresses[0], 8080), "the other rule still holds"
    assert not allows(found, "198.51.100.7", PODS[0].addresses[0], 8080)


def test_a_policy_whose_selector_cannot_be_read_closes_its_namespace():
    odd = policy(selector={"matchExpressions": [{"key": "a", "operator": "Gt"}]}, types=["Ingress"], ingress=[{}])

    found = made(odd)

    closed = {pod.addresses[0] for pod in PODS if pod.namespace == "a"}
    assert (set(found.ingress), set(found.egress)) == (closed, closed)


def test_pods_of_other_nodes_are_peers_and_have_no_rules_here():
    remote = [Pod(p.namespace, p.name, p.addresses, p.labels, p.ports, p.namespace == "a") for p in PODS]
    allowed = policy(types=["Ingress"], ingress=[{"from": [{"namespaceSelector": {}}]}])

    found = compute([read(allowed), read(policy(namespace="b"))], NAMESPACES, remote)

    assert set(found.ingress) == found.local == {pod.addresses[0] for pod in PODS if pod.namespace == "a"}
    assert allows(found, PODS[-1].addresses[0], PODS[0].addresses[0], 8080)


def test_pods_with_the_same_policies_share_a_chain():
    found = made(policy(types=["Ingress"], ingress=[{}]))

    assert len(found.chains) == 1
    assert len(found.ingress) == 2
