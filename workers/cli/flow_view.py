"""View of one flow for operators, computed from its history.

The history has all tasks that have ended, and the server's description of the workflow has the running attempts. The
graph, which is built again from the flow's input, has the tasks that are still to run. No worker needs to be up.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, TimeoutError, TimeoutType

from activities.errors import WORKER_LOST, WORKER_STOPPED
from api.contracts.flows import FlowInput, SeedFlowInput, Survey, TaskState
from api.contracts.operations import TaskResult
from api.contracts.repair import Repair
from api.model import ApiModel
from workflows.flow import Flow
from workflows.seed import SEED_FLOWS
from workflows.shoot.flows import FLOWS

SURVEY = "survey"
_OURS = frozenset({"report_progress", "report_seed_progress", "start_seed_operation", "record_seed_failure"})
"""Activities that run before or beside a flow and are not tasks of it."""

UNANSWERED = "Unanswered"
"""Code of a task that no worker takes from its queue."""


class TaskView(ApiModel):
    name: str
    title: str
    indent: str = ""
    state: TaskState = TaskState.WAITING
    after: tuple[str, ...] = ()
    started: datetime | None = None
    ended: datetime | None = None
    attempts: int = 0
    worker: str = ""
    note: str = ""
    error: str = ""
    """Last error of the task, also if a later attempt succeeded."""
    code: str = ""
    """Type of the error: an ``api.errors.ErrorCode``, or another name that our code sets."""
    waits_for: str = ""
    """Objects that the task waits for, according to its last heartbeat."""
    sees: str = ""
    """State of these objects, according to the same heartbeat."""

    def seconds(self, now: datetime) -> float | None:
        if self.started is None:
            return None
        return ((self.ended or now) - self.started).total_seconds()


class Interruption(ApiModel):
    """The loss of a worker or another interruption, after which the flow went on."""

    at: datetime
    text: str


class Intervention(ApiModel):
    """A repair of the operation by an operator."""

    at: datetime | None
    text: str


class FlowView(ApiModel):
    shoot: str
    workflow_id: str
    run_id: str
    operation: str = ""
    generation: int = 0
    attempt: int = 1
    state: str = "Running"
    """Running, Completed, Failed, Canceled, Terminated or TimedOut."""
    started: datetime
    ended: datetime | None = None
    percent: int = 0
    tasks: tuple[TaskView, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    interventions: tuple[Intervention, ...] = ()


class _Run:
    """Data of one task in the history."""

    def __init__(self, name: str, started: datetime, queue: str) -> None:
        self.name = name
        self.queue = queue
        self.state = TaskState.RUNNING
        self.started = started
        self.ended: datetime | None = None
        self.attempts = 0
        self.worker = ""
        self.note = ""
        self.error = ""
        self.code = ""
        self.waits_for = ""
        self.sees = ""


class FlowHistory:
    """Reads a flow's events in their order, one at a time."""

    def __init__(self, shoot: str, workflow_id: str, run_id: str, converter: DataConverter) -> None:
        self.ended: datetime | None = None
        self._shoot = shoot
        self._workflow_id = workflow_id
        self._run_id = run_id
        self._converter = converter
        self._input: FlowInput | SeedFlowInput | None = None
        self._kind = ""
        self._survey: Survey | None = None
        self._started = datetime.now(UTC)
        self._state = "Running"
        self._runs: dict[str, _Run] = {}
        self._by_event: dict[int, _Run] = {}
        self._interruptions: list[Interruption] = []
        self._repairs: list[Repair] = []
        """Repairs made while the flow ran."""
        self._decider = ""
        """Identity of the worker that executed the last workflow task."""

    async def feed(self, event: HistoryEvent) -> None:
        """Read the next event."""
        at = event.event_time.ToDatetime(UTC)
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            begin = event.workflow_execution_started_event_attributes
            self._started, self._kind = at, begin.workflow_type.name
            kind_of_input = SeedFlowInput if self._kind in _SEED_DEFINITIONS else FlowInput
            [self._input] = await self._converter.decode(begin.input.payloads, [kind_of_input])
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name not in _OURS:
                name = scheduled.activity_id  # two tasks may run the same activity, each on another queue
                run = self._runs.get(name)
                if run is None:
                    run = self._runs[name] = _Run(name, at, scheduled.task_queue.name)
                run.state, run.ended = TaskState.RUNNING, None
                self._by_event[event.event_id] = run
        elif kind in _ACTIVITY_EVENTS:
            await self._feed_activity(event, at)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            self._tell_decider(event.workflow_task_completed_event_attributes.identity, at)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            # Also shown if the task only waited in the queue of a worker that restarted, which costs nothing.
            self._interruptions.append(Interruption(at=at, text="the worker of the workflow was lost"))
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failure = event.workflow_task_failed_event_attributes.failure
            error = await self._converter.decode_failure(failure)
            self._interruptions.append(Interruption(at=at, text=f"the workflow's code failed: {error}"))
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            request = event.workflow_execution_update_accepted_event_attributes.accepted_request
            await self._tell_repair(request.input.name, request.input.args.payloads)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            await self._tell_repair(signal.signal_name, signal.input.payloads)
        elif kind in _ENDS:
            self._state, self.ended = _ENDS[kind], at

    async def _tell_repair(self, name: str, payloads: Sequence[Payload]) -> None:
        if name in _REPAIRS:
            [repair] = await self._converter.decode(payloads, [Repair])
            attempt = self._input.attempt.number if self._input else 1
            self._repairs.append(repair.model_copy(update={"attempt": attempt}))

    def _tell_decider(self, identity: str, at: datetime) -> None:
        """Note a change of the worker that runs the workflow.

        A worker keeps a workflow until the worker stops. If it is lost between two workflow tasks, the history has no
        other sign of that.
        """
        if self._decider and identity != self._decider:
            text = f"the workflow's worker {self._decider} was lost or stopped; {identity} went on"
            self._interruptions.append(Interruption(at=at, text=text))
        self._decider = identity

    async def _feed_activity(self, event: HistoryEvent, at: datetime) -> None:
        attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
        run = self._by_event.get(attributes.scheduled_event_id)
        if run is None:
            return
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            run.attempts, run.worker = attributes.attempt, attributes.identity
            if attributes.HasField("last_failure"):
                await self._tell_failure(run, attributes.last_failure, at)
            return
        run.ended = at
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            run.state = TaskState.FINISHED
            if run.name == SURVEY:
                [self._survey] = await self._converter.decode(attributes.result.payloads, [Survey])
            else:
                [result] = await self._converter.decode(attributes.result.payloads, [TaskResult])
                run.note = result.note
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
            run.state = TaskState.CANCELED
        else:
            run.state = TaskState.FAILED
            await self._tell_failure(run, attributes.failure, at)

    async def _tell_failure(self, run: _Run, failure: Any, at: datetime) -> None:
        error = await self._converter.decode_failure(failure)
        if _is_of_a_lost_worker(error):
            run.error, run.code = "its worker was lost", WORKER_LOST
            self._interruptions.append(
                Interruption(at=at, text=f"{run.name}: its worker was lost; went on with attempt {run.attempts}")
            )
        elif isinstance(error, ApplicationError) and error.type == WORKER_STOPPED:
            run.error = "its worker was stopped"
            self._interruptions.append(
                Interruption(at=at, text=f"{run.name}: its worker was stopped; went on with attempt {run.attempts}")
            )
        elif isinstance(error, TimeoutError) and error.type == TimeoutType.SCHEDULE_TO_START:
            run.error, run.code = f"no worker took it from queue {run.queue}", UNANSWERED
            self._interruptions.append(Interruption(at=at, text=f"{run.name}: {run.error}"))
        else:
            run.error, run.code = error.message if isinstance(error, ApplicationError) else str(error), _code(error)
            if isinstance(error, TimeoutError) and error.cause is not None:
                last = error.cause
                run.error = f"out of time; last error: {getattr(last, 'message', last)}"
                run.code = _code(last)

    def graph(self) -> Flow[Any] | None:
        """The flow's graph; None while its tasks depend on a survey that has no result yet, or if this version of the
        code does not have the flow.
        """
        graph = self._graph()
        if graph is not None:
            for repair in self._repairs:
                graph.note(repair)
        return graph

    def _graph(self) -> Flow[Any] | None:
        if self._input is None:
            return None
        if isinstance(self._input, SeedFlowInput):
            return _SEED_DEFINITIONS[self._kind].graph(self._input)
        definition = _DEFINITIONS.get(self._kind)
        if definition is None:
            return None
        if definition.surveyed is None:
            return definition.build(self._input)
        return definition.build(self._input, self._survey) if self._survey else None

    async def view(self, pending: Sequence[Any] = ()) -> FlowView:
        """The view of all events read so far. ``pending``: pending activities in the server's description."""
        for item in pending:
            if run := self._runs.get(item.activity_id):
                await self._tell_pending(run, item)
        graph = self.graph()
        tasks = self._tasks_of(graph) if graph else tuple(self._task(run) for run in self._runs.values())
        counted = [task for task in tasks if task.state is not TaskState.SKIPPED]
        attempt = self._input.attempt.number if self._input else 1
        return FlowView(
            shoot=self._shoot,
            workflow_id=self._workflow_id,
            run_id=self._run_id,
            operation=str(self._input.task.operation) if self._input else "",
            generation=self._input.task.generation if self._input else 0,
            attempt=attempt,
            state=self._state,
            started=self._started,
            ended=self.ended,
            percent=100 * sum(task.state.done for task in counted) // len(counted) if counted else 0,
            tasks=tasks,
            interruptions=tuple(self._interruptions),
            interventions=tuple(
                Intervention(at=each.at, text=f"{each}") for each in (*self._kept_repairs(), *self._repairs)
            ),
        )

    def _kept_repairs(self) -> tuple[Repair, ...]:
        return self._input.attempt.kept.repairs if self._input else ()

    async def _tell_pending(self, run: _Run, item: Any) -> None:
        run.attempts, run.worker = item.attempt, item.last_worker_identity
        if item.HasField("heartbeat_details"):
            await self._tell_heartbeat(run, item.heartbeat_details.payloads)
        if item.HasField("last_failure"):
            error = await self._converter.decode_failure(item.last_failure)
            lost = _is_of_a_lost_worker(error)
            text = error.message if isinstance(error, ApplicationError) else str(error)
            run.error, run.code = ("its worker was lost", WORKER_LOST) if lost else (text, _code(error))
        elif item.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
            run.error, run.code = f"no worker of queue {run.queue} has taken it yet", UNANSWERED
        else:
            run.error = run.code = ""

    async def _tell_heartbeat(self, run: _Run, payloads: Sequence[Payload]) -> None:
        told = [str(each) for each in await self._converter.decode(payloads)]
        run.waits_for, run.sees = (told[0], told[1]) if len(told) >= 2 else ("", "; ".join(told))

    def _tasks_of(self, graph: Flow[Any]) -> tuple[TaskView, ...]:
        views = []
        states: dict[str, TaskState] = {}
        for indent, name in graph.tree():
            run = self._runs.get(name)
            task = TaskView(name=name, title=graph.title(name), indent=indent, after=graph.after(name))
            by_hand = graph.by_hand(name)
            if run is not None and (by_hand is None or run.state is TaskState.FINISHED):
                task = self._task(run).model_copy(update={"title": task.title, "indent": indent, "after": task.after})
            elif reason := graph.skipped(name):
                task = task.model_copy(update={"state": TaskState.SKIPPED, "note": reason})
            elif note := graph.why_kept(name):
                task = task.model_copy(update={"state": TaskState.KEPT, "note": note})
            states[name] = task.state
            views.append(task)
        failed = [name for name, state in states.items() if state is TaskState.FAILED]
        return tuple(
            task.model_copy(update={"state": TaskState.BLOCKED})
            if task.state is TaskState.WAITING and any(graph.comes_after(task.name, each) for each in failed)
            else task
            for task in views
        )

    @staticmethod
    def _task(run: _Run) -> TaskView:
        return TaskView(
            name=run.name,
            title=run.name,
            state=run.state,
            started=run.started,
            ended=run.ended,
            attempts=run.attempts,
            worker=run.worker,
            note=run.note,
            error=run.error,
            code=run.code,
            waits_for=run.waits_for,
            sees=run.sees,
        )


