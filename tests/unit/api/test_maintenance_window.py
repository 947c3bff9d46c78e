"""Maintenance windows: over midnight, in other zones, and their last minutes."""

from datetime import UTC, datetime, timedelta

import pytest

from api.decisions.maintenance_window import MaintenanceWindow

EVENING = MaintenanceWindow.parse("220000+0100", "230000+0100")
"""21:00 to 22:00 UTC."""
MIDNIGHT = MaintenanceWindow.parse("233000+0000", "013000+0000")


def at(hours: int, minutes: int = 0, day: int = 10) -> datetime:
    return datetime(2026, 5, day, hours, minutes, tzinfo=UTC)


@pytest.mark.parametrize(
    ("begin", "end", "first", "length"),
    [
        ("220000+0100", "230000+0100", "21:00:00", 60),
        ("003000+0200", "013000+0200", "22:30:00", 60),
        ("233000-0100", "003000-0100", "0:30:00", 60),
        ("220000+0000", "220000+0100", "22:00:00", 23 * 60),
        ("235959+1400", "055959+1400", "9:59:59", 360),
    ],
)
def test_times_are_read_with_their_offset(begin: str, end: str, first: str, length: int) -> None:
    window = MaintenanceWindow.parse(begin, end)
    assert str(window.begin) == first
    assert window.length == timedelta(minutes=length)


@pytest.mark.parametrize("text", ["", "220000", "250000+0000", "226000+0000", "220000+1500", "ten o'clock", "220000Z"])
def test_an_invalid_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no time of day like"):
        MaintenanceWindow.parse(text, "230000+0000")


@pytest.mark.parametrize(
    ("window", "now", "inside"),
    [
        (EVENING, at(20, 59), False),
        (EVENING, at(21), True),
        (EVENING, at(21, 59), True),
        (EVENING, at(22), False),
        (EVENING.effective, at(21, 44), True),
        (EVENING.effective, at(21, 45), False),
        (MIDNIGHT, at(23, 29), False),
        (MIDNIGHT, at(23, 30), True),
        (MIDNIGHT, at(0), True),
        (MIDNIGHT, at(1, 29), True),
        (MIDNIGHT, at(1, 30), False),
        (MIDNIGHT, at(12), False),
    ],
)
def test_a_window_contains_its_begin_and_not_its_end(window: MaintenanceWindow, now: datetime, inside: bool) -> None:
    assert window.contains(now) is inside


def test_begins_are_found_before_and_after_a_moment() -> None:
    assert MIDNIGHT.latest_begin(at(0, 10)) == at(23, 30, day=9)
    assert MIDNIGHT.latest_begin(at(23, 30)) == at(23, 30)
    assert MIDNIGHT.next_begin(at(0, 10)) == at(23, 30)
    assert MIDNIGHT.next_begin(at(23, 30)) == at(23, 30, day=11)
