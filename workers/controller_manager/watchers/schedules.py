"""Keep Temporal's schedules as the Shoots want them: created, changed, and removed with their Shoot.

What exists is learnt from Temporal at the start and every hour; between, from our own writes. A schedule that is there
too long does no harm: its workflow looks at the Shoot.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleCalendarSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from api import constants, resources
from api.contracts.operations import GARDEN_QUEUE, ShootRef
from api.contracts.schedules import ScheduledShoot
from api.cron import Cron
from api.decisions.hibernation import DEADLINE, Edge
from api.decisions.maintenance_window import MaintenanceWindow
from api.decisions.schedules import WantedSchedule, maintenance_id, shoot_of, wanted_schedules
from kube.cache import Caches, Key
from kube.client import Object, WatchEvent
from kube.controller import Controller, Requeue
from workers.lib.codec import EncryptionCodec
from workers.lib.runtime import log_context
from workflows import fairness, options
from workflows.shoot.hibernation import SwitchHibernation
from workflows.shoot.maintenance import MaintainShoot

log = logging.getLogger(__name__)

_SCHEDULE_LIST_PERIOD = timedelta(hours=1)
_NOT_TAKEN_SECONDS = 30.0
"""After which we ask once more for a maintenance whose annotation is still there."""


class ScheduleWatcher:
    """Writes to Temporal only what differs from what is there."""

    def __init__(self, garden: Caches, temporal: Client) -> None:
        self._shoots = garden.of(resources.SHOOT)
        self._temporal = temporal
        codec = temporal.data_converter.payload_codec
        self._key = f" (key {codec.key_id})" if isinstance(codec, EncryptionCodec) else ""
        """Part of each note, so that a schedule is written again, by the new key, once keys have been rotated."""
        self._there: dict[Key, dict[str, str]] = {}
        """Notes of schedules, by Shoot and id."""
        self._controller = Controller("schedules", self._reconcile, workers=4)

    async def run(self) -> None:
        """Until cancelled."""
        await self._shoots.synced()
        await self._learn()
        self._controller.watch(self._shoots, when=_concerns)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._controller.run())
            group.create_task(self._learn_again())

    async def _learn_again(self) -> None:
        while True:
            await asyncio.sleep(_SCHEDULE_LIST_PERIOD.total_seconds())
            try:
                await self._learn()
            except RPCError as error:
                log.warning("listing schedules: %s; trying again in %s", error.status.name, _SCHEDULE_LIST_PERIOD)

    async def _learn(self) -> None:
        """Schedules that others, or we in an earlier life, left: also of Shoots that are gone."""
        async for each in await self._temporal.list_schedules():
            place = shoot_of(each.id)
            if place is not None:
                key = Key(*place)
                note = each.schedule.state.note if each.schedule and each.schedule.state else None
                self._there.setdefault(key, {}).setdefault(each.id, note or "")
                self._controller.enqueue(key)

    async def _reconcile(self, key: Key) -> Requeue | None:
        shoot = self._shoots.get(key.name, key.namespace)
        log_context.set({"shoot": f"{key.namespace}/{key.name}"})
        wanted = wanted_schedules(shoot) if shoot is not None else {}
        there = self._there.setdefault(key, {})
        for id_ in [each for each in there if each not in wanted]:
            await self._remove(id_)
            del there[id_]
        for id_, each in wanted.items():
            note = f"{each.note}{self._key}"
            if there.get(id_) != note:
                await self._write(each, note)
                there[id_] = note
        if not there:
            del self._there[key]
        return await self._maintain_now(shoot) if shoot is not None and _asks_for_maintenance(shoot) else None

    async def _write(self, wanted: WantedSchedule, note: str) -> None:
        schedule = schedule_of(wanted)
        schedule.state.note = note
        try:
            await self._temporal.create_schedule(wanted.id, schedule)
        except ScheduleAlreadyRunningError:
            await self._temporal.get_schedule_handle(wanted.id).update(lambda _: ScheduleUpdate(schedule))
        log.info("schedule %s: %s", wanted.id, note)

    async def _remove(self, id_: str) -> None:
        try:
            await self._temporal.get_schedule_handle(id_).delete()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        log.info("schedule %s is removed", id_)

    async def _maintain_now(self, shoot: Object) -> Requeue:
        """Start what the annotation asks for; the workflow takes it away."""
        ref = ShootRef.of(shoot)
        await self._temporal.start_workflow(
            MaintainShoot.run,
            ScheduledShoot(shoot=ref),
            id=f"{maintenance_id(ref)}-now",
            task_queue=GARDEN_QUEUE,
            task_timeout=options.WORKFLOW_TASK,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            priority=fairness.of_shoot(ref),
            static_summary=f"Maintain Shoot {ref} now",
        )
        return Requeue(_NOT_TAKEN_SECONDS)


def schedule_of(wanted: WantedSchedule) -> Schedule:
    """As Temporal wants it."""
    run: Any
    if isinstance(wanted.when, Edge):
        run, summary = SwitchHibernation.run, f"Shoot {wanted.shoot}: {wanted.note}"
        spec = ScheduleSpec(calendars=list(_calendars(wanted.when.cron)), time_zone_name=wanted.when.location)
        catchup = DEADLINE
    else:
        run, summary = MaintainShoot.run, f"Maintain Shoot {wanted.shoot}"
        spec, catchup = _window_spec(wanted.when), wanted.when.effective.length
    return Schedule(
        action=ScheduleActionStartWorkflow(
            run,
            ScheduledShoot(shoot=wanted.shoot),
            id=wanted.id,
            task_queue=GARDEN_QUEUE,
            task_timeout=options.WORKFLOW_TASK,
            priority=fairness.of_shoot(wanted.shoot),
            static_summary=summary,
        ),
        spec=spec,
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE, catchup_window=catchup),
        state=ScheduleState(note=wanted.note),
    )


def _calendars(cron: Cron) -> Iterable[ScheduleCalendarSpec]:
    """One, or two where either day is enough: of a calendar's fields all must match."""
    every_day, every_weekday = frozenset(range(1, 32)), frozenset(range(7))
    days = [(cron.days, every_weekday), (every_day, cron.weekdays)] if cron.either_day else [(cron.days, cron.weekdays)]
    for in_month, in_week in days:
        yield ScheduleCalendarSpec(
            minute=_ranges(cron.minutes),
            hour=_ranges(cron.hours),
            day_of_month=_ranges(in_month),
            month=_ranges(cron.months),
            day_of_week=_ranges(in_week),
        )


