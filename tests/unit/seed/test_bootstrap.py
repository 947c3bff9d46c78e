"""Names of a seed, created before its control planes, against API servers in memory."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from temporalio.exceptions import ApplicationError

from activities.seed.bootstrap import SeedActivities
from api.contracts.operations import OperationType, SeedTask, TaskResult
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.seed.test_extension_access import CLUSTER_ROLES, REGISTRATIONS, ROLES, cluster_role, registration

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
DNS_RECORDS = "/apis/extensions.gardener.cloud/v1alpha1/dnsrecords"
SECRETS, SERVICES = "/api/v1/secrets", "/api/v1/services"
RECORD = (DNS_RECORDS, "seed-ingress", "garden")
TASK = SeedTask(
    name="seed-1",
    uid="5eed",
    generation=1,
    trigger="2026-11-21T10:00:00.000000Z",
    operation=OperationType.CREATE,
)
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
        GardenServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as client,
    ):
        caches = Caches(client)
        clusters: Any = SimpleNamespace(garden=garden_client, seed=client, seed_caches=caches, seed_name="seed-1")
        garden.put(SECRETS, {"metadata": {"name": "domain", "namespace": "garden"}, "data": {"zone": "dGVzdA=="}})
        running = Running(SeedActivities(clusters), garden, seed)
        running.configure(ingress={"domain": "ingress.seed-1.test", "controller": {"kind": "nginx"}})
        running.reach_at(ip="198.18.2.2")
        yield running
        await caches.close()


async def test_every_name_of_the_ingress_domain_resolves_to_the_gateway(gardenlet: Running) -> None:
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


async def test_the_extension_may_read_the_credentials_for_as_long_as_there_is_a_record(gardenlet: Running) -> None:
    """It reads them when the record is ordered."""
    gardenlet.seed.put(CLUSTER_ROLES, cluster_role())
    gardenlet.garden.put(REGISTRATIONS, registration("provider-x", ("DNSRecord", "local")))
    shared = ROLES, "extension-secret:dnsrecord-seed-ingress", "garden"

    await gardenlet.run(TASK)
    assert (gardenlet.seed.find(*shared) or {})["rules"][0]["resourceNames"] == ["dnsrecord-seed-ingress"]

    gardenlet.configure()
    await gardenlet.run(LATER)
    assert gardenlet.seed.find(*shared) is None


async def test_a_seed_without_a_domain_needs_no_dns_provider(gardenlet: Running) -> None:
    gardenlet.garden.put(SEEDS, {"metadata": {"name": "seed-1"}, "spec": {"dns": {}}})

    assert (await gardenlet.run(TASK)).note == "no ingress domain"


# What the Seed's status says


@pytest.fixture
async def reporting(gardenlet: Running) -> Running:
    def answer(asked: web.Request) -> web.Response | None:
        return web.json_response({"gitVersion": "v1.37.1"}) if asked.path == "/version" else None

    gardenlet.seed.answer = answer
    gardenlet.seed.put("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
    gardenlet.garden.remove(SEEDS, "seed-1")
    spec = {"backup": {"provider": "local"}}
    gardenlet.garden.put(SEEDS, {"metadata": {"name": "seed-1", "uid": "5eed"}, "spec": spec})
    return gardenlet


def seed_of(gardenlet: Running) -> dict[str, Any]:
    seed = gardenlet.garden.find(SEEDS, "seed-1")
    assert seed is not None
    return seed


def conditions(gardenlet: Running) -> dict[str, str]:
    return {each["type"]: each["status"] for each in seed_of(gardenlet)["status"]["conditions"]}


def operation(gardenlet: Running) -> tuple[str, str, int]:
    status = seed_of(gardenlet)["status"]
    last = status["lastOperation"]
    return last["type"], last["state"], status["observedGeneration"]


async def test_a_new_seed_says_that_it_is_created_and_then_that_it_is_ready(reporting: Running) -> None:
    await reporting.activities.report_seed_processing(TASK)
    assert operation(reporting) == ("Create", "Processing", 1)
    assert conditions(reporting)["SeedSystemComponentsHealthy"] == "Progressing"
    for _ in range(2):  # the first run may lose its answer
        await reporting.activities.report_seed_ready(TASK)
    assert operation(reporting) == ("Create", "Succeeded", 1)
    assert conditions(reporting) == {
        "GardenletReady": "True",
        "SeedSystemComponentsHealthy": "True",
        "BackupBucketsReady": "True",
    }
    status = seed_of(reporting)["status"]
    assert (status["kubernetesVersion"], status["gardener"]["name"]) == ("v1.37.1", "gardenlet")


async def test_a_changed_seed_reports_processing_and_stays_ready(reporting: Running) -> None:
    """Control planes wait for the gardenlet to have seen the change, and must not wait for its end."""
    await reporting.activities.report_seed_processing(TASK)
    await reporting.activities.report_seed_ready(TASK)
    before = conditions(reporting)
    await reporting.activities.report_seed_processing(LATER)
    assert operation(reporting) == ("Reconcile", "Processing", 2)
    assert conditions(reporting) == before


@pytest.mark.parametrize(("version", "accepted"), [("v1.30.0", True), ("v2.0.1-a", True), ("v1.29.9-gke.5", False)])
async def test_a_seed_with_an_old_version_of_kubernetes_is_not_made_ready(
    reporting: Running, version: str, accepted: bool
) -> None:
    def answer(asked: web.Request) -> web.Response | None:
        return web.json_response({"gitVersion": version}) if asked.path == "/version" else None

    reporting.seed.answer = answer
    if accepted:
        await reporting.activities.report_seed_processing(TASK)
    else:
        with pytest.raises(ApplicationError, match=r"v1\.29\.9-gke\.5, and at least 1\.30 is") as old:
            await reporting.activities.report_seed_processing(TASK)
        assert (old.value.type, old.value.non_retryable) == ("ERR_RETRYABLE_CONFIGURATION_PROBLEM", False)
    assert seed_of(reporting)["status"]["kubernetesVersion"] == version


async def test_the_request_is_removed_when_the_work_begins(reporting: Running) -> None:
    """One that comes later is served by a later workflow, so the end leaves it."""
    asked = {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}}
    reporting.garden.change(SEEDS, "seed-1", None, asked)
    await reporting.activities.report_seed_processing(TASK)
    assert not seed_of(reporting)["metadata"]["annotations"]
    reporting.garden.change(SEEDS, "seed-1", None, asked)
    await reporting.activities.report_seed_ready(TASK)
    assert seed_of(reporting)["metadata"]["annotations"] == asked["metadata"]["annotations"]


async def test_a_request_to_another_component_is_left_to_it(reporting: Running) -> None:
    asked = {"metadata": {"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}}
    reporting.garden.change(SEEDS, "seed-1", None, asked)
    await reporting.activities.report_seed_processing(TASK)
    assert seed_of(reporting)["metadata"]["annotations"] == asked["metadata"]["annotations"]


async def test_a_seed_of_the_same_name_that_was_made_later_is_not_written(reporting: Running) -> None:
    with pytest.raises(ApplicationError, match="does not exist any more"):
        await reporting.activities.report_seed_ready(TASK.model_copy(update={"uid": "0ld"}))
    assert "status" not in seed_of(reporting)
