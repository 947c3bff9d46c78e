"""A Seed says that its extensions are ready only where the gardenlet has seen that they are."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.clusters import Clusters
from api.times import micro_timestamp
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.config import SeedCareConfig, ShootCareConfig
from workers.gardenlet.extensions_ready import extensions_ready
from workers.gardenlet.seed_care import SeedCare

CORE = "/apis/core.gardener.cloud/v1beta1"
SEEDS, REGISTRATIONS, INSTALLATIONS = (
    f"{CORE}/{each}" for each in ("seeds", "controllerregistrations", "controllerinstallations")
)
LEASES = "/apis/coordination.k8s.io/v1/leases"
BUCKETS = "/apis/extensions.gardener.cloud/v1alpha1/backupbuckets"
HEARTBEAT = "gardener-extension-heartbeat"
GOOD = {"Valid": "True", "Installed": "True", "Healthy": "True", "Progressing": "False"}
READY = ("True", "AllExtensionsReady")
AT_ONCE = SeedCareConfig(sync_period=timedelta(seconds=0.05), condition_thresholds=())


def installation(seed: str = "seed-1", **changes: str) -> dict[str, Any]:
    conditions = [{"type": type_, "status": status} for type_, status in (GOOD | changes).items()]
    return {
        "metadata": {"name": f"provider-local-{seed}"},
        "spec": {"registrationRef": {"name": "provider-local"}, "seedRef": {"name": seed}},
        "status": {"conditions": conditions},
    }


class Seed:
    """A seed and its garden, with one registered extension."""

    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed
        reported = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady", "message": ""}
        garden.put(SEEDS, {"metadata": {"name": "seed-1"}, "spec": {}, "status": {"conditions": [reported]}})
        registered = {"resources": [{"kind": "BackupBucket", "type": "local"}]}
        garden.put(REGISTRATIONS, {"metadata": {"name": "provider-local"}, "spec": registered})

    def beat(self, renewed: str, namespace: str = "garden") -> None:
        lease = {"metadata": {"name": HEARTBEAT}, "spec": {"renewTime": renewed}}
        self.seed.put(LEASES, lease, namespace)

    def use(self) -> None:
        self.seed.put(BUCKETS, {"metadata": {"name": "5eed"}, "spec": {"type": "local"}})

    @property
    def condition(self) -> tuple[str, str] | None:
        status = (self.garden.find(SEEDS, "seed-1") or {})["status"]
        found = [each for each in status["conditions"] if each["type"] == "ExtensionsReady"]
        return (found[0]["status"], found[0]["reason"]) if found else None

    @property
    def message(self) -> str:
        status = (self.garden.find(SEEDS, "seed-1") or {})["status"]
        return next(str(each["message"]) for each in status["conditions"] if each["type"] == "ExtensionsReady")


@pytest.fixture
async def seed() -> AsyncIterator[Seed]:
    async with ApiServer().running() as garden, ApiServer().running() as cluster:
        made = Seed(garden, cluster)
        async with garden.client() as garden_client, cluster.client() as client:
            clusters = Clusters(garden_client, client, "seed-1")
            checking = asyncio.create_task(SeedCare(clusters, AT_ONCE, ShootCareConfig()).run())
            yield made
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
            await clusters.close()


async def test_an_extension_that_the_seed_uses_must_have_a_heartbeat(seed: Seed) -> None:
    await until(lambda: seed.condition == READY)  # nothing is used
    seed.use()
    await until(lambda: seed.condition == ("False", "NotAllExtensionsHealthy"))
    assert seed.message == "provider-local has written no heartbeat"
    seed.beat(micro_timestamp())
    await until(lambda: seed.condition == READY)


async def test_an_installed_extension_writes_its_heartbeat_in_its_own_namespace(seed: Seed) -> None:
    """The namespace has the name of the installation, which is generated."""
    seed.garden.put(INSTALLATIONS, installation())
    seed.use()
    await until(lambda: seed.condition == ("False", "NotAllExtensionsHealthy"))
    seed.beat(micro_timestamp(), "extension-provider-local-seed-1")
    await until(lambda: seed.condition == READY)


async def test_an_extension_that_is_silent_for_too_long_is_named(seed: Seed) -> None:
    seed.use()
    seed.beat((datetime.now(UTC) - timedelta(minutes=6)).isoformat())
    await until(lambda: seed.condition == ("False", "NotAllExtensionsHealthy"))
    await until(lambda: seed.message == "provider-local has written no heartbeat for more than 0:05:00")


async def test_a_seed_that_was_not_reconciled_yet_gets_no_condition(seed: Seed) -> None:
    """Others take a Seed with conditions for one that was ready once."""
    await until(lambda: seed.condition == READY)
    seed.garden.change(SEEDS, "seed-1", None, {"status": {"conditions": []}})
    seed.use()
    seed.garden.put(INSTALLATIONS, installation(Healthy="False"))
    await asyncio.sleep(0.3)
    assert seed.condition is None


async def test_an_installation_that_is_not_healthy_is_reported_until_it_is(seed: Seed) -> None:
    seed.garden.put(INSTALLATIONS, installation(Healthy="False"))
    await until(lambda: seed.condition == ("False", "NotAllExtensionsHealthy"))
    seed.garden.change(INSTALLATIONS, "provider-local-seed-1", None, {"status": installation()["status"]})
    await until(lambda: seed.condition == READY)


async def test_installations_of_other_seeds_do_not_count(seed: Seed) -> None:
    seed.garden.put(INSTALLATIONS, installation("seed-2", Healthy="False"))
    seed.garden.put(INSTALLATIONS, installation())
    await until(lambda: seed.condition == READY)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Valid": "False", "Installed": "False"}, "NotAllExtensionsValid"),
        ({"Installed": "Unknown", "Healthy": "False"}, "NotAllExtensionsInstalled"),
        ({"Healthy": "Unknown"}, "NotAllExtensionsHealthy"),
        ({"Progressing": "True"}, "SomeExtensionsProgressing"),
    ],
)
def test_the_first_condition_that_is_not_met_is_the_reason(changes: dict[str, str], reason: str) -> None:
    finding = extensions_ready([installation(), installation("seed-1", **changes)], [])
    assert (finding.status, finding.reason) == ("False", reason)


def test_an_installation_without_conditions_is_not_ready() -> None:
    """No controller has checked it yet, so its state is unknown."""
    finding = extensions_ready([{"metadata": {"name": "new"}, "spec": {}}], [])
    assert (finding.status, finding.reason, finding.message) == ("False", "NotAllExtensionsValid", "new is not valid")
