"""What conditions and the status label say of a Shoot."""

import pytest

from workers.gardenlet.care import Finding, findings_asleep, merge_conditions, status_label

NOW = "2026-11-21T10:00:00Z"
OLD = "2026-11-21T09:00:00Z"
DOWN = Finding("APIServerAvailable", "False", "APIServerDown", "refused")
UP = Finding("APIServerAvailable", "True", "HealthzRequestSucceeded", "ok")
KNOWN_UP = {
    "type": "APIServerAvailable",
    "status": "True",
    "reason": "HealthzRequestSucceeded",
    "message": "ok",
    "lastTransitionTime": OLD,
    "lastUpdateTime": OLD,
}


def test_an_unchanged_condition_keeps_its_times() -> None:
    """A care check without news must not write to the API."""
    assert merge_conditions([KNOWN_UP], [UP], {}, NOW) == [KNOWN_UP]


def test_a_transition_gets_a_new_time() -> None:
    (condition,) = merge_conditions([KNOWN_UP], [DOWN], {"lastOperation": {"type": "Reconcile"}}, NOW)

    assert (condition["status"], condition["lastTransitionTime"]) == ("False", NOW)


def test_a_new_message_alone_is_no_transition() -> None:
    worded = Finding("APIServerAvailable", "True", "HealthzRequestSucceeded", "still ok")
    (condition,) = merge_conditions([KNOWN_UP], [worded], {}, NOW)

    assert (condition["lastTransitionTime"], condition["lastUpdateTime"]) == (OLD, NOW)


def test_what_is_not_there_yet_is_progressing_while_the_cluster_is_created() -> None:
    creating = {"lastOperation": {"type": "Create", "state": "Processing"}}

    assert merge_conditions([], [DOWN], creating, NOW)[0]["status"] == "Progressing"


def test_conditions_of_others_are_kept() -> None:
    foreign = {"type": "ObservabilityComponentsHealthy", "status": "True"}

    assert foreign in merge_conditions([foreign], [UP], {}, NOW)


@pytest.mark.parametrize(
    ("wanted", "sleeping"), [(True, False), (True, True), (False, True)], ids=["falls asleep", "sleeps", "wakes up"]
)
def test_a_sleeping_shoot_is_not_sick(wanted: bool, sleeping: bool) -> None:
    shoot = {"spec": {"hibernation": {"enabled": wanted}, "provider": {"workers": [{}]}}}
    findings = findings_asleep({**shoot, "status": {"hibernated": sleeping}})

    assert {(each.status, each.reason) for each in findings or ()} == {("True", "ConditionNotChecked")}
    assert len(findings or ()) == 4


def test_a_shoot_that_is_awake_is_checked() -> None:
    assert findings_asleep({"spec": {"provider": {}}, "status": {}}) is None


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
def test_the_label_is_the_worst_of_operation_and_conditions(status: dict[str, object], label: str) -> None:
    assert status_label(status) == label
