"""Time tables of Shoots, one Temporal Schedule each: the edges of hibernation, and the maintenance window.

A schedule's id names its Shoot, so whoever knows the id alone can tell whether it is still wanted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from api.hibernation import Edge, edges
from api.maintenance_window import MaintenanceWindow
from api.model import ApiModel
from api.operations import ShootRef

HIBERNATION = "hibernation"
MAINTENANCE = "maintenance"
_KINDS = (HIBERNATION, MAINTENANCE)


class ScheduledShoot(ApiModel):
    """What a schedule starts its workflow with."""

    shoot: ShootRef


class ScheduledTime(ApiModel):
    """Ask for what is due at a time."""

    shoot: ShootRef
    now: datetime
    """When the workflow began, by the clock of the server that started it; never before its schedule's time."""


@dataclass(frozen=True)
class WantedSchedule:
    """A schedule as a Shoot's spec wants it; ``note`` says all that can change, for people and for comparison."""

    id: str
    shoot: ShootRef
    note: str
    when: Edge | MaintenanceWindow


def wanted_schedules(shoot: Mapping[str, Any]) -> dict[str, WantedSchedule]:
    """By id; none for a Shoot that is being deleted."""
    metadata, spec = shoot["metadata"], shoot["spec"]
    if "deletionTimestamp" in metadata:
        return {}
    ref = ShootRef.of(shoot)
    found = [
        WantedSchedule(f"{schedule_prefix(HIBERNATION, ref)}{edge.name}", ref, str(edge), edge) for edge in edges(spec)
    ]
    if window := (spec.get("maintenance") or {}).get("timeWindow"):
        begin, end = window["begin"], window["end"]
        try:
            parsed = MaintenanceWindow.parse(begin, end)
        except ValueError:  # admission refuses it
            return {each.id: each for each in found}
        found.append(WantedSchedule(maintenance_id(ref), ref, f"maintain between {begin} and {end}", parsed))
    return {each.id: each for each in found}


def schedule_prefix(kind: str, shoot: ShootRef) -> str:
    """What ids of a Shoot's schedules of one kind begin with."""
    return f"{kind}/{shoot.namespace}/{shoot.name}/{shoot.uid}/"


def maintenance_id(shoot: ShootRef) -> str:
    """Of its schedule, and of the workflow that somebody asks for now."""
    return f"{schedule_prefix(MAINTENANCE, shoot)}window"


def shoot_of(schedule_id: str) -> tuple[str, str] | None:
    """Namespace and name in the id of one of our schedules; None for those of others."""
    kind, *rest = schedule_id.split("/")
    return (rest[0], rest[1]) if kind in _KINDS and len(rest) == 4 else None
