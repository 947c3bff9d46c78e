"""Public addresses of the cloud: one for each load balancer, never the same twice."""

import asyncio
from ipaddress import IPv4Network, IPv6Network
from typing import Any

import pytest

from api.resources import SERVICE
from landscape.plan import MAX_LANDSCAPES, Plan
from landscape.public_addresses import Addresses, Network, addresses_of, free_address
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until

NETWORK = IPv4Network("198.18.4.0/30")
NETWORKS: dict[str, Network] = {"IPv4": NETWORK, "IPv6": IPv6Network("2001:2:0:4::/64")}


def service(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "infra"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "LoadBalancer", **spec}}


async def test_each_load_balancer_gets_an_address_of_its_own_and_an_address_returns() -> None:
    cloud = FakeCluster()

    def given() -> dict[str, list[str]]:
        return {name: addresses_of(each) for (_, _, name), each in cloud.objects.items() if addresses_of(each)}

    await cloud.create(service("one"))
    await cloud.create(service("inner", type="ClusterIP"))
    task = asyncio.create_task(Addresses(cloud, NETWORKS).run())
    await until(lambda: given() == {"one": ["198.18.4.1"]})
    await cloud.create(service("two"))
    await until(lambda: given() == {"one": ["198.18.4.1"], "two": ["198.18.4.2"]})

    await cloud.delete(SERVICE, "one", "infra")
    await cloud.create(service("three"))
    await until(lambda: given() == {"two": ["198.18.4.2"], "three": ["198.18.4.1"]})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_load_balancer_has_an_address_of_each_of_its_families_in_their_order() -> None:
    cloud = FakeCluster()

    def given(name: str) -> list[str]:
        return addresses_of(cloud.objects[SERVICE, "infra", name])

    await cloud.create(service("one", ipFamilies=["IPv6", "IPv4"]))
    await cloud.create(service("two", ipFamilies=["IPv6"]))
    task = asyncio.create_task(Addresses(cloud, NETWORKS).run())
    await until(lambda: given("one") == ["2001:2:0:4::1", "198.18.4.1"])
    await until(lambda: given("two") == ["2001:2:0:4::2"])

    await cloud.patch(SERVICE, "one", "infra", {"spec": {"ipFamilies": ["IPv6"]}})
    await cloud.patch(SERVICE, "two", "infra", {"spec": {"ipFamilies": ["IPv6", "IPv4"]}})
    await until(lambda: given("one") == ["2001:2:0:4::1"])
    await until(lambda: given("two") == ["2001:2:0:4::2", "198.18.4.1"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_address_that_an_earlier_process_gave_stays() -> None:
    """The process may be killed after it has written the first address, or between two changes of a Service."""
    cloud = FakeCluster()
    await cloud.create(service("one", ipFamilies=["IPv4", "IPv6"]))
    before = {"status": {"loadBalancer": {"ingress": [{"ip": "198.18.4.2", "ipMode": "VIP"}]}}}
    await cloud.patch(SERVICE, "one", "infra", before, subresource="status")
    task = asyncio.create_task(Addresses(cloud, NETWORKS).run())

    await until(lambda: addresses_of(cloud.objects[SERVICE, "infra", "one"]) == ["198.18.4.2", "2001:2:0:4::1"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_an_exhausted_network_has_no_address() -> None:
    assert free_address(NETWORK, ["198.18.4.1", "198.18.4.2"]) is None


@pytest.mark.parametrize("index", range(MAX_LANDSCAPES))
def test_the_network_overlaps_no_other_of_the_landscape(index: int) -> None:
    plan = Plan("any", index, "1.37.1")
    public = IPv4Network(plan.public_network)

    assert public.subnet_of(plan.block)
    assert not public.overlaps(IPv4Network(plan.machine_network))
    addresses = {plan.central_address, *(each.address for each in plan.clusters)}
    addresses |= {address for link in plan.links for address in (link.left_address, link.right_address)}
    assert not any(public.overlaps(IPv4Network(f"{each}/32")) for each in addresses)
