"""Which of two seeds has the control plane of a Shoot, by objects of the garden."""

from collections.abc import Mapping
from typing import Any

from api.constants import CONTROL_PLANE_MIGRATION, MIGRATION_BAD_CASE


def new_home(shoot: Mapping[str, Any], seed: str, backups_at: str | None) -> str:
    """Seed that has the control plane of a Shoot in place of ``seed``; empty while ``seed`` has it.

    ``backups_at``: seed that the Shoot's BackupEntry names. During a planned move the source hands over the backups
    last, so it has the control plane until then. A lost source has nothing as soon as it counts as lost. A Shoot
    without backups does not move.
    """
    goal = str(shoot["spec"].get("seedName") or "")
    home = str((shoot.get("status") or {}).get("seedName") or "")
    if not goal or seed == goal:
        return ""
    annotations = shoot["metadata"].get("annotations") or {}
    if annotations.get(CONTROL_PLANE_MIGRATION) == MIGRATION_BAD_CASE:
        return goal
    return "" if seed in (backups_at, home if backups_at is None else None) else goal
