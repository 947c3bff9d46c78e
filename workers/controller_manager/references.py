"""Protects objects that Shoots use: bindings, their credentials and cloud profiles stay until no Shoot uses them.

A CloudProfile also stays while a NamespacedCloudProfile extends it.

A deletion is accepted, and a finalizer delays it. Source: spec/api-core.md 10.1, 12.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial

from api import resources
from api.constants import (
    FINALIZER,
    FINALIZER_FOREIGN,
    PROVIDER_PREFIX,
)
from api.decisions.credentials import BINDINGS
from api.decisions.profiles import parent_of, profile_reference
from api.resources import Resource
from kube.cache import Caches, Key, Values, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from kube.errors import NotFound
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer

log = logging.getLogger(__name__)


_PROFILES = (resources.CLOUD_PROFILE, resources.NAMESPACED_CLOUD_PROFILE)
_KINDS = (*BINDINGS, *_PROFILES)
_CHILDREN = "cloudprofile that they hold"
"""Index of NamespacedCloudProfiles by the CloudProfile that they extend."""


async def run_reference_controllers(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    await asyncio.gather(*(caches.of(kind).synced() for kind in (*_KINDS, resources.SHOOT)))
    for kind in _KINDS:
        caches.of(resources.SHOOT).index(_index_of(kind), _NAMED[kind])
    children = caches.of(resources.NAMESPACED_CLOUD_PROFILE)
    children.index(_CHILDREN, _parent_names)
    reconciler = _ReferenceReconciler(client, caches)
    controllers = []
    for kind in _KINDS:
        controller = Controller(f"references of {kind.plural}", partial(reconciler.reconcile, kind), workers=1)
        controller.watch(caches.of(kind))
        # When a Shoot is gone, the objects that it named may be deleted.
        named = partial(_keys_named_by, kind)
        controller.watch(caches.of(resources.SHOOT), keys=named, when=lambda event: event.type == "DELETED")
        if kind == resources.CLOUD_PROFILE:
            controller.watch(children, keys=_parent, when=lambda event: event.type == "DELETED")
        controllers.append(controller.run())
    await asyncio.gather(*controllers)


def _keys_named_by(kind: Resource, event: WatchEvent) -> Iterable[Key]:
    return _named_by(kind, event.object)


def _parent(event: WatchEvent) -> Iterable[Key]:
    return (Key(None, parent_of(event.object)),)


def _parent_names(profile: Object) -> Iterable[str]:
    return (parent_of(profile),)


def _named_by(kind: Resource, shoot: Object) -> Sequence[Key]:
    """The object of a kind that a Shoot uses; empty if it uses none."""
    if kind in _PROFILES:
        found = profile_reference(shoot)
        return [Key(found.namespace, found.name)] if found is not None and found.resource == kind else []
    name = shoot["spec"].get(BINDINGS[kind].shoot_field)
    return [Key(shoot["metadata"]["namespace"] if kind.namespaced else None, name)] if name else []


def _index_of(kind: Resource) -> str:
    return f"used {kind.plural}"


def _values_of(kind: Resource) -> Values:
    return lambda shoot: [str(key) for key in _named_by(kind, shoot)]


_NAMED = {kind: _values_of(kind) for kind in _KINDS}
"""For each kind, the function that indexes Shoots by the object of this kind that they use."""


class _ReferenceReconciler:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def reconcile(self, kind: Resource, key: Key) -> None:
        obj = self._caches.of(kind).get(key.name, key.namespace)
        if obj is None:
            return
        if "deletionTimestamp" not in obj["metadata"]:
            await self._set_finalizer(kind, obj, FINALIZER, wanted=True)
            if kind in BINDINGS:
                await self._keep_credentials(kind, obj)
        elif has_finalizer(obj, FINALIZER) and not self._used(kind, key):
            await self._refuse_if_used(kind, key)
            if kind in BINDINGS:
                await self._release_credentials(kind, obj)
            await self._set_finalizer(kind, obj, FINALIZER, wanted=False)

    def _used(self, kind: Resource, key: Key) -> bool:
        if kind == resources.CLOUD_PROFILE and self._caches.of(resources.NAMESPACED_CLOUD_PROFILE).by_index(
            _CHILDREN, key.name
        ):
            return True
        return bool(self._caches.of(resources.SHOOT).by_index(_index_of(kind), str(key)))

    async def _refuse_if_used(self, kind: Resource, key: Key) -> None:
        """Read the users of an object from the API server before the object is released: caches may be behind.

        The event that ends the last use may never reach a cache that has never held the user, so the controller tries
        again by itself. Raises TryAgain.
        """
        users = await self._client.list(resources.SHOOT, key.namespace)
        used = any(key in _named_by(kind, each) for each in users)
        if not used and kind == resources.CLOUD_PROFILE:
            children = await self._client.list(resources.NAMESPACED_CLOUD_PROFILE)
            used = any(parent_of(each) == key.name for each in children)
        if used:
            raise TryAgain(f"{kind.kind} {key} is used by an object that the cache does not show yet")

    async def _keep_credentials(self, kind: Resource, binding: Object) -> None:
        found = await self._credentials(kind, binding)
        if found is None:
            raise TryAgain(f"its credentials {BINDINGS[kind].credentials(binding)} do not exist")
        resource, credentials = found
        labels = _labels(kind, binding)
        known = credentials["metadata"].get("labels") or {}
        if not labels.items() <= known.items():
            patch = {"metadata": {"labels": labels}}
            metadata = credentials["metadata"]
            credentials = await self._client.patch(resource, metadata["name"], metadata["namespace"], patch)
        await self._set_finalizer(resource, credentials, FINALIZER_FOREIGN, wanted=True)

    async def _release_credentials(self, kind: Resource, binding: Object) -> None:
        """Remove from the binding's credentials the labels and the finalizer that no other binding needs."""
        own = BINDINGS[kind].credentials(binding)
        others = [
            (each_kind, each)
            for each_kind in BINDINGS.values()
            for each in self._caches.of(each_kind.resource).list()
            if each_kind.credentials(each) == own and (key_of(each), each_kind.resource) != (key_of(binding), kind)
        ]
        found = await self._credentials(kind, binding)
        if found is None:
            return
        resource, credentials = found
        needed = {key for each_kind, each in others for key in _labels(each_kind.resource, each)}
        known = credentials["metadata"].get("labels") or {}
        if dropped := {key: None for key in _labels(kind, binding) if key in known and key not in needed}:
            credentials = await patch_as_read(self._client, resource, credentials, {"metadata": {"labels": dropped}})
        if not others:
            await self._set_finalizer(resource, credentials, FINALIZER_FOREIGN, wanted=False)

    async def _credentials(self, kind: Resource, binding: Object) -> tuple[Resource, Object] | None:
        credentials = BINDINGS[kind].credentials(binding)
        resource = resources.resource_of(credentials.api_version, credentials.kind)
        found = await self._client.find(resource, credentials.name, credentials.namespace)
        return (resource, found) if found is not None else None

    async def _set_finalizer(self, kind: Resource, obj: Object, finalizer: str, *, wanted: bool) -> None:
        if not wanted:
            await remove_finalizer(self._client, kind, obj, finalizer)
        elif "deletionTimestamp" not in obj["metadata"]:
            with contextlib.suppress(NotFound):
                await ensure_finalizer(self._client, kind, obj, finalizer)


def _labels(kind: Resource, binding: Object) -> dict[str, str]:
    """Labels that a binding needs on its credentials."""
    return dict.fromkeys((BINDINGS[kind].label, *(f"{PROVIDER_PREFIX}{each}" for each in _providers(binding))), "true")


def _providers(binding: Object) -> list[str]:
    return [each for each in ((binding.get("provider") or {}).get("type") or "").split(",") if each]
