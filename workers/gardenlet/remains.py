"""Cleans up what this seed has of Shoots whose control planes were taken over while it was lost.

They are found when the seed is back: their Shoots say that another seed is responsible, and has restored them. Of a
Shoot that was deleted meanwhile the mark in our bucket says that another seed had it: that it is not in the garden is
no reason to touch anything, since a garden may be restored from yesterday. Source: spec/flows.md 8.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client

from activities.components import etcd
from activities.etcd import snapshots
from activities.etcd.store import StoreError, open_store
from activities.kube.cache import Key
from activities.kube.client import WatchEvent
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller, Requeue, TryAgain
from activities.seed.namespace import shoot_uid
from api import resources
from api.names import backup_entry_name
from api.operations import OperationType, ShootRef, ShootTask
from api.times import micro_timestamp
from workers.gardenlet.flows import RETRY_SECONDS, SeedFlows
from workflows.shoot.forget import ForgetShoot, forget_id

log = logging.getLogger(__name__)


class RemainsController:
    """One per gardenlet."""

    def __init__(self, clusters: Clusters, temporal: Client) -> None:
        self._clusters = clusters
        self._flows = SeedFlows(temporal)
        self._shoots = clusters.garden_caches.of(resources.SHOOT)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)

    async def run(self) -> None:
        """Until cancelled."""
        await self._namespaces.synced()
        await self._shoots.synced()
        controller = Controller("remains", self._reconcile, workers=2)
        controller.watch(self._shoots)
        deleted = Controller("remains of deleted Shoots", self._look_for_deleted, workers=1)
        deleted.watch(self._namespaces, when=lambda event: shoot_uid(event.object) is not None)
        deleted.watch(self._shoots, keys=_home, when=lambda event: event.type == "DELETED")
        await asyncio.gather(controller.run(), deleted.run())

    async def _reconcile(self, key: Key) -> Requeue | None:
        shoot = self._shoots.get(key.name, key.namespace)
        if shoot is None or not is_elsewhere(shoot, self._clusters.seed_name):
            return None
        namespace = self._namespaces.get(shoot["status"]["technicalID"])
        if namespace is None or shoot_uid(namespace) != shoot["metadata"]["uid"]:
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
        return await self._forget(task)

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
        return await self._flows.attempt(ForgetShoot.run, task, workflow_id, summary)


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
