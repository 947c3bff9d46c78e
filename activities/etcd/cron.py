"""When a cron expression fires next: five fields, numbers, ``*``, lists, ranges, steps; UTC."""

from datetime import datetime, timedelta

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_LONGEST_GAP = timedelta(days=366 * 8)  # 29 February, over a year that is no leap year


class InvalidSchedule(ValueError):
    """An expression that does not fire, or makes no sense; the text says which field."""


def next_after(expression: str, time: datetime) -> datetime:
    """The first minute after ``time`` that the expression names.

    Day of month and day of week are alternatives if both are restricted, as in cron. Raises InvalidSchedule.
    """
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        raise InvalidSchedule(f"schedule {expression!r} has {len(parts)} fields, must be {len(_FIELDS)}")
    minutes, hours, days, months, weekdays = (_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True))
    weekdays = {day % 7 for day in weekdays}
    either_day = parts[2] != "*" and parts[4] != "*"
    candidate = time.replace(second=0, microsecond=0) + timedelta(minutes=1)
    end = candidate + _LONGEST_GAP
    while candidate < end:
        in_month, in_week = candidate.day in days, candidate.isoweekday() % 7 in weekdays
        if candidate.month not in months or not ((in_month or in_week) if either_day else (in_month and in_week)):
            candidate = candidate.replace(hour=0, minute=0) + timedelta(days=1)
        elif candidate.hour not in hours:
            candidate = candidate.replace(minute=0) + timedelta(hours=1)
        elif candidate.minute not in minutes:
            candidate += timedelta(minutes=1)
        else:
            return candidate
    raise InvalidSchedule(f"schedule {expression!r} never fires")


def _values(part: str, name: str, lowest: int, highest: int) -> set[int]:
    values: set[int] = set()
    for item in part.split(","):
        span, _, step = item.partition("/")
        begin, dash, end = span.partition("-")
        try:
            if span == "*":
                first, last = lowest, highest
            else:
                first = int(begin)
                last = int(end) if dash else (highest if step else first)
            every = int(step) if step else 1
        except ValueError:
            raise InvalidSchedule(f"{name} {part!r} is not made of numbers") from None
        if not lowest <= first <= last <= highest or every < 1:
            raise InvalidSchedule(f"{name} {part!r} must be between {lowest} and {highest}")
        values.update(range(first, last + 1, every))
    return values
