"""Times at which a cron expression fires: five fields; numbers, names, ``*``, lists, ranges, steps; in a time zone.

Local times that daylight saving skips do not fire; those that it repeats fire once, at the second occurrence. Temporal,
which starts workflows by these expressions, does the same. If day of month and day of week are both restricted, one of
them suffices, as in every cron.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_WEEKDAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _WEEKDAYS),
)
_ANY = ("*", "?")
_LONGEST_GAP = timedelta(days=366 * 8)  # 29 February, over a year that is no leap year


class InvalidSchedule(ValueError):
    """The expression is invalid or never fires; the text names the field."""


@dataclass(frozen=True)
class Cron:
    """Values that each field allows; Sunday is 0."""

    expression: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Days of month and of week are both restricted, so one of the two is enough."""

    @classmethod
    def parse(cls, expression: str) -> "Cron":
        """Parse an expression of five fields.

        Raises:
            InvalidSchedule: it has another number of fields, or an invalid one.
        """
        parts = expression.split()
        if len(parts) != len(_FIELDS):
            raise InvalidSchedule(f"schedule {expression!r} has {len(parts)} fields, must be {len(_FIELDS)}")
        values = [_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = values
        either = parts[2] not in _ANY and parts[4] not in _ANY
        sunday_is_zero = frozenset(day % 7 for day in weekdays)
        return cls(expression, minutes, hours, days, months, sunday_is_zero, either)

    def next_after(self, time: datetime, zone: tzinfo = UTC) -> datetime:
        """The first minute after ``time`` at which the expression fires, in UTC.

        Raises:
            InvalidSchedule: there is none within eight years.
        """
        local = time.astimezone(zone).replace(tzinfo=None)
        for candidate in self._minutes_from(local - timedelta(hours=1), local + _LONGEST_GAP):
            moment = _moment(candidate, zone)
            if moment is not None and moment > time:
                return moment
        raise InvalidSchedule(f"schedule {self.expression!r} never fires")

    def last_until(self, time: datetime, since: datetime, zone: tzinfo = UTC) -> datetime | None:
        """The last minute after ``since``, up to ``time``, at which the expression fires, in UTC."""
        last = None
        begin = since.astimezone(zone).replace(tzinfo=None) - timedelta(hours=1)
        for candidate in self._minutes_from(begin, time.astimezone(zone).replace(tzinfo=None) + timedelta(hours=1)):
            moment = _moment(candidate, zone)
            if moment is not None and since < moment <= time:
                last = moment
        return last

    def _minutes_from(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Local times, including those that occur twice or never because of daylight saving."""
        candidate = begin.replace(second=0, microsecond=0, fold=0)
        while candidate < end:
            if candidate.month not in self.months or not self._allows_day(candidate):
                candidate = candidate.replace(hour=0, minute=0) + timedelta(days=1)
            elif candidate.hour not in self.hours:
                candidate = candidate.replace(minute=0) + timedelta(hours=1)
            else:
                if candidate.minute in self.minutes:
                    yield candidate
                candidate += timedelta(minutes=1)

    def _allows_day(self, time: datetime) -> bool:
        in_month, in_week = time.day in self.days, time.isoweekday() % 7 in self.weekdays
        return (in_month or in_week) if self.either_day else (in_month and in_week)


def next_after(expression: str, time: datetime) -> datetime:
    """The first minute after ``time`` at which an expression fires, in UTC.

    Raises:
        InvalidSchedule: the expression is invalid, or never fires.
    """
    return Cron.parse(expression).next_after(time)


def zone_of(location: str) -> ZoneInfo:
    """A zone of the IANA database.

    Raises:
        InvalidSchedule: there is none of this name.
    """
    try:
        return ZoneInfo(location)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidSchedule(f"{location!r} is no time zone, must be one like Europe/Berlin or UTC") from None


def _moment(local: datetime, zone: tzinfo) -> datetime | None:
    moment = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    exists = moment.astimezone(zone).replace(tzinfo=None, fold=0) == local
    return moment if exists else None


def _values(part: str, name: str, lowest: int, highest: int, names: dict[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for item in part.split(","):
        span, _, step = item.partition("/")
        begin, dash, end = span.partition("-")
        try:
            if span in _ANY:
                first, last = lowest, highest
            else:
                first = _number(begin, names)
                last = _number(end, names) if dash else (highest if step else first)
            every = int(step) if step else 1
        except ValueError:
            kinds = "numbers or names" if names else "numbers"
            raise InvalidSchedule(f"{name} {part!r} is not made of {kinds}") from None
        if not lowest <= first <= last <= highest or every < 1:
            raise InvalidSchedule(f"{name} {part!r} must be between {lowest} and {highest}")
        values.update(range(first, last + 1, every))
    return frozenset(values)


def _number(text: str, names: dict[str, int]) -> int:
    found = names.get(text.lower())
    return int(text) if found is None else found