def _ranges(values: Iterable[int]) -> list[ScheduleRange]:
    return [ScheduleRange(each) for each in sorted(values)]


def _window_spec(window: MaintenanceWindow) -> ScheduleSpec:
    """Daily, at a moment of the window's effective part that Temporal draws: Shoots of one window spread."""
    minutes, second = divmod(int(window.begin.total_seconds()), 60)
    hour, minute = divmod(minutes, 60)
    begin = ScheduleCalendarSpec(
        second=[ScheduleRange(second)], minute=[ScheduleRange(minute)], hour=[ScheduleRange(hour)]
    )
    return ScheduleSpec(calendars=[begin], jitter=window.effective.length)


def _asks_for_maintenance(shoot: Object) -> bool:
    asked = (shoot["metadata"].get("annotations") or {}).get(constants.OPERATION, "")
    return constants.OPERATION_MAINTAIN in (each.strip() for each in asked.split(";"))


def _concerns(event: WatchEvent) -> bool:
    """A change of status is none of ours."""
    if event.type == "DELETED" or event.old is None:
        return True
    return _facts(event.old) != _facts(event.object)


def _facts(shoot: Object) -> object:
    metadata = shoot["metadata"]
    return metadata["uid"], metadata.get("deletionTimestamp"), metadata["generation"], _asks_for_maintenance(shoot)
