"""Delete Shoots whose lifetime, limited by a quota, is over. Source: spec/api-core.md 12, "Shoot quota"."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from api import constants, resources
from api.decisions.credentials import BINDINGS, binding_of
from api.decisions.lifetime import expiration, lifetime, parsed
from api.times import timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import Conflict
from workers.lib.events import emit

log = logging.getLogger(__name__)

Object = dict[str, Any]

_NAME = "gardener-controller-manager"
_SYNC_SECONDS = 3600.0


async def run_lifetime_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    shoots, quotas = caches.of(resources.SHOOT), caches.of(resources.QUOTA)
    bindings = [caches.of(each) for each in BINDINGS]
    await asyncio.gather(*(cache.synced() for cache in (shoots, quotas, *bindings)))
    controller = Controller("lifetime", _Keeper(client, caches).reconcile, workers=2)
    controller.watch(shoots, when=_concerns)
    # Quotas change rarely, and a changed quota may apply to every Shoot.
    all_shoots = lambda _: [Key(each["metadata"]["namespace"], each["metadata"]["name"]) for each in shoots.list()]  # noqa: E731
    controller.watch(quotas, keys=all_shoots)
    await controller.run()


class _Keeper:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def reconcile(self, key: Key) -> Requeue | None:
        shoot = self._caches.of(resources.SHOOT).get(key.name, key.namespace)
        if shoot is None or "deletionTimestamp" in shoot["metadata"]:
            return None
        allowed = lifetime(self._quotas_of(shoot))
        annotations = shoot["metadata"].get("annotations") or {}
        written = annotations.get(constants.SHOOT_EXPIRATION_TIMESTAMP)
        if allowed is None:
            if written is not None:
                await self._annotate(shoot, {constants.SHOOT_EXPIRATION_TIMESTAMP: None})
            return None
        end = expiration(shoot, allowed)
        if written is None or parsed(written) is None:
            text = timestamp(end)
            shoot = await self._annotate(shoot, {constants.SHOOT_EXPIRATION_TIMESTAMP: text})
        left = (end - datetime.now(UTC)).total_seconds()
        if left > 0:
            return Requeue(min(left, _SYNC_SECONDS))
        await self._end(shoot, end)
        return None

    def _quotas_of(self, shoot: Object) -> list[Object]:
        """Quotas of the binding that the Shoot names for its credentials."""
        bound = binding_of(shoot)
        if bound is None:
            return []
        kind, name = bound
        home = shoot["metadata"]["namespace"]
        binding = self._caches.of(kind.resource).get(name, home) or {}
        quotas = self._caches.of(resources.QUOTA)
        found = [quotas.get(each["name"], each.get("namespace") or home) for each in binding.get("quotas") or ()]
        return [each for each in found if each is not None]

    async def _end(self, shoot: Object, end: datetime) -> None:
        metadata = shoot["metadata"]
        text = f"its quota lets the cluster live until {end:%Y-%m-%d %H:%M} UTC: deleting it"
        await self._annotate(shoot, {constants.CONFIRMATION_DELETION: "true"})
        await self._client.delete(
            resources.SHOOT, metadata["name"], metadata["namespace"], uid=metadata["uid"], propagation="Background"
        )
        log.info("Shoot %s/%s: %s", metadata["namespace"], metadata["name"], text)
        await emit(self._client, shoot, _NAME, "ClusterLifetimeExpired", text)

    async def _annotate(self, shoot: Object, annotations: dict[str, str | None]) -> Object:
        """Patch annotations with the ``resourceVersion`` that was read: the owner may extend the lifetime meanwhile."""
        metadata = shoot["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": annotations}}
        try:
            return await self._client.patch(resources.SHOOT, metadata["name"], metadata["namespace"], patch)
        except Conflict:
            raise TryAgain("the Shoot has changed meanwhile", after=0.1) from None


def _concerns(event: WatchEvent) -> bool:
    return event.type != "DELETED" and (event.old is None or _facts(event.old) != _facts(event.object))


def _facts(shoot: Object) -> object:
    annotations = shoot["metadata"].get("annotations") or {}
    return annotations.get(constants.SHOOT_EXPIRATION_TIMESTAMP), binding_of(shoot)
