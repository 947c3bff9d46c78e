"""Which switch of a Shoot's hibernation its schedules ask for."""

from datetime import UTC, datetime, timedelta

import pytest

from api.decisions.hibernation import DEADLINE, edges, latest_tick

NIGHTS = {"start": "0 20 * * *", "end": "0 6 * * 1-5", "location": "Europe/Berlin"}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def tick(now: str, *schedules: dict[str, str], since: datetime | None = None) -> tuple[str, str] | None:
    found = latest_tick(edges({"hibernation": {"schedules": list(schedules)}}), since or at(now) - DEADLINE, at(now))
    return (found.edge.name, found.at.isoformat()[:16]) if found else None


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-11-20T18:59", None),
        ("2026-11-20T19:00", ("start-0", "2026-11-20T19:00")),
        ("2026-11-20T20:59", ("start-0", "2026-11-20T19:00")),
        # More than two hours late: left out.
        ("2026-11-20T21:01", None),
        ("2026-11-23T05:30", ("end-0", "2026-11-23T05:00")),
        # Saturday: nobody wakes it.
        ("2026-11-21T05:30", None),
        # In summer the clock is an hour ahead.
        ("2026-07-01T18:00", ("start-0", "2026-07-01T18:00")),
        # 2027-03-28, 02:00 there is 03:00; its evening and its morning are an hour sooner in UTC than the day before.
        ("2027-03-27T19:00", ("start-0", "2027-03-27T19:00")),
        ("2027-03-28T18:00", ("start-0", "2027-03-28T18:00")),
        ("2027-03-29T04:00", ("end-0", "2027-03-29T04:00")),
    ],
)
def test_the_edge_that_is_due(now: str, expected: tuple[str, str] | None) -> None:
    assert tick(now, NIGHTS) == expected


def test_the_last_one_wins() -> None:
    """After an hour without us only the present state counts, not how it came about."""
    assert tick("2026-11-23T05:10", NIGHTS, {"start": "5 5 * * *"}) == ("start-1", "2026-11-23T05:05")
    assert tick("2026-11-23T05:10", NIGHTS, {"start": "55 4 * * *"}) == ("end-0", "2026-11-23T05:00")


def test_of_two_at_once_the_one_that_stands_later_wins() -> None:
    assert tick("2026-11-23T05:10", {"start": "0 5 * * *", "end": "0 5 * * *"}) == ("end-0", "2026-11-23T05:00")
    assert tick("2026-11-23T05:10", {"end": "0 5 * * *"}, {"start": "0 5 * * *"}) == ("start-1", "2026-11-23T05:00")


def test_what_was_done_is_not_done_again() -> None:
    """The owner may have switched since."""
    assert tick("2026-11-23T05:10", NIGHTS, since=at("2026-11-23T05:00")) is None
    assert tick("2026-11-23T05:10", NIGHTS, since=at("2026-11-23T05:00") - timedelta(seconds=1)) is not None


def test_what_cannot_be_read_hinders_nothing_else() -> None:
    """Stored before it was refused."""
    broken = [{"start": "0 20 31 2"}, {"start": "0 20 * * *", "location": "Mars"}, {"end": "61 * * * *"}]
    assert tick("2026-11-23T05:10", *broken, {"end": "0 5 * * *"}) == ("end-3", "2026-11-23T05:00")
    assert edges({}) == []
