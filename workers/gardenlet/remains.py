"""Cleans up what this seed has of Shoots whose control planes were taken over while it was lost.

They are found when the seed is back: their Shoots say that another seed is responsible, and has restored them. Of a
Shoot that was deleted meanwhile the mark in our bucket says that another seed had it: that it is not in the garden is
no reason to touch anything, since a garden may be restored from yesterday. Source: spec/flows.md 8.

Until all is clean, a condition of the Seed says so; that of each Shoot is said by the seed which has it now.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client

from activities.components import etcd
from activities.etcd import snapshots
from activities.etcd.store import StoreError, open_store
from activities.kube.cache import Key
from activities.kube.client import WatchEvent
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller, Requeue, TryAgain
from activities.kube.errors import Conflict
from activities.seed.extensions import says_taken_over
from activities.seed.namespace import shoot_uid
from api import constants, resources
from api.conditions import Finding, Operation, merge
from api.names import backup_entry_name, backup_entry_names
from api.operations import OperationType, ShootRef, ShootTask
from api.times import micro_timestamp
from workers.gardenlet.flows import RETRY_SECONDS, SeedFlows
from workers.gardenlet.seed import write_conditions
from workflows.shoot.forget import ForgetShoot, forget_id

log = logging.getLogger(__name__)

_NAMED_SHOOTS = 5
"""So many of them a condition calls by name."""


class RemainsController:
    """One per gardenlet."""

    def __init__(self, clusters: Clusters, temporal: Client) -> None:
        self._clusters = clusters
        self._flows = SeedFlows(temporal)
        self._shoots = clusters.garden_caches.of(resources.SHOOT)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._seeds = clusters.garden_caches.of(resources.SEED)
        self._entries = clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY)
        self._deleted: dict[str, ShootRef] = {}
        """By technical id, those not in the garden any more that are not cleaned up yet."""
        self._key = Key(None, clusters.seed_name)
        self._telling = Controller("what the Seed says of remains", self._tell, workers=1)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(each.synced() for each in (self._namespaces, self._shoots, self._seeds, self._entries)))
        controller = Controller("remains", self._reconcile, workers=2)
        controller.watch(self._shoots)
        for cache in (self._seeds, self._shoots, self._namespaces, self._entries):
            self._telling.watch(cache, keys=lambda _: [self._key])
        deleted = Controller("remains of deleted Shoots", self._look_for_deleted, workers=1)
        deleted.watch(self._namespaces, when=lambda event: shoot_uid(event.object) is not None)
        deleted.watch(self._shoots, keys=_home, when=lambda event: event.type == "DELETED")
        await asyncio.gather(controller.run(), deleted.run(), self._telling.run())

    async def _reconcile(self, key: Key) -> Requeue | None:
        shoot = self._shoots.get(key.name, key.namespace)
        if shoot is None or not self._is_left(shoot):
            return None
        task = ShootTask(
            shoot=ShootRef.of(shoot),
            technical_id=shoot["status"]["technicalID"],
            seed=self._clusters.seed_name,
            generation=shoot["metadata"]["generation"],
            operation=OperationType.MIGRATE,
            destination=shoot["status"]["seedName"],
            trigger=micro_timestamp(),
        )
        log.warning("Shoot %s is in seed %s now; cleaning up what is left of it here", task.shoot, task.destination)
        return await self._forget(task)

    async def _look_for_deleted(self, key: Key) -> Requeue | None:
        """``key``: of a control plane's namespace."""
        namespace = self._namespaces.get(key.name)
        uid = shoot_uid(namespace) if namespace is not None else None
        if uid is None or any(each["metadata"]["uid"] == uid for each in self._shoots.list()):
            return None
        cluster = await self._clusters.seed.find(resources.CLUSTER, key.name)
        shoot = ((cluster or {}).get("spec") or {}).get("shoot")
        if not shoot or shoot["metadata"]["uid"] != uid:
            return None
        task = ShootTask(
            shoot=ShootRef.of(shoot),
            technical_id=key.name,
            seed=self._clusters.seed_name,
            generation=shoot["metadata"].get("generation", 0),
            operation=OperationType.MIGRATE,
            trigger=micro_timestamp(),
        )
        failed = self._flows.has_failed(forget_id(task.shoot, task.seed))
        if not failed and not await self._was_taken_over(task):
            return None
        live = await self._clusters.garden.find(resources.SHOOT, task.shoot.name, task.shoot.namespace)
        if live is not None and live["metadata"]["uid"] == uid:
            return Requeue(RETRY_SECONDS)
        log.warning("Shoot %s was taken over, and is deleted; cleaning up what is left of it here", task.shoot)
        self._deleted[key.name] = task.shoot
        again = await self._forget(task)
        if again is None:
            del self._deleted[key.name]
            self._telling.enqueue(self._key)
        return again

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
        known = ((seed or {}).get("status") or {}).get("conditions") or []
        if seed is None or not known:
            return  # it is not ready yet, and is looked at again when it is
        left = [*(ShootRef.of(each) for each in self._shoots.list() if self._is_left(each)), *self._deleted.values()]
        failed = [each for each in left if self._flows.has_failed(forget_id(each, key.name))]
        type_ = constants.SEED_MOVED_CONTROL_PLANES_CLEANED_UP
        if left:
            conditions = merge(known, [_finding(left, failed)], Operation.of(seed["status"]), {}, datetime.now(UTC))
        else:
            conditions = [each for each in known if each["type"] != type_]
        if conditions == known:
            return
        try:
            await write_conditions(self._clusters.garden, seed, conditions)
        except Conflict:
            raise TryAgain("it has changed meanwhile", after=0.5) from None

    async def _was_taken_over(self, task: ShootTask) -> bool:
        """Whether another seed has put its mark into our bucket. Raises TryAgain if that cannot be told."""
        seed, entry_name = self._clusters.seed, backup_entry_name(task)
        entry = await seed.find(resources.BACKUP_ENTRY, entry_name)
        secret = await seed.find(resources.SECRET, etcd.BACKUP_SECRET, task.technical_id)
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

    async def _forget(self, task: ShootTask) -> Requeue | None:
        workflow_id, summary = forget_id(task.shoot, task.seed), f"Forget {task.shoot} in {task.seed}"
        again = await self._flows.attempt(ForgetShoot.run, task, workflow_id, summary)
        self._telling.enqueue(self._key)
        return again


