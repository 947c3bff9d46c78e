"""A Seed is reconciled when its gardenlet starts and whenever it changes, and serves its control planes meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from activities.kube.cache import Caches
from api.operations import SeedTask
from tests.unit.kube.api_server import ApiServer
from workers.gardenlet import seed as seed_module
from workers.gardenlet.config import SeedConfig
from workers.gardenlet.seed import SeedController

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
NAME = "seed-1"
CONFIG = SeedConfig(metadata={"name": NAME}, spec={"backup": {"provider": "local"}})


class Temporal:
    """Keeps what is started; none ends before it may."""

    def __init__(self) -> None:
        self.started: list[SeedTask] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def start_workflow(self, _: Any, task: SeedTask, **options: Any) -> Any:
        self.started.append(task)
        return SimpleNamespace(result=self.may_end.wait)


class Running:
    """A gardenlet's controller, its garden and its Temporal."""

    def __init__(self, garden: ApiServer, temporal: Temporal) -> None:
        self.garden = garden
        self.temporal = temporal

    @property
    def status(self) -> dict[str, Any]:
        seed = self.garden.find(SEEDS, NAME)
        return (seed or {}).get("status") or {}

    def condition(self, type_: str) -> dict[str, Any]:
        return next((each for each in self.status.get("conditions", ()) if each["type"] == type_), {})

    def change(self, spec: dict[str, Any], name: str = NAME) -> None:
        self.garden.change(SEEDS, name, None, {"spec": spec})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 -- the server in memory tells nobody
                await asyncio.sleep(0.01)

    async def ready(self, generation: int) -> None:
        last = ("Succeeded", generation)
        await self.until(
            lambda: (self.status.get("lastOperation", {}).get("state"), self.status.get("observedGeneration")) == last
        )


@pytest.fixture
async def gardenlet() -> AsyncIterator[Running]:
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        seed.answer = lambda asked: web.json_response({"gitVersion": "v1.37.1"}) if asked.path == "/version" else None
        seed.put("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
        async with garden.client() as garden_client, seed.client() as client:
            caches = Caches(garden_client)
            clusters: Any = SimpleNamespace(garden=garden_client, seed=client, garden_caches=caches, seed_name=NAME)
            temporal = Temporal()
            controller = SeedController(clusters, temporal, CONFIG, "gardenlet")  # type: ignore[arg-type]
            running = asyncio.create_task(controller.run())
            yield Running(garden, temporal)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await caches.close()


async def test_at_its_start_it_registers_the_seed_and_makes_it_ready(gardenlet: Running) -> None:
    await gardenlet.ready(1)
    assert gardenlet.status["lastOperation"]["type"] == "Create"
    assert {each["type"]: each["status"] for each in gardenlet.status["conditions"]} == {
        "GardenletReady": "True",
        "ExtensionsReady": "True",
        "SeedSystemComponentsHealthy": "True",
        "BackupBucketsReady": "True",
    }


async def test_a_changed_seed_is_seen_and_ready_all_the_time(gardenlet: Running) -> None:
    """Its control planes wait for the gardenlet to have seen the change, so it must."""
    await gardenlet.ready(1)
    before = gardenlet.condition("SeedSystemComponentsHealthy")
    gardenlet.temporal.may_end.clear()
    gardenlet.change({"settings": {"scheduling": {"visible": False}}})
    await gardenlet.until(lambda: len(gardenlet.temporal.started) == 2)
    assert (gardenlet.status["observedGeneration"], gardenlet.status["lastOperation"]["state"]) == (2, "Processing")
    assert gardenlet.condition("SeedSystemComponentsHealthy") == before
    gardenlet.temporal.may_end.set()
    await gardenlet.ready(2)
    assert [each.generation for each in gardenlet.temporal.started] == [1, 2]


async def test_who_was_given_up_says_that_it_is_back(gardenlet: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gardenlet that was cut off goes on: nothing else would tell the garden."""
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.05)
    await gardenlet.ready(1)
    unknown = [{**each, "status": "Unknown"} for each in gardenlet.status["conditions"]]
    gardenlet.garden.change(SEEDS, NAME, None, {"status": {"conditions": unknown}})
    await gardenlet.until(lambda: gardenlet.condition("GardenletReady")["status"] == "True")
    assert gardenlet.condition("ExtensionsReady")["status"] == "Unknown", "only what it knows"
    assert gardenlet.temporal.started[1:] == []


async def test_what_others_are_and_how_it_is_changes_nothing(gardenlet: Running) -> None:
    await gardenlet.ready(1)
    gardenlet.garden.put(SEEDS, {"metadata": {"name": "seed-2"}, "spec": {}})
    gardenlet.change({"backup": {}}, "seed-2")
    gardenlet.garden.change(SEEDS, NAME, None, {"metadata": {"labels": {"a": "b"}}})
    gardenlet.change({"dns": {}})
    await gardenlet.ready(2)
    assert [(each.name, each.generation) for each in gardenlet.temporal.started] == [(NAME, 1), (NAME, 2)]


async def test_it_is_reconciled_once_for_each_time_that_somebody_asks(gardenlet: Running) -> None:
    await gardenlet.ready(1)
    for number in (2, 3):
        asked = {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}}
        gardenlet.garden.change(SEEDS, NAME, None, asked)
        await gardenlet.until(lambda number=number: len(gardenlet.temporal.started) == number)
        await gardenlet.ready(1)
        seed = gardenlet.garden.find(SEEDS, NAME)
        assert seed is not None
        assert not seed["metadata"]["annotations"]


async def test_what_is_asked_of_another_part_is_left_to_it(gardenlet: Running) -> None:
    await gardenlet.ready(1)
    asked = {"metadata": {"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}}
    gardenlet.garden.change(SEEDS, NAME, None, asked)
    gardenlet.change({"dns": {}})
    await gardenlet.ready(2)
    assert len(gardenlet.temporal.started) == 2
    seed = gardenlet.garden.find(SEEDS, NAME)
    assert seed is not None
    assert seed["metadata"]["annotations"] == asked["metadata"]["annotations"]
