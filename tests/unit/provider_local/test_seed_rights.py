"""provider-local keeps to its rights: to the gateway's Service, and to control planes for as long as they are there."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from api.resources import CLUSTER, MACHINE, SERVICE
from kube.cache import Caches
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from workers.provider_local.config import ProviderLocalConfig
from workers.provider_local.load_balancer import LoadBalancerController
from workers.provider_local.process import forget_control_planes

NAMESPACE = "shoot--dev--one"


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_caches_of_a_control_plane_end_with_it() -> None:
    """Its rights there end, too: each list of theirs would be refused, for good."""
    seed = FakeCluster()
    await seed.create({"apiVersion": CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": NAMESPACE}})
    caches = Caches(seed)
    machines, others = caches.of(MACHINE, NAMESPACE), caches.of(MACHINE, "shoot--dev--two")
    async with running(forget_control_planes(caches)):
        await caches.of(CLUSTER).wait_for(NAMESPACE, None, lambda live: live is not None, 10)

        await seed.delete(CLUSTER, NAMESPACE)

        await until(lambda: caches.of(MACHINE, NAMESPACE) is not machines)
    assert caches.of(MACHINE, "shoot--dev--two") is others
    await caches.close()


async def test_the_gateways_service_gets_the_address_of_the_node_and_no_other_is_touched() -> None:
    """RBAC permits reading this one by name, and writing its status."""
    seed = FakeCluster()
    for name in ("another", "istio-ingressgateway"):
        metadata = {"name": name, "namespace": "istio-ingress"}
        await seed.create(
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "LoadBalancer"}}
        )
    caches = Caches(seed)
    async with running(LoadBalancerController(seed, caches, "198.18.2.2").run()):
        await until(lambda: seed.objects[SERVICE, "istio-ingress", "istio-ingressgateway"].get("status"))

    gateway = seed.objects[SERVICE, "istio-ingress", "istio-ingressgateway"]
    assert gateway["status"]["loadBalancer"]["ingress"] == [{"ip": "198.18.2.2", "ipMode": "VIP"}]
    assert "status" not in seed.objects[SERVICE, "istio-ingress", "another"]
    await caches.close()


async def test_a_gateway_has_an_address_of_ipv6_behind_its_own_one() -> None:
    """Clients that use one address alone take the first one. A gateway of an earlier version gets the second one."""
    seed = FakeCluster()
    for namespace in ("istio-ingress", "handler-a", "handler-b"):
        await seed.create(gateway_service(namespace))
    for namespace, address in (("istio-ingress", "198.18.2.2"), ("handler-a", "198.18.2.5")):
        held = {"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}}
        await seed.patch(SERVICE, "istio-ingressgateway", namespace, held, subresource="status")

    def addresses(namespace: str) -> list[str]:
        status = seed.objects[SERVICE, namespace, "istio-ingressgateway"].get("status") or {}
        return [each["ip"] for each in (status.get("loadBalancer") or {}).get("ingress") or ()]

    caches = Caches(seed)
    ipv6 = {"198.18.2.2": "2001:db8::11", "198.18.2.5": "2001:db8::12"}
    controller = LoadBalancerController(seed, caches, "198.18.2.2", ("198.18.2.5", "198.18.2.6"), ipv6)
    async with running(controller.run()):
        await until(lambda: addresses("handler-b") and len(addresses("handler-a")) == 2)
        await until(lambda: addresses("istio-ingress") == ["198.18.2.2", "2001:db8::11"])
    assert addresses("handler-a") == ["198.18.2.5", "2001:db8::12"]
    assert addresses("handler-b") == ["198.18.2.6"], "no address of IPv6 leads there"
    await caches.close()


@pytest.mark.parametrize(
    ("ipv6", "said"),
    [
        ({"198.18.2.7": "2001:db8::11"}, "names 198.18.2.7: its keys must be addresses of loadBalancerIp"),
        ({"198.18.2.2": "198.18.2.9"}, "198.18.2.9 is no address of IPv6"),
        ({"198.18.2.2": "::1::"}, "::1:: is no address of IPv6"),
        ({"2001:db8::1": "2001:db8::11"}, "2001:db8::1 is no address of IPv4"),
        ({"198.18.2.2": "2001:db8::11", "198.18.2.5": "2001:db8:0::11"}, "names an address of IPv6 twice"),
    ],
)
def test_a_wrong_address_of_ipv6_is_refused(ipv6: dict[str, str], said: str) -> None:
    values = {
        "seedName": "seed-1",
        "temporal": {"address": "127.0.0.1:7233", "codecKeyFile": "/key"},
        "loadBalancerIp": "198.18.2.2",
        "furtherLoadBalancerIps": ["198.18.2.5", "2001:db8::1"],
    }
    ProviderLocalConfig.model_validate(values | {"ipv6LoadBalancerIps": {"198.18.2.5": "2001:db8::11"}})

    with pytest.raises(ValidationError, match=said):
        ProviderLocalConfig.model_validate(values | {"ipv6LoadBalancerIps": ipv6})


def gateway_service(namespace: str) -> dict[str, Any]:
    metadata = {"name": "istio-ingressgateway", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "LoadBalancer"}}


async def test_each_further_gateway_has_an_address_of_its_own_and_leaves_it_to_the_next_one() -> None:
    """DNS records name the address, so a gateway keeps it, also when provider-local starts again."""
    seed = FakeCluster()

    def address(namespace: str) -> str | None:
        status = seed.objects[SERVICE, namespace, "istio-ingressgateway"].get("status") or {}
        ingress = (status.get("loadBalancer") or {}).get("ingress") or [{}]
        ip: str | None = ingress[0].get("ip")
        return ip

    for namespace in ("istio-ingress", "handler-0", "handler-a", "handler-b"):
        await seed.create(gateway_service(namespace))
    held = {"status": {"loadBalancer": {"ingress": [{"ip": "198.18.2.6", "ipMode": "VIP"}]}}}
    await seed.patch(SERVICE, "istio-ingressgateway", "handler-0", held, subresource="status")
    caches = Caches(seed)
    further = ("198.18.2.5", "198.18.2.6")
    async with running(LoadBalancerController(seed, caches, "198.18.2.2", further).run()):
        await until(lambda: address("istio-ingress") and (address("handler-a") or address("handler-b")))
        assert (address("istio-ingress"), address("handler-0")) == ("198.18.2.2", "198.18.2.6")
        first, waiting = ("handler-a", "handler-b") if address("handler-a") else ("handler-b", "handler-a")
        assert address(first) == "198.18.2.5"
        assert address(waiting) is None

        await seed.delete(SERVICE, "istio-ingressgateway", first)
        await until(lambda: address(waiting))
        assert address(waiting) == "198.18.2.5"
    await caches.close()
