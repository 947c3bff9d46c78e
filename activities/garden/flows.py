"""Activities for a running flow: they write its progress to the Shoot's status, and send it repairs by users."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.errors import WORKER_LOST, WORKER_STOPPED
from activities.garden.events import MESSAGE_LIMIT
from activities.garden.live import find_shoot
from activities.garden.seed_status import write_seed_status
from activities.garden.status import last_error, patch_status
from activities.secrets.keyring import CodecError
from api import resources
from api.contracts.flows import (
    EditFlow,
    FlowId,
    FlowOutcome,
    FlowProgress,
    ReportProgress,
    ReportSeedProgress,
    TaskState,
)
from api.contracts.operations import SeedTask, ShootRef, ShootTask, TaskResult, lifecycle_id
from api.times import timestamp
from kube.client import KubeClient
from kube.errors import ApiError, Conflict

_LOOK_SECONDS = 2.0
"""Seconds between two polls of a running flow."""
_LOOKS_A_SECOND = 10
"""Polls of all flows whose progress a process reports. Those of a thousand flows would keep Temporal busy."""
_UNANSWERED = timedelta(seconds=30)
"""A task may wait in its queue for so long before the report says that no worker takes it."""
_STANDSTILL = timedelta(seconds=30)
"""A flow that starts and ends no task for so long may be replaced by a newer operation.

The time is longer than a machine takes to join.
"""
_REPORTER = "report_progress"
"""Name of the activity that reports a flow's progress; errors of this activity are no errors of the flow."""

_Write = Callable[[dict[str, Any], "WorkflowHandle[Any, Any]"], Awaitable[bool]]
"""Writes the status of a flow, and returns whether it has."""


class FlowActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient) -> None:
        self._garden = garden
        self._followed = 0
        """Flows whose progress this process reports."""

    @activity.defn
    async def await_earlier_operations(self, shoot: ShootRef) -> None:
        """Return once no operation of this Shoot is running that an earlier, terminated lifecycle has started.

        Rotations of credentials do not count: a rotation lasts for many operations.
        """
        lifecycle = lifecycle_id(shoot)
        query = (
            f'WorkflowId STARTS_WITH "{lifecycle}/" AND WorkflowId NOT STARTS_WITH "{lifecycle}/rotate-" '
            'AND ExecutionStatus = "Running"'
        )
        while True:
            activity.heartbeat()
            count = await activity.client().count_workflows(query)
            if not count.count:
                return
            await asyncio.sleep(_LOOK_SECONDS)  # visibility cannot be watched

    @activity.defn
    async def report_progress(self, request: ReportProgress) -> None:
        """Update lastOperation and lastErrors from the workflow that started this activity, until the workflow ends.

        The activity reads the workflow's ``progress`` query, and its pending activities from the Temporal server:
        the history holds no errors that are being retried. A lost report is harmless, because the next report is
        complete.
        """

        async def write(status: dict[str, Any], flow: "WorkflowHandle[Any, Any]") -> bool:
            return await self._report(request.task, status, flow)

        await self._follow_beside_others(request.seconds, write)

    @activity.defn
    async def report_seed_progress(self, request: ReportSeedProgress) -> None:
        """Like ``report_progress``, for a Seed. A Seed's status has no ``lastErrors``: the description names errors."""

        async def write(status: dict[str, Any], flow: "WorkflowHandle[Any, Any]") -> bool:
            return await self._report_seed(request.task, status, flow)

        await self._follow_beside_others(request.seconds, write)

    async def _follow_beside_others(self, seconds: float, write: _Write) -> None:
        """``_follow``. The more flows are followed, the longer are the pauses between two polls of each."""
        self._followed += 1
        try:
            await _follow(seconds, write, lambda: max(min(_LOOK_SECONDS, seconds), self._followed / _LOOKS_A_SECOND))
        finally:
            self._followed -= 1

    async def _report_seed(self, task: SeedTask, status: dict[str, Any], flow: "WorkflowHandle[Any, Any]") -> bool:
        live = await self._garden.find(resources.SEED, task.name)
        if live is None or live["metadata"]["uid"] != task.uid:
            return False
        if (await flow.describe()).status != WorkflowExecutionStatus.RUNNING:
            return False
        last = (live.get("status") or {}).get("lastOperation") or {}
        if last.get("state") != "Processing":
            return False
        errors = [f"{each['taskID']}: {each['description']}" for each in status["lastErrors"]]
        description = "; ".join([status["lastOperation"]["description"], *errors])[:MESSAGE_LIMIT]
        operation = {**status["lastOperation"], "description": description, "type": str(task.operation)}
        operation |= {"state": "Processing", "lastUpdateTime": timestamp()}
        try:
            await write_seed_status(self._garden, live, {"lastOperation": operation})
        except Conflict:
            return False
        return True

    async def _report(self, task: ShootTask, status: dict[str, Any], flow: "WorkflowHandle[Any, Any]") -> bool:
        """Write a report unless the operation's end may have been written meanwhile.

        The state of the flow is read after the Shoot. If the flow still runs, its end is written later than the Shoot
        was read, and a report after that end fails because of its resourceVersion.
        """
        live = await find_shoot(self._garden, task.shoot)
        if live is None or (await flow.describe()).status != WorkflowExecutionStatus.RUNNING:
            return False
        last = (live.get("status") or {}).get("lastOperation") or {}
        if last.get("state") != "Processing":
            return False
        operation = {**status["lastOperation"], "type": str(task.operation), "state": "Processing"}
        operation["lastUpdateTime"] = timestamp()
        change = {"lastOperation": operation, "lastErrors": status["lastErrors"] or None}
        try:
            await patch_status(self._garden, task.shoot, change, version=live["metadata"]["resourceVersion"])
        except Conflict:
            return False
        return True

    @activity.defn
    async def await_trouble(self, flow: FlowId) -> TaskResult:
        """Return once the flow has ended, or makes no progress any more.

        A flow makes no progress if it has failed tasks, retries an error, waits for a seed without a worker, or has
        started and ended no task for ``_STANDSTILL``.
        """
        handle = activity.client().get_workflow_handle(flow.workflow_id, run_id=flow.run_id or None)
        while True:
            activity.heartbeat()
            try:
                description = await handle.describe()
                if description.status != WorkflowExecutionStatus.RUNNING:
                    return TaskResult(note="the flow has ended")
                for pending in description.raw_description.pending_activities:
                    if pending.activity_type.name == _REPORTER:
                        continue
                    erred = pending.HasField("last_failure") and not _lost_its_worker(pending.last_failure)
                    if erred or _unanswered(pending, datetime.now(UTC)):
                        return TaskResult(note=f"{pending.activity_id} retries an error, or no worker takes it")
                progress = await handle.query("progress", result_type=FlowProgress)
                if progress.failed:
                    return TaskResult(note=f"{progress.failed[0].name} has failed")
                if _stands_still(progress, datetime.now(UTC)):
                    return TaskResult(note=f"no task has started or ended for {_STANDSTILL.seconds} s")
            except RPCError:
                pass  # Temporal or its workers are restarting: poll again
            await asyncio.sleep(_LOOK_SECONDS)  # pending activities cannot be watched

    @activity.defn
    async def edit_flow(self, request: EditFlow) -> str:
        """Repair a running flow: it skips a task or takes a result. Returns the reason of a refusal, or an empty text.

        A second run finds the task done and returns that as a refusal; this answer is true, too.
        """
        flow = activity.client().get_workflow_handle(request.flow.workflow_id, run_id=request.flow.run_id or None)
        try:
            await flow.execute_update("repair", request.repair)
        except WorkflowUpdateFailedError as error:
            return str(error.cause)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return "the operation has ended before the repair reached it: request the repair again"
            raise
        return ""

    @activity.defn
    async def read_outcome(self, flow: FlowId) -> FlowOutcome:
        """The outcome of a flow that was canceled or terminated. Temporal answers queries of ended workflows, too."""
        handle = activity.client().get_workflow_handle(flow.workflow_id, run_id=flow.run_id or None)
        outcome: FlowOutcome = await handle.query("outcome", result_type=FlowOutcome)
        return outcome


