"""What gardenlets list as left over is cleaned up, and a condition of the Seed says how that goes."""

from typing import Any

import pytest

from api import resources
from api.constants import SEED_MOVED_CONTROL_PLANES_CLEANED_UP as CLEANED_UP
from api.contracts.flows import FinishedTask, FlowOutcome
from api.contracts.remains import Remnant, is_elsewhere, remains_of, written
from tests.unit.garden_controllers.seed_requests import OURS, THEIRS, World, remnant, watched
from tests.unit.kube.waiting import until
from workers.controller_manager import seed_flows
from workers.controller_manager.watchers.remains import RemainsWatcher

SEEDS = resources.SEED.path()
ID = f"shoot/garden-dev/a/uid-of-a/forget/{OURS}"
READY = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady", "message": "it is"}
WELL = {"conditions": [READY], "lastOperation": {"type": "Reconcile", "state": "Succeeded"}}


def shoot(type_: str = "Restore", state: str = "Succeeded", *, spec: str = "seed-2", status: str = "seed-2") -> Any:
    return {
        "spec": {"seedName": spec},
        "status": {
            "seedName": status,
            "technicalID": "shoot--a--b",
            "lastOperation": {"type": type_, "state": state},
        },
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (shoot(), True),
        (shoot("Reconcile", "Error"), True),
        (shoot("Delete", "Processing"), True),
        (shoot("Restore", "Error"), False),
        (shoot("Migrate", "Aborted"), False),
        (shoot("Migrate", "Processing", status="seed-1"), False),
        (shoot("Reconcile", spec="seed-1"), False),
        (shoot("Reconcile", spec="seed-1", status="seed-1"), False),
        (shoot("Create", "Pending", status=""), False),
    ],
)
def test_only_what_is_whole_elsewhere_is_forgotten(found: Any, expected: bool) -> None:
    """Until the other seed has it, what is here may be all there is."""
    assert is_elsewhere(found, "seed-1") is expected


def said(world: World) -> str:
    """Status and message of the condition that tells of the cleaning."""
    known = (world.garden.api.find(SEEDS, OURS) or {})["status"]["conditions"]
    return next((f"{each['status']} {each['message']}" for each in known if each["type"] == CLEANED_UP), "")


async def test_a_shoot_that_another_seed_has_is_forgotten_with_the_words_of_the_garden() -> None:
    async with watched(RemainsWatcher) as world:
        world.shoot("a", THEIRS, "Restore")
        world.claim(remnant("a"))
        flow = await world.only(ID)
    task = flow.request.task
    assert (flow.type, str(task.shoot), task.shoot.uid) == ("ForgetShoot", "garden-dev/a", "uid-of-a")
    assert (task.technical_id, task.seed, task.destination) == ("shoot--dev--a", OURS, THEIRS)
    assert flow.request.source_entry is False


async def test_a_deleted_shoot_is_forgotten_without_a_destination() -> None:
    async with watched(RemainsWatcher) as world:
        world.claim(remnant("a", deleted=True))
        task = (await world.only(ID)).request.task
    assert (task.technical_id, task.seed, task.destination) == ("shoot--dev--a", OURS, "")


async def test_a_shoot_is_forgotten_as_soon_as_the_other_seed_has_restored_it() -> None:
    """The gardenlet may hear of it earlier than the controller-manager."""
    async with watched(RemainsWatcher) as world:
        world.shoot("a", THEIRS, "Restore", "Processing")
        world.claim(remnant("a"))
        world.shoot("b", THEIRS)
        world.claim(remnant("a"), remnant("b"))
        await world.only(f"shoot/garden-dev/b/uid-of-b/forget/{OURS}")
        restored = {"status": {"lastOperation": {"type": "Restore", "state": "Succeeded"}}}
        world.garden.api.change(resources.SHOOT.path(), "a", "garden-dev", restored)
        await until(lambda: ID in world.temporal.ids)


async def test_the_seed_says_what_is_cleaned_up_and_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_flows, "RETRY_SECONDS", 0.05)
    done = FinishedTask(name="delete_apiserver", digest="d", attempt=1, trigger="t")
    async with watched(RemainsWatcher) as world:
        world.garden.api.change(SEEDS, OURS, None, {"status": WELL})
        world.shoot("a", THEIRS)
        world.claim(remnant("a"))
        flow = await world.only(ID)
        await until(lambda: said(world).startswith("Progressing"))
        assert "garden-dev/a" in said(world)
        flow.fail(FlowOutcome(finished=(done,)))
        await until(lambda: said(world).startswith("False"))
        assert "tried again" in said(world)
        await until(lambda: len(world.temporal.started) == 2)
        attempt = world.temporal.started[1].request.attempt
        assert (attempt.number, attempt.kept.finished) == (2, (done,))
        world.temporal.started[1].succeed()
        await until(lambda: said(world).startswith("Progressing"))


async def test_a_list_that_is_taken_back_starts_nothing_more() -> None:
    async with watched(RemainsWatcher) as world:
        for name in "abcde":
            world.shoot(name, THEIRS)
        world.claim(*map(remnant, "abcde"))
        await until(lambda: len(world.temporal.started) == 3)
        world.claim(remnant("e"))
        seeds = world.garden.caches.of(resources.SEED)
        await until(lambda: remains_of(seeds.get(OURS) or {}) == [Remnant.model_validate(remnant("e"))])
        world.temporal.started[0].succeed()
        await until(lambda: len(world.temporal.started) == 4)
    assert world.temporal.ids[3] == f"shoot/garden-dev/e/uid-of-e/forget/{OURS}", "not d, which is not listed any more"


def test_a_list_is_written_in_one_order_and_read_again() -> None:
    """A list in another order would be one more write of the Seed, and that brings the gardenlet to it again."""
    remains = [Remnant.model_validate(remnant(name)) for name in ("b", "a")]
    text = written(remains)
    assert text == written(list(reversed(remains)))
    assert remains_of({"metadata": {"annotations": {"seed.gardener.cloud/remains": text}}}) == list(reversed(remains))
    assert written([]) is None
    assert len(remains_of({"metadata": {"annotations": {"seed.gardener.cloud/remains": written(remains * 80)}}})) == 100
