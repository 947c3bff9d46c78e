"""A Seed is reconciled by one workflow at a time: for each generation, and each time that it is asked for."""

from typing import Any

import pytest

from api import resources
from tests.unit.garden_controllers.seed_requests import World, watched
from tests.unit.kube.waiting import until
from workers.controller_manager.watchers import seeds
from workers.controller_manager.watchers.seeds import SeedWatcher, needs_reconciliation

SEEDS = resources.SEED.path()
NAME = "seed-3"
ID = f"seed/{NAME}/5eed"
ASKED = {"gardener.cloud/operation": "reconcile"}
READY = {"observedGeneration": 1, "lastOperation": {"state": "Succeeded"}}


def put(world: World, status: dict[str, Any] | None = None, **metadata: Any) -> None:
    world.put(resources.SEED, NAME, uid="5eed", spec={"dns": {"domain": "a"}}, status=status or {}, **metadata)


def change(world: World, **parts: Any) -> None:
    world.garden.api.change(SEEDS, NAME, None, parts)


def runs(world: World) -> list[str]:
    return [each for each in world.temporal.ids if each.startswith(ID)]


def finish(world: World, generation: int = 1) -> None:
    """As the activities of the last workflow do."""
    status = {"observedGeneration": generation, "lastOperation": {"state": "Succeeded"}}
    change(world, metadata={"annotations": None}, status=status)
    [*_, last] = [each for each in world.temporal.started if each.id.startswith(ID)]
    last.succeed()


async def test_a_new_seed_is_reconciled() -> None:
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        [flow] = [each for each in world.temporal.started if each.id.startswith(ID)]
    assert (flow.id, flow.type) == (f"{ID}/1", "ReconcileSeed")
    assert (flow.request.name, flow.request.uid, flow.request.generation) == (NAME, "5eed", 1)


async def test_a_changed_seed_is_reconciled_after_the_workflow_that_runs() -> None:
    """Two at a time would write one status after the other."""
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        change(world, spec={"dns": {"domain": "b"}})
        put_other(world)
        await until(lambda: any(each.startswith("seed/seed-9") for each in world.temporal.ids))
        assert runs(world) == [f"{ID}/1"]
        finish(world)
        await until(lambda: runs(world) == [f"{ID}/1", f"{ID}/2"])


def put_other(world: World) -> None:
    """One more Seed: when its workflow is started, the events before it were seen."""
    world.put(resources.SEED, "seed-9", uid="5eed9", spec={})


async def test_what_is_reconciled_stays_so_when_the_controller_manager_starts_again() -> None:
    """Its status says so; nothing is remembered."""
    async with watched(SeedWatcher) as world:
        put(world, READY)
        change(world, metadata={"labels": {"a": "b"}})
        put_other(world)
        await until(lambda: any(each.startswith("seed/seed-9") for each in world.temporal.ids))
        assert runs(world) == []


async def test_it_is_reconciled_once_for_each_time_that_it_is_asked_for() -> None:
    async with watched(SeedWatcher) as world:
        put(world, READY)
        for number in (1, 2):
            change(world, metadata={"annotations": ASKED})
            await until(lambda number=number: len(runs(world)) == number)
            finish(world)


async def test_what_is_asked_while_a_workflow_runs_is_done_after_it() -> None:
    """That workflow may have applied already what the gardenlet of now has another version of."""
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        change(world, metadata={"annotations": ASKED}, status=READY)
        world.temporal.started[-1].succeed()
        await until(lambda: len(runs(world)) == 2)


async def test_a_workflow_of_an_earlier_controller_manager_is_waited_for() -> None:
    async with watched(SeedWatcher) as world:
        earlier = await world.temporal.start_workflow(
            seeds.ReconcileSeed.run, None, id=f"{ID}/1", id_conflict_policy=None
        )
        put(world, annotations=ASKED)
        put_other(world)
        await until(lambda: any(each.startswith("seed/seed-9") for each in world.temporal.ids))
        assert runs(world) == [f"{ID}/1"]
        earlier.succeed()
        await until(lambda: len(runs(world)) == 2)


async def test_one_that_failed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "RETRY_SECONDS", 0.05)
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        [flow] = [each for each in world.temporal.started if each.id.startswith(ID)]
        flow.fail()
        await until(lambda: len(runs(world)) == 2)


@pytest.mark.parametrize(
    ("metadata", "status", "expected"),
    [
        ({}, {}, True),
        ({}, READY, False),
        ({"annotations": ASKED}, READY, True),
        ({"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}, READY, False),
        ({}, {**READY, "observedGeneration": 0}, True),
        ({}, {**READY, "lastOperation": {"state": "Processing"}}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, False),
    ],
)
def test_when_a_seed_is_reconciled(metadata: dict[str, Any], status: dict[str, Any], expected: bool) -> None:
    assert needs_reconciliation({"metadata": {"generation": 1, **metadata}, "status": status}) is expected
