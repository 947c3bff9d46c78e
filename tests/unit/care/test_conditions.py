"""What conditions and the status label say of a Shoot: one row per rule of spec/flows.md 9 and 10."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.decisions.conditions import (
    Finding,
    Operation,
    after_success,
    combine,
    merge,
    next_status,
    not_checked,
    status_label,
)

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
OLD = "2026-11-21T09:00:00Z"
MINUTE = timedelta(minutes=1)
DOWN = Finding("APIServerAvailable", "False", "APIServerDown", "refused")
UP = Finding("APIServerAvailable", "True", "HealthzRequestSucceeded", "ok")
IDLE = Operation("Reconcile", "Succeeded", NOW - timedelta(hours=1))
KNOWN_UP = {
    "type": "APIServerAvailable",
    "status": "True",
    "reason": "HealthzRequestSucceeded",
    "message": "ok",
    "lastTransitionTime": OLD,
    "lastUpdateTime": OLD,
}


def known(status: str, reason: str = "APIServerDown", ago: timedelta = timedelta(hours=1)) -> dict[str, str]:
    return {"status": status, "reason": reason, "lastTransitionTime": (NOW - ago).isoformat()}


@pytest.mark.parametrize(
    ("before", "operation", "threshold", "after"),
    [
        # Without a threshold, what fails is False at once.
        (known("True"), IDLE, None, "False"),
        (known("Progressing"), IDLE, None, "False"),
        (None, IDLE, None, "False"),
        # With one, True becomes Progressing first.
        (known("True"), IDLE, MINUTE, "Progressing"),
        (known("Progressing", ago=timedelta(seconds=59)), IDLE, MINUTE, "Progressing"),
        (known("Progressing", ago=timedelta(seconds=61)), IDLE, MINUTE, "False"),
        (known("False"), IDLE, MINUTE, "False"),
        (known("Unknown"), IDLE, MINUTE, "False"),
        # An operation that has just succeeded gives it the same time again.
        (known("Progressing"), Operation("Reconcile", "Succeeded", NOW - MINUTE / 2), MINUTE, "Progressing"),
        (known("False"), Operation("Reconcile", "Succeeded", NOW - MINUTE / 2), MINUTE, "Progressing"),
        (known("False"), Operation("Reconcile", "Error", NOW - MINUTE / 2), MINUTE, "False"),
        # So does another reason.
        (known("False", "HealthzRequestFailed"), IDLE, MINUTE, "Progressing"),
        # What is not finished yet is not broken.
        (None, Operation(), MINUTE, "Progressing"),
        (known("False"), Operation("Create", "Processing", NOW), None, "Progressing"),
        (known("False"), Operation("Create", "Error", NOW, errors=True), None, "Progressing"),
        (known("False"), Operation("Delete", "Processing", NOW), None, "Progressing"),
        (known("False"), Operation("Reconcile", "Processing", NOW), None, "Progressing"),
        (known("False"), Operation("Reconcile", "Processing", NOW, errors=True), None, "False"),
    ],
)
def test_a_failed_check(before: dict[str, str] | None, operation: Operation, threshold: timedelta | None, after: str):
    assert next_status(before, DOWN, operation, threshold, NOW) == after


@pytest.mark.parametrize("status", ["True", "Unknown"])
def test_what_did_not_fail_is_said_at_once(status: str) -> None:
    finding = Finding("APIServerAvailable", status, "x", "y")

    assert next_status(known("False"), finding, IDLE, MINUTE, NOW) == status


def test_an_unchanged_condition_keeps_its_times() -> None:
    """A care check without news must not write to the API."""
    assert merge([KNOWN_UP], [UP], IDLE, {}, NOW) == [KNOWN_UP]


def test_a_transition_gets_a_new_time() -> None:
    (condition,) = merge([KNOWN_UP], [DOWN], IDLE, {}, NOW)

    assert (condition["status"], condition["lastTransitionTime"]) == ("False", "2026-11-21T10:00:00Z")


def test_a_new_message_alone_is_no_transition() -> None:
    worded = Finding("APIServerAvailable", "True", "HealthzRequestSucceeded", "still ok")
    (condition,) = merge([KNOWN_UP], [worded], IDLE, {}, NOW)

    assert (condition["lastTransitionTime"], condition["lastUpdateTime"]) == (OLD, "2026-11-21T10:00:00Z")


def test_conditions_of_others_are_kept() -> None:
    foreign = {"type": "Certified", "status": "True"}

    assert foreign in merge([foreign], [UP], IDLE, {}, NOW)


def test_the_worst_of_an_extension_and_of_ourselves_speaks() -> None:
    theirs = Finding("APIServerAvailable", "False", "Theirs", "cloud controller is down")
    unknown = Finding("APIServerAvailable", "Unknown", "Stale", "not heard of")
    other = Finding("EveryNodeReady", "False", "x", "y")

    assert combine(UP, [unknown, theirs, other]) == theirs
    assert combine(DOWN, [theirs]) == DOWN
    assert combine(UP, [other]) == UP


def test_a_hibernated_cluster_is_not_checked() -> None:
    assert {(each.status, each.reason) for each in not_checked(["A", "B"])} == {("True", "ConditionNotChecked")}


def test_after_a_success_all_but_what_is_false_is_looked_at_anew() -> None:
    conditions = [{"type": "A", "status": each} for each in ("True", "Unknown", "False")]
    foreign = {"type": "B", "status": "True"}

    after = after_success([*conditions, foreign], ["A"], NOW)

    assert [each["status"] for each in after] == ["Progressing", "Progressing", "False", "True"]


@pytest.mark.parametrize(
    ("status", "label"),
    [
        ({}, "healthy"),
        ({"lastOperation": {"type": "Create", "state": "Processing"}}, "healthy"),
        ({"lastOperation": {"type": "Create", "state": "Processing"}, "lastErrors": [{}]}, "unhealthy"),
        ({"lastOperation": {"type": "Delete", "state": "Error"}}, "healthy"),
        ({"lastOperation": {"type": "Reconcile", "state": "Failed"}}, "unhealthy"),
        (
            {"lastOperation": {"type": "Reconcile", "state": "Succeeded"}, "conditions": [{"status": "Progressing"}]},
            "progressing",
        ),
        (
            {
                "lastOperation": {"type": "Reconcile", "state": "Succeeded"},
                "conditions": [{"status": "True"}, {"status": "Unknown"}],
            },
            "unknown",
        ),
        (
            {
                "lastOperation": {"type": "Reconcile", "state": "Processing"},
                "conditions": [{"status": "False"}, {"status": "Unknown"}],
            },
            "unhealthy",
        ),
    ],
)
def test_the_label_is_the_worst_of_operation_and_conditions(status: dict[str, Any], label: str) -> None:
    assert status_label(status) == label
