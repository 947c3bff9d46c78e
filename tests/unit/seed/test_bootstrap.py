"""What a seed has before its control planes: its names, against API servers in memory."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from activities.kube.cache import Caches
from activities.seed.bootstrap import SeedActivities
from api.operations import SeedTask, TaskResult
from tests.unit.kube.api_server import ApiServer

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
DNS_RECORDS = "/apis/extensions.gardener.cloud/v1alpha1/dnsrecords"
SECRETS, SERVICES = "/api/v1/secrets", "/api/v1/services"
RECORD = (DNS_RECORDS, "seed-ingress", "garden")
TASK = SeedTask(name="seed-1", uid="5eed", generation=1, trigger="2026-11-21T10:00:00.000000Z")
LATER = SeedTask(name="seed-1", uid="5eed", generation=2, trigger="2026-11-21T11:00:00.000000Z")


class Running:
    """A gardenlet's activities, between a garden and a seed whose DNS provider is at hand."""

    def __init__(self, activities: SeedActivities, garden: ApiServer, seed: ApiServer) -> None:
        self.activities = activities
        self.garden = garden
        self.seed = seed

    @property
    def record(self) -> dict[str, Any] | None:
        return self.seed.find(*RECORD)

    def configure(self, **spec: Any) -> None:
        provider = {"type": "local", "credentialsRef": {"name": "domain", "namespace": "garden"}}
        self.garden.put(SEEDS, {"metadata": {"name": "seed-1"}, "spec": {"dns": {"provider": provider}, **spec}})

    def reach_at(self, **address: str) -> None:
        service = {
            "metadata": {"name": "istio-ingressgateway", "namespace": "istio-ingress"},
            "status": {"loadBalancer": {"ingress": [address]}},
        }
        self.seed.put(SERVICES, service)

    async def run(self, task: SeedTask) -> TaskResult:
        """The activity, while a controller does what is asked of it."""
        running = asyncio.create_task(self.activities.deploy_seed_ingress_dns(task))
        async with asyncio.timeout(10):
            while not running.done():
                self._control(task)
                await asyncio.sleep(0.01)
        return running.result()

    def _control(self, task: SeedTask) -> None:
        metadata = (self.record or {}).get("metadata") or {}
        if "gardener.cloud/operation" in metadata.get("annotations", {}):
            operation = {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": task.trigger}
            status = {"observedGeneration": metadata["generation"], "lastOperation": operation}
            heard = {"annotations": {"gardener.cloud/operation": None}}
            self.seed.change(*RECORD, {"metadata": heard, "status": status})


@pytest.fixture
async def gardenlet() -> AsyncIterator[Running]:
    async with (
        ApiServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as client,
    ):
        caches = Caches(client)
        clusters: Any = SimpleNamespace(garden=garden_client, seed=client, seed_caches=caches)
        garden.put(SECRETS, {"metadata": {"name": "domain", "namespace": "garden"}, "data": {"zone": "dGVzdA=="}})
        running = Running(SeedActivities(clusters), garden, seed)
        running.configure(ingress={"domain": "ingress.seed-1.test", "controller": {"kind": "nginx"}})
        running.reach_at(ip="198.18.2.2")
        yield running
        await caches.close()


async def test_every_name_of_the_ingress_domain_leads_to_the_gateway(gardenlet: Running) -> None:
    result = await gardenlet.run(TASK)

    assert result.note == "*.ingress.seed-1.test is 198.18.2.2"
    assert gardenlet.record is not None
    assert gardenlet.record["spec"] == {
        "type": "local",
        "class": "seed",
        "secretRef": {"name": "dnsrecord-seed-ingress", "namespace": "garden"},
        "name": "*.ingress.seed-1.test",
        "recordType": "A",
        "values": ["198.18.2.2"],
        "ttl": 120,
    }
    secret = gardenlet.seed.find(SECRETS, "dnsrecord-seed-ingress", "garden")
    assert secret is not None
    assert secret["data"] == {"zone": "dGVzdA=="}


async def test_a_second_run_writes_nothing(gardenlet: Running) -> None:
    """The first may have succeeded and lost its answer."""
    await gardenlet.run(TASK)
    before = gardenlet.record
    await gardenlet.run(TASK)

    assert gardenlet.record == before


async def test_a_gateway_that_gets_another_address_is_followed(gardenlet: Running) -> None:
    """Also where that makes it a record of another type, which cannot change."""
    await gardenlet.run(TASK)
    gardenlet.reach_at(hostname="gateway.example.org")
    await gardenlet.run(LATER)

    assert gardenlet.record is not None
    spec = gardenlet.record["spec"]
    assert (spec["recordType"], spec["values"]) == ("CNAME", ["gateway.example.org"])
    assert ("DELETE", "/apis/extensions.gardener.cloud/v1alpha1/namespaces/garden/dnsrecords/seed-ingress") in (
        gardenlet.seed.requests
    )


async def test_a_seed_that_loses_its_domain_loses_the_record(gardenlet: Running) -> None:
    await gardenlet.run(TASK)
    gardenlet.configure()
    result = await gardenlet.run(LATER)

    assert result.note == "no ingress domain"
    assert gardenlet.record is None
    assert gardenlet.seed.find(SECRETS, "dnsrecord-seed-ingress", "garden") is None


async def test_a_seed_without_a_domain_needs_no_dns_provider(gardenlet: Running) -> None:
    gardenlet.garden.put(SEEDS, {"metadata": {"name": "seed-1"}, "spec": {"dns": {}}})

    assert (await gardenlet.run(TASK)).note == "no ingress domain"
