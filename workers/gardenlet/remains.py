"""Finds stale control planes: what this seed still holds of Shoots that were taken over while it was lost.

The status of such a Shoot shows that another seed is responsible for it and has restored it. If the Shoot was deleted
meanwhile, the takeover marker in our bucket shows that another seed had it. A Shoot that is only missing in the garden
is no reason to touch anything, since a garden may be restored from an older backup. Source: spec/flows.md 8.

The gardenlet lists these Shoots in an annotation of its Seed. The controller-manager then starts their cleanup, and
reports it in a condition of the Seed (``workers.controller_manager.watchers.remains``). The gardenlet removes both when
nothing is left. The condition of each Shoot is written by the seed that has the Shoot now.
"""

import asyncio
import base64
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from activities.clusters import Clusters
from activities.components import etcd
from activities.garden.seed_status import write_seed_status
from activities.seed.backup_keys import owning_shoot
from activities.seed.extensions import says_taken_over
from activities.seed.namespace import shoot_of, shoot_uid
from api import resources
from api.constants import SEED_MOVED_CONTROL_PLANES_CLEANED_UP, SEED_REMAINS
from api.contracts.operations import ShootRef
from api.contracts.remains import BadRemains, Remnant, is_elsewhere, remains_of, written
from api.names import backup_entry_names
from etcd import snapshots
from etcd.store import StoreError, open_store
from kube.cache import BY_UID, Key
from kube.client import Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from workers.gardenlet.garden_caches import own_seed, shoots_here, shoots_wanted_here

log = logging.getLogger(__name__)

_MOVING_SECONDS = 10.0
"""Pause before the gardenlet reads a Shoot again that another seed has, but has not restored completely yet."""
_SETTLED_SECONDS = 60.0
"""Pause before the gardenlet reads a Shoot again that it has listed."""
_ABSENT_SECONDS = 600.0
"""Pause before the gardenlet reads a Shoot again that is not in the garden, and that no other seed has taken over."""
_GATHER_SECONDS = 0.1
"""Pause before the list is written: when a lost seed is back, many Shoots are found at once."""
_BY_TECHNICAL_ID = "technical id"
"""Index of the BackupEntries that say that their seed was lost, by the namespace of their control plane."""


