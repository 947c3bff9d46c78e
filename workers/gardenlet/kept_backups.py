"""Marks the backups of deleted Shoots when their grace period is over, or an operator ends it.

The controller-manager then starts the workflow that deletes them
(``workers.controller_manager.watchers.kept_backups``). The gardenlet stores nothing: the garden's BackupEntry tells
when its Shoot was deleted, and exists as long as the backups.
"""

import logging
from datetime import UTC, datetime

from activities.clusters import Clusters
from activities.seed.backups import backup_entries_of
from activities.seed.retention import Retention, is_marked
from api import resources
from api.constants import BACKUP_EXPIRED
from api.times import timestamp
from kube.cache import Key
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read

log = logging.getLogger(__name__)


_SHOOT_SECONDS = 60.0
"""Pause before the gardenlet reads again whether the Shoot of a BackupEntry marked as deleted is gone."""


class KeptBackupsController:
    """Marks BackupEntries whose grace period is over. One per gardenlet."""

    def __init__(self, clusters: Clusters, retention: Retention) -> None:
        self._clusters = clusters
        self._retention = retention
        self._entries = backup_entries_of(clusters)

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("kept backups", self._reconcile, workers=2)
        controller.watch(self._entries, when=lambda event: is_marked(event.object))
        await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        entry = self._entries.get(key.name, key.namespace)
        if entry is None or not is_marked(entry):
            return None
        metadata = entry["metadata"]
        owners = [each for each in metadata.get("ownerReferences") or () if each["kind"] == "Shoot"]
        if len(owners) != 1:
            log.warning("BackupEntry %s/%s has no Shoot as its owner, and is left alone", key.namespace, key.name)
            return None
        live = await self._clusters.garden.find(resources.SHOOT, owners[0]["name"], key.namespace)
        if live is not None and live["metadata"]["uid"] == owners[0]["uid"]:
            return Requeue(_SHOOT_SECONDS)  # the Shoot's own deletion may be about to delete the backups
        end = self._retention.ends(entry)
        left = (end - datetime.now(UTC)).total_seconds()
        # If a changed configuration has a longer period, the mark is removed again.
        mark = timestamp(end) if left <= 0 else None
        if (metadata.get("annotations") or {}).get(BACKUP_EXPIRED) != mark:
            patch = {"metadata": {"annotations": {BACKUP_EXPIRED: mark}}}
            await patch_as_read(self._clusters.garden, resources.CORE_BACKUP_ENTRY, entry, patch)
            log.info("BackupEntry %s/%s: %s", key.namespace, key.name, f"expired at {mark}" if mark else "kept longer")
        return Requeue(left) if left > 0 else None
