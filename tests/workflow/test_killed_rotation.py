"""The two reconciliations of a rotation, with a process that is killed in the middle of every task of theirs."""

import asyncio
import os
import signal
import sys
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from activities.errors import WORKER_LOST
from api.contracts.flows import FlowInput, ReportProgress, ShootFacts
from api.contracts.operations import GARDEN_QUEUE, OperationType, ShootTask
from api.contracts.rotation import ActiveRotation, Kind, Phase
from tests.workflow.world import SEED, SHOOT
from workflows import options
from workflows.shoot.reconcile import ReconcileShoot, reconcile_flow

_STARTED = "2026-11-21T10:00:00Z"


@activity.defn
async def report_progress(request: ReportProgress) -> None:
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", [Phase.PREPARING, pytest.param(Phase.COMPLETING, marks=pytest.mark.slow)])
async def test_the_process_of_its_tasks_is_killed_in_the_middle_of_each_of_them(
    temporal: Client, temporal_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """With all credentials at once. The next process finds in the journal what was lost.

    A task that was on its way to the killed process is in no journal: it continues after its heartbeat timeout.
    """
    monkeypatch.setattr(options, "HEARTBEAT", timedelta(seconds=3))
    monkeypatch.setattr(
        options, "RETRY", RetryPolicy(initial_interval=timedelta(milliseconds=50), backoff_coefficient=1)
    )
    request = _request(phase)
    flow = reconcile_flow(request)
    met = tmp_path / "met"
    met.mkdir()
    argv = [sys.executable, "-m", "tests.workflow.dying_worker", temporal_address, str(met), str(tmp_path / "journal")]
    process = await asyncio.create_subprocess_exec(*argv, start_new_session=True)
    worker = Worker(temporal, task_queue=GARDEN_QUEUE, workflows=[ReconcileShoot], activities=[report_progress])
    try:
        async with worker:
            handle = await temporal.start_workflow(
                ReconcileShoot.run, request, id=f"killed/{request.task.shoot.uid}", task_queue=GARDEN_QUEUE
            )
            outcome = await asyncio.wait_for(handle.result(), 580)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    tasks = {name for name in flow.names if not flow.skipped(name)}
    assert set(os.listdir(met)) == tasks, "each was met, and so interrupted"
    assert {each.name for each in outcome.finished} == tasks
    assert not outcome.failed
    ordered: Counter[str] = Counter()
    lost = 0
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            ordered[event.activity_task_scheduled_event_attributes.activity_type.name] += 1
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            failure = event.activity_task_started_event_attributes.last_failure
            noticed = failure.HasField("timeout_failure_info") or failure.application_failure_info.type == WORKER_LOST
            lost += noticed
    assert lost >= len(tasks), "each was lost with its process at least once"
    assert {name: times for name, times in ordered.items() if times > 1} == {}, "what was finished is not begun again"


def _request(phase: Phase) -> FlowInput:
    rotations = tuple(ActiveRotation(kind=kind, phase=phase, initiated=_STARTED) for kind in Kind)
    task = ShootTask(
        shoot=SHOOT.model_copy(update={"uid": uuid.uuid4().hex[:12]}),
        technical_id="shoot--local--demo",
        seed=SEED,
        generation=1,
        operation=OperationType.RECONCILE,
    )
    return FlowInput(task=task, facts=ShootFacts(credentials="1", rotations=rotations))
