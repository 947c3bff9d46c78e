"""Task graph of one operation.

A flow is declared task by task, in one place, and then run: each task is an activity that starts as soon as
its predecessors are done. A skipped task counts as done once its own predecessors are done, so order stays
transitive. A failed task blocks only its successors. When no task can run any more, the flow fails with all
errors and with its outcome; the next attempt keeps the finished tasks of that outcome.

    flow.add(EtcdActivities.deploy_etcds, after=["init_secrets"])
    flow.add(
        EtcdActivities.wait_etcds, completes="deploy_etcds", unless=hibernated and "hibernated", **wait(minutes=5)
    )

A flow does not see transient errors: the activity's retry policy retries the activity until the attempt's
deadline. A flow writes only the activities of its tasks to its history.
Source: spec/flows.md 1.5.
"""

import asyncio
import difflib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Generic, Literal, TypeVar, Unpack

from temporalio import activity, workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TimeoutError,
    TimeoutType,
)

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from api.contracts.flows import (
        Attempt,
        FailedTask,
        FinishedTask,
        FlowOutcome,
        FlowProgress,
        TaskProgress,
        TaskState,
    )
    from api.contracts.operations import TaskResult
    from api.contracts.repair import Action, Repair

FLOW_FAILED = "FlowFailed"
"""Type of the ApplicationError with which a flow fails; its only detail is a FlowOutcome."""
OUTCOME_MEMO = "outcome"
"""Memo in which a canceled flow leaves its outcome."""

_LONGEST_UNANSWERED = timedelta(minutes=5)
"""Longest schedule-to-start timeout. The timeout grows up to this while no worker polls a queue, because each timeout
adds events to the history, and its size is limited."""
_GRACE_AFTER_FAILURE = timedelta(minutes=15)
"""Time in which running tasks may still end after a task has failed for good; then they are canceled. Without a limit a
user who has corrected the error could not retry. 15 min: longer than any wait of a flow (spec/extensions.md 1.4)."""

Skip = str | Literal[False] | None
"""Reason to skip a task; false to run it."""

Subject = TypeVar("Subject", bound=BaseModel)
Input = TypeVar("Input", bound=BaseModel)
Activity = Callable[[Any, Input], Awaitable[TaskResult]]
"""Method of a class of activities, for example ``EtcdActivities.deploy_etcds``."""


class Call:
    """An activity whose input is another one than the flow's subject; ``argument`` makes it when the task starts."""

    def __init__(self, activity: Activity[Input], argument: Callable[[], Input]) -> None:
        self.activity: Callable[..., Any] = activity
        self.argument: Callable[[], BaseModel] = argument


class Everything(Enum):
    """``after=EVERYTHING``: after all tasks added before."""

    EVERYTHING = "everything"


EVERYTHING = Everything.EVERYTHING


class GraphError(ValueError):
    """The declaration of a flow is wrong: a task is declared twice, or a predecessor is unknown."""


@dataclass(slots=True)
class _Task:
    name: str
    title: str
    activity: str
    after: tuple[str, ...]
    unless: str
    completes: str
    argument: Callable[[], BaseModel] | None
    digest: str
    queue: str
    options: workflow.ActivityConfig
    skip_after_manual_repair: bool = False
    state: TaskState = TaskState.WAITING
    missing: int = 0
    """Number of predecessors that are not done."""
    successors: "list[_Task]" = field(default_factory=list)
    result: TaskResult = field(default_factory=TaskResult)
    note: str = ""
    attempt: int = 0
    trigger: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    unanswered_since: datetime | None = None


