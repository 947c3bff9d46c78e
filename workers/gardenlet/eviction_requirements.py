"""Sets when the vertical pod autoscaler of the seed may evict pods to give them less.

It writes ``spec.updatePolicy.evictionRequirements`` of the VerticalPodAutoscalers that have a label. Components of the
seed or extensions bring such objects; a seed without a vertical pod autoscaler has none.
"""

import asyncio
import logging
from datetime import UTC, datetime

from activities.clusters import Clusters
from api import resources
from api.decisions.eviction_requirements import LABEL, MANAGED, wanted_requirements
from kube.cache import Cache, Key
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from kube.events import emit

log = logging.getLogger(__name__)

_MANAGER = "gardenlet"
_SELECTOR = f"{LABEL}={MANAGED}"
_SERVED_SECONDS = 60.0
"""Period of the check whether the seed has VerticalPodAutoscalers."""


class EvictionRequirements:
    """Reconciles the VerticalPodAutoscalers of the seed that ask for it. One replica of the gardenlet runs it."""

    def __init__(self, clusters: Clusters, served_seconds: float = _SERVED_SECONDS) -> None:
        self._clusters = clusters
        self._served_seconds = served_seconds

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if await self._are_served():
                break
            await asyncio.sleep(self._served_seconds)
        cache = self._clusters.seed_caches.of(resources.VERTICAL_POD_AUTOSCALER, labels=_SELECTOR)
        await cache.synced()

        async def reconcile(key: Key) -> Requeue | None:
            return await self._reconcile(cache, key)

        controller = Controller("eviction-requirements", reconcile, workers=1)
        controller.watch(cache)
        await controller.run()

    async def _are_served(self) -> bool:
        """Whether the seed has the kind: a watch of an unknown kind would count as a fault of the gardenlet."""
        try:
            await self._clusters.seed.list_page(resources.VERTICAL_POD_AUTOSCALER, labels=_SELECTOR)
        except NotFound:
            return False
        except ApiError as error:
            log.warning("%s; trying again", error)
            return False
        return True

    async def _reconcile(self, cache: Cache, key: Key) -> Requeue | None:
        """Write the requirements of now. A second run finds them."""
        autoscaler = cache.get(key.name, key.namespace)
        if autoscaler is None or "deletionTimestamp" in autoscaler["metadata"]:
            return None
        now = datetime.now(UTC)
        try:
            wanted, until = wanted_requirements(autoscaler, now)
        except ValueError as error:
            await emit(self._clusters.seed, autoscaler, _MANAGER, "EvictionRequirementsInvalid", str(error), "Warning")
            return None  # a correction is an event
        policy = autoscaler["spec"].get("updatePolicy") or {}
        if (policy.get("evictionRequirements") or []) != wanted:
            patch = {"spec": {"updatePolicy": {"evictionRequirements": wanted or None}}}
            await patch_as_read(self._clusters.seed, resources.VERTICAL_POD_AUTOSCALER, autoscaler, patch)
        return Requeue((until - now).total_seconds()) if until is not None else None
