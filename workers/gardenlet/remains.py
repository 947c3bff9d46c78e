"""Finds what this seed still has of Shoots whose control planes were taken over while it was lost.

Such a Shoot says that another seed is responsible for it, and has restored it. Of a Shoot that was deleted meanwhile
the mark in our bucket says that another seed had it. That a Shoot is not in the garden is no reason to touch anything,
since a garden may be restored from yesterday. Source: spec/flows.md 8.

The gardenlet lists these Shoots in an annotation of its Seed. The controller-manager then has them cleaned up, and says
so in a condition of the Seed (``workers.watchers.remains``). The gardenlet removes both when nothing is left. The
condition of each Shoot is written by the seed that has it now.
"""

import asyncio
import base64
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from activities.components import etcd
from activities.etcd import snapshots
from activities.etcd.store import StoreError, open_store
from activities.garden.seed_status import write_seed_status
from activities.kube.cache import Key
from activities.kube.client import Object, WatchEvent
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller, Requeue, TryAgain
from activities.kube.errors import Conflict
from activities.seed.extensions import says_taken_over
from activities.seed.namespace import shoot_uid
from api import resources
from api.constants import SEED_MOVED_CONTROL_PLANES_CLEANED_UP, SEED_REMAINS
from api.names import backup_entry_names
from api.operations import ShootRef
from api.remains import BadRemains, Remnant, is_elsewhere, remains_of, written

log = logging.getLogger(__name__)

_SHOOT_SECONDS = 60.0
"""Until the gardenlet asks again whether a Shoot is gone that its cache does not know."""


