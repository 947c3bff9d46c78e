"""A Seed says that its components and backups are well only while the gardenlet sees that they are."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.components import gateway
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.config import ConditionThreshold, SeedCareConfig, ShootCareConfig
from workers.gardenlet.seed_care import SeedCare

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
DEPLOYMENTS = "/apis/apps/v1/deployments"
EXTENSIONS = "/apis/extensions.gardener.cloud/v1alpha1"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
COMPONENTS, BACKUPS = "SeedSystemComponentsHealthy", "BackupBucketsReady"
AVAILABLE = [{"type": "Available", "status": "True"}]
AT_ONCE = SeedCareConfig(sync_period=timedelta(seconds=0.05), condition_thresholds=())


class Seed:
    """A seed with gateway, DNS name and backup bucket, and its Seed in the garden."""

    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed
        reported = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady", "message": ""}
        spec = {"backup": {"provider": "local"}, "ingress": {"domain": "ingress.test"}}
        wanted = {"metadata": {"name": "seed-1", "uid": "5eed"}, "spec": spec, "status": {"conditions": [reported]}}
        garden.put(SEEDS, wanted)
        self.gateway(AVAILABLE)
        self.deployment("gardener-resource-manager", "garden", AVAILABLE)
        self.seed.put(f"{EXTENSIONS}/dnsrecords", {"metadata": {"name": "seed-ingress"}, "status": {}}, "garden")
        self.seed.put(f"{EXTENSIONS}/backupbuckets", {"metadata": {"name": "5eed"}, "spec": {}, "status": {}})

    def gateway(self, conditions: list[dict[str, str]]) -> None:
        self.deployment(gateway.NAME, gateway.NAMESPACE, conditions)

    def deployment(self, name: str, namespace: str, conditions: list[dict[str, str]]) -> None:
        metadata = {"name": name, "generation": 1}
        status = {"observedGeneration": 1, "conditions": conditions}
        self.seed.put(DEPLOYMENTS, {"metadata": metadata, "spec": {}, "status": status}, namespace)

    def fail(self, plural: str, name: str, namespace: str | None, error: dict[str, Any] | None) -> None:
        self.seed.change(f"{EXTENSIONS}/{plural}", name, namespace, {"status": {"lastError": error}})

    def condition(self, type_: str) -> dict[str, Any]:
        status = (self.garden.find(SEEDS, "seed-1") or {})["status"]
        return next((each for each in status["conditions"] if each["type"] == type_), {})

    async def becomes(self, type_: str, status: str, text: str = "") -> None:
        await until(lambda: self.condition(type_).get("status") == status and text in self.condition(type_)["message"])


@pytest.fixture
def config() -> SeedCareConfig:
    return AT_ONCE


@pytest.fixture
async def seed(config: SeedCareConfig) -> AsyncIterator[Seed]:
    async with ApiServer().running() as garden, ApiServer().running() as cluster:
        made = Seed(garden, cluster)
        async with garden.client() as garden_client, cluster.client() as client:
            clusters = Clusters(garden_client, client, "seed-1")
            checking = asyncio.create_task(SeedCare(clusters, config, ShootCareConfig()).run())
            yield made
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
            await clusters.close()


async def test_a_gateway_that_fails_is_reported_until_it_is_well(seed: Seed) -> None:
    await seed.becomes(COMPONENTS, "True")
    seed.gateway([{"type": "Available", "status": "False"}])
    await seed.becomes(COMPONENTS, "False", f"Deployment istio-ingress/{gateway.NAME}: condition Available is False")
    seed.gateway(AVAILABLE)
    await seed.becomes(COMPONENTS, "True")
    seed.seed.remove(DEPLOYMENTS, gateway.NAME, gateway.NAMESPACE)
    await seed.becomes(COMPONENTS, "False", "does not exist")


async def test_a_seed_without_resource_manager_is_reported(seed: Seed) -> None:
    """ManagedResources keep their conditions when it is gone, and would look healthy for ever."""
    await seed.becomes(COMPONENTS, "True")
    seed.deployment("gardener-resource-manager", "garden", [{"type": "Available", "status": "False"}])
    await seed.becomes(COMPONENTS, "False", "Deployment garden/gardener-resource-manager: condition Available is False")


async def test_a_name_that_cannot_be_written_is_reported(seed: Seed) -> None:
    error = {"description": "zone is locked", "codes": ["ERR_INFRA_UNAUTHORIZED"]}
    seed.fail("dnsrecords", "seed-ingress", "garden", error)
    await seed.becomes(COMPONENTS, "False", "DNSRecord garden/seed-ingress: zone is locked")
    assert seed.condition(COMPONENTS)["codes"] == ["ERR_INFRA_UNAUTHORIZED"]


async def test_a_managed_resource_of_the_seed_counts(seed: Seed) -> None:
    """Those of shoots are in other namespaces, and those of extensions count in another condition."""
    await seed.becomes(COMPONENTS, "True")
    conditions = [{"type": "ResourcesApplied", "status": "False", "reason": "ApplyFailed", "message": "no such kind"}]
    of_extension = {"controllerinstallation-name": "notes-x7k2p"}
    for name, class_, namespace, labels in (
        ("other", "mine", "garden", {}),
        ("shoot", "seed", "shoot--a--b", {}),
        ("notes-x7k2p", "seed", "garden", of_extension),
        ("ours", "seed", "garden", {}),
    ):
        obj = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"class": class_},
            "status": {"observedGeneration": 1, "conditions": conditions},
        }
        seed.seed.put(MANAGED_RESOURCES, obj, namespace)
    await seed.becomes(COMPONENTS, "False", "ManagedResource ours: no such kind")
    assert seed.condition(COMPONENTS)["message"] == "ManagedResource ours: no such kind"


async def test_a_bucket_with_an_error_is_reported_with_its_code(seed: Seed) -> None:
    await seed.becomes(BACKUPS, "True")
    error = {"description": "access denied", "codes": ["ERR_INFRA_UNAUTHORIZED"]}
    seed.fail("backupbuckets", "5eed", None, error)
    await seed.becomes(BACKUPS, "False", "BackupBucket 5eed: access denied")
    assert seed.condition(BACKUPS)["codes"] == ["ERR_INFRA_UNAUTHORIZED"]
    seed.fail("backupbuckets", "5eed", None, None)
    await seed.becomes(BACKUPS, "True")
    seed.seed.remove(f"{EXTENSIONS}/backupbuckets", "5eed")
    await seed.becomes(BACKUPS, "Unknown", "no BackupBucket")


class TestWithThreshold:
    @pytest.fixture
    def config(self) -> SeedCareConfig:
        threshold = ConditionThreshold(type=BACKUPS, duration=timedelta(seconds=1))
        return SeedCareConfig(sync_period=timedelta(seconds=0.05), condition_thresholds=(threshold,))

    async def test_a_short_fault_is_progressing(self, seed: Seed) -> None:
        await seed.becomes(BACKUPS, "True")
        seed.fail("backupbuckets", "5eed", None, {"description": "slow down"})
        await seed.becomes(BACKUPS, "Progressing", "slow down")
        await seed.becomes(BACKUPS, "False", "slow down")