def _is_of_a_lost_worker(error: BaseException) -> bool:
    if isinstance(error, TimeoutError):
        return error.type == TimeoutType.HEARTBEAT
    return isinstance(error, ApplicationError) and error.type == WORKER_LOST


def _code(error: BaseException) -> str:
    if isinstance(error, ApplicationError):
        return error.type or ""
    return "Timeout" if isinstance(error, TimeoutError) else type(error).__name__


async def read_flow(client: Client, shoot: str, workflow_id: str, run_id: str) -> FlowView:
    """Read the flow's current state."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    history = FlowHistory(shoot, workflow_id, run_id, client.data_converter)
    async for event in handle.fetch_history_events():
        await history.feed(event)
    description = await handle.describe()
    return await history.view(description.raw_description.pending_activities)


async def watch_flow(client: Client, shoot: str, workflow_id: str, run_id: str) -> AsyncIterator[FlowView]:
    """Yield the flow's state each second while it runs, and once more after its end."""
    import asyncio

    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    history = FlowHistory(shoot, workflow_id, run_id, client.data_converter)

    async def read() -> None:
        async for event in handle.fetch_history_events(wait_new_event=True):
            await history.feed(event)

    reading = asyncio.create_task(read())
    try:
        while True:
            await asyncio.wait({reading}, timeout=1)
            if reading.done():
                reading.result()
                yield await history.view()
                return
            description = await handle.describe()
            running = description.status == WorkflowExecutionStatus.RUNNING
            yield await history.view(description.raw_description.pending_activities if running else ())
    finally:
        reading.cancel()


_ACTIVITY_EVENTS = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
    }
)
_SEED_DEFINITIONS = {each.workflow.__name__: each for each in SEED_FLOWS.values()}
_DEFINITIONS = {each.workflow.__name__: each for each in FLOWS.values()}
_REPAIRS = frozenset({"repair", "pause", "resume"})
"""Updates and signals of an operation's workflow."""
_ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "Completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "Failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "Canceled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "Terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "TimedOut",
}
