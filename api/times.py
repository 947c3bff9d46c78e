"""Times in the format of Kubernetes objects: RFC 3339, in UTC."""

from datetime import UTC, datetime


def timestamp(time: datetime | None = None) -> str:
    """A time, or now, as a ``metav1.Time``: to the second."""
    return _written(time, "seconds")


def micro_timestamp(time: datetime | None = None) -> str:
    """A time, or now, as a ``metav1.MicroTime``: to the microsecond."""
    return _written(time, "microseconds")


def _written(time: datetime | None, timespec: str) -> str:
    return (time or datetime.now(UTC)).astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
