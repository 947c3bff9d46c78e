"""Observers of a flow wake up when it makes no progress."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import ActivityEnvironment

from activities.garden.flows import FlowActivities, _lost_its_worker, _stands_still
from api.contracts.flows import FlowProgress


def test_a_lost_worker_is_no_error_of_the_flow() -> None:
    """Else restarting a gardenlet would cancel every flow that a newer wish waits for."""
    lost, reported, stopped, erred = Failure(), Failure(), Failure(), Failure()
    reported.application_failure_info.type = "WorkerLost"
    lost.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    stopped.application_failure_info.type = "WorkerShutdown"
    erred.application_failure_info.type = "NotReady"
    assert [_lost_its_worker(each) for each in (lost, reported, stopped)] == [True, True, True]
    assert not _lost_its_worker(erred)


def progress_of(*moments: tuple[str, str | None]) -> FlowProgress:
    tasks = [
        {"name": f"t{number}", "title": "", "state": "Running", "started": started, "ended": ended}
        for number, (started, ended) in enumerate(moments)
    ]
    return FlowProgress.model_validate({"tasks": tasks})


@pytest.mark.parametrize(
    ("progress", "still"),
    [
        (progress_of(("2026-11-21T10:00:00Z", "2026-11-21T10:00:31Z"), ("2026-11-21T10:00:05Z", None)), False),
        (progress_of(("2026-11-21T10:00:00Z", "2026-11-21T10:00:20Z"), ("2026-11-21T10:00:05Z", None)), True),
        (progress_of(), False),
    ],
)
def test_a_deletion_need_not_wait_behind_a_wait_that_hangs(progress: FlowProgress, still: bool) -> None:
    """A machine that never joins would hold the deletion of its cluster for ten minutes."""
    assert _stands_still(progress, datetime(2026, 11, 21, 10, 1, tzinfo=UTC)) is still


class _Flow:
    """A flow with one task that is retried twice, then ends, and then the flow."""

    def __init__(self) -> None:
        self.looks, self.queries = 0, 0

    def get_workflow_handle(self, *_: str, **__: str) -> "_Flow":
        return self

    async def describe(self) -> SimpleNamespace:
        self.looks += 1
        status = WorkflowExecutionStatus.COMPLETED if self.looks == 5 else WorkflowExecutionStatus.RUNNING
        length = {1: 10, 2: 10, 3: 10, 4: 13, 5: 14}[self.looks]
        return SimpleNamespace(
            status=status, history_length=length, raw_description=SimpleNamespace(pending_activities=[])
        )

    async def query(self, *_: str, **__: type) -> FlowProgress:
        self.queries += 1
        return FlowProgress(operation="Create", percent=10 * self.queries)


class _Reported(FlowActivities):
    """Reports of one flow after the other. ``others``: flows that run meanwhile; ``written``: the reported progress."""

    def __init__(self, others: int = 0) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # the garden, to which ``written`` goes here
        self._followed = others
        self.written = list[int]()

    async def follow(self, seconds: float) -> None:
        self.flow = _Flow()
        await ActivityEnvironment(client=self.flow).run(self._follow_beside_others, seconds, self._write)  # type: ignore[arg-type]

    async def _write(self, status: dict[str, Any], _: Any) -> bool:
        self.written.append(status["lastOperation"]["progress"])
        return True


async def test_a_flow_is_asked_for_its_progress_once_it_has_new_events() -> None:
    """Each question is a task of a worker: those of a thousand flows that wait would keep it busy."""
    reported = _Reported()
    await reported.follow(0.001)
    assert (reported.flow.looks, reported.flow.queries, reported.written) == (5, 2, [10, 20])


@pytest.mark.parametrize(("others", "pause"), [(0, 2.0), (999, 100.0)])
async def test_all_flows_together_are_polled_ten_times_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch, others: int, pause: float
) -> None:
    pauses = list[float]()

    async def slept(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", slept)
    reported = _Reported(others)
    await reported.follow(5)
    assert pauses == [pause] * 5
    await reported.follow(5)
    assert pauses == [pause] * 10, "a flow that has ended counts no more"