class RemainsController:
    """One per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._shoots = clusters.garden_caches.of(resources.SHOOT)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._seeds = clusters.garden_caches.of(resources.SEED)
        self._entries = clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY)
        self._deleted: dict[str, Remnant] = {}
        """By technical id, Shoots that are not in the garden any more and of which something is left."""
        self._key = Key(None, clusters.seed_name)
        self._telling = Controller("what the Seed says of remains", self._tell, workers=1)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(each.synced() for each in (self._namespaces, self._shoots, self._seeds, self._entries)))
        deleted = Controller("remains of deleted Shoots", self._look_for_deleted, workers=1)
        self._adopt()
        for technical_id in self._deleted:
            deleted.enqueue(Key(None, technical_id))
        for cache in (self._seeds, self._shoots, self._namespaces, self._entries):
            self._telling.watch(cache, keys=lambda _: [self._key])
        deleted.watch(self._namespaces)
        deleted.watch(self._shoots, keys=_home, when=lambda event: event.type == "DELETED")
        deleted.watch(self._clusters.seed_caches.of(resources.BACKUP_ENTRY), keys=_of_entry, when=_is_gone)
        await asyncio.gather(deleted.run(), self._telling.run())

    def _adopt(self) -> None:
        """Take over from an earlier process what it had found of deleted Shoots.

        The cleaning may have deleted already what told that process of them.
        """
        seed = self._seeds.get(self._clusters.seed_name)
        try:
            remains = remains_of(seed) if seed is not None else []
        except BadRemains as error:
            log.warning("seed %s: %s", self._clusters.seed_name, error)
            return
        self._deleted = {each.technical_id: each for each in remains if each.deleted}

    def _is_in_garden(self, uid: str) -> bool:
        return any(each["metadata"]["uid"] == uid for each in self._shoots.list())

    async def _look_for_deleted(self, key: Key) -> Requeue | None:
        """``key``: of a control plane's namespace."""
        namespace = self._namespaces.get(key.name)
        uid = shoot_uid(namespace) if namespace is not None else None
        known = self._deleted.get(key.name)
        if known is not None and not self._is_in_garden(known.uid) and not await self._has_gone(known, uid):
            return None
        if known is not None:
            del self._deleted[key.name]
            self._telling.enqueue(self._key)
        if uid is None or self._is_in_garden(uid):
            return None
        shoot = await self._taken_over(key.name, uid)
        if shoot is None:
            return None
        live = await self._clusters.garden.find(resources.SHOOT, shoot.name, shoot.namespace)
        if live is not None and live["metadata"]["uid"] == uid:
            return Requeue(_SHOOT_SECONDS)
        log.warning("Shoot %s was taken over, and is deleted: something of it is left here", shoot)
        self._deleted[key.name] = Remnant.of(shoot, key.name, deleted=True)
        self._telling.enqueue(self._key)
        return None

    async def _has_gone(self, remnant: Remnant, uid: str | None) -> bool:
        """Whether nothing is left of a deleted Shoot. ``uid``: of the Shoot that the namespace belongs to now."""
        if remnant.uid == uid:
            return False
        entry = backup_entry_names(remnant.technical_id, remnant.uid)[1]
        return await self._clusters.seed.find(resources.BACKUP_ENTRY, entry) is None

    async def _taken_over(self, technical_id: str, uid: str) -> ShootRef | None:
        """The Shoot that a namespace belongs to, if another seed has put its mark into our bucket."""
        cluster = await self._clusters.seed.find(resources.CLUSTER, technical_id)
        shoot = ((cluster or {}).get("spec") or {}).get("shoot")
        if not shoot or shoot["metadata"]["uid"] != uid:
            return None
        return ShootRef.of(shoot) if await self._was_taken_over(technical_id, uid) else None

    def _is_left(self, shoot: Mapping[str, Any]) -> bool:
        """Whether something of a Shoot that is elsewhere is here, or the mark that we were lost still stands."""
        if not is_elsewhere(shoot, self._clusters.seed_name):
            return False
        metadata, technical_id = shoot["metadata"], shoot["status"]["technicalID"]
        namespace, seed = self._namespaces.get(technical_id), self._seeds.get(self._clusters.seed_name)
        if namespace is not None and shoot_uid(namespace) == metadata["uid"]:
            return True
        entry = self._entries.get(backup_entry_names(technical_id, metadata["uid"])[0], metadata["namespace"])
        ours = entry is not None and seed is not None and entry["spec"]["bucketName"] == seed["metadata"]["uid"]
        return ours and says_taken_over(entry)

    async def _tell(self, key: Key) -> None:
        """``key``: of our Seed."""
        seed = self._seeds.get(key.name)
        if seed is None:
            return
        left = [
            Remnant.of(ShootRef.of(each), each["status"]["technicalID"], deleted=False)
            for each in self._shoots.list()
            if self._is_left(each)
        ]
        text = written([*left, *self._deleted.values()])
        try:
            if (seed["metadata"].get("annotations") or {}).get(SEED_REMAINS) != text:
                patch = {"resourceVersion": seed["metadata"]["resourceVersion"], "annotations": {SEED_REMAINS: text}}
                seed = await self._clusters.garden.patch(resources.SEED, key.name, None, {"metadata": patch})
                log.info("seed %s holds something of %d Shoots", key.name, len(left) + len(self._deleted))
            if text is None:
                await self._take_back(seed)
        except Conflict:
            raise TryAgain("the Seed has changed meanwhile", after=0.5) from None

    async def _take_back(self, seed: Object) -> None:
        """Remove the condition that told of the cleaning."""
        known = (seed.get("status") or {}).get("conditions") or []
        others = [each for each in known if each["type"] != SEED_MOVED_CONTROL_PLANES_CLEANED_UP]
        if others != known:
            await write_seed_status(self._clusters.garden, seed, {"conditions": others})

    async def _was_taken_over(self, technical_id: str, uid: str) -> bool:
        """Whether another seed has put its mark into our bucket. Raises TryAgain if that cannot be told."""
        seed, entry_name = self._clusters.seed, backup_entry_names(technical_id, uid)[1]
        entry = await seed.find(resources.BACKUP_ENTRY, entry_name)
        secret = await seed.find(resources.SECRET, etcd.BACKUP_SECRET, technical_id)
        if entry is None or secret is None:
            return False
        credentials = {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}
        directory = snapshots.directory(f"{entry_name}/{etcd.name_of(etcd.MAIN)}")
        try:
            store = open_store(entry["spec"]["type"], credentials, entry["spec"]["bucketName"])
            try:
                return snapshots.taken_over(each.name for each in await store.list(directory)) is not None
            finally:
                await store.close()
        except StoreError as error:
            raise TryAgain(str(error)) from None


def _home(event: WatchEvent) -> Iterable[Key]:
    """The namespace of a Shoot's control plane."""
    technical_id = (event.object.get("status") or {}).get("technicalID")
    return [Key(None, technical_id)] if technical_id else []


def _of_entry(event: WatchEvent) -> Iterable[Key]:
    """The namespace of the control plane that a BackupEntry of the seed belongs to."""
    return [Key(None, event.object["metadata"]["name"].rpartition("--")[0])]


def _is_gone(event: WatchEvent) -> bool:
    return event.type == "DELETED"
