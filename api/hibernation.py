"""When a Shoot's schedules switch its hibernation: pure functions of its spec. Source: spec/api-core.md 12."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from api.cron import Cron, InvalidSchedule, zone_of

DEADLINE = timedelta(hours=2)
"""A switch that could not be made in this time is left out: ``triggerDeadlineDuration``."""


@dataclass(frozen=True)
class Edge:
    """One side of a schedule: the Shoot falls asleep at its start and wakes up at its end."""

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
    """An edge at one time."""

    at: datetime
    edge: Edge


def edges(spec: Mapping[str, Any]) -> list[Edge]:
    """All edges of a Shoot's spec; what cannot be read, which admission refuses, is left out."""
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
    """The last edge after ``since`` and not after ``until``; of two at once the one that stands later in the spec."""
    latest: Tick | None = None
    for edge in among:
        at = edge.cron.last_until(until, since, edge.zone)
        if at is not None and (latest is None or at >= latest.at):
            latest = Tick(at, edge)
    return latest
