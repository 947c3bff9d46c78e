"""A Seed has one workflow at a time: for each generation, each request, and its deletion."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api import resources
from api.contracts.flows import FailedTask, FinishedTask, FlowOutcome
from tests.unit.garden_controllers.seed_requests import World, watched
from tests.unit.garden_controllers.temporal import TASK_LIMIT, Workflow
from tests.unit.kube.waiting import until
from workers.controller_manager.watchers import seeds
from workers.controller_manager.watchers.seeds import SeedWatcher
from workflows.seed import BootstrapSeed

SEEDS = resources.SEED.path()
NAME = "seed-3"
ID = f"seed/{NAME}/5eed"
ASKED = {"gardener.cloud/operation": "reconcile"}
RETRY = {"gardener.cloud/operation": "retry"}
READY = {"observedGeneration": 1, "lastOperation": {"type": "Create", "state": "Succeeded"}}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["gardener"]}
FAILED = FlowOutcome(
    finished=(FinishedTask(name="deploy_seed_crds", digest="d", attempt=1, trigger="t"),),
    failed=(FailedTask(name="deploy_seed_gateway", message="no", at=datetime(2026, 1, 1, tzinfo=UTC), attempt=1),),
)


def put(world: World, status: dict[str, Any] | None = None, **metadata: Any) -> None:
    world.put(resources.SEED, NAME, uid="5eed", spec={"dns": {"domain": "a"}}, status=status or {}, **metadata)


def change(world: World, **parts: Any) -> None:
    world.garden.api.change(SEEDS, NAME, None, parts)


def runs(world: World) -> list[Workflow]:
    return [each for each in world.temporal.started if each.id == ID]


def finish(world: World, generation: int = 1) -> None:
    """As the activities of the last workflow do."""
    status = {"observedGeneration": generation, "lastOperation": {"state": "Succeeded"}}
    change(world, metadata={"annotations": None}, status=status)
    runs(world)[-1].succeed()


async def settled(world: World) -> None:
    """Start a workflow of another Seed: once it is started, the events before it were seen."""
    world.put(resources.SEED, "seed-9", uid="5eed9", spec={})
    await until(lambda: any(each.startswith("seed/seed-9") for each in world.temporal.ids))


async def test_a_new_seed_is_bootstrapped() -> None:
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        [flow] = runs(world)
    assert flow.type == "BootstrapSeed"
    task = flow.request.task
    assert (task.name, task.uid, task.generation, task.operation) == (NAME, "5eed", 1, "Create")
    assert flow.request.attempt.number == 1


async def test_a_changed_seed_is_reconciled_after_the_workflow_that_runs() -> None:
    """Two at a time would write one status after the other."""
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        change(world, spec={"dns": {"domain": "b"}})
        await settled(world)
        assert [each.request.task.generation for each in runs(world)] == [1]
        finish(world)
        await until(lambda: [each.request.task.generation for each in runs(world)] == [1, 2])


async def test_a_reconciled_seed_is_not_reconciled_again_after_a_restart() -> None:
    """Its status shows it; the controller-manager remembers nothing."""
    async with watched(SeedWatcher) as world:
        put(world, READY)
        change(world, metadata={"labels": {"a": "b"}})
        await settled(world)
        assert runs(world) == []


async def test_a_seed_is_reconciled_once_for_each_request() -> None:
    async with watched(SeedWatcher) as world:
        put(world, READY)
        for number in (1, 2):
            change(world, metadata={"annotations": ASKED})
            await until(lambda: len(runs(world)) == number)
            finish(world)
    assert {each.request.task.operation for each in runs(world)} == {"Reconcile"}


async def test_a_request_during_a_workflow_is_executed_after_it() -> None:
    """That workflow may have applied already what the gardenlet of now has another version of."""
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        change(world, metadata={"annotations": ASKED}, status=READY)
        runs(world)[-1].succeed()
        await until(lambda: len(runs(world)) == 2)


async def test_a_workflow_of_an_earlier_controller_manager_is_waited_for() -> None:
    async with watched(SeedWatcher) as world:
        earlier = await world.temporal.start_workflow(
            BootstrapSeed.run, None, id=ID, id_conflict_policy=None, task_timeout=TASK_LIMIT
        )
        put(world, annotations=ASKED)
        await settled(world)
        assert runs(world) == [earlier]
        earlier.succeed()
        await until(lambda: len(runs(world)) == 2)


async def test_a_failed_workflow_is_started_again_with_its_finished_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "RETRY_SECONDS", 0.05)
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        runs(world)[0].fail(FAILED)
        await until(lambda: len(runs(world)) == 2)
        attempt = runs(world)[1].request.attempt
        assert (attempt.number, attempt.kept.finished[0].name) == (2, "deploy_seed_crds")


async def test_retry_starts_a_failed_workflow_at_once() -> None:
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        runs(world)[0].fail(FAILED)
        await settled(world)
        assert len(runs(world)) == 1
        change(world, metadata={"annotations": RETRY})
        await until(lambda: len(runs(world)) == 2)
        assert runs(world)[1].request.attempt.kept == FAILED


async def test_a_new_generation_keeps_no_task_of_the_failed_workflow() -> None:
    async with watched(SeedWatcher) as world:
        put(world)
        await until(lambda: runs(world))
        runs(world)[0].fail(FAILED)
        change(world, spec={"dns": {"domain": "b"}})
        await until(lambda: len(runs(world)) == 2)
        attempt = runs(world)[1].request.attempt
        assert (attempt.number, attempt.kept) == (1, FlowOutcome())


async def test_a_deleted_seed_gets_its_own_workflow_until_it_has_no_finalizer() -> None:
    async with watched(SeedWatcher) as world:
        put(world, READY, **DELETED)
        await until(lambda: runs(world))
        [flow] = runs(world)
        assert (flow.type, flow.request.task.operation) == ("DeleteSeed", "Delete")
        change(world, metadata={"finalizers": ["of-another"]})
        flow.succeed()
        await settled(world)
        assert len(runs(world)) == 1


async def test_a_deletion_ends_the_reconciliation_that_runs() -> None:
    """A reconciliation that retries an error would never end."""
    async with watched(SeedWatcher) as world:
        put(world, finalizers=["gardener"])
        await until(lambda: runs(world))
        change(world, metadata=DELETED)
        await until(lambda: runs(world)[0].canceled)
        assert len(runs(world)) == 1, "the deletion waits for the end"
        runs(world)[0].fail()
        await until(lambda: len(runs(world)) == 2)
        assert runs(world)[1].type == "DeleteSeed"
