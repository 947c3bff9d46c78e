"""Temporal's schedules follow the Shoots: on a real Temporal server, over a garden in memory."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from temporalio.client import Client, Schedule, ScheduleUpdate
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from api.contracts.operations import ShootRef
from api.cron import Cron
from api.decisions.schedules import schedule_prefix, wanted_schedules
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.workflow.conftest import dev_server
from workers.controller_manager.watchers.schedules import ScheduleWatcher, schedule_of
from workflows.shoot.maintenance import MaintainShoot

__all__ = ["dev_server"]

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
REF = ShootRef(namespace="garden-local", name="demo", uid="u-1")
HIBERNATION, MAINTENANCE = schedule_prefix("hibernation", REF), schedule_prefix("maintenance", REF)
NIGHTS = {"start": "0 20 * * *", "end": "0 6 * * 1-5", "location": "Europe/Berlin"}
WINDOW = {"begin": "220000+0100", "end": "230000+0100"}


def shoot(*schedules: dict[str, str], window: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"hibernation": {"schedules": list(schedules)}}
    if window:
        spec["maintenance"] = {"timeWindow": window}
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "metadata": {"name": "demo", "namespace": "garden-local", "uid": "u-1", "generation": 1, **metadata},
        "spec": spec,
    }


class World:
    def __init__(self, garden: ApiServer, client: Client) -> None:
        self.garden, self.client = garden, client
        self._caches = Caches(garden.client())
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(ScheduleWatcher(self._caches, self.client).run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def close(self) -> None:
        await self.stop()
        await self._caches.close()
        await self._caches.client.close()

    async def notes(self) -> dict[str, str | None]:
        listed = [each async for each in await self.client.list_schedules()]
        return {each.id: each.schedule.state.note if each.schedule else None for each in listed}

    async def until(self, expected: dict[str, str | None]) -> None:
        async with asyncio.timeout(20):
            while await self.notes() != expected:  # noqa: ASYNC110 -- Temporal's list cannot be watched
                await asyncio.sleep(0.05)


@pytest.fixture
async def world(dev_server: WorkflowEnvironment) -> AsyncIterator[World]:
    async with ApiServer().running() as garden:
        world = World(garden, dev_server.client)
        yield world
        await world.close()


START = {f"{HIBERNATION}start-0": "hibernate at 0 20 * * * Europe/Berlin"}
END = {f"{HIBERNATION}end-0": "wake up at 0 6 * * 1-5 Europe/Berlin"}
MAINTAIN = {f"{MAINTENANCE}window": "maintain between 220000+0100 and 230000+0100"}


async def test_schedules_come_change_and_go_with_their_shoot(world: World) -> None:
    world.garden.put(SHOOTS, shoot(NIGHTS, window=WINDOW))
    await world.start()
    await world.until({**START, **END, **MAINTAIN})

    changed = {"generation": 2}
    spec = shoot({"start": "0 21 * * *", "location": "UTC"}, window=WINDOW)["spec"]
    world.garden.change(SHOOTS, "demo", "garden-local", {"metadata": changed, "spec": spec})
    await world.until({f"{HIBERNATION}start-0": "hibernate at 0 21 * * * UTC", **MAINTAIN})

    world.garden.remove(SHOOTS, "demo", "garden-local")
    await world.until({})


async def test_a_shoot_that_is_being_deleted_is_left_alone(world: World) -> None:
    world.garden.put(SHOOTS, shoot(NIGHTS, window=WINDOW))
    await world.start()
    await world.until({**START, **END, **MAINTAIN})
    world.garden.change(SHOOTS, "demo", "garden-local", {"metadata": {"deletionTimestamp": "2026-11-21T00:00:00Z"}})
    await world.until({})


async def test_what_happened_while_nobody_watched_is_made_up_for(world: World) -> None:
    """Of a Shoot that went meanwhile nothing is left, and one that changed is not served as before."""
    world.garden.put(SHOOTS, shoot(NIGHTS))
    world.garden.put(SHOOTS, shoot(NIGHTS, name="gone", uid="u-2"))
    await world.start()
    gone = schedule_prefix("hibernation", REF.model_copy(update={"name": "gone", "uid": "u-2"}))
    await world.until(
        {**START, **END, **{each.replace(HIBERNATION, gone): note for each, note in (START | END).items()}}
    )
    await world.stop()
    world.garden.remove(SHOOTS, "gone", "garden-local")
    spec = shoot({"end": "0 7 * * *"})["spec"]
    world.garden.change(SHOOTS, "demo", "garden-local", {"metadata": {"generation": 2}, "spec": spec})

    await world.start()
    await world.until({f"{HIBERNATION}end-0": "wake up at 0 7 * * * UTC"})


async def test_a_schedule_that_somebody_paused_stays_paused(world: World) -> None:
    """An operator's hand on the schedule is not undone by our restart."""
    world.garden.put(SHOOTS, shoot(NIGHTS))
    await world.start()
    await world.until({**START, **END})
    await world.stop()
    handle = world.client.get_schedule_handle(f"{HIBERNATION}start-0")

    def pause(update: Any) -> ScheduleUpdate:
        schedule: Schedule = update.description.schedule
        schedule.state.paused = True
        return ScheduleUpdate(schedule)

    await handle.update(pause)
    await world.start()
    world.garden.put(SHOOTS, shoot({**NIGHTS, "end": "0 5 * * *"}, generation=2))
    await world.until({**START, f"{HIBERNATION}end-0": "wake up at 0 5 * * * Europe/Berlin"})
    assert (await handle.describe()).schedule.state.paused


