"""Order and lifecycle of versions."""

import pytest

from api.core.v1beta1.cloud_profile import ExpirableVersion
from api.decisions.versions import Version, complete, satisfies, stage
from api.durations import parse_duration
from tests.unit.api.shoots import NOW


def test_versions_are_ordered_by_number_and_releases_come_last():
    ordered = ["1.9.0", "1.10.0-alpha.1", "1.10.0-alpha.2", "1.10.0-alpha.10", "1.10.0-beta", "1.10.0", "1.10.1"]
    assert sorted(set(ordered), key=Version) == ordered


@pytest.mark.parametrize("text", ["1.2", "x", "1.2.3.4", "", "1.2.3-"])
def test_half_a_version_is_none(text):
    with pytest.raises(ValueError, match="is not a version"):
        Version(text)


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        (">= 1.36, < 1.38", True),
        (">= 1.36 < 1.37", False),
        (">1.37", False),
        ("<= 1.37", True),
        ("~1.37.0", True),
        ("^1.20", True),
        ("!= 1.37.1", False),
        ("", True),
        (None, True),
        ("about 1.37", False),
    ],
)
def test_constraints(constraint, holds):
    assert satisfies("1.37.1", constraint) is holds


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "supported"),
        ({"classification": "preview"}, "preview"),
        ({"classification": "supported", "expirationDate": "2026-11-21T12:00:00Z"}, "expired"),
        ({"classification": "deprecated", "expirationDate": "2026-11-21T12:00:01Z"}, "deprecated"),
        ({"lifecycle": [{"classification": "preview", "startTime": "2027-01-01T00:00:00Z"}]}, "unavailable"),
        (
            {
                "lifecycle": [
                    {"classification": "preview"},
                    {"classification": "supported", "startTime": "2026-01-01T00:00:00Z"},
                    {"classification": "deprecated", "startTime": "2027-01-01T00:00:00Z"},
                ]
            },
            "supported",
        ),
    ],
)
def test_a_versions_stage_depends_on_the_time(fields, expected):
    assert stage(ExpirableVersion.model_validate({"version": "1.0.0"} | fields), NOW) == expected


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("0", 0), ("1.5s", 1.5), ("-2m", -120), ("100ms", 0.1)])
def test_durations(text, seconds):
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "5", "1d", "h", "1h 2m"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("wanted", "completed"),
    [("", "1.37.1"), ("1", "1.37.1"), ("1.36", "1.36.3"), ("1.35", None), ("latest", None), ("1.37.x", None)],
)
def test_the_beginning_of_a_version_is_completed(wanted, completed):
    """What is no beginning of one is left for validation to refuse."""
    offered = [ExpirableVersion(version=each) for each in ("1.36.3", "1.37.1", "1.37.0")]

    assert complete(wanted, offered, NOW) == completed
