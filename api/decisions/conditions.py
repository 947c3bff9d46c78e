"""Conditions in the status of an object, and those of a Shoot from the results of checks.

Source: spec/flows.md 9 and 10.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from api import constants
from api.times import timestamp

NOT_CHECKED = "ConditionNotChecked"
CHECK_ERROR = "ConditionCheckError"

_RANK: Mapping[str, int] = {"True": 0, "Progressing": 1, "Unknown": 2, "False": 3}
_LABELS = ("healthy", "progressing", "unknown", "unhealthy")


def find_condition(obj: Mapping[str, Any] | None, type_: str) -> Mapping[str, Any]:
    """The condition of this type in the status of an object; empty if there is none."""
    conditions: Iterable[Mapping[str, Any]] = ((obj or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == type_), {})


def hibernation_possible(shoot: Mapping[str, Any]) -> str:
    """Status of a Shoot's constraint HibernationPossible; empty if there is none.

    After each operation it is ``Progressing``, until care checks it. Admission accepts a hibernation if it is ``True``.
    """
    constraints: Iterable[Mapping[str, Any]] = (shoot.get("status") or {}).get("constraints") or ()
    return next((str(each["status"]) for each in constraints if each["type"] == "HibernationPossible"), "")


def set_conditions(
    known: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]], now: str
) -> list[dict[str, Any]]:
    """Conditions with the new ones in place of those of the same types; ``now``: a timestamp.

    An equal condition keeps its times. ``lastTransitionTime`` changes only with the status.
    """
    conditions = {each["type"]: dict(each) for each in known}
    for each in new:
        old, plain = conditions.get(each["type"]), _without_times(each)
        if old is not None and _without_times(old) == plain:
            continue
        since = old.get("lastTransitionTime") if old is not None and old.get("status") == plain["status"] else None
        conditions[each["type"]] = {**plain, "lastTransitionTime": since or now, "lastUpdateTime": now}
    return list(conditions.values())


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    type: str
    status: str
    reason: str
    message: str
    codes: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.status == "False"


@dataclass(frozen=True)
class Operation:
    """Facts of the last operation that conditions depend on."""

    type: str = ""
    state: str = ""
    updated: datetime | None = None
    errors: bool = False

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "Operation":
        last = status.get("lastOperation") or {}
        updated = last.get("lastUpdateTime")
        return cls(
            type=last.get("type", ""),
            state=last.get("state", ""),
            updated=datetime.fromisoformat(updated) if updated else None,
            errors=bool(status.get("lastErrors")),
        )

    @property
    def in_progress(self) -> bool:
        """Whether failed checks are shown as Progressing, because the operation may not have reached them yet."""
        unfinished = self.type in ("Create", "Delete", "Restore") and self.state != "Succeeded"
        return not self.type or unfinished or (self.state == "Processing" and not self.errors)

    def succeeded_within(self, span: timedelta, now: datetime) -> bool:
        return self.state == "Succeeded" and self.updated is not None and now - self.updated <= span


def next_status(
    known: Mapping[str, Any] | None,
    finding: Finding,
    operation: Operation,
    threshold: timedelta | None,
    now: datetime,
) -> str:
    """Status of a condition after a check.

    If its type has a threshold, a failed check makes the condition Progressing first. It becomes False when the
    threshold has passed since the transition, and since the last success of an operation. If the reason changes, or an
    operation succeeds, a False condition becomes Progressing again for the same time.
    """
    if not finding.bad:
        return finding.status
    if operation.in_progress:
        return "Progressing"
    before = (known or {}).get("status")
    if threshold is None or before not in ("True", "Progressing", "False"):
        return "False"
    if before == "True" or operation.succeeded_within(threshold, now):
        return "Progressing"
    if before == "False":
        return "Progressing" if (known or {}).get("reason") != finding.reason else "False"
    since = datetime.fromisoformat((known or {}).get("lastTransitionTime") or now.isoformat())
    return "Progressing" if now - since <= threshold else "False"


def merge(
    known: Iterable[Mapping[str, Any]],
    findings: Iterable[Finding],
    operation: Operation,
    thresholds: Mapping[str, timedelta],
    now: datetime,
) -> list[dict[str, Any]]:
    """Conditions updated with the findings.

    Unchanged conditions keep their times. Conditions without a finding stay as they are.
    """
    before = {each["type"]: each for each in known}
    new: list[dict[str, Any]] = [
        {
            "type": each.type,
            "status": next_status(before.get(each.type), each, operation, thresholds.get(each.type), now),
            "reason": each.reason,
            "message": each.message,
            **({"codes": list(each.codes)} if each.codes else {}),
        }
        for each in findings
    ]
    return set_conditions(before.values(), new, timestamp(now))


def _without_times(condition: Mapping[str, Any]) -> dict[str, Any]:
    times = ("lastTransitionTime", "lastUpdateTime")
    return {key: value for key, value in condition.items() if key not in times and value != []}


def combine(finding: Finding, others: Iterable[Finding]) -> Finding:
    """The worst of our own finding and the findings of extensions for its type; our own if they are equally bad."""
    same = [each for each in others if each.type == finding.type]
    return max([finding, *same], key=lambda each: (_RANK.get(each.status, 2), each is finding))


def not_checked(types: Iterable[str]) -> list[Finding]:
    """Findings for a hibernated cluster, which is not checked."""
    return [Finding(each, "True", NOT_CHECKED, "Shoot cluster has been hibernated.") for each in types]


def after_success(conditions: Iterable[Mapping[str, Any]], types: Iterable[str], now: datetime) -> list[dict[str, Any]]:
    """Conditions after a successful operation: all except False conditions become Progressing until the next check.

    Source: spec/flows.md 1.4.
    """
    moment = timestamp(now)
    asked = set(types)
    return [
        {**each, "status": "Progressing", "lastTransitionTime": moment, "lastUpdateTime": moment}
        if each["type"] in asked and each["status"] not in ("False", "Progressing")
        else dict(each)
        for each in conditions
    ]


def status_label(status: Mapping[str, Any]) -> str:
    """Value of label ``shoot.gardener.cloud/status``: worst of conditions and operation. Source: spec/flows.md 9."""
    operation = status.get("lastOperation") or {}
    failing = bool(status.get("lastErrors"))
    if not operation:
        return "healthy"
    if operation.get("type") == "Delete" or (
        operation.get("type") == "Create" and operation.get("state") != "Succeeded"
    ):
        return "unhealthy" if failing else "healthy"
    if operation.get("state") in ("Error", "Failed", "Pending", "Aborted") or failing:
        return "unhealthy"
    # The cleanup in a former seed does not affect the cluster.
    others = constants.CONDITION_SOURCE_SEED_CLEANED_UP
    own = [each for each in status.get("conditions") or [] if each.get("type") != others]
    return _LABELS[max((_RANK.get(each.get("status", ""), 2) for each in own), default=0)]


CONDITIONS = (
    constants.CONDITION_API_SERVER_AVAILABLE,
    constants.CONDITION_CONTROL_PLANE_HEALTHY,
    constants.CONDITION_OBSERVABILITY_HEALTHY,
    constants.CONDITION_EVERY_NODE_READY,
    constants.CONDITION_SYSTEM_COMPONENTS_HEALTHY,
)
"""Types of conditions, in the order of a Shoot's status."""

WEBHOOK_CONSTRAINTS = ("HibernationPossible", "MaintenancePreconditionsSatisfied")


def wanted(*, workers: bool) -> tuple[str, ...]:
    """Types of conditions of a Shoot with or without workers."""
    return tuple(each for each in CONDITIONS if workers or each != constants.CONDITION_EVERY_NODE_READY)
