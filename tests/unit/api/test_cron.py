"""When cron expressions fire, where clocks jump too."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cron import Cron, InvalidSchedule, next_after, zone_of


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("12 22 * * *", "2026-11-21T22:11:59", "2026-11-21T22:12:00"),
        ("12 22 * * *", "2026-11-21T22:12:00", "2026-11-22T22:12:00"),
        ("*/15 * * * *", "2026-12-31T23:50:00", "2027-01-01T00:00:00"),
        ("0 0 29 2 *", "2026-11-21T00:00:00", "2028-02-29T00:00:00"),
        ("0 6 * * 1-5", "2026-11-20T07:00:00", "2026-11-23T06:00:00"),
        ("0 6 * * 7", "2026-11-20T07:00:00", "2026-11-22T06:00:00"),
        ("0 6 1 * 0", "2026-11-23T07:00:00", "2026-11-29T06:00:00"),
        ("5,35 8-10/2 * * *", "2026-11-21T08:35:00", "2026-11-21T10:05:00"),
    ],
)
def test_schedules_fire_when_cron_would(expression, after, expected):
    found = next_after(expression, datetime.fromisoformat(after).replace(tzinfo=UTC))
    assert found.isoformat() == f"{expected}+00:00"


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "60 * * * *", "a * * * *", "*/0 * * * *", "5-1 * * * *", "0 0 31 2 *"],
)
def test_schedules_that_make_no_sense_are_refused(expression):
    with pytest.raises(InvalidSchedule):
        next_after(expression, datetime(2026, 11, 21, tzinfo=UTC))


def test_a_schedule_never_stands_still():
    time = datetime(2026, 11, 21, tzinfo=UTC)
    times = [time := next_after("7 3,15 * * *", time) for _ in range(5)]
    assert all(one < other for one, other in itertools.pairwise(times))


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # The clock jumps from 02:00 to 03:00 on 28 March 2027, and back from 03:00 to 02:00 on 31 October.
        ("0 8 * * *", "Europe/Berlin", "2027-03-27T12:00", "2027-03-28T06:00"),
        ("0 8 * * *", "Europe/Berlin", "2027-03-26T12:00", "2027-03-27T07:00"),
        ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00", "2027-03-29T00:30"),
        ("30 2 * * *", "Europe/Berlin", "2027-10-30T12:00", "2027-10-31T01:30"),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T00:45", "2027-10-31T01:30"),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T01:30", "2027-11-01T01:30"),
        ("30 8 * * 1-5", "America/New_York", "2027-03-12T20:00", "2027-03-15T12:30"),
        ("0 0 * * *", "Asia/Kolkata", "2027-01-01T00:00", "2027-01-01T18:30"),
        ("0 20 * * MON-FRI", "UTC", "2026-11-20T20:00", "2026-11-23T20:00"),
        ("0 0 1 jan ?", "UTC", "2026-11-20T20:00", "2027-01-01T00:00"),
    ],
)
def test_schedules_follow_the_clock_on_the_wall(expression, zone, after, expected):
    found = Cron.parse(expression).next_after(datetime.fromisoformat(after).replace(tzinfo=UTC), ZoneInfo(zone))
    assert found.isoformat() == f"{expected}:00+00:00"


@given(
    st.sampled_from(["0 8 * * *", "30 2 * * *", "*/7 1-3 * * *", "0 0 13 * 5"]),
    st.sampled_from([datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 31, tzinfo=UTC)]),
    st.integers(-3000, 3000),
)
def test_the_last_time_until_the_next_is_the_next(expression, around, minutes):
    """Later decisions must see the same time at which the schedule was started."""
    cron, time = Cron.parse(expression), around + timedelta(minutes=minutes)
    following = cron.next_after(time, BERLIN)
    assert cron.last_until(following, time, BERLIN) == following
    assert cron.last_until(following - timedelta(minutes=1), time, BERLIN) is None


@pytest.mark.parametrize("location", ["Mars/Olympus", "", "../etc/passwd", "Local", "CEST"])
def test_a_zone_that_does_not_exist_is_refused(location):
    with pytest.raises(InvalidSchedule, match="is no time zone, must be one like Europe/Berlin"):
        zone_of(location)
