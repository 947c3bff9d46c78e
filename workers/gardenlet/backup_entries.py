"""Lets the garden's BackupEntries stand on their own: status, own operations, and the keys of their backups.

The flows of a Shoot create, migrate, restore and delete its BackupEntry. The controller here reports to the garden what
the extension says of it, requests a reconciliation that a user asks for, and creates an extension object again that is
gone. Source: spec/api-core.md 6.

It publishes the key of each entry for the seed that takes over the control plane. When that seed has copied the
backups, it deletes the entry ``source-...`` for the source's bucket. A finalizer keeps this entry until the source has
revoked the key: its extension deletes the users that it has made for the entry.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from activities.clusters import Clusters
from activities.seed import extension_objects as extension
from activities.seed.backup_keys import owning_shoot, publish_key
from activities.seed.backups import backup_entries_of, backup_entry_spec
from activities.seed.extension_objects import ExtensionObject
from activities.seed.retention import is_marked
from api import resources
from api.constants import (
    FINALIZER,
    OPERATION,
    OPERATION_MIGRATE,
    OPERATION_RECONCILE,
    OPERATION_RESTORE,
    OPERATION_WAIT_FOR_STATE,
    TIMESTAMP,
)
from api.contracts.operations import Wait
from api.resources import Object
from api.times import micro_timestamp
from kube.cache import Key, key_of
from kube.client import WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from kube.finalizers import has_finalizer, remove_finalizer
from workers.gardenlet.garden_caches import own_seed

log = logging.getLogger(__name__)

_BY_NAME = "metadata.name"
"""Index of the garden's BackupEntries."""
_SOURCE_PREFIX = "source-"
_OF_FLOWS = (OPERATION_MIGRATE, OPERATION_RESTORE, OPERATION_WAIT_FOR_STATE)
"""Operations that a Shoot's flow has requested of the extension."""
_WAIT = Wait(timeout=timedelta(minutes=5))


