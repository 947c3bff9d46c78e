"""What a person does to an operation that does not go on by itself: data, and its form as annotations.

Every intervention says who did it and why. It edits what the next attempt starts with, or what a running flow
still does; never an object of Kubernetes by hand.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from pydantic import ValidationError

from api.constants import REPAIR_BY, REPAIR_PREFIX
from api.model import ApiModel
from api.operations import TaskResult


class Action(StrEnum):
    """What is done; the end of the annotation's name, and the subcommand of ``gardener flow``."""

    RETRY = "retry-from"
    """Go on with the failed tasks; with a task: run it, and all that comes after it, again."""
    SKIP = "skip"
    """Count a task as done without running it."""
    PROVIDE = "provide"
    """Count a task as done, with a result given by hand."""
    RESET = "reset"
    """Put the operation back to before a task, also while it runs."""
    PAUSE = "pause"
    """Start no new task and no new operation."""
    RESUME = "resume"
    CANCEL = "cancel"
    """End the operation at a task border; what is finished stays so."""

    @property
    def needs_task(self) -> bool:
        return self in (Action.SKIP, Action.PROVIDE, Action.RESET)

    @property
    def by_hand(self) -> bool:
        """Whether it does a task's work in its place."""
        return self in (Action.SKIP, Action.PROVIDE)


_DONE = {
    Action.RETRY: "retried",
    Action.SKIP: "skipped",
    Action.PROVIDE: "provided the result of",
    Action.RESET: "put it back to before",
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
    """What ``provide`` gives."""
    at: datetime | None = None
    """When it was accepted."""
    attempt: int = 0
    """The attempt that it was made for: a reset counts in no later one."""

    def __str__(self) -> str:
        task = f" {'from ' if self.action is Action.RETRY else ''}{self.task}" if self.task else ""
        return f"{self.by} {_DONE[self.action]}{task}" + (f": {self.reason}" if self.reason else "")

    @property
    def is_pause(self) -> bool:
        """Whether it begins or ends a pause."""
        return self.action in (Action.PAUSE, Action.RESUME)

    @property
    def fault(self) -> str:
        """Why it can never be accepted; empty if it can."""
        if self.action.needs_task and not self.task:
            return f"{self.action} needs the name of a task"
        if not self.by:
            return f"{self.action} needs to say who asks for it"
        if not self.reason and self.action not in (Action.RETRY, Action.RESUME):
            return f"{self.action} needs a reason: those who look at the operation later want to know why"
        return ""


def annotation(action: Action) -> str:
    """Name of the annotation that asks for an action."""
    return REPAIR_PREFIX + action


ANNOTATIONS = {annotation(action): action for action in Action}


def asked(annotations: Mapping[str, str]) -> tuple[Repair, ...]:
    """What the annotations ask for, readable ones only; who asks was written by admission."""
    return tuple(
        repair
        for name, action in ANNOTATIONS.items()
        if name in annotations
        and isinstance(repair := _parsed(action, annotations[name], _author(annotations)), Repair)
    )


def faults(annotations: Mapping[str, str]) -> dict[str, str]:
    """Annotations that can not be read or accepted, and why."""
    found = {}
    for name, action in ANNOTATIONS.items():
        if name in annotations:
            repair = _parsed(action, annotations[name], _author(annotations))
            if fault := repair if isinstance(repair, str) else repair.fault:
                found[name] = fault
    return found


SOMEBODY = "somebody"
"""Who wrote an annotation that did not pass admission."""


def without(annotations: Mapping[str, str], name: str = "") -> dict[str, str | None]:
    """Merge patch that takes an annotation away, and the author's with the last of them."""
    gone: dict[str, str | None] = {name: None} if name else {}
    if REPAIR_BY in annotations and not [each for each in ANNOTATIONS if each in annotations and each != name]:
        gone[REPAIR_BY] = None
    return gone


def _author(annotations: Mapping[str, str]) -> str:
    return annotations.get(REPAIR_BY) or SOMEBODY


def _parsed(action: Action, text: str, by: str) -> Repair | str:
    """The repair, or why the text is none."""
    if action is Action.PROVIDE:
        try:
            return Repair.model_validate(json.loads(text) | {"action": action, "by": by})
        except (ValueError, TypeError, ValidationError):
            return 'must be like {"task": "wait_worker", "result": {"note": "…"}, "reason": "…"}'
    if action is Action.RETRY:
        return Repair(action=action, task=text.strip(), by=by)
    if action.needs_task:
        task, colon, reason = text.partition(":")
        if not colon:
            return "must be like TASK:REASON"
        return Repair(action=action, task=task.strip(), reason=reason.strip(), by=by)
    return Repair(action=action, reason=text.strip(), by=by)
