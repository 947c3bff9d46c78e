"""Start the workflow that deletes the backups of a deleted Shoot, once they were kept for their grace period.

The gardenlet knows the grace period, and marks its BackupEntry when it is over. The mark is a claim: it counts only for
the entry of a Shoot that the garden does not have any more, in the bucket of the seed that the entry names.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from temporalio.client import Client

from activities.seed.retention import is_marked
from api import resources
from api.constants import BACKUP_EXPIRED
from api.contracts.flows import FlowInput, ShootFacts
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.names import backup_entry_names, technical_id
from api.times import micro_timestamp
from kube.cache import BY_UID, Caches, Key, key_of, uids_of
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller
from workers.controller_manager.seed_flows import Refused, SeedFlow, SeedFlows, project_of, told_once
from workflows.shoot.delete_backups import DeleteBackups, delete_backups_id

log = logging.getLogger(__name__)

_BY_SEED = "spec.seedName"
"""Index of BackupEntries."""

Object = Mapping[str, Any]


class KeptBackupsWatcher:
    """One per garden."""

    def __init__(self, garden: KubeClient, caches: Caches, temporal: Client) -> None:
        self._garden = garden
        self._temporal = temporal
        self._entries, self._shoots = caches.of(resources.CORE_BACKUP_ENTRY), caches.of(resources.SHOOT)
        self._seeds, self._projects = caches.of(resources.SEED), caches.of(resources.PROJECT)
        self._namespaces = caches.of(resources.NAMESPACE)
        self._entries.index(_BY_SEED, _seeds_of)
        self._shoots.index(BY_UID, uids_of)
        self._flows: dict[str, SeedFlows] = {}
        """By seed."""
        self._told: dict[str, object] = {}
        """By seed, what the log said last of marks that do not count."""
        self._controller = Controller("kept backups", self._reconcile, workers=4)

    async def run(self) -> None:
        """Watch until cancelled."""
        caches = (self._entries, self._shoots, self._seeds, self._projects, self._namespaces)
        await asyncio.gather(*(each.synced() for each in caches))
        self._controller.watch(self._entries, keys=_seed_of, when=lambda event: _has_expired(event.object))
        self._controller.watch(self._shoots, keys=self._waiting_for, when=lambda event: event.type == "DELETED")
        try:
            await self._controller.run()
        finally:
            await asyncio.gather(*(each.close() for each in self._flows.values()))

    def _waiting_for(self, event: WatchEvent) -> Iterable[Key]:
        """Seeds with expired backups of a Shoot that is gone now."""
        uid = event.object["metadata"]["uid"]
        expired = (each for each in self._entries.list(event.object["metadata"]["namespace"]) if _has_expired(each))
        return {Key(None, each["spec"]["seedName"]) for each in expired if each["metadata"]["name"].endswith(uid)}

    async def _reconcile(self, key: Key) -> None:
        """``key``: of a Seed."""
        wanted: list[SeedFlow] = []
        refused: dict[str, str] = {}
        for entry in filter(_has_expired, self._entries.by_index(_BY_SEED, key.name)):
            try:
                wanted.append(self._flow(self._judge(entry)))
            except Refused as error:
                refused[str(key_of(entry))] = str(error)
        for line in told_once(self._told, key.name, refused):
            log.warning("seed %s: its gardenlet asks for a deletion that is refused: BackupEntry %s", key.name, line)
        flows = self._flows.get(key.name)
        if flows is None:
            flows = self._flows[key.name] = SeedFlows(self._temporal, partial(self._controller.enqueue, key))
        await flows.offer(wanted)

    def _judge(self, entry: Object) -> ShootTask:
        project = project_of(entry["metadata"]["namespace"], self._namespaces, self._projects)
        return judge(entry, self._seeds.get(entry["spec"]["seedName"]), self._is_in_garden, project)

    def _is_in_garden(self, uid: str) -> bool:
        return bool(self._shoots.by_index(BY_UID, uid))

    def _flow(self, task: ShootTask) -> SeedFlow:
        async def request() -> FlowInput | None:
            live = await self._garden.find(resources.SHOOT, task.shoot.name, task.shoot.namespace)
            if live is not None and live["metadata"]["uid"] == task.shoot.uid:
                return None
            return FlowInput(task=task, facts=ShootFacts())

        return SeedFlow(
            delete_backups_id(task.shoot), DeleteBackups.run, f"Delete the backups of {task.shoot}", request
        )


def judge(entry: Object, seed: Object | None, exists: Callable[[str], bool], project: str | None) -> ShootTask:
    """Task that deletes the backups, made from the garden's objects.

    ``seed`` is the Seed that the entry names, ``exists`` says whether a Shoot with a uid exists, ``project`` owns the
    namespace.

    Raises:
        Refused: the mark does not count.
    """
    metadata = entry["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each["kind"] == "Shoot"]
    if len(owners) != 1:
        raise Refused("no Shoot is its owner")
    shoot = ShootRef(namespace=metadata["namespace"], name=owners[0]["name"], uid=owners[0]["uid"])
    if exists(shoot.uid):
        raise Refused(f"Shoot {shoot} is there")
    if project is None:
        raise Refused(f"namespace {shoot.namespace} belongs to no Project")
    technical = technical_id(project, shoot.name)
    if metadata["name"] != backup_entry_names(technical, shoot.uid)[1]:
        raise Refused(f"its name is not that of the backups of Shoot {shoot} with uid {shoot.uid}")
    if seed is None or seed["metadata"]["uid"] != entry["spec"].get("bucketName"):
        raise Refused("it names the bucket of another Seed")
    return ShootTask(
        shoot=shoot,
        technical_id=technical,
        seed=seed["metadata"]["name"],
        generation=0,
        operation=OperationType.DELETE,
        trigger=micro_timestamp(),
    )


def _has_expired(entry: Object) -> bool:
    return is_marked(entry) and bool((entry["metadata"].get("annotations") or {}).get(BACKUP_EXPIRED))


def _seeds_of(entry: Object) -> Iterable[str]:
    seed = entry["spec"].get("seedName")
    return (seed,) if seed else ()


def _seed_of(event: WatchEvent) -> Iterable[Key]:
    return [Key(None, seed) for seed in _seeds_of(event.object)]