class BackupEntryController:
    """One per gardenlet. A second run finds the objects of the first one."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._entries = backup_entries_of(clusters)
        self._objects = clusters.seed_caches.of(resources.BACKUP_ENTRY)
        self._seeds = own_seed(clusters)
        self._entries.index(_BY_NAME, _names)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(each.synced() for each in (self._entries, self._objects, self._seeds)))
        seed = await self._seeds.wait_for(self._clusters.seed_name, None, lambda live: live, None)
        await self.use_bucket(seed)
        reporting = Controller("backup entries", self._report)
        reporting.watch(self._entries)
        reporting.watch(self._objects, keys=self._of_object)
        revoking = Controller("keys of moved backups", self._revoke, workers=2)
        revoking.watch(self._left, when=lambda event: _is_source(event.object))
        revoking.watch(self._objects, keys=self._waiting_for, when=lambda event: event.type == "DELETED")
        await asyncio.gather(reporting.run(), revoking.run())

    async def use_bucket(self, seed: Object) -> None:
        """Watch the garden's entries in this seed's bucket, also those that other seeds use."""
        self._bucket = seed["metadata"]["uid"]
        fields = f"spec.bucketName={self._bucket}"
        self._left = self._clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY, fields=fields)
        self._left.index(_BY_NAME, _names)
        await self._left.synced()

    def _of_object(self, event: WatchEvent) -> Iterable[Key]:
        return [key_of(each) for each in self._entries.by_index(_BY_NAME, event.object["metadata"]["name"])]

    def _waiting_for(self, event: WatchEvent) -> Iterable[Key]:
        name = f"{_SOURCE_PREFIX}{event.object['metadata']['name']}"
        return [key_of(each) for each in self._left.by_index(_BY_NAME, name)]

    # Status and operations of entries of this seed

    async def _report(self, key: Key) -> None:
        entry, found = self._entries.get(key.name, key.namespace), self._objects.get(key.name)
        if entry is None or await self._released(entry):
            return
        if asked := _operation(entry):
            # Not from the cache: it may still have a request that the last call has passed on.
            live = await self._clusters.garden.find(resources.CORE_BACKUP_ENTRY, key.name, key.namespace)
            if live is not None and _operation(live):
                await self._request(live, found)
                log.info("BackupEntry %s: %s is requested", key, asked)
                patch = {"metadata": {"annotations": {OPERATION: None}}}
                await patch_as_read(self._clusters.garden, resources.CORE_BACKUP_ENTRY, live, patch)
            return
        if found is None:
            if (entry.get("status") or {}).get("seedName") == self._clusters.seed_name:
                await self._create(entry)
            return
        ready = is_ready(entry, found)
        status = status_of(entry, found, self._clusters.seed_name)
        if any((entry.get("status") or {}).get(field) != value for field, value in status.items()):
            await patch_as_read(
                self._clusters.garden, resources.CORE_BACKUP_ENTRY, entry, {"status": status}, subresource="status"
            )
        ours = entry["spec"]["bucketName"] == self._bucket and not is_marked(entry)
        if ready and ours and not _is_source(entry):
            await publish_key(self._clusters, entry)

    async def _request(self, entry: Object, found: Object | None) -> None:
        """Request a reconciliation of the extension. Raises TryAgain while a Shoot's flow has another operation."""
        if found is None:
            await self._create(entry)
            return
        metadata = found["metadata"]
        if (metadata.get("annotations") or {}).get(OPERATION) in _OF_FLOWS or "deletionTimestamp" in metadata:
            raise TryAgain(f"BackupEntry {metadata['name']} is being migrated, restored or deleted")
        annotations = {OPERATION: OPERATION_RECONCILE, TIMESTAMP: micro_timestamp()}
        patch = {"metadata": {"annotations": annotations}}
        await patch_as_read(self._clusters.seed, resources.BACKUP_ENTRY, found, patch)

    async def _create(self, entry: Object) -> None:
        """Create the extension object of an entry again, unless a flow has deleted it: the Shoot leaves or ends."""
        metadata, garden = entry["metadata"], self._clusters.garden
        live = await garden.find(resources.CORE_BACKUP_ENTRY, metadata["name"], metadata["namespace"])
        owner = owning_shoot(live) if live else None
        shoot = await garden.find(resources.SHOOT, owner.name, owner.namespace) if owner else None
        seed = self._clusters.seed_name
        if live is None or owner is None or shoot is None or is_marked(live) or is_marked(shoot):
            return
        homes = {live["spec"].get("seedName"), shoot["spec"].get("seedName")} | {
            (shoot.get("status") or {}).get("seedName")
        }
        if homes != {seed} or live["spec"]["bucketName"] != self._bucket or shoot["metadata"]["uid"] != owner.uid:
            return
        if await self._clusters.seed.find(resources.BACKUP_ENTRY, metadata["name"]) is not None:
            return  # the cache did not know it yet
        log.warning("BackupEntry %s of this seed is gone, and is created again", metadata["name"])
        wanted = ExtensionObject(resources.BACKUP_ENTRY, metadata["name"], None, await self._spec())
        await extension.apply_extension(self._clusters.seed, wanted, micro_timestamp())

    async def _spec(self) -> dict[str, Any]:
        seed = await self._clusters.garden.get(resources.SEED, self._clusters.seed_name)
        return backup_entry_spec(seed, await self._clusters.seed.get(resources.BACKUP_BUCKET, self._bucket))

    async def _released(self, entry: Object) -> bool:
        """Release a deleted entry for another seed's bucket, if that bucket is gone, with all its keys."""
        if not (_is_source(entry) and is_marked(entry)):
            return False
        if await self._clusters.garden.find(resources.CORE_BACKUP_BUCKET, entry["spec"]["bucketName"]) is not None:
            return False
        await remove_finalizer(self._clusters.garden, resources.CORE_BACKUP_ENTRY, entry, FINALIZER)
        return True

    # Keys that other seeds had for this seed's bucket

    async def _revoke(self, key: Key) -> None:
        """Have the extension delete the users of an entry that has moved to another seed, then release the entry.

        The extension deletes users with the BackupEntry that it made them for. So this function creates one for the
        directory of the entry, which the other seed has emptied, and deletes it.
        """
        entry = self._left.get(key.name, key.namespace)
        if entry is None or not is_marked(entry) or not has_finalizer(entry, FINALIZER):
            return
        own = key.name.removeprefix(_SOURCE_PREFIX)
        if self._left.get(own, key.namespace) is None:
            if self._objects.get(own) is not None:
                return  # a lost seed that is back: its flow releases the object, and that event calls this function
            await self._delete_users(key.name)
            log.info("BackupEntry %s: the key of seed %s is revoked", key, entry["spec"].get("seedName"))
        await remove_finalizer(self._clusters.garden, resources.CORE_BACKUP_ENTRY, entry, FINALIZER)

    async def _delete_users(self, name: str) -> None:
        seed, caches, trigger = self._clusters.seed, self._clusters.seed_caches, micro_timestamp()
        kind = resources.BACKUP_ENTRY
        if await seed.find(resources.BACKUP_BUCKET, self._bucket) is None:
            return  # its users are deleted with it
        live = await seed.find(kind, name)
        if live is None or not is_marked(live):
            await extension.apply_extension(seed, ExtensionObject(kind, name, None, await self._spec()), trigger)
            await extension.wait_extension_ready(caches, kind, name, None, _WAIT, trigger=trigger)
        await extension.delete_extension(seed, kind, name, None, trigger)
        await extension.wait_extension_deleted(seed, caches, kind, name, None, _WAIT, trigger)


def is_ready(entry: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the extension has reconciled or restored its object in the bucket that the garden's entry names."""
    operation = (found.get("status") or {}).get("lastOperation") or {}
    asked = (found["metadata"].get("annotations") or {}).get(OPERATION)
    done = operation.get("state") == "Succeeded" and operation.get("type") in ("Create", "Reconcile", "Restore")
    return done and not asked and found["spec"]["bucketName"] == entry["spec"]["bucketName"]


def status_of(entry: Mapping[str, Any], found: Mapping[str, Any], seed_name: str) -> dict[str, Any]:
    """Fields of the status of the garden's BackupEntry, from what the extension reports in this seed."""
    reported = found.get("status") or {}
    status: dict[str, Any] = {"lastError": reported.get("lastError")}
    if reported.get("lastOperation"):
        status["lastOperation"] = reported["lastOperation"]
    if is_ready(entry, found):
        generation = entry["metadata"].get("generation")
        status |= {"seedName": seed_name, "observedGeneration": generation, "migrationStartTime": None}
    return status


def _operation(entry: Mapping[str, Any]) -> str:
    return str((entry["metadata"].get("annotations") or {}).get(OPERATION) or "")


def _is_source(entry: Mapping[str, Any]) -> bool:
    """Whether this is an entry for the bucket that a control plane leaves."""
    return str(entry["metadata"]["name"]).startswith(_SOURCE_PREFIX)


def _names(entry: Object) -> Iterable[str]:
    return (entry["metadata"]["name"],)