async def _follow(seconds: float, write: _Write, pause: Callable[[], float]) -> None:
    """Write the status of the workflow that started this activity, until the workflow ends.

    ``seconds``: time between two writes. ``pause``: seconds until the next poll.
    """
    info = activity.info()
    flow = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    said: dict[str, Any] | None = None
    said_at = datetime.min.replace(tzinfo=UTC)
    progress: FlowProgress | None = None
    events = 0
    while True:
        await asyncio.sleep(pause())  # a flow's progress cannot be watched
        try:
            description = await flow.describe()
            if description.status != WorkflowExecutionStatus.RUNNING:
                return
            if progress is None or description.history_length != events:  # else there is no progress
                progress, events = await flow.query("progress", result_type=FlowProgress), description.history_length
        except RPCError:
            continue
        if progress.ended:
            return
        now = datetime.now(UTC)
        status = await _status_of(progress, description, now)
        if status == said or now - said_at < timedelta(seconds=seconds):
            continue
        try:
            written = await write(status, flow)
        except (ApiError, RPCError):
            continue
        if written:
            said, said_at = status, now


async def _status_of(
    progress: FlowProgress, description: WorkflowExecutionDescription, now: datetime
) -> dict[str, Any]:
    """Status of a running flow: its progress, its running tasks, and its errors, retried or final."""
    pending = {each.activity_id: each for each in description.raw_description.pending_activities}
    errors = [last_error(each.message, each.name, each.codes, each.at) for each in progress.failed]
    texts = []
    running = [task for task in progress.tasks if task.state is TaskState.RUNNING]
    for task in running:
        text, item = task.title, pending.get(task.name)
        if task.unanswered_since or (item is not None and _unanswered(item, now)):
            since = task.unanswered_since or (item.scheduled_time.ToDatetime(UTC) if item else now)
            text += (
                f" (no worker takes tasks from queue {task.queue}; waiting since {since:%H:%M:%S} UTC: "
                "is its gardenlet up?)"
            )
        elif item is not None and item.HasField("last_failure"):
            text += f" (attempt {item.attempt}, since {task.started or now:%H:%M:%S} UTC)"
            if _lost_its_worker(item.last_failure):
                texts.append(text)
                continue
            message, codes = await _failure(item, task.queue)
            at = item.last_attempt_complete_time if item.HasField("last_attempt_complete_time") else None
            errors.append(last_error(message, task.name, codes, at.ToDatetime(UTC) if at else now))
        texts.append(text)
    if "survey" in pending and not running:
        lost = " (no worker takes the task from its queue: is the gardenlet up?)"
        texts.append("Read the state of the seed" + (lost if _unanswered(pending["survey"], now) else ""))
    return {
        "lastOperation": {
            "progress": progress.percent,
            "description": ("; ".join(texts) or "Between two tasks")[:MESSAGE_LIMIT],
        },
        "lastErrors": errors,
    }


async def _failure(item: Any, queue: str) -> tuple[str, tuple[str, ...]]:
    """Message and codes of a pending activity's last failure. The worker has encrypted them for its own queue."""
    client = activity.client()
    context = ActivitySerializationContext(
        namespace=client.namespace,
        activity_id=item.activity_id,
        activity_type=item.activity_type.name,
        activity_task_queue=queue,
        workflow_id=None,
        workflow_type=None,
        is_local=False,
    )
    try:
        error = await client.data_converter.with_context(context).decode_failure(item.last_failure)
    except CodecError as refused:
        return str(refused), ()
    if isinstance(error, ApplicationError):
        code = error.type or ""
        return error.message, (code,) if code.startswith("ERR_") else ()
    return str(error), ()


def _lost_its_worker(failure: Failure) -> bool:
    """Whether an attempt ended because its process ended. This is no error of the flow: the next attempt continues."""
    if failure.HasField("timeout_failure_info"):
        return failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    return failure.application_failure_info.type in (WORKER_LOST, WORKER_STOPPED)


def _stands_still(progress: FlowProgress, now: datetime) -> bool:
    moments = [moment for task in progress.tasks for moment in (task.started, task.ended) if moment is not None]
    return bool(moments) and now - max(moments) > _STANDSTILL


def _unanswered(pending: Any, now: datetime) -> bool:
    """Whether a task has waited in its queue for so long that no worker can be polling the queue."""
    scheduled = pending.state == 1  # PENDING_ACTIVITY_STATE_SCHEDULED
    if not scheduled:
        return False
    due = pending.scheduled_time.ToDatetime(UTC)
    if pending.HasField("next_attempt_schedule_time"):
        due = max(due, pending.next_attempt_schedule_time.ToDatetime(UTC))
    return bool(now - due > _UNANSWERED)
