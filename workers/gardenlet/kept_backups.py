"""Deletes the backups of deleted Shoots when their grace period is over, or somebody says that it shall be.

Nothing is remembered: the garden's BackupEntry tells since when, and is there until the backups are gone.
"""

import logging
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client

from activities.kube.cache import Key
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller, Requeue
from activities.seed.retention import Retention, is_marked
from api import resources
from api.operations import OperationType, ShootRef, ShootTask
from api.times import micro_timestamp
from workers.gardenlet.flows import RETRY_SECONDS, SeedFlows
from workflows.shoot.delete_backups import DeleteBackups, delete_backups_id

log = logging.getLogger(__name__)


class KeptBackupsController:
    """One per gardenlet."""

    def __init__(self, clusters: Clusters, temporal: Client, retention: Retention) -> None:
        self._clusters = clusters
        self._retention = retention
        self._flows = SeedFlows(temporal)
        self._entries = clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY)

    async def run(self) -> None:
        """Until cancelled."""
        controller = Controller("kept backups", self._reconcile, workers=2)
        controller.watch(self._entries, when=lambda event: is_marked(event.object))
        await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        entry = self._entries.get(key.name, key.namespace)
        if entry is None or not is_marked(entry) or entry["spec"].get("seedName") != self._clusters.seed_name:
            return None
        shoot = _shoot_of(entry)
        if shoot is None:
            log.warning("BackupEntry %s/%s has no Shoot as its owner, and is left alone", key.namespace, key.name)
            return None
        live = await self._clusters.garden.find(resources.SHOOT, shoot.name, shoot.namespace)
        if live is not None and live["metadata"]["uid"] == shoot.uid:
            return Requeue(RETRY_SECONDS)  # its own deletion may be about to do it
        left = (self._retention.ends(entry) - datetime.now(UTC)).total_seconds()
        if left > 0:
            return Requeue(left)
        task = ShootTask(
            shoot=shoot,
            technical_id=key.name.removesuffix(f"--{shoot.uid}"),
            seed=self._clusters.seed_name,
            generation=0,
            operation=OperationType.DELETE,
            trigger=micro_timestamp(),
        )
        summary = f"Delete the backups of {shoot}"
        return await self._flows.attempt(DeleteBackups.run, task, delete_backups_id(shoot), summary)


def _shoot_of(entry: dict[str, Any]) -> ShootRef | None:
    """The one that it was made for, which is gone."""
    metadata = entry["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each["kind"] == "Shoot"]
    if len(owners) != 1:
        return None
    return ShootRef(namespace=metadata["namespace"], name=owners[0]["name"], uid=owners[0]["uid"])
