from datetime import UTC, datetime, timedelta, timezone

from api.times import micro_timestamp, timestamp


def test_times_are_written_in_utc_as_kubernetes_reads_them():
    time = datetime(2026, 3, 1, 14, 30, 5, 250, tzinfo=timezone(timedelta(hours=2)))

    assert timestamp(time) == "2026-03-01T12:30:05Z"
    assert micro_timestamp(time) == "2026-03-01T12:30:05.000250Z"


def test_the_default_time_is_now():
    before = datetime.now(UTC)

    assert before <= datetime.fromisoformat(micro_timestamp()) <= datetime.now(UTC)
