"""Extensions of the seed itself, between a garden and a seed in memory; a task of the test plays their controllers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.seed.seed_extensions import SeedExtensionActivities
from api.contracts.operations import SeedTask
from api.core.v1beta1.seed import Seed
from api.decisions.registrations import models, required_pairs_of_seed, wanted_extensions_of_seed
from api.validation.garden import check_seed_extensions
from tests.unit.api.shoots import SEED
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
REGISTRATIONS = "/apis/core.gardener.cloud/v1beta1/controllerregistrations"
EXTENSIONS = "/apis/extensions.gardener.cloud/v1alpha1/extensions"
TASK = SeedTask(name="seed-1", uid="5eed", generation=1, trigger="2026-11-21T10:00:00.000000Z")
LATER = TASK.model_copy(update={"generation": 2, "trigger": "2026-11-21T11:00:00.000000Z"})


def registration(type_: str, **resource: Any) -> dict[str, Any]:
    served = {"kind": "Extension", "type": type_, "clusterCompatibility": ["seed"], **resource}
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "ControllerRegistration",
        "metadata": {"name": type_},
        "spec": {"resources": [served]},
    }


class World:
    def __init__(self, garden: ApiServer, seed: ApiServer, clusters: Clusters) -> None:
        self.garden = garden
        self.seed = seed
        self.activities = SeedExtensionActivities(clusters)

    def wants(self, *extensions: dict[str, Any]) -> None:
        self.garden.put(SEEDS, {**SEED, "spec": {**SEED["spec"], "extensions": list(extensions)}})

    def specs(self) -> dict[str, Any]:
        return {each["metadata"]["name"]: each["spec"] for each in self._live()}

    def _live(self) -> list[dict[str, Any]]:
        names = ("audit", "backup", "of-shoots")
        return [found for name in names if (found := self.seed.find(EXTENSIONS, name, "garden"))]

    async def run(self, task: SeedTask) -> None:
        """The activity, while controllers do what is asked of them."""
        running = asyncio.create_task(self.activities.deploy_seed_extensions(task))
        async with asyncio.timeout(10):
            while not running.done():
                for each in self._live():
                    self._control(each, task)
                await asyncio.sleep(0.01)
        running.result()

    def _control(self, live: dict[str, Any], task: SeedTask) -> None:
        metadata = live["metadata"]
        if "deletionTimestamp" in metadata:
            self.seed.change(EXTENSIONS, metadata["name"], "garden", {"metadata": {"finalizers": None}})
        elif "gardener.cloud/operation" in metadata.get("annotations", {}):
            operation = {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": task.trigger}
            status = {"observedGeneration": metadata["generation"], "lastOperation": operation}
            taken = {"annotations": {"gardener.cloud/operation": None}, "finalizers": ["extensions.gardener.cloud/x"]}
            self.seed.change(EXTENSIONS, metadata["name"], "garden", {"metadata": taken, "status": status})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with (
        GardenServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as client,
    ):
        clusters = Clusters(garden_client, client, "seed-1")
        garden.put(REGISTRATIONS, registration("backup", autoEnable=["seed"]))
        yield World(garden, seed, clusters)
        await clusters.close()


async def test_extensions_of_the_seed_and_enabled_ones_are_deployed(world: World) -> None:
    world.wants({"type": "audit", "providerConfig": {"sink": "a"}})

    await world.run(TASK)

    assert world.specs() == {
        "audit": {"type": "audit", "class": "seed", "providerConfig": {"sink": "a"}},
        "backup": {"type": "backup", "class": "seed"},
    }


async def test_an_extension_that_leaves_the_seed_is_deleted_by_its_controller(world: World) -> None:
    """Extensions of other classes in namespace garden stay."""
    world.seed.put(EXTENSIONS, {"metadata": {"name": "of-shoots"}, "spec": {"type": "x"}}, "garden")
    world.wants({"type": "audit"})
    await world.run(TASK)

    world.wants({"type": "backup", "disabled": True})
    await world.run(LATER)

    assert world.specs().keys() == {"of-shoots"}


@pytest.mark.parametrize(
    ("resource", "entries", "types"),
    [
        ({"autoEnable": ["seed"]}, [], ["a"]),
        ({"autoEnable": ["shoot"]}, [], []),
        ({"autoEnable": ["seed"]}, [{"type": "a", "disabled": True}], []),
        ({"autoEnable": ["seed"], "clusterCompatibility": ["shoot"]}, [], []),
        ({}, [{"type": "a"}, {"type": "b"}], ["a", "b"]),
    ],
)
def test_extensions_that_a_seed_wants(resource: Any, entries: Any, types: list[str]) -> None:
    seed = {"spec": {**SEED["spec"], "extensions": entries}}
    found = [registration("a", **resource)]

    assert [each.type for each in wanted_extensions_of_seed(seed, found)] == types
    required = {type_ for kind, type_ in required_pairs_of_seed(seed, found) if kind == "Extension"}
    assert required == set(types)


def test_admission_refuses_an_extension_that_supports_no_seeds() -> None:
    offered = models([registration("audit"), registration("dns", clusterCompatibility=["shoot"])])

    def seed(*types: str) -> Seed:
        return Seed.of({**SEED, "spec": {**SEED["spec"], "extensions": [{"type": each} for each in types]}})

    assert not check_seed_extensions(seed("audit"), None, offered)
    said = str(check_seed_extensions(seed("audit", "dns"), None, offered))
    assert "spec.extensions[1].type: Unsupported value" in said
    assert "supports seeds: ['audit']" in said
    assert not check_seed_extensions(seed("dns"), seed("dns"), offered), "a Seed keeps what it has"
