"""Writes condition Required of this seed's ControllerInstallations: whether extension objects in the seed need them.

The controller-manager deletes no installation whose condition Required is True. Source: spec/api-core.md 7, 12.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from activities.clusters import Clusters
from activities.seed.extension_kinds import IN_NAMESPACE
from api import resources
from api.decisions.conditions import Operation, merge
from api.decisions.installations import required
from api.decisions.registrations import Pair
from api.resources import Object, Resource
from kube.cache import Caches, Key
from kube.client import WatchEvent
from kube.controller import Controller, comes_or_goes
from kube.edit import edit
from workers.gardenlet.garden_caches import BY_REGISTRATION, installations_here, registration_of

KINDS: tuple[Resource, ...] = (
    resources.BACKUP_BUCKET,
    resources.BACKUP_ENTRY,
    resources.SELF_HOSTED_SHOOT_EXPOSURE,
    *IN_NAMESPACE,
)
"""All kinds of extension objects."""
_SETTLED = Operation("Reconcile", "Succeeded")
_BY_TYPE, _BY_PAIR = "type", "kinds and types"


class RequiredInstallations:
    """One per gardenlet. A second run writes the same; only a change is written."""

    def __init__(self, clusters: Clusters) -> None:
        self._garden = clusters.garden
        self._installations = installations_here(clusters)
        self._registrations = clusters.garden_caches.of(resources.CONTROLLER_REGISTRATION)
        self._registrations.index(_BY_PAIR, _pairs)
        # Caches of their own: a seed has many such objects, some of them large, and only the type is needed.
        self._caches = Caches(clusters.seed, keep=_kept)
        self._objects = {kind.kind: self._caches.of(kind) for kind in KINDS}
        for each in self._objects.values():
            each.index(_BY_TYPE, _type)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await asyncio.gather(
                *(each.synced() for each in (self._installations, self._registrations, *self._objects.values()))
            )
            controller = Controller("required installations", self._write, workers=2)
            controller.watch(self._installations)
            controller.watch(self._registrations, keys=lambda event: self._of(event.object["metadata"]["name"]))
            for kind, cache in self._objects.items():
                controller.watch(cache, keys=self._users(kind), when=comes_or_goes)
            await controller.run()
        finally:
            await self._caches.close()

    def _of(self, registration: str) -> list[Key]:
        found = self._installations.by_index(BY_REGISTRATION, registration)
        return [Key(None, each["metadata"]["name"]) for each in found]

    def _users(self, kind: str) -> Callable[[WatchEvent], Iterable[Key]]:
        """Function that returns the installations that an object of a kind needs."""

        def keys(event: WatchEvent) -> Iterable[Key]:
            for registration in self._registrations.by_index(_BY_PAIR, f"{kind}/{_type(event.object)[0]}"):
                yield from self._of(registration["metadata"]["name"])

        return keys

    async def _write(self, key: Key) -> None:
        installation = self._installations.get(key.name)
        registration = self._registrations.get(registration_of(installation)[0]) if installation else None
        if installation is None or registration is None:
            return  # without its registration, the kinds are not known, and the last condition stays
        finding = required(self._existing(registration))

        def change(live: Object) -> Object | None:
            known = (live.get("status") or {}).get("conditions") or []
            conditions = merge(known, [finding], _SETTLED, {}, datetime.now(UTC))
            return {"status": {"conditions": conditions}} if conditions != known else None

        if change(installation) is not None:
            # Another controller of the gardenlet writes the other conditions of this list.
            uid = installation["metadata"]["uid"]
            await edit(
                self._garden,
                resources.CONTROLLER_INSTALLATION,
                key.name,
                None,
                change,
                uid=uid,
                subresource="status",
            )

    def _existing(self, registration: Object) -> Iterable[Pair]:
        for each in registration["spec"].get("resources") or ():
            cache = self._objects.get(each["kind"])
            if cache is not None and cache.by_index(_BY_TYPE, each["type"]):
                yield each["kind"], each["type"]


def _kept(obj: Object) -> Object:
    metadata = {
        each: obj["metadata"][each] for each in ("name", "namespace", "resourceVersion") if each in obj["metadata"]
    }
    return {"metadata": metadata, "spec": {"type": (obj.get("spec") or {}).get("type", "")}}


def _type(obj: Object) -> tuple[str]:
    return ((obj.get("spec") or {}).get("type", ""),)


def _pairs(registration: Object) -> list[str]:
    return [f"{each['kind']}/{each['type']}" for each in registration["spec"].get("resources") or ()]
