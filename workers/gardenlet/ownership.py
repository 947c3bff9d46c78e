"""Tells the extensions of this seed whether it still has each control plane (``workers.extension.ownership``).

The garden says which seed has a control plane. The gardenlet writes the name of another seed into the Shoot's Cluster.
It renews a Lease in the seed while it reaches the garden: without that, it would not learn of a takeover.
"""

import asyncio
import logging
from datetime import timedelta

from activities.clusters import Clusters, patch_cluster
from activities.components import base
from activities.seed.backups import backup_entries_of
from activities.seed.extension_objects import MANAGER
from api import resources
from api.constants import GARDEN_NAMESPACE, OWNERSHIP_LEASE
from api.decisions.ownership import new_home
from api.names import backup_entry_names
from api.times import micro_timestamp
from kube.cache import Key
from kube.client import Object, WatchEvent
from kube.controller import Controller
from kube.errors import ApiError
from workers.gardenlet.garden_caches import shoots_here

log = logging.getLogger(__name__)

_RENEWALS = 5
"""Number of renewals of the Lease within its duration."""


class OwnershipController:
    """One per gardenlet. A second run writes the same."""

    def __init__(self, clusters: Clusters, tolerance: timedelta) -> None:
        """``tolerance``: how long extensions go on without news of the garden. Etcds do the same."""
        self._clusters = clusters
        self._tolerance = tolerance.total_seconds()
        self._here = clusters.seed_caches.of(resources.CLUSTER)
        self._shoots = shoots_here(clusters)
        self._entries = backup_entries_of(clusters)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(each.synced() for each in (self._here, self._shoots, self._entries)))
        controller = Controller("ownership of control planes", self._look, workers=2)
        controller.watch(self._here)
        controller.watch(self._shoots, keys=_of_shoot)
        controller.watch(self._entries, keys=_of_entry)
        await asyncio.gather(controller.run(), self._keep_lease())

    async def _look(self, key: Key) -> None:
        """Write into one Cluster that another seed has its control plane. ``key``: of the Cluster."""
        cluster = self._here.get(key.name)
        pinned = ((cluster or {}).get("spec") or {}).get("shoot") or {}
        if not pinned:
            return
        metadata, seed = pinned["metadata"], self._clusters.seed_name
        cached = self._shoots.get(metadata["name"], metadata["namespace"])
        if cached and (cached["metadata"]["uid"], cached["spec"].get("seedName")) == (metadata["uid"], seed):
            return  # in this seed, and to stay there
        live = await self._clusters.garden.find(resources.SHOOT, metadata["name"], metadata["namespace"])
        if live is None or live["metadata"]["uid"] != metadata["uid"]:
            return  # the Shoot is deleted: that says nothing of another seed
        _, name = backup_entry_names(key.name, metadata["uid"])
        entry = await self._clusters.garden.find(resources.CORE_BACKUP_ENTRY, name, metadata["namespace"])
        home = new_home(live, seed, entry["spec"].get("seedName") if entry else None)
        known = (pinned["spec"].get("seedName"), (pinned.get("status") or {}).get("seedName"))
        if home and known != (home, home):
            told = {"spec": {"seedName": home}, "status": {"seedName": home}}
            await patch_cluster(self._clusters.seed, key.name, {"spec": {"shoot": told}})
            log.warning("control plane %s is in seed %s now: extensions of this seed stop working on it", key, home)

    async def _keep_lease(self) -> None:
        """Renew the Lease after each answer of the garden. Its time is that before the question."""
        for each in _access():
            await self._clusters.seed.apply(each, manager=MANAGER)
        pause = self._tolerance / _RENEWALS
        while True:
            renewed = micro_timestamp()
            try:
                async with asyncio.timeout(pause):
                    await self._clusters.garden.find(resources.SEED, self._clusters.seed_name)
                    await self._clusters.seed.apply_blindly(self._lease(renewed), manager=MANAGER)
            except (ApiError, TimeoutError) as error:
                why = str(error) or "an API server does not answer"
                log.warning("Lease %s is not renewed, extensions will stop: %s", OWNERSHIP_LEASE, why)
            await asyncio.sleep(pause)  # a lease is renewed by the clock

    def _lease(self, renewed: str) -> Object:
        return {
            "apiVersion": resources.LEASE.api_version,
            "kind": resources.LEASE.kind,
            "metadata": {"name": OWNERSHIP_LEASE, "namespace": GARDEN_NAMESPACE},
            "spec": {
                "holderIdentity": self._clusters.seed_name,
                "leaseDurationSeconds": max(int(self._tolerance), 1),
                "renewTime": renewed,
            },
        }


def _access() -> list[Object]:
    """The right of each identity of the seed to read the Lease, which holds a time and the seed's name."""
    name = f"gardener.cloud:{OWNERSHIP_LEASE}"
    rules = [base.rule("coordination.k8s.io", "leases", "get list watch", [OWNERSHIP_LEASE])]
    readers = [base.group("system:authenticated")]
    return [
        base.role(name, GARDEN_NAMESPACE, rules),
        base.binding(name, readers, role=name, namespace=GARDEN_NAMESPACE),
    ]


def _of_shoot(event: WatchEvent) -> list[Key]:
    technical_id = (event.object.get("status") or {}).get("technicalID")
    return [Key(None, technical_id)] if technical_id else []


def _of_entry(event: WatchEvent) -> list[Key]:
    return [Key(None, event.object["metadata"]["name"].removeprefix("source-").rpartition("--")[0])]
