"""The general NetworkPolicies of namespaces of a seed."""

import dataclasses
import ipaddress

import pytest

from activities.components.network_policies import NAMES, Networks, policies

NETWORKS = Networks(
    own=["198.18.1.0/24", "100.96.0.0/16", "100.64.0.0/24"],
    blocked=["203.0.113.7/32"],
    api_servers=[("198.18.1.1", 6443), ("fd00::1", 443)],
)
SHOOT = ["10.250.0.0/16", "100.112.0.0/16"]


def made(role="shoot", networks=NETWORKS, shoot=SHOOT):
    namespace = {"metadata": {"name": "a", "labels": {"gardener.cloud/role": role}}}
    found = policies(namespace, networks, shoot)
    assert all(each["metadata"]["namespace"] == "a" for each in found)
    assert all(each["metadata"]["annotations"]["gardener.cloud/description"] for each in found)
    return {each["metadata"]["name"]: each["spec"] for each in found}


def reaches(spec, address):
    """Whether a policy for egress allows an address."""
    wanted = ipaddress.ip_address(address)
    return any(
        wanted in ipaddress.ip_network(peer["ipBlock"]["cidr"])
        and not any(wanted in ipaddress.ip_network(each) for each in peer["ipBlock"].get("except", ()))
        for rule in spec.get("egress", ())
        for peer in rule["to"]
        if "ipBlock" in peer
    )


def test_pods_reach_a_dns_on_their_node_at_the_address_of_the_cluster_s_dns():
    """No pod has this address, so a rule for pods of kube-dns does not allow it."""
    found = made(networks=dataclasses.replace(NETWORKS, dns="100.64.0.10"))["allow-to-dns"]

    assert reaches(found, "100.64.0.10")
    assert reaches(found, "169.254.20.10")
    assert not reaches(found, "100.64.0.11")
    assert not reaches(made()["allow-to-dns"], "100.64.0.10")


def test_everything_is_denied_last():
    found = made()
    assert list(found)[-1] == "deny-all"
    assert found["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert set(found) == set(NAMES)


@pytest.mark.parametrize("name", [each for each in NAMES if each != "deny-all"])
def test_each_policy_allows_egress_of_pods_with_its_label(name):
    spec = made()[name]
    label = name.replace("allow-to-", "networking.gardener.cloud/to-")
    assert spec["podSelector"] == {"matchLabels": {label: "allowed"}}
    assert spec["policyTypes"] == ["Egress"]
    assert "ingress" not in spec


@pytest.mark.parametrize("role", ["garden", "extension", "istio-ingress", "exposureclass-handler"])
def test_only_control_planes_reach_networks_of_a_shoot(role):
    assert set(NAMES) - set(made(role)) == {"allow-to-shoot-networks"}


@pytest.mark.parametrize(
    "address",
    ["198.18.1.9", "100.96.3.4", "100.64.0.1", "10.1.2.3", "172.20.0.1", "192.168.1.1", "100.70.0.1", "169.254.169.254",
     "127.0.0.1", "203.0.113.7"],
)  # fmt: skip
def test_public_networks_include_neither_the_seed_nor_private_link_local_and_blocked_ones(address):
    assert not reaches(made()["allow-to-public-networks"], address)


def test_public_addresses_are_reached():
    assert reaches(made()["allow-to-public-networks"], "203.0.113.8")
    assert reaches(made()["allow-to-public-networks"], "198.18.2.1")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("10.1.2.3", True), ("100.70.0.1", True), ("100.96.3.4", False), ("100.64.0.1", False), ("10.250.0.1", False),
     ("8.8.8.8", False)],
)  # fmt: skip
def test_private_networks_include_neither_the_seed_nor_the_shoot(address, allowed):
    assert reaches(made()["allow-to-private-networks"], address) is allowed


def test_a_blocked_network_that_holds_a_private_one_leaves_the_private_one_out():
    """The API server refuses an exception that is no part of its network."""
    networks = Networks(own=["10.0.0.0/7"], blocked=[], api_servers=[])
    peers = made(networks=networks)["allow-to-private-networks"]["egress"][0]["to"]
    assert "10.0.0.0/8" not in [each["ipBlock"]["cidr"] for each in peers]


def test_without_networks_a_policy_allows_nothing():
    """A rule without targets would allow all."""
    found = made(networks=Networks(own=[], blocked=[], api_servers=[]), shoot=[])
    for name in ("allow-to-blocked-cidrs", "allow-to-shoot-networks", "allow-to-runtime-apiserver"):
        assert "egress" not in found[name]


def test_blocked_addresses_are_reached_by_label_alone():
    assert reaches(made()["allow-to-blocked-cidrs"], "203.0.113.7")


def test_the_seeds_api_server_is_reached_at_its_endpoints():
    assert made()["allow-to-runtime-apiserver"]["egress"] == [
        {"to": [{"ipBlock": {"cidr": "198.18.1.1/32"}}], "ports": [{"port": 6443, "protocol": "TCP"}]},
        {"to": [{"ipBlock": {"cidr": "fd00::1/128"}}], "ports": [{"port": 443, "protocol": "TCP"}]},
    ]


def test_dns_is_reached_in_kube_system_alone():
    [rule] = made()["allow-to-dns"]["egress"]
    assert rule["to"][0]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert {(each["port"], each["protocol"]) for each in rule["ports"]} == {
        (port, protocol) for port in (53, 8053) for protocol in ("UDP", "TCP")
    }
