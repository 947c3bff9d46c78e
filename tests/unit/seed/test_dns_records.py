"""The DNS records of an API server: which address of the gateway a Shoot gets, by its IP families."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.seed.extensions import ExtensionActivities
from activities.seed.gateway import gateway_address
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer

NAMESPACE = "shoot--dev--a"
RECORD = ("/apis/extensions.gardener.cloud/v1alpha1/dnsrecords", "a-internal", NAMESPACE)
SERVICES, SECRETS = "/api/v1/services", "/api/v1/secrets"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-dev", name="a", uid="u-1"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
    trigger="2026-11-21T10:00:00.000000Z",
)
PROVIDER = {
    "type": "local",
    "domain": "internal.example.org",
    "credentialsRef": {"name": "domain", "namespace": "garden"},
}
IPV4, IPV6 = "198.18.2.2", "2001:db8::11"


class Running:
    def __init__(self, clusters: Any, seed: ApiServer) -> None:
        self.clusters, self.seed = clusters, seed
        self.shoot: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {}}

    def reach_at(self, *ingress: dict[str, str]) -> None:
        service = {
            "metadata": {"name": "istio-ingressgateway", "namespace": "istio-ingress"},
            "status": {"loadBalancer": {"ingress": ingress}},
        }
        self.seed.put(SERVICES, service)

    async def record(self) -> tuple[str, list[str]]:
        """Type and values of the record, while a controller does what is asked of it."""
        running = asyncio.create_task(ExtensionActivities(self.clusters).deploy_internal_dns(TASK))
        async with asyncio.timeout(10):
            while not running.done():
                self._control()
                await asyncio.sleep(0.01)
        await running
        live = self.seed.find(*RECORD)
        assert live is not None
        return live["spec"]["recordType"], live["spec"]["values"]

    def _control(self) -> None:
        metadata = (self.seed.find(*RECORD) or {}).get("metadata") or {}
        if "gardener.cloud/operation" in metadata.get("annotations", {}):
            operation = {"type": "Create", "state": "Succeeded", "lastUpdateTime": TASK.trigger}
            status = {"observedGeneration": metadata["generation"], "lastOperation": operation}
            self.seed.change(
                *RECORD, {"metadata": {"annotations": {"gardener.cloud/operation": None}}, "status": status}
            )


@pytest.fixture
async def gardenlet() -> AsyncIterator[Running]:
    async with (
        ApiServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as client,
    ):
        garden.put(SECRETS, {"metadata": {"name": "domain", "namespace": "garden"}, "data": {}})
        caches = Caches(client)

        async def cluster(_: str) -> ClusterView:
            content = {"shoot": made.shoot, "seed": {"spec": {"dns": {"internal": PROVIDER}}}}
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": content})

        clusters = SimpleNamespace(garden=garden_client, seed=client, seed_caches=caches, cluster=cluster)
        made = Running(clusters, seed)
        yield made
        await caches.close()


@pytest.mark.parametrize(
    ("families", "type_", "value"),
    [(None, "A", IPV4), (["IPv4"], "A", IPV4), (["IPv4", "IPv6"], "A", IPV4), (["IPv6"], "AAAA", IPV6)],
)
async def test_a_shoot_with_ipv6_alone_gets_the_address_of_ipv6_and_others_that_of_ipv4(
    gardenlet: Running, families: list[str] | None, type_: str, value: str
) -> None:
    """Pods without IPv4 reach no address of IPv4, and a record of a Shoot that runs must not change."""
    gardenlet.shoot["spec"] = {"networking": {"ipFamilies": families}} if families else {}
    gardenlet.reach_at({"ip": IPV4}, {"ip": IPV6})

    assert await gardenlet.record() == (type_, [value])


@pytest.mark.parametrize("families", [["IPv4"], ["IPv6"]])
async def test_a_gateway_with_a_host_name_serves_shoots_of_all_families(
    gardenlet: Running, families: list[str]
) -> None:
    gardenlet.shoot["spec"] = {"networking": {"ipFamilies": families}}
    gardenlet.reach_at({"hostname": "lb.example.org"})

    assert await gardenlet.record() == ("CNAME", ["lb.example.org"])


async def test_a_gateway_without_an_address_of_ipv6_says_what_to_do(gardenlet: Running) -> None:
    gardenlet.shoot["spec"] = {"networking": {"ipFamilies": ["IPv6"]}}
    gardenlet.reach_at({"ip": IPV4})

    with pytest.raises(ApplicationError) as refused:
        await gardenlet.record()

    assert (refused.value.type, refused.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)
    assert "Service istio-ingress/istio-ingressgateway of the seed has 198.18.2.2" in refused.value.message
    assert "ipv6LoadBalancerIps" in refused.value.message
    assert gardenlet.seed.find(*RECORD) is None


async def test_tasks_that_need_one_address_get_the_first_one(gardenlet: Running) -> None:
    """Etcds of two seeds, and the former seed of a moved Shoot, connect by IPv4."""
    gardenlet.reach_at({"ip": IPV4}, {"ip": IPV6})

    assert await gateway_address(gardenlet.clusters.seed_caches) == IPV4
