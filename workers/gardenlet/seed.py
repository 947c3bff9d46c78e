"""Registers the Seed, requests its reconciliation, and renews its lease."""

import asyncio
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from activities.clusters import Clusters
from activities.garden.seed_status import write_seed_status
from activities.seed.bootstrap import GARDENLET_READY
from api import resources
from api.constants import OPERATION, OPERATION_RECONCILE, SEED_LEASE_NAMESPACE
from api.decisions.conditions import Operation, merge
from api.meta import Quantity
from api.times import micro_timestamp
from kube import liveness
from kube.cache import Key
from kube.controller import Controller
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from kube.objects import owner_reference
from workers.gardenlet.config import ResourcesConfig, SeedConfig
from workers.gardenlet.garden_caches import own_seed
from workers.gardenlet.registration import MANAGER, register

log = logging.getLogger(__name__)

LEASE_SECONDS = 10
"""Seconds between renewals."""
_ANSWER_SECONDS = 10
"""Seconds within which a healthy API server answers."""
LEASE_DURATION_SECONDS = 40
"""Seconds after which GardenletReady becomes Unknown, if the lease is not renewed. Source: spec/api-core.md 12."""


_NO_LIMITS = ResourcesConfig()


class SeedController:
    """Registers the Seed, requests its reconciliation when the gardenlet starts, and renews its lease.

    The controller-manager starts that reconciliation, as it does for each change of the Seed (``workflows.seed``).
    """

    def __init__(
        self, clusters: Clusters, config: SeedConfig, identity: str, capacity: ResourcesConfig = _NO_LIMITS
    ) -> None:
        self._clusters = clusters
        self._config = config
        self._capacity = capacity
        self._identity = identity
        self._seeds = own_seed(clusters)
        self._has_asked = False
        self._seed_answered = 0.0

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
            patch = {"metadata": {"annotations": {OPERATION: OPERATION_RECONCILE}}}
            await patch_as_read(self._clusters.garden, resources.SEED, seed, patch)
        self._has_asked = True

    def fault(self) -> str | None:
        """Fault for the liveness of the process: the seed's API server has not been healthy for a whole lease.

        A gardenlet that cannot reach the garden is alive: it still serves the etcds of its seed.
        """
        silent = time.monotonic() - self._seed_answered
        if silent > LEASE_DURATION_SECONDS:
            return f"the API server of the seed has not been healthy for {silent:.0f} s"
        return None

    async def _keep_lease(self, seed: dict[str, Any]) -> None:
        """Renew the Seed's lease while the API server of the seed is healthy. Without one, the seed hosts nothing.

        The garden has a time limit, too: if it never answered, the seed would not be asked again in time.
        """
        self._seed_answered = time.monotonic()  # a replica may have waited for its leadership until now
        with liveness.running(self):
            while True:
                try:
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        await self._clusters.seed.request("GET", "/healthz")
                    self._seed_answered = time.monotonic()
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        if not await self._is_gone(seed):
                            await self._renew_lease(seed)
                            await self._keep_status(seed["metadata"]["name"])
                except (ApiError, TimeoutError) as error:
                    reason = str(error) or "an API server does not answer"
                    log.warning("the lease or the status of the Seed is not written: %s", reason)
                await asyncio.sleep(LEASE_SECONDS)  # a lease is renewed by the clock

    async def _is_gone(self, seed: dict[str, Any]) -> bool:
        """Whether the Seed was deleted: a Lease written after that would stay behind.

        The API server decides, because right after the registration the cache may not have the Seed yet.
        """
        name, uid = seed["metadata"]["name"], seed["metadata"]["uid"]
        live = self._seeds.get(name)
        if live is None or live["metadata"]["uid"] != uid:
            live = await self._clusters.garden.find(resources.SEED, name)
        return live is None or live["metadata"]["uid"] != uid

    async def _keep_status(self, name: str) -> None:
        """Keep capacity and GardenletReady in the Seed's status.

        The controller-manager set GardenletReady to Unknown if our lease was expired, and does not set it back.
        """
        seed = self._seeds.get(name)
        known = (seed or {}).get("status") or {}
        change = _changed_amounts(known, "capacity", self._capacity.capacity)
        change |= _changed_amounts(known, "allocatable", self._capacity.allocatable)
        if before := known.get("conditions"):
            conditions = merge(before, [GARDENLET_READY], Operation(), {}, datetime.now(UTC))
            change |= {"conditions": conditions} if conditions != before else {}
        if seed is not None and change:
            await write_seed_status(self._clusters.garden, seed, change)

    async def _renew_lease(self, seed: dict[str, Any]) -> None:
        name = seed["metadata"]["name"]
        lease = {
            "apiVersion": resources.LEASE.api_version,
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": SEED_LEASE_NAMESPACE,
                "ownerReferences": [owner_reference(resources.SEED, name, seed["metadata"]["uid"], controller=False)],
            },
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_DURATION_SECONDS,
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


def _changed_amounts(status: Mapping[str, Any], field: str, wanted: Mapping[str, Quantity]) -> dict[str, Any]:
    """Merge patch that gives a field of a status these amounts; empty if it has them."""
    known = status.get(field) or {}
    if known == dict(wanted):
        return {}
    return {field: {**dict.fromkeys(known), **wanted} if wanted else None}