class RemainsController:
    """Lists the stale control planes of this seed. One per gardenlet.

    It watches no Shoots of other seeds. So it regularly reads each Shoot that is not in this seed, but is named by an
    object here: a control-plane namespace, a BackupEntry of our bucket, or the last list.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._homes = (shoots_here(clusters), shoots_wanted_here(clusters))
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._seeds = own_seed(clusters)
        self._left: dict[str, dict[str, Remnant]] = {}
        """Shoots with a stale control plane here, by technical id and then by uid."""
        self._key = Key(None, clusters.seed_name)
        self._telling = Controller("what the Seed says of remains", self._tell, workers=1)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(each.synced() for each in (*self._homes, self._namespaces, self._seeds)))
        seed = await self._seeds.wait_for(self._clusters.seed_name, None, lambda live: live, None)
        bucket = f"spec.bucketName={seed['metadata']['uid']}"
        self._entries = self._clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY, fields=bucket)
        self._entries.index(_BY_TECHNICAL_ID, _technical_ids_of)
        await self._entries.synced()
        self._adopt(seed)
        looking = Controller("remains", self._look_for, workers=4)
        for technical_id in self._left:
            looking.enqueue(Key(None, technical_id))
        looking.watch(self._namespaces)
        for shoots in self._homes:
            looking.watch(shoots, keys=_home)
        looking.watch(self._entries, keys=_of_entry)
        looking.watch(self._clusters.seed_caches.of(resources.BACKUP_ENTRY), keys=_of_entry, when=_is_gone)
        self._telling.watch(self._seeds)
        await asyncio.gather(looking.run(), self._telling.run())

    def _adopt(self, seed: Object) -> None:
        """Take over the list of an earlier process.

        It may name deleted Shoots that cannot be found again, because the cleanup has deleted the objects that showed
        them.
        """
        try:
            remains = remains_of(seed)
        except BadRemains as error:
            log.warning("seed %s: %s", self._clusters.seed_name, error)
            return
        for each in remains:
            self._left.setdefault(each.technical_id, {})[each.uid] = each

    async def _look_for(self, key: Key) -> Requeue | None:
        """Find what is left in one control-plane namespace. ``key``: that namespace."""
        technical_id = key.name
        known = self._left.get(technical_id, {})
        left, pauses = {}, []
        for uid, shoot in self._named(technical_id).items():
            if any(each.by_index(BY_UID, uid) for each in self._homes):
                continue  # the Shoot's next event calls this function again
            remnant, pause = await self._remnant(technical_id, shoot, known.get(uid))
            pauses.append(pause)
            if remnant is not None:
                left[uid] = remnant
        if left != known:
            self._left[technical_id] = left
            if not left:
                del self._left[technical_id]
            self._telling.enqueue(self._key, after=_GATHER_SECONDS)
        return Requeue(min(pauses)) if pauses else None

    def _named(self, technical_id: str) -> dict[str, ShootRef]:
        """Shoots that objects with this technical id belong to, by uid."""
        named = {uid: each.shoot for uid, each in self._left.get(technical_id, {}).items()}
        namespace = self._namespaces.get(technical_id)
        found = [shoot_of(namespace)] if namespace is not None else []
        found += [owning_shoot(each) for each in self._entries.by_index(_BY_TECHNICAL_ID, technical_id)]
        return named | {each.uid: each for each in found if each is not None}

    async def _remnant(self, technical_id: str, shoot: ShootRef, known: Remnant | None) -> tuple[Remnant | None, float]:
        """The stale control plane of a Shoot that is not in this seed; and seconds until the garden is read again."""
        live = await self._clusters.garden.find(resources.SHOOT, shoot.name, shoot.namespace)
        if live is not None and live["metadata"]["uid"] == shoot.uid:
            if self._is_left(live, technical_id):
                return Remnant.of(shoot, technical_id, deleted=False), _SETTLED_SECONDS
            return None, _MOVING_SECONDS
        if known is not None and known.deleted:
            return (None if await self._has_gone(known) else known), _SETTLED_SECONDS
        if self._owner(technical_id) != shoot.uid or not await self._was_taken_over(technical_id, shoot.uid):
            return None, _ABSENT_SECONDS
        log.warning("Shoot %s was taken over by another seed and is deleted: this seed still has objects of it", shoot)
        return Remnant.of(shoot, technical_id, deleted=True), _SETTLED_SECONDS

    def _owner(self, technical_id: str) -> str | None:
        """uid of the Shoot that the namespace of this technical id in this seed belongs to; None without one."""
        namespace = self._namespaces.get(technical_id)
        return shoot_uid(namespace) if namespace is not None else None

    async def _has_gone(self, remnant: Remnant) -> bool:
        """Whether this seed holds nothing of a deleted Shoot any more."""
        if remnant.uid == self._owner(remnant.technical_id):
            return False
        entry = backup_entry_names(remnant.technical_id, remnant.uid)[1]
        return await self._clusters.seed.find(resources.BACKUP_ENTRY, entry) is None

    def _is_left(self, shoot: Mapping[str, Any], technical_id: str) -> bool:
        """Whether a Shoot of another seed still has a namespace here, or a BackupEntry that says that we were lost."""
        if not is_elsewhere(shoot, self._clusters.seed_name) or shoot["status"]["technicalID"] != technical_id:
            return False
        metadata = shoot["metadata"]
        if self._owner(technical_id) == metadata["uid"]:
            return True
        entry = self._entries.get(backup_entry_names(technical_id, metadata["uid"])[0], metadata["namespace"])
        return says_taken_over(entry)

    async def _tell(self, key: Key) -> None:
        """Write the list into the annotation of our Seed. ``key``: the Seed."""
        seed = self._seeds.get(key.name)
        if seed is None:
            return
        left = [each for remnants in self._left.values() for each in remnants.values()]
        text = written(left)
        if (seed["metadata"].get("annotations") or {}).get(SEED_REMAINS) != text:
            patch = {"metadata": {"annotations": {SEED_REMAINS: text}}}
            seed = await patch_as_read(self._clusters.garden, resources.SEED, seed, patch)
            log.info("seed %s still has objects of %d Shoots", key.name, len(left))
        if text is None:
            await self._take_back(seed)

    async def _take_back(self, seed: Object) -> None:
        """Remove the condition that reported the cleanup."""
        known = (seed.get("status") or {}).get("conditions") or []
        others = [each for each in known if each["type"] != SEED_MOVED_CONTROL_PLANES_CLEANED_UP]
        if others != known:
            await write_seed_status(self._clusters.garden, seed, {"conditions": others})

    async def _was_taken_over(self, technical_id: str, uid: str) -> bool:
        """Whether another seed has put a takeover marker into our bucket.

        Raises TryAgain if the bucket cannot be read.
        """
        seed, entry_name = self._clusters.seed, backup_entry_names(technical_id, uid)[1]
        entry = await seed.find(resources.BACKUP_ENTRY, entry_name)
        secret = await seed.find(resources.SECRET, etcd.BACKUP_SECRET, technical_id)
        if entry is None or secret is None:
            return False
        credentials = {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}
        directory = snapshots.directory(f"{entry_name}/{etcd.name_of(etcd.MAIN)}")
        try:
            store = open_store(entry["spec"]["type"], credentials, entry["spec"]["bucketName"])
            return snapshots.taken_over(each.name for each in await store.list(directory)) is not None
        except StoreError as error:
            raise TryAgain(str(error)) from None


def _home(event: WatchEvent) -> Iterable[Key]:
    """Key of the namespace of a Shoot's control plane."""
    technical_id = (event.object.get("status") or {}).get("technicalID")
    return [Key(None, technical_id)] if technical_id else []


def _of_entry(event: WatchEvent) -> Iterable[Key]:
    """Key of the namespace of the control plane that a BackupEntry of the garden or of the seed belongs to."""
    return [Key(None, _technical_id(event.object))]


def _technical_ids_of(entry: Object) -> Iterable[str]:
    return (_technical_id(entry),) if says_taken_over(entry) else ()


def _technical_id(entry: Object) -> str:
    return str(entry["metadata"]["name"]).removeprefix("source-").rpartition("--")[0]


def _is_gone(event: WatchEvent) -> bool:
    return event.type == "DELETED"
