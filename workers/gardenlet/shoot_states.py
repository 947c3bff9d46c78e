"""Writes a ShootState of each Shoot to the garden: the data that another seed needs if this seed is lost.

It does so every six hours, and soon after the data have changed: an operation has succeeded, or machines were created
or deleted. Source: spec/flows.md 7.
"""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from activities.clusters import Clusters
from activities.seed.namespace import is_foreign
from activities.seed.shoot_state import ShootStateActivities
from api import resources
from api.contracts.operations import MIGRATIONS, OperationType, ShootRef, ShootTask
from kube.cache import Key, key_of
from kube.client import WatchEvent
from kube.controller import Controller, Requeue
from workers.gardenlet.garden_caches import BY_TECHNICAL_ID, shoots_here

_JITTER = timedelta(minutes=15)
_SETTLE_SECONDS = 2.0
"""Pause after a change of machines. Machines are often created in groups, and one ShootState is written for a group."""


class ShootStateController:
    """Writes ShootStates of the Shoots whose control planes are in this seed, and only while they stay here.

    One per gardenlet.
    """

    def __init__(self, clusters: Clusters, period: timedelta) -> None:
        self._clusters = clusters
        self._period = period
        self._activities = ShootStateActivities(clusters)
        self._shoots = shoots_here(clusters)
        self._controller = Controller("shoot states", self._persist, workers=2, longest_delay=300.0)
        self._controller.watch(self._shoots, when=_has_succeeded)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        machines = clusters.seed_caches.of(resources.MACHINE)
        machines.subscribe(self._machine_changed)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._namespaces.synced()
        await self._controller.run()

    def _machine_changed(self, event: WatchEvent) -> None:
        if event.type == "MODIFIED" and event.old is not None and _provider_id(event.old) == _provider_id(event.object):
            return
        for shoot in self._shoots.by_index(BY_TECHNICAL_ID, event.object["metadata"]["namespace"]):
            self._controller.enqueue(key_of(shoot), after=_SETTLE_SECONDS)

    async def _persist(self, key: Key) -> Requeue | None:
        shoot = self._shoots.get(key.name, key.namespace)
        if shoot is None or not stays(shoot, self._clusters.seed_name):
            return None
        if is_foreign(self._namespaces, shoot):
            return Requeue(self._period.total_seconds())
        await self._activities.persist_shootstate(
            ShootTask(
                shoot=ShootRef.of(shoot),
                technical_id=shoot["status"]["technicalID"],
                seed=self._clusters.seed_name,
                generation=shoot["metadata"]["generation"],
                operation=OperationType.RECONCILE,
            )
        )
        return Requeue((self._period + random.uniform(-1, 1) * min(_JITTER, self._period / 4)).total_seconds())


def stays(shoot: Mapping[str, Any], seed: str) -> bool:
    """Whether a Shoot's control plane is complete and in this seed, and is not being moved or deleted."""
    status = shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    here = {status.get("seedName"), shoot["spec"].get("seedName")} == {seed}
    unfinished = last.get("type") in ("Create", "Restore") and last.get("state") != "Succeeded"
    leaving = last.get("type") in (*MIGRATIONS, "Delete") or "deletionTimestamp" in shoot["metadata"]
    return bool(here and status.get("technicalID") and last and not unfinished and not leaving)


def _has_succeeded(event: WatchEvent) -> bool:
    """Whether an operation has just succeeded. Later changes of the status, for example of conditions, do not count."""
    if event.type == "DELETED":
        return False
    last = ((event.object.get("status") or {}).get("lastOperation")) or {}
    before = (((event.old or {}).get("status") or {}).get("lastOperation")) or {}
    return last.get("state") == "Succeeded" and before.get("state") != "Succeeded"


def _provider_id(machine: Mapping[str, Any]) -> object:
    return machine["spec"].get("providerID")
