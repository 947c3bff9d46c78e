"""Times at which a Shoot's schedules hibernate it or wake it up: pure functions of its spec.

Source: spec/api-core.md 12.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from api.cron import Cron, InvalidSchedule, zone_of

DEADLINE = timedelta(hours=2)
"""A switch that was not possible within this time is skipped: ``triggerDeadlineDuration``."""


@dataclass(frozen=True)
class Edge:
    """Start or end of a schedule: the Shoot is hibernated at the start, and woken up at the end."""

    name: str
    """``start-0`` for the start of the first schedule."""
    cron: Cron
    location: str
    zone: ZoneInfo
    hibernate: bool

    def __str__(self) -> str:
        return f"{'hibernate' if self.hibernate else 'wake up'} at {self.cron.expression} {self.location}"


@dataclass(frozen=True)
class Tick:
    """One time at which an edge occurs."""

    at: datetime
    edge: Edge


def edges(spec: Mapping[str, Any]) -> list[Edge]:
    """All edges of a Shoot's spec. Invalid ones, which admission refuses, are skipped."""
    found = []
    for index, schedule in enumerate((spec.get("hibernation") or {}).get("schedules") or ()):
        location = schedule.get("location") or "UTC"
        for side, hibernate in (("start", True), ("end", False)):
            if not (expression := schedule.get(side)):
                continue
            try:
                found.append(Edge(f"{side}-{index}", Cron.parse(expression), location, zone_of(location), hibernate))
            except InvalidSchedule:
                continue
    return found


def latest_tick(among: Iterable[Edge], since: datetime, until: datetime) -> Tick | None:
    """The last edge after ``since``, up to ``until``; of two at the same time, the later one in the spec."""
    latest: Tick | None = None
    for edge in among:
        at = edge.cron.last_until(until, since, edge.zone)
        if at is not None and (latest is None or at >= latest.at):
            latest = Tick(at, edge)
    return latest
