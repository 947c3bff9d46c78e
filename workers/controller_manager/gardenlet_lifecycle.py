"""Set conditions of Seeds and their Shoots to Unknown when the seed's gardenlet no longer renews its lease.

After a longer time, moves out of such a seed go on without its gardenlet. Source: spec/api-core.md 12, "Gardenlet
lifecycle"; spec/flows.md 8.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import Field

from api import constants, resources
from api.decisions.conditions import Finding, Operation, merge, status_label
from api.model import ApiModel
from kube.cache import Caches, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.errors import NotFound
from kube.events import emit

log = logging.getLogger(__name__)


_NAME = "gardener-controller-manager"
_LEASE_POLL_SECONDS = 10.0
_SHOOT_PERIODS = 5
"""A Shoot's conditions become Unknown after this multiple of the Seed's monitor period."""
_UNKNOWN = Finding(
    constants.SEED_GARDENLET_READY, "Unknown", "SeedStatusUnknown", "Gardenlet stopped posting seed status."
)


_BY_SEED = "status.seedName"
"""Index of Shoots by the seed that hosts their control plane."""


class GardenletLifecycleConfig(ApiModel):
    monitor_period: timedelta = Field(default=timedelta(seconds=40), gt=timedelta())
    """Time without a renewed lease after which condition GardenletReady of the Seed becomes Unknown."""
    lost_source_patience: timedelta = Field(default=timedelta(minutes=10), ge=timedelta())
    """Time without a renewed lease after which a move out of the seed goes on without its gardenlet: the destination
    restores the control plane from the bucket. 0: only if an operator asks for it by annotation."""


@dataclass
class _Heard:
    """Last observed ``renewTime`` of a lease, since when it has been observed, and the time of the last read (monotonic
    seconds)."""

    renewed: str
    since: float
    looked: float


async def run_gardenlet_lifecycle_controller(
    client: KubeClient, caches: Caches, config: GardenletLifecycleConfig
) -> None:
    """Run until cancelled."""
    seeds, shoots = caches.of(resources.SEED), caches.of(resources.SHOOT)
    await shoots.synced()
    controller = Controller("gardenlet-lifecycle", _LifecycleReconciler(client, caches, config).reconcile, workers=2)
    controller.watch(seeds)
    await controller.run()


class _LifecycleReconciler:
    def __init__(self, client: KubeClient, caches: Caches, config: GardenletLifecycleConfig) -> None:
        self._client = client
        self._seeds, self._shoots = caches.of(resources.SEED), caches.of(resources.SHOOT)
        self._shoots.index(_BY_SEED, _seeds_of)
        self._config = config
        self._heard: dict[str, _Heard] = {}

    async def reconcile(self, key: Key) -> Requeue | None:
        seed = self._seeds.get(key.name)
        if seed is None:
            self._heard.pop(key.name, None)
            return None
        silent = await self._silence(key.name)
        if silent >= self._config.monitor_period:
            await self._doubt(seed)
        if silent >= _SHOOT_PERIODS * self._config.monitor_period:
            for shoot in self._shoots_of(key.name):
                await self._doubt_shoot(shoot)
        if self._config.lost_source_patience and silent >= self._config.lost_source_patience:
            for shoot in self._shoots_of(key.name):
                await self._give_up_source(shoot, key.name, silent)
        return Requeue(_LEASE_POLL_SECONDS)

    async def _silence(self, seed: str) -> timedelta:
        """Time since the lease last changed, by this process's clock: the gardenlet's clock may differ.

        Time in which this process did not read the lease does not count, because renewals went unnoticed then.
        """
        lease = await self._client.find(resources.LEASE, seed, constants.SEED_LEASE_NAMESPACE)
        renewed = str(((lease or {}).get("spec") or {}).get("renewTime", ""))
        now, heard = time.monotonic(), self._heard.get(seed)
        if heard is None or heard.renewed != renewed or now - heard.looked > 3 * _LEASE_POLL_SECONDS:
            self._heard[seed] = _Heard(renewed, now, now)
            return timedelta()
        heard.looked = now
        return timedelta(seconds=now - heard.since)

    def _shoots_of(self, seed: str) -> Iterable[Object]:
        return self._shoots.by_index(_BY_SEED, seed)

    async def _doubt(self, seed: Object) -> None:
        known = (seed.get("status") or {}).get("conditions") or []
        conditions = merge(known, [_UNKNOWN], Operation(), {}, datetime.now(UTC))
        if not known or conditions == known:
            return  # a Seed without conditions has never been ready, so its gardenlet is not lost
        log.warning("Seed %s: its gardenlet does not renew its lease", seed["metadata"]["name"])
        await self._write_status(resources.SEED, seed, {"conditions": conditions})
        await emit(self._client, seed, _NAME, _UNKNOWN.reason, _UNKNOWN.message, "Warning")

    async def _doubt_shoot(self, shoot: Object) -> None:
        status, now = shoot.get("status") or {}, datetime.now(UTC)
        change = {}
        for field in ("conditions", "constraints"):
            known = status.get(field) or []
            doubts = [
                Finding(each["type"], "Unknown", "StatusUnknown", "Gardenlet stopped sending heartbeats.")
                for each in known
            ]
            if (merged := merge(known, doubts, Operation(), {}, now)) != known:
                change[field] = merged
        if change:
            await self._write_status(resources.SHOOT, shoot, change)
            labels = {constants.SHOOT_STATUS: status_label({**status, **change})}
            await self._patch(resources.SHOOT, shoot, {"metadata": {"labels": labels}})

    async def _give_up_source(self, shoot: Object, seed: str, silent: timedelta) -> None:
        """Annotate a Shoot that moves out of the seed: the destination goes on without the source.

        An operator can set the same annotation at once.
        """
        metadata, destination = shoot["metadata"], shoot["spec"].get("seedName")
        said = constants.CONTROL_PLANE_MIGRATION in (metadata.get("annotations") or {})
        if destination in (None, seed) or said or "deletionTimestamp" in metadata:
            return
        annotations = {constants.CONTROL_PLANE_MIGRATION: constants.MIGRATION_BAD_CASE}
        await self._patch(resources.SHOOT, shoot, {"metadata": {"annotations": annotations}})
        since = f"The gardenlet of Seed {seed} is silent for {silent.seconds // 60} min"
        text = f"{since}: {destination} takes over"
        log.warning("Shoot %s/%s: %s", metadata["namespace"], metadata["name"], text)
        await emit(self._client, shoot, _NAME, "SourceSeedLost", text, "Warning")

    async def _write_status(self, resource: resources.Resource, live: Object, status: Object) -> None:
        """Patch the status with the ``resourceVersion`` that was read: the gardenlet may write to it again."""
        await patch_as_read(self._client, resource, live, {"status": status}, subresource="status")

    async def _patch(self, resource: resources.Resource, live: Object, patch: Object) -> None:
        metadata = live["metadata"]
        try:
            ours = {"metadata": {"uid": metadata["uid"], **patch["metadata"]}}
            await self._client.patch(resource, metadata["name"], metadata["namespace"], ours)
        except NotFound:
            log.debug("Shoot %s/%s is gone", metadata["namespace"], metadata["name"])


def _seeds_of(shoot: Object) -> Iterable[str]:
    seed = (shoot.get("status") or {}).get("seedName")
    return (seed,) if seed else ()
