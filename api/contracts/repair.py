"""Interventions of an operator in an operation that does not succeed by itself: data, and their form as annotations.

Every intervention names the operator and the reason. It changes the outcome that the next attempt starts with, or the
tasks of a running flow; it changes no object of Kubernetes.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from pydantic import ValidationError

from api.constants import REPAIR_BY, REPAIR_PREFIX
from api.contracts.operations import TaskResult
from api.model import ApiModel


class Action(StrEnum):
    """Kind of an intervention; the end of the annotation's name, and the subcommand of ``gardener flow``."""

    RETRY = "retry-from"
    """Run the failed tasks again; with the name of a task: run that task and all tasks after it again."""
    SKIP = "skip"
    """Count a task as done without running it."""
    PROVIDE = "provide"
    """Count a task as done, with a result that the operator gives."""
    RESET = "reset"
    """Run a task and all tasks after it again, also if the operation is running."""
    PAUSE = "pause"
    """Start no new task and no new operation."""
    RESUME = "resume"
    CANCEL = "cancel"
    """Cancel the running tasks and end the operation; finished tasks stay finished."""

    @property
    def needs_task(self) -> bool:
        return self in (Action.SKIP, Action.PROVIDE, Action.RESET)

    @property
    def by_hand(self) -> bool:
        """Whether the operator has done the work of a task, so that the flow does not run it."""
        return self in (Action.SKIP, Action.PROVIDE)


_DONE = {
    Action.RETRY: "retried",
    Action.SKIP: "skipped",
    Action.PROVIDE: "provided the result of",
    Action.RESET: "reset the operation to before",
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.CANCEL: "canceled",
}


class Repair(ApiModel):
    """One intervention."""

    action: Action
    task: str = ""
    reason: str = ""
    by: str
    result: TaskResult | None = None
    """Result of the task; for ``provide`` only."""
    at: datetime | None = None
    """Time at which the lifecycle accepted the intervention (UTC)."""
    attempt: int = 0
    """Number of the attempt for which the intervention was made: a reset has no effect in later attempts."""

    def __str__(self) -> str:
        task = f" {'from ' if self.action is Action.RETRY else ''}{self.task}" if self.task else ""
        return f"{self.by} {_DONE[self.action]}{task}" + (f": {self.reason}" if self.reason else "")

    @property
    def is_pause(self) -> bool:
        """Whether the intervention begins or ends a pause."""
        return self.action in (Action.PAUSE, Action.RESUME)

    @property
    def fault(self) -> str:
        """Error in the intervention itself, in whatever state the operation is; empty if there is none."""
        if self.action.needs_task and not self.task:
            return f"{self.action} needs the name of a task"
        if not self.by:
            return f"{self.action} needs the name of the user who requests it"
        if not self.reason and self.action not in (Action.RETRY, Action.RESUME):
            return f"{self.action} needs a reason: it is recorded for operators who inspect the operation later"
        return ""


def annotation(action: Action) -> str:
    """Name of the annotation that requests an action."""
    return REPAIR_PREFIX + action


ANNOTATIONS = {annotation(action): action for action in Action}


def asked(annotations: Mapping[str, str]) -> tuple[Repair, ...]:
    """Interventions that the annotations request, without unreadable ones. Admission has written the user's name."""
    return tuple(
        repair
        for name, action in ANNOTATIONS.items()
        if name in annotations
        and isinstance(repair := _parsed(action, annotations[name], _author(annotations)), Repair)
    )


def faults(annotations: Mapping[str, str]) -> dict[str, str]:
    """Errors of the annotations that cannot be read or accepted, by name of the annotation."""
    found = {}
    for name, action in ANNOTATIONS.items():
        if name in annotations:
            repair = _parsed(action, annotations[name], _author(annotations))
            if fault := repair if isinstance(repair, str) else repair.fault:
                found[name] = fault
    return found


UNKNOWN_USER = "an unknown user"
"""Name of the user who wrote an annotation that did not pass admission."""


def without(annotations: Mapping[str, str], name: str = "") -> dict[str, str | None]:
    """Merge patch that removes an annotation, and the author's name if there is no other intervention."""
    gone: dict[str, str | None] = {name: None} if name else {}
    if REPAIR_BY in annotations and not [each for each in ANNOTATIONS if each in annotations and each != name]:
        gone[REPAIR_BY] = None
    return gone


def _author(annotations: Mapping[str, str]) -> str:
    return annotations.get(REPAIR_BY) or UNKNOWN_USER


def _parsed(action: Action, text: str, by: str) -> Repair | str:
    """The repair, or the error in the text."""
    if action is Action.PROVIDE:
        try:
            return Repair.model_validate(json.loads(text) | {"action": action, "by": by})
        except (ValueError, TypeError, ValidationError):
            return 'must have the form {"task": "wait_worker", "result": {"note": "…"}, "reason": "…"}'
    if action is Action.RETRY:
        return Repair(action=action, task=text.strip(), by=by)
    if action.needs_task:
        task, colon, reason = text.partition(":")
        if not colon:
            return "must have the form TASK:REASON"
        return Repair(action=action, task=task.strip(), reason=reason.strip(), by=by)
    return Repair(action=action, reason=text.strip(), by=by)
