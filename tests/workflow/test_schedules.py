"""Workflows that Temporal's schedules start, on the real server: the time-skipping server differs."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from api.contracts.operations import GARDEN_QUEUE, TaskResult
from api.contracts.schedules import ScheduledTime
from api.decisions.schedules import WantedSchedule, wanted_schedules
from tests.workflow.world import SHOOT
from workers.controller_manager.watchers.schedules import schedule_of
from workflows.garden import WORKFLOWS

SPEC = {
    "hibernation": {"schedules": [{"start": "0 20 * * *"}]},
    "maintenance": {"timeWindow": {"begin": "220000+0000", "end": "230000+0000"}},
}


class Asked:
    """Plays the garden's activities: what they were asked, and when."""

    def __init__(self) -> None:
        self.switches: asyncio.Queue[ScheduledTime] = asyncio.Queue()
        self.maintenances: asyncio.Queue[ScheduledTime] = asyncio.Queue()

    @activity.defn
    async def switch_hibernation(self, request: ScheduledTime) -> TaskResult:
        self.switches.put_nowait(request)
        return TaskResult(note="switched")

    @activity.defn
    async def maintain_shoot(self, request: ScheduledTime) -> TaskResult:
        self.maintenances.put_nowait(request)
        return TaskResult(note="maintained")


def wanted() -> list[WantedSchedule]:
    metadata = {"namespace": SHOOT.namespace, "name": SHOOT.name, "uid": SHOOT.uid}
    return list(wanted_schedules({"metadata": metadata, "spec": SPEC}).values())


async def fire(client: Client, schedule: WantedSchedule, asked: "asyncio.Queue[ScheduledTime]") -> ScheduledTime:
    handle = await client.create_schedule(schedule.id, schedule_of(schedule))
    await handle.trigger()
    return await asyncio.wait_for(asked.get(), 20)


@pytest.mark.parametrize("number", [0, 1], ids=["hibernation", "maintenance"])
async def test_a_schedule_starts_a_workflow_for_its_shoot(dev_server: WorkflowEnvironment, number: int) -> None:
    asked, schedule = Asked(), wanted()[number]
    async with Worker(
        dev_server.client,
        task_queue=GARDEN_QUEUE,
        workflows=WORKFLOWS,
        activities=[asked.switch_hibernation, asked.maintain_shoot],
    ):
        request = await fire(dev_server.client, schedule, (asked.switches, asked.maintenances)[number])

    assert request.shoot == SHOOT
    assert datetime.now(UTC) - request.now < timedelta(minutes=1)
