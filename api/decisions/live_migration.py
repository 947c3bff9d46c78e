"""Whether a control plane moves live: by the Shoot's annotation at first, then by the condition that records it.

So an annotation that comes or goes during a move changes nothing. The names of annotations are Gardener's.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from api.contracts.operations import MIGRATIONS
from api.decisions.conditions import set_conditions
from api.labels import is_true

LIVE_MIGRATE = "migration.gardener.cloud/live-migrate"
DISTANCE_THRESHOLD = "migration.gardener.cloud/inter-region-distance-threshold"
ALLOW_DISTANT_REGIONS = "migration.gardener.cloud/allow-distant-regions"
ANNOTATIONS = (LIVE_MIGRATE, DISTANCE_THRESHOLD, ALLOW_DISTANT_REGIONS)
DISTANCE = 180
"""Largest distance between the regions of two seeds, in ms, if the annotation names no other. Source: spec/api-core.md
10 (Live migration)."""

_TYPE = "LiveMigration"


class Stage(StrEnum):
    """Reason of the condition ``LiveMigration``."""

    NONE = ""
    MOVING = "Moving"
    FELL_BACK = "FellBack"
    MOVED = "Moved"


def of_attempt(shoot: Mapping[str, Any]) -> Stage:
    """How an attempt to move this Shoot moves it, or how the move was that an attempt to restore it follows."""
    status = shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    restoring = last.get("type") == "Restore" and last.get("state") != "Succeeded"
    if last.get("type") not in MIGRATIONS and not restoring:
        return Stage.MOVING if _is_wanted(shoot) else Stage.NONE
    known = (each["reason"] for each in _conditions(status) if each["type"] == _TYPE)
    return Stage(next(known, Stage.NONE))


def told(shoot: Mapping[str, Any], stage: Stage, message: str, now: str) -> dict[str, Any]:
    """Part of a patch of the Shoot's status; without a stage it removes the condition of an earlier move."""
    if stage is Stage.NONE:
        return {"liveMigration": None} if "liveMigration" in (shoot.get("status") or {}) else {}
    status = {Stage.MOVING: "Unknown", Stage.FELL_BACK: "False", Stage.MOVED: "True"}[stage]
    new = {"type": _TYPE, "status": status, "reason": str(stage), "message": message}
    return {"liveMigration": {"conditions": set_conditions(_conditions(shoot.get("status") or {}), [new], now)}}


def _conditions(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((status.get("liveMigration") or {}).get("conditions") or ())


def _is_wanted(shoot: Mapping[str, Any]) -> bool:
    """Whether it can move live and its owner wants that. Admission refuses the wish where it cannot."""
    spec = shoot["spec"]
    return (
        is_true((shoot["metadata"].get("annotations") or {}).get(LIVE_MIGRATE))
        and bool((spec.get("controlPlane") or {}).get("highAvailability"))
        and not (spec.get("hibernation") or {}).get("enabled")
    )
