"""Times in the format of Kubernetes objects: RFC 3339, in UTC."""

from datetime import UTC, datetime


def timestamp(time: datetime | None = None) -> str:
    """A time, or now, as a ``metav1.Time``: to the second."""
    return _written(time, "seconds")


def micro_timestamp(time: datetime | None = None) -> str:
    """A time, or now, as a ``metav1.MicroTime``: to the microsecond."""
    return _written(time, "microseconds")


def parsed(text: str) -> datetime | None:
    """Parse a time with a zone; None if the text is not such a time."""
    try:
        return parse_time(text)
    except ValueError:
        return None


def parse_time(text: str) -> datetime:
    """A time with a zone. Raises ValueError."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time


def _written(time: datetime | None, timespec: str) -> str:
    return (time or datetime.now(UTC)).astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
