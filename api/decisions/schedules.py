"""Schedules of Shoots in Temporal: one for each edge of a hibernation schedule, and one for the maintenance window.

The id of a schedule contains its Shoot, so that the id alone suffices to find out whether the schedule is still wanted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.contracts.operations import ShootRef
from api.decisions.hibernation import Edge, edges
from api.decisions.maintenance_window import MaintenanceWindow

HIBERNATION = "hibernation"
MAINTENANCE = "maintenance"
_KINDS = (HIBERNATION, MAINTENANCE)


@dataclass(frozen=True)
class WantedSchedule:
    """A schedule that a Shoot's spec wants. ``note`` describes all that can change, for users and for comparison."""

    id: str
    shoot: ShootRef
    note: str
    when: Edge | MaintenanceWindow


def wanted_schedules(shoot: Mapping[str, Any]) -> dict[str, WantedSchedule]:
    """Schedules of a Shoot by id; none for a Shoot that is being deleted."""
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
    """Prefix of the ids of a Shoot's schedules of one kind."""
    return f"{kind}/{shoot.namespace}/{shoot.name}/{shoot.uid}/"


def maintenance_id(shoot: ShootRef) -> str:
    """Id of the maintenance schedule of a Shoot, and of a maintenance workflow that a user requests now."""
    return f"{schedule_prefix(MAINTENANCE, shoot)}window"


def shoot_of(schedule_id: str) -> tuple[str, str] | None:
    """Namespace and name of the Shoot in the id of one of our schedules; None for other ids."""
    kind, *rest = schedule_id.split("/")
    return (rest[0], rest[1]) if kind in _KINDS and len(rest) == 4 else None