def _finding(left: Sequence[ShootRef], failed: Sequence[ShootRef]) -> Finding:
    type_, why = constants.SEED_MOVED_CONTROL_PLANES_CLEANED_UP, "Other seeds have taken over what this one had of"
    if failed:
        return Finding(
            type_, "False", "CleanupFailed", f"{why} {_names(failed)}. Cleaning up failed, and is tried again."
        )
    return Finding(type_, "Progressing", "CleanupRunning", f"{why} {_names(left)}. It is being cleaned up.")


def _names(shoots: Sequence[ShootRef]) -> str:
    names = [str(each) for each in shoots[:_NAMED_SHOOTS]]
    more = len(shoots) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _home(event: WatchEvent) -> list[Key]:
    """The namespace of a Shoot's control plane."""
    technical_id = (event.object.get("status") or {}).get("technicalID")
    return [Key(None, technical_id)] if technical_id else []


def is_elsewhere(shoot: Mapping[str, Any], seed: str) -> bool:
    """Whether another seed than this one is responsible for a Shoot, and has its control plane whole."""
    status = shoot.get("status") or {}
    responsible, last = status.get("seedName"), status.get("lastOperation") or {}
    if not responsible or not status.get("technicalID") or seed in (responsible, shoot["spec"].get("seedName")):
        return False
    unfinished = last.get("type") == "Migrate" or (last.get("type") == "Restore" and last.get("state") != "Succeeded")
    return not unfinished
