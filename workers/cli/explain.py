"""Explain the state of an operation in one paragraph, from the data that Temporal has, and from no other source."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from activities.errors import WORKER_LOST
from api import resources
from api.contracts.flows import TaskState
from api.errors import ErrorCode
from api.model import ApiModel
from workers.cli.flow_view import UNANSWERED, FlowView, TaskView
from workflows.shoot.decision import RestKind
from workflows.shoot.lifecycle import LifecycleProgress

_QUEUE_WAIT = timedelta(seconds=30)
"""Time that a task may wait in its queue before the explanation asks the operator to start the gardenlet."""


class Explanation(ApiModel):
    """The paragraph, and the facts in it."""

    shoot: str
    text: str
    operation: str = ""
    generation: int = 0
    attempt: int = 0
    percent: int = 0
    state: str = ""
    """Running, Stalled, Paused, Failed, Canceled, Succeeded or Resting."""
    task: str = ""
    object: str = ""
    """Kind, namespace and name of the object that the task waits for, or that its error names."""
    since: datetime | None = None
    """Start of the task, or of the time without an operation (UTC)."""
    attempts: int = 0
    """Number of attempts of the task."""
    error: str = ""
    code: str = ""
    todo: str = ""
    others: tuple[str, ...] = ()
    """Names of other tasks that have failed or are running."""

    @property
    def is_unknown(self) -> bool:
        """Whether Temporal knows neither the Shoot nor an operation of it: the name is probably wrong."""
        return self.state == "Gone" and not self.operation


_TODO = {
    ErrorCode.INFRA_UNAUTHENTICATED: "correct the Secret behind the Shoot's binding",
    ErrorCode.INFRA_UNAUTHORIZED: "give the account behind the Shoot's binding the rights that the error names",
    ErrorCode.INFRA_QUOTA_EXCEEDED: "raise the quota, or ask for less",
    ErrorCode.INFRA_RATE_LIMITS_EXCEEDED: "wait: the operation is retried automatically after ten minutes",
    ErrorCode.INFRA_DEPENDENCIES: "remove the resources that the error names from the cloud account",
    ErrorCode.RETRYABLE_INFRA_DEPENDENCIES: "wait: the cloud is expected to recover; the task is retried automatically",
    ErrorCode.INFRA_RESOURCES_DEPLETED: "wait for the cloud, or choose another machine type or zone",
    ErrorCode.CLEANUP_CLUSTER_RESOURCES: "check the finalizers of the objects that are left in the cluster",
    ErrorCode.CONFIGURATION_PROBLEM: "correct what the error names",
    ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM: "correct what the error names; the task is retried automatically",
    ErrorCode.PROBLEMATIC_WEBHOOK: "correct or remove the webhook that the error names",
    UNANSWERED: "start the gardenlet that serves this queue",
    WORKER_LOST: "nothing: another worker continues; if it happens again, read the gardenlet's log",
}


def explain(shoot: str, view: FlowView | None, lifecycle: LifecycleProgress | None, now: datetime) -> Explanation:
    """Explain the state of a Shoot.

    Args:
        view: newest operation of the Shoot; None if there was none.
        lifecycle: progress that the Shoot's lifecycle reports; None if there is no lifecycle: the Shoot is gone.
    """
    if lifecycle is None:
        if view is None:
            return Explanation(
                shoot=shoot, state="Gone", text=f"There is no Shoot {shoot}, and no record of its operations."
            )
        text = f"Shoot {shoot} is gone: {view.operation} ended as {view.state} at {_clock(view.ended)}."
        return _of(shoot, view, state="Gone", text=text)
    if view is None or (lifecycle.child is None and view.state in ("Completed", "Running")):
        return _resting(shoot, view, lifecycle)
    if view.state == "Running":
        return _running(shoot, view, lifecycle, now)
    return _ended(shoot, view, lifecycle)


def object_of(task: TaskView) -> str:
    """The object that a task handles: the one in its last heartbeat, else the first one that its error names."""
    return task.waits_for or named_object(task.error)


def named_object(text: str) -> str:
    """Kind and name of an object in an error, like ``Infrastructure shoot--local--demo/demo``; only known kinds."""
    for kind, name in _OBJECT.findall(text):
        if kind in _KINDS:
            return f"{kind} {name.rstrip('.')}"
    return ""


_KINDS = frozenset(each.kind for each in vars(resources).values() if isinstance(each, resources.Resource))
_OBJECT = re.compile(r"\b([A-Z][A-Za-z]+) ([a-z0-9][-a-z0-9.]*(?:/[a-z0-9][-a-z0-9.]*)?)")


def _running(shoot: str, view: FlowView, lifecycle: LifecycleProgress, now: datetime) -> Explanation:
    where = f"{_operation(shoot, view)} runs, {view.percent} % done"
    running = [task for task in view.tasks if task.state is TaskState.RUNNING]
    failed = [task for task in view.tasks if task.state is TaskState.FAILED]
    paused = lifecycle.memory.paused
    if paused is not None:
        tasks = f"; still running: {_names(running)}" if running else ""
        todo = f"`gardener flow resume {shoot}` once the reason is gone"
        text = f"{where}, but {paused} at {_clock(paused.at)}: no task starts{tasks}. To do: {todo}."
        return _of(shoot, view, state="Paused", since=paused.at, error=f"{paused}", todo=todo, text=text)
    if not running and not failed:
        return _of(shoot, view, state="Running", text=f"{where}, and is between two tasks.")
    task = min([*failed, *running], key=lambda each: _concern(each, now))
    troubled = bool(task.error) and not _is_fresh(task, now)
    todo = _todo(task, shoot) if troubled else "nothing: wait for it"
    others = tuple(each.name for each in [*failed, *running] if each is not task)
    also = f" Also running: {', '.join(others)}." if others else ""
    text = f"{where}. {_about(task)} To do: {todo}.{also}"
    return _of(shoot, view, task=task, others=others, todo=todo, text=text, state="Stalled" if troubled else "Running")


def _ended(shoot: str, view: FlowView, lifecycle: LifecycleProgress) -> Explanation:
    where = _operation(shoot, view)
    failed = sorted(
        (task for task in view.tasks if task.state is TaskState.FAILED), key=lambda each: each.ended or view.started
    )
    last = view.interventions[-1].text if view.interventions else ""
    again = f" {lifecycle.resting[:1].upper()}{lifecycle.resting[1:]}." if lifecycle.resting else ""
    if not failed:
        by = f" ({last})" if last else ""
        todo = f"`gardener flow retry {shoot}` continues where it stopped"
        text = (
            f"{where} ended as {view.state} at {_clock(view.ended)}, {view.percent} % done{by}.{again} To do: {todo}."
        )
        return _of(shoot, view, state="Canceled", since=view.ended, error=last, todo=todo, text=text)
    task, others = failed[0], tuple(each.name for each in failed[1:])
    todo = _todo(task, shoot)
    also = f" Also failed: {', '.join(others)}." if others else ""
    text = f"{where} failed at {_clock(view.ended)}, {view.percent} % done. {_about(task)}{also}{again} To do: {todo}."
    return _of(shoot, view, task=task, others=others, todo=todo, text=text, state="Failed")


def _resting(shoot: str, view: FlowView | None, lifecycle: LifecycleProgress) -> Explanation:
    reason = lifecycle.resting or "its lifecycle has not decided yet"
    done = f" The last operation, {view.operation}, ended as {view.state} at {_clock(view.ended)}." if view else ""
    paused = lifecycle.memory.paused
    todo = f"`gardener flow resume {shoot}` once the reason is gone" if paused else ""
    text = f"Nothing runs for Shoot {shoot}: {reason}.{done}" + (f" To do: {todo}." if todo else "")
    state = "Paused" if paused else "Succeeded" if lifecycle.rest is RestKind.IDLE else "Resting"
    if view is None:
        return Explanation(shoot=shoot, state=state, todo=todo, text=text)
    return _of(shoot, view, state=state, todo=todo, since=view.ended, text=text)


def _of(shoot: str, view: FlowView, *, task: TaskView | None = None, **fields: object) -> Explanation:
    known: dict[str, object] = {
        "shoot": shoot,
        "operation": view.operation,
        "generation": view.generation,
        "attempt": view.attempt,
        "percent": view.percent,
    }
    if task is not None:
        known |= {
            "task": task.name,
            "object": object_of(task),
            "since": task.started,
            "attempts": task.attempts,
            "error": task.error or task.sees,
            "code": task.code,
        }
    return Explanation.model_validate(known | fields)


def _operation(shoot: str, view: FlowView) -> str:
    return f"{view.operation} of Shoot {shoot} (generation {view.generation}, attempt {view.attempt})"


def _concern(task: TaskView, now: datetime) -> tuple[int, datetime]:
    """Sort key of tasks: failed tasks first, then tasks with an error, then the task that has run longest."""
    rank = 0 if task.state is TaskState.FAILED else 1 if task.error and not _is_fresh(task, now) else 2
    return rank, task.started or now


def _is_fresh(task: TaskView, now: datetime) -> bool:
    """Whether a task has waited in its queue for so short a time that a worker may still take it."""
    return task.code == UNANSWERED and task.started is not None and now - task.started < _QUEUE_WAIT


def _about(task: TaskView) -> str:
    """Sentence with the task, its object, start, number of attempts and error."""
    thing = object_of(task)
    about = f"Task {task.name}" + (f" ({thing})" if thing else "")
    verb = "failed" if task.state is TaskState.FAILED else "runs"
    text = f"{about} {verb}, begun at {_clock(task.started)}, attempt {max(task.attempts, 1)}"
    if task.error:
        return f"{text}; {'' if task.state is TaskState.FAILED else 'last '}error: {task.error.rstrip('.')}."
    return f"{text}; it reports: {task.sees}." if task.sees else f"{text}."


def _todo(task: TaskView, shoot: str) -> str:
    advice = _TODO.get(task.code, "check the object that the error names" if object_of(task) else "read the error")
    if task.state is TaskState.FAILED:
        return f"{advice}, then `gardener flow retry {shoot}`"
    return advice


def _names(tasks: Iterable[TaskView]) -> str:
    return ", ".join(task.name for task in tasks)


def _clock(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S} UTC" if at else "an unknown time"
