"""Condition Required says whether extension objects in the seed need an installed extension."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from activities.clusters import Clusters
from api.crds import kinds
from tests.unit.gardenlet.test_extensions_ready import INSTALLATIONS, REGISTRATIONS, installation
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.required_installations import KINDS, RequiredInstallations

NETWORKS, WORKERS = (f"/apis/extensions.gardener.cloud/v1alpha1/{each}" for each in ("networks", "workers"))
CONTROL_PLANE = "shoot--local--demo"


class Seed:
    def __init__(self, garden: ApiServer, cluster: ApiServer) -> None:
        self.garden, self.cluster = garden, cluster
        offered = [{"kind": "Network", "type": "net"}, {"kind": "Worker", "type": "local", "primary": False}]
        garden.put(REGISTRATIONS, {"metadata": {"name": "provider-local"}, "spec": {"resources": offered}})

    def use(self, path: str, type_: str, name: str = "demo") -> None:
        spec = {"type": type_, "providerConfig": {"large": True}}
        self.cluster.put(path, {"metadata": {"name": name}, "spec": spec}, CONTROL_PLANE)

    def condition(self, seed: str = "seed-1") -> tuple[str, str] | None:
        found = (self.garden.find(INSTALLATIONS, f"provider-local-{seed}") or {})["status"]["conditions"]
        return next(((each["status"], each["reason"]) for each in found if each["type"] == "Required"), None)


@pytest.fixture
async def seed() -> AsyncIterator[Seed]:
    async with ApiServer().running() as garden, ApiServer().running() as cluster:
        made = Seed(garden, cluster)
        async with garden.client() as garden_client, cluster.client() as client:
            clusters = Clusters(garden_client, client, "seed-1")
            running = asyncio.create_task(RequiredInstallations(clusters).run())
            yield made
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await clusters.close()


YES, NO = ("True", "ExtensionObjectsExist"), ("False", "NoExtensionObjects")


async def test_an_installation_is_required_from_the_first_object_to_the_last(seed: Seed) -> None:
    seed.garden.put(INSTALLATIONS, installation())
    await until(lambda: seed.condition() == NO)
    seed.use(NETWORKS, "net")
    await until(lambda: seed.condition() == YES)
    seed.use(WORKERS, "local")
    seed.cluster.remove(NETWORKS, "demo", CONTROL_PLANE)
    seed.use(NETWORKS, "other")
    seed.cluster.remove(WORKERS, "demo", CONTROL_PLANE)
    await until(lambda: seed.condition() == NO)


async def test_the_other_conditions_stay_as_they_are(seed: Seed) -> None:
    """Another controller of the gardenlet writes them."""
    seed.use(NETWORKS, "net")
    seed.garden.put(INSTALLATIONS, installation())
    await until(lambda: seed.condition() == YES)
    conditions = (seed.garden.find(INSTALLATIONS, "provider-local-seed-1") or {})["status"]["conditions"]
    assert [each["type"] for each in conditions] == ["Valid", "Installed", "Healthy", "Progressing", "Required"]


async def test_installations_of_other_seeds_are_left_alone(seed: Seed) -> None:
    seed.garden.put(INSTALLATIONS, installation("seed-2"))
    seed.garden.put(INSTALLATIONS, installation())
    await until(lambda: seed.condition() == NO)
    assert seed.condition("seed-2") is None


def test_every_kind_of_extension_object_counts() -> None:
    """A kind that is missing would let the controller-manager delete an extension that is in use."""
    group = "extensions.gardener.cloud"
    all_kinds = {each.__name__ for each in kinds("seed") if each.definition.group == group}
    assert {each.kind for each in KINDS} == all_kinds - {"Cluster"}