async def test_the_annotation_starts_the_maintenance_at_once(world: World) -> None:
    world.garden.put(SHOOTS, shoot(annotations={"gardener.cloud/operation": "maintain"}))
    await world.start()
    handle = world.client.get_workflow_handle_for(MaintainShoot.run, f"{MAINTENANCE}window-now")
    async with asyncio.timeout(20):
        while True:
            try:
                assert (await handle.describe()).workflow_type == "MaintainShoot"
                break
            except RPCError:
                await asyncio.sleep(0.05)


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("expression", "zone", "start"),
    [
        ("0 8 * * *", BERLIN, datetime(2027, 3, 26, tzinfo=UTC)),
        ("30 2 * * *", BERLIN, datetime(2027, 3, 26, tzinfo=UTC)),
        ("30 2 * * *", BERLIN, datetime(2027, 10, 29, tzinfo=UTC)),
        ("30 8 * * 1-5", "America/New_York", datetime(2027, 3, 11, tzinfo=UTC)),
        ("0 0 13 * 5", "UTC", datetime(2027, 1, 1, tzinfo=UTC)),
        ("*/20 6-7 1,15 jan-mar *", "Asia/Kolkata", datetime(2027, 1, 10, tzinfo=UTC)),
        ("0 0 * * 7", "UTC", datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
async def test_temporal_starts_us_when_we_see_an_edge(
    dev_server: WorkflowEnvironment, expression: str, zone: str, start: datetime
) -> None:
    """Through the changes of the clock: a start without an edge is in vain, an edge without a start is lost."""
    (wanted,) = wanted_schedules(shoot({"start": expression, "location": zone})).values()
    schedule = schedule_of(wanted)
    schedule.spec.start_at = start
    handle = await dev_server.client.create_schedule("probe", schedule)
    times = (await handle.describe()).info.next_action_times
    await handle.delete()

    cron, time, ours = Cron.parse(expression), start - timedelta(minutes=1), []
    for _ in times:
        ours.append(time := cron.next_after(time, ZoneInfo(zone)))
    assert len(times) == 10
    assert [each.astimezone(UTC) for each in times] == ours


async def test_maintenance_begins_somewhere_in_the_effective_window(dev_server: WorkflowEnvironment) -> None:
    begins = []
    for number in range(5):
        (wanted,) = wanted_schedules(shoot(window=WINDOW, name=f"demo-{number}")).values()
        handle = await dev_server.client.create_schedule(wanted.id, schedule_of(wanted))
        begins += (await handle.describe()).info.next_action_times[1:]
    offsets = [(each - each.replace(hour=21, minute=0, second=0, microsecond=0)).total_seconds() for each in begins]
    assert all(0 <= each < 45 * 60 for each in offsets), "not in the last 15 minutes"
    assert len({round(each) for each in offsets}) > 10, "Shoots of one window do not all begin at once"
