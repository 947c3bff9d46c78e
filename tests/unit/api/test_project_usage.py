"""Since when a Project is not in use, and the limits of its namespace."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.decisions.project_usage import is_recent, raised, stale_status, with_template

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RULES = {"grace": timedelta(days=14), "expiration": timedelta(days=90)}


def days_ago(days: float) -> str:
    return (NOW - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def project(created: float = 100, **status: str) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": days_ago(created)}, "status": status}


@pytest.mark.parametrize(
    ("status", "since", "deletion"),
    [
        ({}, 0, None),
        ({"staleSinceTimestamp": days_ago(13)}, 13, None),
        ({"staleSinceTimestamp": days_ago(14)}, 14, -76),
        ({"staleSinceTimestamp": days_ago(20), "staleAutoDeleteTimestamp": days_ago(-70)}, 20, -70),
        ({"staleSinceTimestamp": days_ago(20), "staleAutoDeleteTimestamp": days_ago(-99)}, 20, -99),
        ({"staleSinceTimestamp": days_ago(20), "staleAutoDeleteTimestamp": days_ago(5)}, 20, -70),
    ],
    ids=["new", "grace", "announced", "kept", "later stays", "earlier is put off"],
)
def test_a_deletion_is_announced_after_the_grace_period(status: Any, since: float, deletion: float | None):
    assert stale_status(project(**status), NOW, **RULES) == {
        "staleSinceTimestamp": days_ago(since),
        "staleAutoDeleteTimestamp": None if deletion is None else days_ago(deletion),
    }


@pytest.mark.parametrize(
    ("subject", "recent"),
    [
        (project(created=29), True),
        (project(created=31), False),
        (project(created=31, lastActivityTimestamp=days_ago(29)), True),
        (project(created=99, lastActivityTimestamp=days_ago(31)), False),
    ],
)
def test_new_and_active_projects_are_recent(subject: Any, recent: bool):
    assert is_recent(subject, NOW, timedelta(days=30)) is recent


def limits(hard: dict[str, Any] | None, **annotations: str) -> dict[str, Any]:
    noted = {f"quota.gardener.cloud/{key}-per-shoot": value for key, value in annotations.items()}
    return {"metadata": {"annotations": noted}, "spec": {"hard": hard} if hard is not None else {}}


def test_a_template_adds_only_limits_that_are_missing():
    template = {"spec": {"hard": {"count/shoots.core.gardener.cloud": "10", "count/secrets": "100"}}}
    assert with_template(None, template) == template["spec"]["hard"]
    assert with_template(limits({"count/secrets": "5", "pods": "0"}), template) == {
        "count/shoots.core.gardener.cloud": "10",
        "count/secrets": "5",
        "pods": "0",
    }


def test_limits_are_raised_to_what_gardener_creates_for_all_shoots():
    patch = raised(
        limits({"count/shoots.core.gardener.cloud": "10", "count/secrets": "7", "count/configmaps": "90"}), 2
    )
    assert patch is not None
    assert patch["spec"]["hard"] == {"count/secrets": "30"}, "90 ConfigMaps are enough"
    assert patch["metadata"]["annotations"] == {
        "quota.gardener.cloud/configmaps-per-shoot": "3",
        "quota.gardener.cloud/secrets-per-shoot": "3",
    }


def test_without_a_limit_of_shoots_the_present_ones_count():
    patch = raised(limits({"count/secrets": "1"}), 4)
    assert patch is not None
    assert patch["spec"]["hard"] == {"count/secrets": "12"}


def test_a_new_number_of_objects_per_shoot_raises_limits_by_the_difference():
    noted = limits({"count/shoots.core.gardener.cloud": "10", "count/secrets": "100"}, secrets="1", configmaps="3")
    patch = raised(noted, 0)
    assert patch is not None
    assert patch["spec"]["hard"] == {"count/secrets": "120"}
    assert raised(limits({"count/secrets": "1"}, secrets="3", configmaps="3"), 9) is None, "that was done already"


def test_limits_never_sink():
    patch = raised(limits({"count/shoots.core.gardener.cloud": "10", "count/secrets": "100"}, secrets="9"), 0)
    assert patch is not None
    assert "spec" not in patch


def test_a_quota_without_limits_stays_as_it_is():
    assert raised(limits(None), 1) is None
    deleted = limits({"count/secrets": "1"})
    deleted["metadata"]["deletionTimestamp"] = days_ago(0)
    assert raised(deleted, 1) is None
