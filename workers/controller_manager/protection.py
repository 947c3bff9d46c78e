"""Protects objects that others name: a deletion is accepted, and a finalizer delays it.

Source: spec/api-core.md 10.1, 12.

- Quotas stay until no binding names them, ExposureClasses until no Shoot does, ControllerDeployments until no
  ControllerRegistration does, ControllerRegistrations and Seeds until no ControllerInstallation does.
- Secrets, ConfigMaps and WorkloadIdentities stay until no Shoot, Seed, Plant or ControllerDeployment refers to them.

``references.py`` does the same for bindings, their credentials and CloudProfiles.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from api import resources
from api.constants import (
    FINALIZER,
    FINALIZER_CONTROLLER_DEPLOYMENT,
    FINALIZER_CONTROLLER_REGISTRATION,
    FINALIZER_REFERENCE_PROTECTION,
    GARDEN_NAMESPACE,
)
from api.decisions import controller_deployments
from api.decisions.credentials import BINDINGS
from api.decisions.quota import named_quotas
from api.resources import ObjectView, Resource
from api.validation.references import references_in
from kube.cache import Caches, Key, Values
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import NotFound
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer

_SYNC_SECONDS = 3600.0
"""Objects that were deleted and created again get their finalizer within this time."""

Named = Callable[[ObjectView], Iterable[Key]]
"""Returns the keys of the objects of one kind that an object names."""


def _exposure_class(shoot: ObjectView) -> Iterable[Key]:
    name = shoot["spec"].get("exposureClassName")
    return (Key(None, name),) if name else ()


def _quotas(binding: ObjectView) -> Iterable[Key]:
    return {Key(each.namespace, each.name) for each in named_quotas(binding)}


def _deployments(registration: ObjectView) -> Iterable[Key]:
    deployment = (registration.get("spec") or {}).get("deployment") or {}
    return {Key(None, each["name"]) for each in deployment.get("deploymentRefs") or ()}


def _registration(installation: ObjectView) -> Iterable[Key]:
    return (Key(None, installation["spec"]["registrationRef"]["name"]),)


def _seed(installation: ObjectView) -> Iterable[Key]:
    name = (installation["spec"].get("seedRef") or {}).get("name")
    return (Key(None, name),) if name else ()


@dataclass(frozen=True)
class _Held:
    """A kind whose objects stay while objects of other kinds name them."""

    resource: Resource
    named_by: Mapping[Resource, Named]
    finalizer: str = FINALIZER
    only_if_named: bool = False
    """Set the finalizer only while the object is named; otherwise every object has it."""


_HELD = (
    _Held(resources.EXPOSURE_CLASS, {resources.SHOOT: _exposure_class}),
    _Held(resources.QUOTA, dict.fromkeys(BINDINGS, _quotas)),
    _Held(
        resources.CONTROLLER_DEPLOYMENT,
        {resources.CONTROLLER_REGISTRATION: _deployments},
        FINALIZER_CONTROLLER_DEPLOYMENT,
    ),
    _Held(
        resources.CONTROLLER_REGISTRATION,
        {resources.CONTROLLER_INSTALLATION: _registration},
        FINALIZER_CONTROLLER_REGISTRATION,
        only_if_named=True,
    ),
    _Held(
        resources.SEED,
        {resources.CONTROLLER_INSTALLATION: _seed},
        FINALIZER_CONTROLLER_REGISTRATION,
        only_if_named=True,
    ),
)


def _values(named: Named) -> Values:
    return lambda obj: [str(key) for key in named(obj)]


_INDEXES = {(held.resource, user): _values(named) for held in _HELD for user, named in held.named_by.items()}
"""For each held kind and each kind that names it, the function of the index."""


async def run_protection_controllers(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    await asyncio.gather(_run_references(client, caches), *(_run_held(held, client, caches) for held in _HELD))


async def _run_held(held: _Held, client: KubeClient, caches: Caches) -> None:
    # Each kind on its own: while admission converts no ControllerDeployments, the other kinds are protected.
    await asyncio.gather(*(caches.of(kind).synced() for kind in (held.resource, *held.named_by)))
    await _controller(held, client, caches).run()


async def _run_references(client: KubeClient, caches: Caches) -> None:
    # A finalizer is removed only if all kinds that refer to the object are known.
    await asyncio.gather(*(caches.of(kind).synced() for kind in (*_REFERRING, resources.PROJECT)))
    await _references(client, caches).run()


# Objects of the garden's kinds


def _controller(held: _Held, client: KubeClient, caches: Caches) -> Controller:
    reconciler = _HeldReconciler(held, client, caches)
    controller = Controller(f"held {held.resource.plural}", reconciler.reconcile, workers=1)
    controller.watch(caches.of(held.resource))
    for user, named in held.named_by.items():
        caches.of(user).index(_index(held.resource), _INDEXES[held.resource, user])
        controller.watch(caches.of(user), keys=partial(_affected, named))
    return controller


def _affected(named: Named, event: WatchEvent) -> Iterable[Key]:
    """Keys of objects that an object names, or named before its change."""
    before = set(named(event.old)) if event.old else set()
    after = set(named(event.object))
    return after if event.type == "DELETED" else before ^ after


def _index(held: Resource) -> str:
    return f"named {held.plural}"


class _HeldReconciler:
    def __init__(self, held: _Held, client: KubeClient, caches: Caches) -> None:
        self._held = held
        self._client = client
        self._caches = caches

    async def reconcile(self, key: Key) -> None:
        resource, finalizer = self._held.resource, self._held.finalizer
        obj = self._caches.of(resource).get(key.name, key.namespace)
        if obj is None:
            return
        users = [kind for kind in self._held.named_by if self._caches.of(kind).by_index(_index(resource), str(key))]
        deleting = "deletionTimestamp" in obj["metadata"]
        with contextlib.suppress(NotFound):
            if resource == resources.QUOTA:
                obj = await self._label(obj, users)
            if not users and (deleting or self._held.only_if_named):
                if has_finalizer(obj, finalizer):
                    await self._refuse_if_named(key)
                await remove_finalizer(self._client, resource, obj, finalizer)
            elif not deleting:
                await ensure_finalizer(self._client, resource, obj, finalizer)

    async def _refuse_if_named(self, key: Key) -> None:
        """Read the users of an object from the API server before the object is released: caches may be behind.

        The event that ends the last use may never reach a cache that has never held the user, so the controller tries
        again by itself. Raises TryAgain.
        """
        for kind, named in self._held.named_by.items():
            if any(key in set(named(each)) for each in await self._client.list(kind)):
                raise TryAgain(f"{self._held.resource.kind} {key} is named by a {kind.kind} that no cache shows yet")

    async def _label(self, quota: Object, users: list[Resource]) -> Object:
        """Label the Quota with the kinds of bindings that name it."""
        known = quota["metadata"].get("labels") or {}
        wanted = {kind.label: "true" if kind.resource in users else None for kind in BINDINGS.values()}
        labels = {key: value for key, value in wanted.items() if known.get(key) != value}
        if not labels:
            return quota
        return await patch_as_read(self._client, resources.QUOTA, quota, {"metadata": {"labels": labels}})


# Objects that Shoots, Seeds, Plants and ControllerDeployments refer to


class _Reference(NamedTuple):
    resource: Resource
    name: str


_REFERABLE = (resources.SECRET, resources.CONFIG_MAP, resources.WORKLOAD_IDENTITY)
_IN_GARDEN = (resources.SEED, resources.CONTROLLER_DEPLOYMENT)
"""Kinds without a namespace, which refer to objects in namespace ``garden``."""
_REFERRING = (resources.SHOOT, resources.PLANT, *_IN_GARDEN)


def _references(client: KubeClient, caches: Caches) -> Controller:
    """Controller of namespaces: each has the objects that its Shoots and Plants refer to, and namespace ``garden`` also
    those that Seeds and ControllerDeployments refer to."""
    controller = Controller("references of namespaces", _ReferenceReconciler(client, caches).reconcile, workers=2)
    controller.watch(caches.of(resources.SHOOT), keys=_home, when=_refers_to_others)
    controller.watch(caches.of(resources.PLANT), keys=_home, when=_refers_to_others)
    for kind in _IN_GARDEN:
        controller.watch(caches.of(kind), keys=lambda _: (Key(None, GARDEN_NAMESPACE),), when=_refers_to_others)
    # The last Shoot of a namespace may have been deleted while no controller-manager ran.
    controller.watch(caches.of(resources.PROJECT), keys=_namespace, when=lambda event: event.old is None)
    return controller


def _home(event: WatchEvent) -> Iterable[Key]:
    return (Key(None, event.object["metadata"]["namespace"]),)


def _namespace(event: WatchEvent) -> Iterable[Key]:
    namespace = (event.object.get("spec") or {}).get("namespace")
    return (Key(None, namespace),) if namespace else ()


def _refers_to_others(event: WatchEvent) -> bool:
    before = _referred(event.old) if event.old and event.type != "DELETED" else set()
    return before != _referred(event.object)


def _referred(obj: ObjectView) -> set[_Reference]:
    """Objects that a Shoot, a Seed, a Plant or a ControllerDeployment refers to."""
    if obj["kind"] == resources.PLANT.kind:
        return {_Reference(resources.SECRET, obj["spec"]["secretRef"]["name"])}
    if obj["kind"] == resources.CONTROLLER_DEPLOYMENT.kind:
        return {_Reference(*each) for each in controller_deployments.references(obj)}
    if obj["kind"] == resources.SHOOT.kind:
        found = {_Reference(each.resource, each.name) for each in references_in(obj)}
        return {each for each in found if each.resource in _REFERABLE}
    kinds = {each.kind: each for each in _REFERABLE}
    named = [each["resourceRef"] for each in obj["spec"].get("resources") or ()]
    return {_Reference(kinds[each["kind"]], each["name"]) for each in named if each["kind"] in kinds}


class _ReferenceReconciler:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def reconcile(self, key: Key) -> Requeue | None:
        namespace = key.name
        users = [each for kind in (resources.SHOOT, resources.PLANT) for each in self._caches.of(kind).list(namespace)]
        if namespace == GARDEN_NAMESPACE:
            users += [each for kind in _IN_GARDEN for each in self._caches.of(kind).list()]
        wanted = {each for user in users for each in _referred(user)}
        for resource in _REFERABLE:
            await self._release(resource, namespace, {each.name for each in wanted if each.resource == resource})
        for resource, name in sorted(wanted, key=str):
            await self._hold(resource, name, namespace)
        return Requeue(_SYNC_SECONDS) if wanted else None

    async def _hold(self, resource: Resource, name: str, namespace: str) -> None:
        found = await self._client.find(resource, name, namespace)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return  # Kubernetes allows no new finalizer on an object that is being deleted
        with contextlib.suppress(NotFound):
            await ensure_finalizer(self._client, resource, found, FINALIZER_REFERENCE_PROTECTION)

    async def _release(self, resource: Resource, namespace: str, used: set[str]) -> None:
        try:
            found = await self._client.list(resource, namespace)
        except NotFound:
            return  # the garden does not serve the kind
        for each in found:
            if has_finalizer(each, FINALIZER_REFERENCE_PROTECTION) and each["metadata"]["name"] not in used:
                await remove_finalizer(self._client, resource, each, FINALIZER_REFERENCE_PROTECTION)
