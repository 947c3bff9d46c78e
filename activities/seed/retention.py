"""Retention period of the backups of a deleted Shoot.

The garden's BackupEntry records the start of the period: it is marked as deleted together with its Shoot. Its finalizer
keeps it as long as there are backups. Source: spec/api-core.md 6, spec/extensions.md 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from api.constants import BACKUP_ENTRY_FORCE_DELETION, SHOOT_PURPOSE


def is_marked(entry: Mapping[str, Any]) -> bool:
    """Whether a BackupEntry is marked as deleted: its Shoot is deleted, or is being deleted."""
    return "deletionTimestamp" in entry["metadata"]


@dataclass(frozen=True)
class Retention:
    """Retention of backups in one seed."""

    period: timedelta = timedelta()
    purposes: frozenset[str] = frozenset()
    """Purposes of the Shoots whose backups are kept; empty: backups of all Shoots are kept."""

    def keeps(self, entry: Mapping[str, Any]) -> bool:
        """Whether these backups are kept for the period, once their Shoot is deleted."""
        annotations = entry["metadata"].get("annotations") or {}
        if not self.period or annotations.get(BACKUP_ENTRY_FORCE_DELETION) == "true":
            return False
        return not self.purposes or annotations.get(SHOOT_PURPOSE, "") in self.purposes

    def ends(self, entry: Mapping[str, Any]) -> datetime:
        """When these backups, whose entry is marked as deleted, may be deleted."""
        marked = datetime.fromisoformat(entry["metadata"]["deletionTimestamp"])
        return marked + self.period if self.keeps(entry) else marked
