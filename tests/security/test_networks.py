"""Connections that a seed with closed namespaces refuses to tenants and to what they have taken over.

The policies are those that the gardenlet and the resource manager make of the manifests of two control planes. They are
evaluated here; the network of a seed enforces them.
"""

import pytest

from activities.components import etcd
from tests.unit.components.test_connections import (
    CLUSTER,
    METADATA,
    NODE,
    OTHER,
    PODS,
    PRIVATE,
    PROVIDER,
    PUBLIC,
    SERVICE,
    TEMPORAL,
    at,
)
from tests.unit.components.test_manifests import NAMESPACE

OWN = [name for namespace, name in PODS if namespace == NAMESPACE]
PORTS = (443, 1194, 2379, 2381, 8080, 9090, 9093, 9095, 9115, 9443, 15000)
WEBHOOKS = 10250
NEEDED = {("etcd-main", 2379), ("etcd-events", 2379), ("vpn-seed-server", 9443), ("vpn-seed-server-1", 9443)}
"""Pods and ports of its own control plane that an API server needs."""


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
@pytest.mark.parametrize("source", OWN)
def test_no_pod_of_a_control_plane_reaches_pods_of_another_one(source: str) -> None:
    others = [pod for pod in PODS.values() if pod.namespace == OTHER]
    reached = [(pod.name, port) for pod in others for port in PORTS if CLUSTER.allows(at(source), pod, port)]
    assert (len(others) > 10, reached) == (True, [])


@pytest.mark.attack(actor="T1", asset="A5", finding=8)
@pytest.mark.parametrize("source", OWN)
def test_no_pod_of_a_control_plane_reaches_temporal(source: str) -> None:
    temporal = PODS["temporal", "temporal"]
    assert not any(CLUSTER.allows(at(source), each, port) for each in (temporal, TEMPORAL) for port in (7233, 7243))


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
@pytest.mark.parametrize("address", [NODE, SERVICE, METADATA, PRIVATE, "10.250.0.1", "127.0.0.1"])
def test_an_api_server_reaches_no_address_of_the_seed_or_of_private_networks(address: str) -> None:
    """The owner of a Shoot chooses addresses that its API server connects to: of webhooks, and of endpoints."""
    assert not any(CLUSTER.allows(at("kube-apiserver"), address, port) for port in (*PORTS, 6443, 10250))


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
def test_an_api_server_reaches_only_the_ports_of_its_own_control_plane_that_it_needs() -> None:
    server, names = at("kube-apiserver"), [name for name in OWN if name != "kube-apiserver"]
    reached = {(name, port) for name in names for port in PORTS if CLUSTER.allows(server, at(name), port)}
    assert reached == NEEDED
    assert {name for name, _ in NEEDED} >= {etcd.name_of(role) for role in etcd.ROLES}


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
@pytest.mark.parametrize("name", ["garden/gardenlet", "garden/gardener-resource-manager", PROVIDER])
def test_an_api_server_reaches_no_process_of_the_seed(name: str) -> None:
    assert not any(CLUSTER.allows(at("kube-apiserver"), at(name), port) for port in (*PORTS, 2718, 8081, WEBHOOKS))


@pytest.mark.attack(actor="T6", asset="A2", finding=8)
@pytest.mark.parametrize("name", OWN)
def test_clients_outside_of_the_seed_reach_a_control_plane_by_the_gateway_alone(name: str) -> None:
    assert not any(CLUSTER.allows(PUBLIC, at(name), port) for port in PORTS)


@pytest.mark.attack(actor="T4", asset="A2", finding=8)
@pytest.mark.parametrize("source", [PROVIDER, "garden/gardener-resource-manager"])
def test_an_extension_reaches_of_control_planes_the_api_servers_alone(source: str) -> None:
    reached = {(name, port) for name in OWN for port in PORTS if CLUSTER.allows(at(source), at(name), port)}
    assert reached <= {("kube-apiserver", 443)}


@pytest.mark.attack(actor="T4", asset="A2", finding=8)
def test_only_the_api_server_of_a_shoot_calls_the_webhooks_of_its_resource_manager() -> None:
    """An API server shows webhooks no certificate. Another caller could keep all turns, and hold the system's pods."""
    callers = {pod.name for pod in PODS.values() if CLUSTER.allows(pod, at("gardener-resource-manager"), WEBHOOKS)}
    callers |= {
        each for each in (PUBLIC, PRIVATE, NODE) if CLUSTER.allows(each, at("gardener-resource-manager"), WEBHOOKS)
    }
    assert callers == {"kube-apiserver"}
