"""A gardenlet registers its Seed once. From then on the Seed is the operators'."""

from collections.abc import AsyncIterator

import pytest

from kube.client import KubeClient
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from workers.gardenlet.config import SeedConfig
from workers.gardenlet.registration import register

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
CONFIG = SeedConfig(
    metadata={"name": "seed-1", "labels": {"stage": "live"}},
    spec={"backup": {"provider": "local"}, "provider": {"zones": ["0"]}},
)


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with GardenServer().running() as server:
        yield server


@pytest.fixture
async def client(garden: ApiServer) -> AsyncIterator[KubeClient]:
    async with garden.client() as client:
        yield client


async def test_a_missing_seed_is_created(garden: ApiServer, client: KubeClient) -> None:
    made = await register(client, CONFIG)

    found = garden.find(SEEDS, "seed-1")
    assert found is not None
    assert (found["metadata"]["uid"], found["spec"]) == (made["metadata"]["uid"], CONFIG.spec)


async def test_a_second_start_writes_nothing(garden: ApiServer, client: KubeClient) -> None:
    """Also where the API server has added defaults, and an operator what the configuration does not know."""
    await register(client, CONFIG)
    garden.change(SEEDS, "seed-1", None, {"spec": {"settings": {"scheduling": {"visible": False}}}})
    before = garden.find(SEEDS, "seed-1")

    assert await register(client, CONFIG) == before
    assert garden.find(SEEDS, "seed-1") == before
    assert [method for method, _ in garden.requests if method != "GET"] == ["PATCH"], "the first registration"


async def test_changes_of_an_operator_stay_and_an_event_names_them(garden: ApiServer, client: KubeClient) -> None:
    """The garden would refuse the change, and an operator looks for the reason at the Seed."""
    await register(client, CONFIG)
    garden.change(SEEDS, "seed-1", None, {"spec": {"backup": {"provider": "other"}, "provider": {"zones": ["1"]}}})

    live = await register(client, CONFIG)

    assert live["spec"]["backup"] == {"provider": "other"}
    (event,) = (each for (path, _, _), each in garden.objects.items() if path == "/api/v1/events")
    assert (event["reason"], event["involvedObject"]["name"]) == ("SeedConfigDiffers", "seed-1")
    assert "differs from the Seed in spec.backup.provider, spec.provider.zones." in event["message"]


async def test_a_seed_that_is_being_deleted_is_not_registered_again(garden: ApiServer, client: KubeClient) -> None:
    """The gardenlet that starts meanwhile executes the tasks of the deletion."""
    being_deleted = {"name": "seed-1", "finalizers": ["gardener"], "deletionTimestamp": "2026-11-21T12:00:00Z"}
    garden.put(SEEDS, {"metadata": being_deleted, "spec": CONFIG.spec})
    before = garden.find(SEEDS, "seed-1")

    live = await register(client, CONFIG.model_copy(update={"metadata": {"name": "seed-1"}}))

    assert live == before
    assert "deletionTimestamp" in live["metadata"]
    assert [method for method, _ in garden.requests if method != "GET"] == []
