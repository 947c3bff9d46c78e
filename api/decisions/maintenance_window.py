"""A Shoot's maintenance window: a time of day, every day, in which planned changes happen.

All arithmetic is in UTC: a window's offset is fixed, so daylight saving moves no window.
Source: spec/flows.md 1.3, row 5; spec/api-core.md, ``spec.maintenance.timeWindow``.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

SHORTEST = timedelta(minutes=30)
LONGEST = timedelta(hours=6)
TAIL = timedelta(minutes=15)
"""In the last minutes of a window no operation starts, so that operations end within the window."""

_DAY = timedelta(days=1)
_TIME = re.compile(r"([01][0-9]|2[0-3])([0-5][0-9])([0-5][0-9])([+-])(0[0-9]|1[0-4])([0-5][0-9])")


@dataclass(frozen=True)
class MaintenanceWindow:
    """A daily window. ``begin``: time after midnight in UTC; ``length``: less than a day. The end is exclusive."""

    begin: timedelta
    length: timedelta

    @classmethod
    def parse(cls, begin: str, end: str) -> "MaintenanceWindow":
        """Parse ``220000+0100`` and ``230000+0100``; an end before the begin is on the next day.

        Raises:
            ValueError: a time does not have this form.
        """
        first, last = _after_midnight(begin), _after_midnight(end)
        return cls(begin=first, length=(last - first) % _DAY)

    @property
    def effective(self) -> "MaintenanceWindow":
        """Part of the window in which operations may start: it ends 15 minutes earlier."""
        return replace(self, length=max(self.length - TAIL, timedelta()))

    def contains(self, now: datetime) -> bool:
        return now < self.latest_begin(now) + self.length

    def latest_begin(self, now: datetime) -> datetime:
        """The last time at or before ``now`` at which a window began."""
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        begun = midnight + self.begin
        return begun if begun <= now else begun - _DAY

    def next_begin(self, now: datetime) -> datetime:
        """The first time after ``now`` at which a window begins."""
        return self.latest_begin(now) + _DAY


def _after_midnight(text: str) -> timedelta:
    if (match := _TIME.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is no time of day like 220000+0100")
    hours, minutes, seconds, sign, zone_hours, zone_minutes = match.groups()
    zone = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
    local = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    return (local - zone if sign == "+" else local + zone) % _DAY
