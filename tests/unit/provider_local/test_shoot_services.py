"""Services of a shoot get load balancers of the cloud, which change with them and go with them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from api.constants import EXCLUDED_FROM_LOAD_BALANCERS, TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.local import EXCLUDED_MACHINES, HEALTH_CHECK_PORT
from api.resources import EVENT, NODE, SERVICE
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from tests.unit.provider_local.shoot_cluster import NAMESPACE, ShootCluster, cloud_with
from workers.provider_local.shoot_services import FINALIZER, ShootServices

PORTS = [
    {"port": 80, "protocol": "TCP", "nodePort": 30080},
    {"port": 53, "protocol": "UDP", "nodePort": 30053},
]


@pytest.fixture
def shoot() -> ShootCluster:
    return ShootCluster()


@pytest.fixture
async def cloud(shoot: ShootCluster) -> AsyncIterator[FakeCluster]:
    async with cloud_with(ShootServices, shoot) as cloud:
        yield cloud


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "app"},
        "spec": {"type": "LoadBalancer", "ports": PORTS, **spec},
    }


def live(shoot: ShootCluster) -> dict[str, Any]:
    return shoot.objects[SERVICE, "app", "web"]


async def balanced(
    shoot: ShootCluster, cloud: FakeCluster, addresses: Sequence[str] = ("198.18.4.1",), **spec: Any
) -> dict[str, Any]:
    """The load balancer of a new Service, after the cloud gave it its addresses."""
    await shoot.create(service(**spec))
    [made] = await until(lambda: cloud.of(SERVICE))
    await give(cloud, made["metadata"]["name"], *addresses)
    await until(lambda: (live(shoot).get("status") or {}).get("loadBalancer"))
    return cloud.of(SERVICE)[0]


async def give(cloud: FakeCluster, name: str, *addresses: str) -> None:
    given = {"status": {"loadBalancer": {"ingress": [{"ip": each, "ipMode": "VIP"} for each in addresses]}}}
    await cloud.patch(SERVICE, name, NAMESPACE, given, subresource="status")


async def test_a_service_gets_an_address_that_leads_to_its_node_ports(shoot: ShootCluster, cloud: FakeCluster) -> None:
    made = await balanced(shoot, cloud)

    assert made["metadata"]["name"] == f"lb-{live(shoot)['metadata']['uid']}"
    assert [(each["protocol"], each["port"], each["targetPort"]) for each in made["spec"]["ports"]] == [
        ("TCP", 80, 30080),
        ("UDP", 53, 30053),
    ]
    assert "selector" not in made["spec"]
    assert made["metadata"]["annotations"][HEALTH_CHECK_PORT] == "10256"
    assert live(shoot)["status"]["loadBalancer"] == {"ingress": [{"ip": "198.18.4.1", "ipMode": "VIP"}]}
    assert FINALIZER in live(shoot)["metadata"]["finalizers"]


async def test_local_traffic_goes_to_nodes_that_have_a_pod(shoot: ShootCluster, cloud: FakeCluster) -> None:
    made = await balanced(shoot, cloud, externalTrafficPolicy="Local", healthCheckNodePort=31000)

    assert made["metadata"]["annotations"][HEALTH_CHECK_PORT] == "31000"


async def test_changed_sources_and_excluded_nodes_reach_the_cloud(shoot: ShootCluster, cloud: FakeCluster) -> None:
    await balanced(shoot, cloud)

    await shoot.patch(SERVICE, "web", "app", {"spec": {"loadBalancerSourceRanges": ["203.0.113.0/24"]}})
    await until(lambda: cloud.of(SERVICE)[0]["spec"].get("loadBalancerSourceRanges") == ["203.0.113.0/24"])

    new = {"taints": [{"key": TAINT_CRITICAL_COMPONENTS_NOT_READY, "effect": "NoSchedule"}]}
    await shoot.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m1"}, "spec": new})
    await until(lambda: cloud.of(SERVICE)[0]["metadata"]["annotations"][EXCLUDED_MACHINES] == "m1")
    await shoot.patch(NODE, "m1", None, {"spec": {"taints": None}})
    await until(lambda: cloud.of(SERVICE)[0]["metadata"]["annotations"][EXCLUDED_MACHINES] == "")
    await shoot.patch(NODE, "m1", None, {"metadata": {"labels": {EXCLUDED_FROM_LOAD_BALANCERS: ""}}})
    await until(lambda: cloud.of(SERVICE)[0]["metadata"]["annotations"][EXCLUDED_MACHINES] == "m1")


def addresses(shoot: ShootCluster) -> list[str]:
    return [each["ip"] for each in live(shoot)["status"]["loadBalancer"].get("ingress") or ()]


@pytest.mark.parametrize(
    ("families", "given", "policy"),
    [
        (["IPv6"], ["2001:2:0:4::1"], "SingleStack"),
        (["IPv4", "IPv6"], ["198.18.4.1", "2001:2:0:4::1"], "RequireDualStack"),
        (["IPv6", "IPv4"], ["2001:2:0:4::1", "198.18.4.1"], "RequireDualStack"),
    ],
)
async def test_a_service_gets_an_address_of_each_of_its_families_in_their_order(
    shoot: ShootCluster, cloud: FakeCluster, families: list[str], given: list[str], policy: str
) -> None:
    """``PreferDualStack`` is decided where the Service is: its families are those that it has got there."""
    made = await balanced(shoot, cloud, given, ipFamilies=families, ipFamilyPolicy="PreferDualStack")

    assert made["spec"]["ipFamilies"] == families
    assert made["spec"]["ipFamilyPolicy"] == policy
    assert addresses(shoot) == given


async def test_a_family_that_comes_or_goes_changes_the_load_balancer(shoot: ShootCluster, cloud: FakeCluster) -> None:
    made = await balanced(shoot, cloud, ipFamilies=["IPv4"])
    name = made["metadata"]["name"]

    await shoot.patch(SERVICE, "web", "app", {"spec": {"ipFamilies": ["IPv4", "IPv6"]}})
    await until(lambda: cloud.of(SERVICE)[0]["spec"]["ipFamilies"] == ["IPv4", "IPv6"])
    await give(cloud, name, "198.18.4.1", "2001:2:0:4::1")
    await until(lambda: addresses(shoot) == ["198.18.4.1", "2001:2:0:4::1"])

    await shoot.patch(SERVICE, "web", "app", {"spec": {"ipFamilies": ["IPv4"]}})
    await until(lambda: addresses(shoot) == ["198.18.4.1"])
    assert cloud.of(SERVICE)[0]["spec"]["ipFamilies"] == ["IPv4"]


async def test_another_first_family_makes_another_load_balancer(shoot: ShootCluster, cloud: FakeCluster) -> None:
    """A user may change it by way of type ExternalName, while provider-local does not run."""
    before = await balanced(shoot, cloud, ipFamilies=["IPv4"])

    await shoot.patch(SERVICE, "web", "app", {"spec": {"ipFamilies": ["IPv6"]}})

    after = await until(lambda: [each for each in cloud.of(SERVICE) if each["spec"]["ipFamilies"] == ["IPv6"]])
    assert after[0]["metadata"]["uid"] != before["metadata"]["uid"]


async def test_sources_of_one_family_do_not_open_the_other_one(shoot: ShootCluster, cloud: FakeCluster) -> None:
    """kube-proxy opens an address to all if no range is of its family."""
    both = ["198.18.4.1", "2001:2:0:4::1"]
    spec = {"ipFamilies": ["IPv4", "IPv6"], "loadBalancerSourceRanges": ["203.0.113.0/24"]}

    made = await balanced(shoot, cloud, both, **spec)

    assert made["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24", "127.0.0.1/32", "::1/128"]


async def test_the_load_balancer_goes_before_its_service(shoot: ShootCluster, cloud: FakeCluster) -> None:
    made = await balanced(shoot, cloud)
    name = made["metadata"]["name"]
    await cloud.patch(SERVICE, name, NAMESPACE, {"metadata": {"finalizers": ["cloud"]}})
    await shoot.delete(SERVICE, "web", "app")
    await until(lambda: cloud.objects[SERVICE, NAMESPACE, name]["metadata"].get("deletionTimestamp"))
    await asyncio.sleep(0.05)
    assert shoot.of(SERVICE), "the address is still taken"

    await cloud.patch(SERVICE, name, NAMESPACE, {"metadata": {"finalizers": []}})
    await until(lambda: not shoot.of(SERVICE))


async def test_a_service_that_becomes_internal_loses_its_address(shoot: ShootCluster, cloud: FakeCluster) -> None:
    await balanced(shoot, cloud)

    await shoot.patch(SERVICE, "web", "app", {"spec": {"type": "ClusterIP"}})

    await until(lambda: not cloud.of(SERVICE) and FINALIZER not in live(shoot)["metadata"]["finalizers"])
    assert not live(shoot)["status"]["loadBalancer"].get("ingress")


async def test_nothing_is_left_of_a_service_whose_finalizer_was_removed(
    shoot: ShootCluster, cloud: FakeCluster
) -> None:
    await balanced(shoot, cloud)
    await shoot.patch(SERVICE, "web", "app", {"metadata": {"finalizers": []}})
    await shoot.delete(SERVICE, "web", "app")

    await until(lambda: not cloud.of(SERVICE))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8::/32"]}, "no address of IPv6"),
        ({"ipFamilies": ["IPv6"], "loadBalancerSourceRanges": ["203.0.113.0/24"]}, "source range 203.0.113.0/24"),
        ({"loadBalancerIP": "198.18.4.7"}, "loadBalancerIP"),
        ({"ports": [{"port": 1, "protocol": "SCTP", "nodePort": 30001}]}, "protocol SCTP"),
        ({"ports": [{"port": 1, "protocol": "TCP"}]}, "no node port"),
    ],
)
async def test_what_the_cloud_does_not_have_is_told(
    shoot: ShootCluster, cloud: FakeCluster, spec: dict[str, Any], told: str
) -> None:
    await shoot.create(service(**spec))

    [event] = await until(lambda: shoot.of(EVENT))

    assert told in event["message"]
    assert not cloud.of(SERVICE)


async def test_a_service_of_another_class_is_left_alone(shoot: ShootCluster, cloud: FakeCluster) -> None:
    await shoot.create(service(loadBalancerClass="example.org/other"))
    await asyncio.sleep(0.05)

    assert not cloud.of(SERVICE)
    assert "finalizers" not in live(shoot)["metadata"]