class Flow(Generic[Subject]):
    """One attempt of one operation.

    Args:
        operation: name in the UI, for example ``Create``.
        subject: input of the tasks' activities. Its field ``trigger``, if it has one, is set to the time at
            which the attempt started; a change of this field alone makes no task run again.
        queue: default task queue of the tasks.
        options: default activity options of the tasks.
        attempt: number of this attempt, and the outcome of the one before.
    """

    def __init__(
        self,
        operation: str,
        subject: Subject,
        *,
        queue: str,
        options: workflow.ActivityConfig,
        attempt: Attempt | None = None,
    ) -> None:
        self.operation = operation
        self.attempt = attempt or Attempt()
        self._subject = subject
        self._queue = queue
        self._options = options
        self._tasks: dict[str, _Task] = {}
        self._triggered: dict[str, Subject] = {}
        self._base_digest = _digest_of(subject)
        self._kept = {each.name: each for each in self.attempt.kept.finished}
        self._open = 0
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._fault: Exception | None = None
        """Error in a task's own code, not in its activity."""
        self._failed: list[FailedTask] = []
        self._deadline: asyncio.Task[None] | None = None
        self._stopping = False
        self._ended = False
        self._repairs = list(self.attempt.kept.repairs)
        self._paused = self.attempt.paused
        self._paused_at: datetime | None = None
        self._held: list[_Task] = []
        """Tasks whose predecessors are done and that a pause keeps from starting."""
        self._layout: list[tuple[str, _Task]] = []

    # Declaring

    def add(
        self,
        activity: Activity[Subject] | Call,
        *,
        name: str = "",
        after: Sequence[str] | Everything = (),
        unless: Skip = None,
        completes: str = "",
        inputs: Iterable[str] = (),
        skip_after_manual_repair: bool = False,
        title: str = "",
        **options: Unpack[workflow.ActivityConfig],
    ) -> str:
        """Declare a task; returns its name.

        Args:
            activity: its input is the flow's subject, unless a ``Call`` gives another.
            name: unique in the flow; the activity's name if empty.
            after: predecessors, added before; the task that this one completes if there are none.
            unless: reason to skip the task; false to run it.
            completes: the task whose effect this one waits for. If this one fails, the next attempt runs the
                other again, too: only that makes a controller retry.
            inputs: versions of objects that the activity reads besides its input; if they change, a finished task
                runs again in the next attempt.
            skip_after_manual_repair: skip this task if an operator skipped or provided another task. For
                ``cleanup_secrets``, which deletes Secrets that no task reported: a task done by hand reports none.
            title: name in summaries; derived from ``name`` if empty.
            options: options of the activity; those of the flow if none are given.

        Raises:
            GraphError: the name is taken, or a predecessor is unknown.
        """
        called = activity_name(activity.activity if isinstance(activity, Call) else activity)
        name = name or called
        if name in self._tasks:
            raise GraphError(f"task {name} is declared twice")
        if not after and completes:
            after = (completes,)
        predecessors = tuple(self._tasks) if isinstance(after, Everything) else tuple(dict.fromkeys(after))
        for predecessor in (*predecessors, *([completes] if completes else ())):
            if predecessor not in self._tasks:
                raise GraphError(f"task {name} comes after {predecessor}, which is not declared")
        chosen: workflow.ActivityConfig = options or self._options
        title = title or title_of(name)
        task = _Task(
            name=name,
            title=title,
            activity=called,
            after=predecessors,
            unless=unless or "",
            completes=completes,
            argument=activity.argument if isinstance(activity, Call) else None,
            digest=_short_hash(self._base_digest, called, *inputs),
            queue=chosen.get("task_queue") or self._queue,
            options=chosen,
            skip_after_manual_repair=skip_after_manual_repair,
        )
        self._tasks[name] = task
        for predecessor in predecessors:
            self._tasks[predecessor].successors.append(task)
        return name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    @property
    def activities(self) -> dict[str, str]:
        """Activities of all tasks that are not skipped, each with its task queue."""
        return {task.activity: task.queue for task in self._tasks.values() if not task.unless}

    def skipped(self, name: str) -> str:
        """Reason for which a task is skipped; empty if it runs."""
        task = self._tasks[name]
        if task.unless:
            return task.unless
        if (repair := self.by_hand(name)) is not None and repair.action is Action.SKIP:
            return str(repair)
        if task.skip_after_manual_repair and any(self.by_hand(each) for each in self._tasks):
            return "an operator skipped or provided other tasks"
        return ""

    def title(self, name: str) -> str:
        """Name of a task in summaries."""
        return self._tasks[name].title

    def digest(self, name: str) -> str:
        """Digest of a task's inputs: a finished task is kept while the digest is the same."""
        return self._tasks[name].digest

    def completes(self, name: str) -> str:
        """Name of the task whose effect this one waits for; empty if there is none."""
        return self._tasks[name].completes

    def after(self, name: str) -> tuple[str, ...]:
        """Names of a task's predecessors."""
        return self._tasks[name].after

    def kept(self, name: str) -> FinishedTask | None:
        """Result of a task that this attempt need not run; None if the task has to run.

        The result comes from an earlier attempt with the same inputs, or from an operator.
        """
        if (repair := self.by_hand(name)) is not None and repair.action is Action.PROVIDE:
            result = repair.result or TaskResult()
            digest, trigger = self._tasks[name].digest, self.attempt.trigger
            return FinishedTask(name=name, digest=digest, result=result, attempt=repair.attempt, trigger=trigger)
        if any(self._is_reset(name, repair) for repair in self._repairs if repair.attempt == self.attempt.number):
            return None
        kept = self._kept.get(name)
        return kept if kept is not None and kept.digest == self._tasks[name].digest else None

    def why_kept(self, name: str) -> str:
        """Reason for which a task is kept, as a text for users; empty if the task has to run."""
        if (kept := self.kept(name)) is None:
            return ""
        repair = self.by_hand(name)
        return str(repair) if repair is not None else f"kept from attempt {kept.attempt}"

    def by_hand(self, name: str) -> Repair | None:
        """The repair by which an operator skipped or provided a task; None if there is none, or a reset undid it."""
        last = None
        for repair in self._repairs:
            if repair.action.by_hand and repair.task == name:
                last = repair
            elif self._is_reset(name, repair):
                last = None
        return last

    def _is_reset(self, name: str, repair: Repair) -> bool:
        """Whether a repair makes a task run again.

        Again run the task that the repair names, the task that it completes, and all tasks after these.
        """
        if repair.action not in (Action.RETRY, Action.RESET) or repair.task not in self._tasks:
            return False
        first = self._tasks[repair.task].completes or repair.task
        return name == first or self.comes_after(name, first)

    def comes_after(self, later: str, earlier: str) -> bool:
        """Whether ``later`` can only start once ``earlier`` is done, directly or transitively."""
        pending, seen = [later], {later}
        while pending:
            for predecessor in self._tasks[pending.pop()].after:
                if predecessor == earlier:
                    return True
                if predecessor not in seen:
                    seen.add(predecessor)
                    pending.append(predecessor)
        return False

    # Repairing

    def refusal(self, repair: Repair) -> str:
        """Reason for which the running flow refuses a repair; empty if it accepts."""
        if fault := repair.fault:
            return fault
        if self._ended or self._stopping:
            return f"{self.operation} has ended or is about to"
        if unknown := self.unknown(repair.task):
            return unknown
        state = self._tasks[repair.task].state
        return f"task {repair.task} of {self.operation} is done already ({state})" if state.done else ""

    def unknown(self, name: str) -> str:
        """Message that the flow has no such task, with tasks of similar names; empty if it has it."""
        if name in self._tasks:
            return ""
        near = difflib.get_close_matches(name, self._tasks, n=3)
        return f"{self.operation} has no task {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")

    def note(self, repair: Repair) -> None:
        """Record a repair without acting on it now."""
        self._repairs.append(repair)

    def repair(self, repair: Repair) -> None:
        """Skip a task, or provide its result, while the flow runs."""
        self._repairs.append(repair.model_copy(update={"attempt": self.attempt.number}))
        task = self._tasks[repair.task]
        if task.state is TaskState.RUNNING:
            self._running[task.name].cancel()
        elif task.state is TaskState.FAILED:
            self._failed = [each for each in self._failed if each.name != task.name]
            if not self._failed and self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            self._start(task)
        self._show()

    def pause(self, repair: Repair) -> None:
        """Start no task until ``resume``; running tasks go on."""
        self._repairs.append(repair)
        self._paused, self._paused_at = repair, workflow.now()
        self._show()

    def resume(self, repair: Repair) -> None:
        """Start the tasks that the pause held; the attempt's deadline moves by the length of the pause."""
        self._repairs.append(repair)
        if self.attempt.deadline is not None and self._paused_at is not None:
            deadline = self.attempt.deadline + (workflow.now() - self._paused_at)
            self.attempt = self.attempt.model_copy(update={"deadline": deadline})
        self._paused = None
        held, self._held = self._held, []
        for task in held:
            self._start(task)
        self._show()

    # Running

    async def run(self) -> FlowOutcome:
        """Run all tasks; returns once every one of them is done.

        Raises:
            ApplicationError: ``FlowFailed``, with the outcome as its detail, if a task failed for good.
            CancelledError: the workflow was canceled; running tasks were canceled and have ended.
        """
        self._layout = _layout(self._tasks.values())
        self._open = len(self._tasks)
        if self._paused is not None:
            self._paused_at = workflow.now()
        for task in self._tasks.values():
            task.missing = len(task.after)
        for task in [each for each in self._tasks.values() if not each.after]:
            self._start(task)
        self._show()
        try:
            await self._until(self._idle)
        except asyncio.CancelledError:
            self._stop()
            await self._until(lambda: not self._running)
            self._end()
            workflow.upsert_memo({OUTCOME_MEMO: self.outcome.model_dump(mode="json")})
            raise
        self._end()
        if self._failed:
            raise ApplicationError(self._summary(), self.outcome, type=FLOW_FAILED, non_retryable=True)
        return self.outcome

    @property
    def outcome(self) -> FlowOutcome:
        """Tasks that have finished and failed up to now."""
        undone = {task.completes for task in self._tasks.values() if task.completes and task.state is TaskState.FAILED}
        finished = tuple(
            FinishedTask(
                name=task.name, digest=task.digest, result=task.result, attempt=task.attempt, trigger=task.trigger
            )
            for task in self._tasks.values()
            if task.state in (TaskState.FINISHED, TaskState.KEPT) and task.name not in undone
        )
        return FlowOutcome(
            finished=finished,
            failed=tuple(self._failed),
            canceled=self._stopping and not self._failed,
            repairs=tuple(self._repairs),
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of all Secrets that tasks reported, finished and kept ones."""
        return tuple(sorted({name for task in self._tasks.values() for name in task.result.secrets}))

    def result_note(self, name: str) -> str:
        """Note in the result of a task that is done, in this attempt or in an earlier one."""
        return self._tasks[name].result.note

    def progress(self) -> FlowProgress:
        """Answer of the ``progress`` query."""
        return FlowProgress(
            operation=self.operation,
            attempt=self.attempt.number,
            percent=self.percent,
            ended=self._ended,
            paused=self._paused,
            tasks=tuple(
                TaskProgress(
                    name=task.name,
                    title=task.title,
                    state=self._shown_state(task),
                    after=task.after,
                    note=task.note or task.unless,
                    queue=task.queue,
                    started=task.started,
                    ended=task.ended,
                    unanswered_since=task.unanswered_since,
                )
                for task in self._tasks.values()
            ),
            failed=tuple(self._failed),
        )

    @property
    def percent(self) -> int:
        """Percentage of done tasks among those that are not skipped. Source: spec/flows.md 1.4."""
        counted = [task for task in self._tasks.values() if not task.unless]
        return 100 * sum(task.state.done for task in counted) // len(counted) if counted else 100

    def _start(self, task: _Task) -> None:
        if self._stopping:
            return
        if reason := self.skipped(task.name):
            task.note = reason
            self._done(task, TaskState.SKIPPED)
        elif (kept := self.kept(task.name)) is not None:
            task.result, task.attempt, task.trigger = kept.result, kept.attempt, kept.trigger
            task.note = self.why_kept(task.name)
            self._done(task, TaskState.KEPT)
        elif self._paused is not None:
            self._held.append(task)
        else:
            task.state = TaskState.RUNNING
            task.started = workflow.now()
            task.attempt = self.attempt.number
            # A task that waits for an effect needs the time at which the other task requested it.
            begun = self._tasks[task.completes].trigger if task.completes else ""
            task.trigger = begun or self.attempt.trigger
            self._running[task.name] = asyncio.create_task(self._run(task))

    async def _run(self, task: _Task) -> None:
        failure: FailedTask | None = None
        try:
            task.result = await self._execute(task)
            task.note = task.result.note
        except ActivityError as error:
            if isinstance(error.cause, CancelledError):
                task.state = TaskState.CANCELED
            else:
                failure = self._failure(task, error)
        except asyncio.CancelledError:
            task.state = TaskState.CANCELED
        except Exception as error:
            self._fault = error
            return
        del self._running[task.name]
        task.ended = workflow.now()
        task.unanswered_since = None
        if self.by_hand(task.name) and (failure is not None or task.state is TaskState.CANCELED):
            self._start(task)
        elif failure is not None:
            self._failed.append(failure)
            task.state = TaskState.FAILED
            task.note = failure.message
            self._limit_running_tasks()
        elif task.state is not TaskState.CANCELED:
            self._done(task, TaskState.FINISHED)
        self._show()

    async def _execute(self, task: _Task) -> TaskResult:
        """Run the activity. If no worker polls its queue, show that in the task's note and schedule it again."""
        argument = task.argument() if task.argument else self._argument(task.trigger)
        options = workflow.ActivityConfig(
            activity_id=task.name,
            summary=task.title,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        options.update(task.options)
        options["task_queue"] = task.queue
        while True:
            if self.attempt.deadline is not None:
                left = self.attempt.deadline - workflow.now()
                limit = task.options.get("schedule_to_close_timeout") or left
                options["schedule_to_close_timeout"] = max(min(left, limit), timedelta(seconds=1))
            scheduled = workflow.now()
            try:
                result: TaskResult = await workflow.execute_activity(
                    task.activity, argument, result_type=TaskResult, **options
                )
            except ActivityError as error:
                timeout = options.get("schedule_to_start_timeout")
                if timeout is None or not _is_unanswered(error) or self._stopping:
                    raise
                if task.unanswered_since is None:
                    task.unanswered_since = scheduled
                    task.note = f"no worker polls queue {task.queue}"
                    self._show()
                options["schedule_to_start_timeout"] = min(2 * timeout, _LONGEST_UNANSWERED)
            else:
                return result

    def _argument(self, trigger: str) -> Subject:
        if "trigger" not in type(self._subject).model_fields:
            return self._subject
        if trigger not in self._triggered:
            self._triggered[trigger] = self._subject.model_copy(update={"trigger": trigger})
        return self._triggered[trigger]

    def _done(self, task: _Task, state: TaskState) -> None:
        task.state = state
        self._open -= 1
        for successor in task.successors:
            successor.missing -= 1
            if not successor.missing:
                self._start(successor)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. An error in the flow's own code fails the workflow task: a corrected worker goes on."""
        await workflow.wait_condition(lambda: self._fault is not None or condition())
        if self._fault is not None:
            raise self._fault

    def _idle(self) -> bool:
        return not self._running and not self._held

    def _failure(self, task: _Task, error: ActivityError) -> FailedTask:
        cause = error.cause or error
        message, type_ = str(cause), type(cause).__name__
        if isinstance(cause, ApplicationError):
            message, type_ = cause.message, cause.type or type_
        elif isinstance(cause, TimeoutError):
            type_ = "Timeout"
            last = cause.cause
            message = f"{task.title}: timed out" + (f"; last error: {last}" if last else "")
            if isinstance(last, ApplicationError):
                type_ = last.type or type_
        return FailedTask(
            name=task.name,
            message=message,
            type=type_,
            codes=(type_,) if type_.startswith("ERR_") else (),
            at=workflow.now(),
            attempt=self.attempt.number,
        )

    def _limit_running_tasks(self) -> None:
        """Cancel the tasks that still run ``_GRACE_AFTER_FAILURE`` after the first failure."""
        if self._running and self._deadline is None:
            self._deadline = asyncio.create_task(self._stop_after_grace())

    async def _stop_after_grace(self) -> None:
        await workflow.sleep(_GRACE_AFTER_FAILURE, summary="Let running tasks end after a failure")
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for running in list(self._running.values()):
            running.cancel()

    def _end(self) -> None:
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._show()

    def _summary(self) -> str:
        return f"{self.operation} failed: " + "; ".join(f"{each.name}: {each.message}" for each in self._failed)

    # Showing

    def _shown_state(self, task: _Task) -> TaskState:
        if task.state is TaskState.WAITING and self._failed and self._is_blocked(task):
            return TaskState.BLOCKED
        return task.state

    def _is_blocked(self, task: _Task) -> bool:
        if self._ended:
            return True
        return any(self.comes_after(task.name, failed.name) for failed in self._failed)

    def _show(self) -> None:
        workflow.set_current_details(self._details())

    def _details(self) -> str:
        lines = [f"**{self.operation}**, attempt {self.attempt.number}: {self.percent} %"]
        lines += [f"- {repair}" for repair in self._repairs]
        if self._paused is not None:
            lines.append("\n**Paused: no task starts until the operation is resumed.**")
        lines.append("```")
        for indent, task in self._layout:
            note = task.note or task.unless
            lines.append(f"{indent}{MARKS[task.state]} {task.name}" + (f" – {note}" if note else ""))
        return "\n".join([*lines, "```"])

    def tree(self) -> list[tuple[str, str]]:
        """Indentation and name of each task, for display: a task stands below the last of its predecessors.

        A chain has one indentation; where the graph forks, each branch begins with a hook.
        """
        return [(indent, task.name) for indent, task in _layout(self._tasks.values())]


MARKS = {
    TaskState.WAITING: "·",
    TaskState.RUNNING: "▶",
    TaskState.FINISHED: "✔",
    TaskState.KEPT: "✔",
    TaskState.SKIPPED: "○",
    TaskState.FAILED: "✘",
    TaskState.BLOCKED: "·",
    TaskState.CANCELED: "✘",
}
_WORDS = {
    "api": "API",
    "apis": "APIs",
    "apiserver": "API server",
    "coredns": "CoreDNS",
    "dns": "DNS",
    "etcds": "etcds",
    "os": "OS",
    "sni": "SNI",
    "vpn": "VPN",
}


def title_of(name: str) -> str:
    """``deploy_apiserver_sni`` is "Deploy API server SNI"; ``wait_worker`` is "Wait for worker"."""
    words = [_WORDS.get(word, word) for word in name.split("_")]
    if words[0] == "wait":
        words.insert(1, "for")
    return " ".join([words[0].capitalize(), *words[1:]])


def activity_name(method: Callable[..., Any]) -> str:
    """Name by which Temporal calls an activity.

    Raises:
        TypeError: the method is not an activity.
    """
    definition = activity._Definition.must_from_callable(method)
    return definition.name or method.__name__


def failed_outcome(error: BaseException) -> FlowOutcome | None:
    """Outcome in the error of a failed flow; None if the error is of another type."""
    if not isinstance(error, ApplicationError) or error.type != FLOW_FAILED or not error.details:
        return None
    return FlowOutcome.model_validate(error.details[0])


def _is_unanswered(error: ActivityError) -> bool:
    return isinstance(error.cause, TimeoutError) and error.cause.type == TimeoutType.SCHEDULE_TO_START


def _digest_of(subject: BaseModel) -> str:
    return json.dumps(subject.model_dump(mode="json", exclude={"trigger"}), sort_keys=True)


def _short_hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _layout(tasks: Iterable[_Task]) -> list[tuple[str, _Task]]:
    level: dict[str, int] = {}
    children: dict[str, list[_Task]] = {"": []}
    for task in tasks:
        level[task.name] = 1 + max((level[each] for each in task.after), default=-1)
        parent = max(task.after, key=lambda each: level[each]) if task.after else ""
        children.setdefault(parent, []).append(task)
        children.setdefault(task.name, [])
    placed: list[tuple[str, _Task]] = []
    stack = [("", False, task) for task in reversed(children[""])]
    while stack:
        space, forks, task = stack.pop()
        placed.append((f"{space}╰ " if forks else space, task))
        below = children[task.name]
        if forks:
            space += "  "
        stack += [(space, len(below) > 1, each) for each in reversed(below)]
    return placed
