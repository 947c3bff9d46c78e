"""Registers the Seed, requests its reconciliation, and renews its lease."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from activities.clusters import Clusters
from activities.garden.seed_status import write_seed_status
from activities.seed.bootstrap import GARDENLET_READY
from api import resources
from api.constants import OPERATION, OPERATION_RECONCILE, SEED_LEASE_NAMESPACE
from api.decisions.conditions import Operation, merge
from api.times import micro_timestamp
from kube.cache import Key
from kube.controller import Controller, TryAgain
from kube.errors import ApiError, Conflict, NotFound
from workers.gardenlet.config import SeedConfig
from workers.gardenlet.garden_caches import own_seed
from workers.gardenlet.registration import MANAGER, register

log = logging.getLogger(__name__)

LEASE_SECONDS = 10
"""Seconds between renewals. If the lease is not renewed for 40 s, GardenletReady becomes Unknown. Source:
spec/api-core.md 12."""


class SeedController:
    """Registers the Seed, requests its reconciliation when the gardenlet starts, and renews its lease.

    The controller-manager starts that reconciliation, as it does for each change of the Seed (``workflows.seed``).
    """

    def __init__(self, clusters: Clusters, config: SeedConfig, identity: str) -> None:
        self._clusters = clusters
        self._config = config
        self._identity = identity
        self._seeds = own_seed(clusters)
        self._has_asked = False

    async def run(self) -> None:
        """Run until cancelled."""
        seed = await register(self._clusters.garden, self._config)
        controller = Controller("seed", self._ask, workers=1)
        controller.watch(self._seeds)
        await asyncio.gather(controller.run(), self._keep_lease(seed))

    async def _ask(self, key: Key) -> None:
        """Request a reconciliation, once: this gardenlet may have another version than the last one.

        An operation that an operator has requested comes first. Its end changes the Seed and so requeues it.
        """
        seed = self._seeds.get(key.name)
        if self._has_asked or seed is None:
            return
        asked = (seed["metadata"].get("annotations") or {}).get(OPERATION)
        if asked not in (None, OPERATION_RECONCILE):
            log.info("seed %s: its reconciliation waits for operation %s", key.name, asked)
            return
        if asked is None:
            version = seed["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version, "annotations": {OPERATION: OPERATION_RECONCILE}}}
            try:
                await self._clusters.garden.patch(resources.SEED, key.name, None, patch)
            except Conflict:
                raise TryAgain("the Seed has changed meanwhile", after=0.1) from None
        self._has_asked = True

    async def _keep_lease(self, seed: dict[str, Any]) -> None:
        while True:
            try:
                await self._renew_lease(seed)
                await self._deny_doubts(seed["metadata"]["name"])
            except ApiError as error:
                log.warning("renewing the seed's lease: %s", error)
            await asyncio.sleep(LEASE_SECONDS)  # a lease is renewed by the clock

    async def _deny_doubts(self, name: str) -> None:
        """Set GardenletReady back to True, if the controller-manager set it to Unknown while our lease was expired.

        The controller-manager does not set it back.
        """
        seed = self._seeds.get(name)
        known = ((seed or {}).get("status") or {}).get("conditions") or []
        conditions = merge(known, [GARDENLET_READY], Operation(), {}, datetime.now(UTC))
        if seed is not None and known and conditions != known:
            await write_seed_status(self._clusters.garden, seed, {"conditions": conditions})

    async def _renew_lease(self, seed: dict[str, Any]) -> None:
        name = seed["metadata"]["name"]
        lease = {
            "apiVersion": resources.LEASE.api_version,
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": SEED_LEASE_NAMESPACE,
                "ownerReferences": [
                    {
                        "apiVersion": resources.SEED.api_version,
                        "kind": "Seed",
                        "name": name,
                        "uid": seed["metadata"]["uid"],
                    }
                ],
            },
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": 40,
                "renewTime": micro_timestamp(),
            },
        }
        try:
            await self._clusters.garden.apply_blindly(lease, manager=MANAGER)
        except NotFound:
            await self._clusters.garden.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SEED_LEASE_NAMESPACE}}, manager=MANAGER
            )
            await self._clusters.garden.apply_blindly(lease, manager=MANAGER)
