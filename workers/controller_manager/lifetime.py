"""Delete Shoots whose lifetime, limited by a quota, is over. Source: spec/api-core.md 12, "Shoot quota"."""

import asyncio
import logging
from datetime import UTC, datetime

from api import constants, resources
from api.decisions.credentials import BINDINGS, Binding, binding_of
from api.decisions.lifetime import expiration, lifetime
from api.decisions.quota import Bound, QuotaKey, effective, is_for_project
from api.times import parsed, timestamp
from kube.cache import Caches, Key, Values
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.errors import Forbidden
from kube.events import emit

log = logging.getLogger(__name__)


_NAME = "gardener-controller-manager"
_BY_CREDENTIALS = "quotas of credentials"
"""Index of bindings by their credentials."""
_SYNC_SECONDS = 3600.0


async def run_lifetime_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    shoots, quotas = caches.of(resources.SHOOT), caches.of(resources.QUOTA)
    bindings = [caches.of(each) for each in BINDINGS]
    await asyncio.gather(*(cache.synced() for cache in (shoots, quotas, *bindings)))
    controller = Controller("lifetime", _LifetimeReconciler(client, caches).reconcile, workers=2)
    controller.watch(shoots, when=_concerns)
    # Quotas change rarely, and a changed quota may apply to every Shoot.
    all_shoots = lambda _: [Key(each["metadata"]["namespace"], each["metadata"]["name"]) for each in shoots.list()]  # noqa: E731
    controller.watch(quotas, keys=all_shoots)
    for kind, cache in zip(BINDINGS, bindings, strict=True):
        cache.index(_BY_CREDENTIALS, _CREDENTIALS[kind])
        controller.watch(cache, keys=all_shoots, when=_binds_quotas)
    await controller.run()


class _LifetimeReconciler:
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
        return await self._end(shoot, end)

    def _quotas_of(self, shoot: Object) -> list[Object]:
        """Quotas that hold for the Shoot by its binding, or by another binding to the same credentials."""
        named = binding_of(shoot)
        if named is None:
            return []
        kind, name = named
        binding = self._caches.of(kind.resource).get(name, shoot["metadata"]["namespace"])
        if binding is None:
            return []
        own = Bound(kind.resource, binding)
        credentials = str(own.credentials)
        alike = [
            Bound(each, found)
            for each in BINDINGS
            for found in self._caches.of(each).by_index(_BY_CREDENTIALS, credentials)
        ]
        held = [key for each, keys in effective(alike, self._is_for_project) if each.key == own.key for key in keys]
        return [quota for key in held if (quota := self._quota(key)) is not None]

    def _quota(self, key: QuotaKey) -> Object | None:
        return self._caches.of(resources.QUOTA).get(key.name, key.namespace)

    def _is_for_project(self, key: QuotaKey) -> bool:
        quota = self._quota(key)
        return quota is not None and is_for_project(quota)

    async def _end(self, shoot: Object, end: datetime) -> Requeue | None:
        metadata = shoot["metadata"]
        text = f"its Quota allows the cluster to exist until {end:%Y-%m-%d %H:%M} UTC"
        await self._annotate(shoot, {constants.CONFIRMATION_DELETION: "true"})
        try:
            await self._client.delete(
                resources.SHOOT, metadata["name"], metadata["namespace"], uid=metadata["uid"], propagation="Background"
            )
        except Forbidden as refusal:  # the Project requires that another user deletes it
            await emit(self._client, shoot, _NAME, "ClusterLifetimeExpired", f"{text}: {refusal}", "Warning")
            return Requeue(_SYNC_SECONDS)
        log.info("Shoot %s/%s: %s: deleting it", metadata["namespace"], metadata["name"], text)
        await emit(self._client, shoot, _NAME, "ClusterLifetimeExpired", f"{text}: deleting it")
        return None

    async def _annotate(self, shoot: Object, annotations: dict[str, str | None]) -> Object:
        """Patch the Shoot that was read. Raises Conflict if its owner has changed it since."""
        return await patch_as_read(self._client, resources.SHOOT, shoot, {"metadata": {"annotations": annotations}})


def _credentials_in(kind: Binding) -> Values:
    return lambda binding: (str(kind.credentials(binding)),)


_CREDENTIALS = {resource: _credentials_in(kind) for resource, kind in BINDINGS.items()}


def _binds_quotas(event: WatchEvent) -> bool:
    return event.type != "MODIFIED" and bool(event.object.get("quotas"))


def _concerns(event: WatchEvent) -> bool:
    return event.type != "DELETED" and (event.old is None or _facts(event.old) != _facts(event.object))


def _facts(shoot: Object) -> object:
    annotations = shoot["metadata"].get("annotations") or {}
    return annotations.get(constants.SHOOT_EXPIRATION_TIMESTAMP), binding_of(shoot)
