"""How long the backups of a deleted Shoot are kept.

The garden's BackupEntry tells it: its deletion is asked for with its Shoot, and its finalizer holds it as long as there
are any.
Source: spec/api-core.md 6, spec/extensions.md 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from api.constants import BACKUP_ENTRY_FORCE_DELETION, SHOOT_PURPOSE


def is_marked(entry: Mapping[str, Any]) -> bool:
    """Whether an entry's Shoot is, or is being, deleted."""
    return "deletionTimestamp" in entry["metadata"]


@dataclass(frozen=True)
class Retention:
    """Of one seed."""

    period: timedelta = timedelta()
    purposes: frozenset[str] = frozenset()
    """Of Shoots whose backups are kept; none: of all."""

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
