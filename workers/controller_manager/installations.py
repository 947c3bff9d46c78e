"""Gives each seed the ControllerInstallations of the extensions that it needs, and deletes those that it does not need.

``api.decisions.installations`` decides. A reconcile reads all objects of one seed from caches by index. So a change of
a Shoot costs the work for its seed, and no list. Only before an installation is created, the controller lists the
installations of that seed at the API server: the cache may not know one yet that the last reconcile has created, and a
generated name prevents no second one.

Source: spec/api-core.md 12, "ControllerRegistration".
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from api import resources
from api.constants import CONTROLLER_INSTALLATION_REQUIRED
from api.decisions.conditions import find_condition
from api.decisions.installations import Facts, Plan, conflicts_of, plan
from api.resources import Object, ObjectView
from kube.cache import Caches, Key
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller
from kube.edit import patch_as_read
from kube.errors import NotFound
from kube.events import emit

log = logging.getLogger(__name__)

_COMPONENT = "gardener-controller-manager"
_BY_SEED = "seed whose installations depend on it"
_WORKERS = 4


async def run_installation_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    await asyncio.gather(*(caches.of(kind).synced() for kind in _WATCHED))
    await _controller(client, caches).run()


def _controller(client: KubeClient, caches: Caches) -> Controller:
    controller = Controller("installations of seeds", _Reconciler(client, caches).reconcile, workers=_WORKERS)
    seeds = caches.of(resources.SEED)

    def all_seeds(_: WatchEvent) -> Iterable[Key]:
        return [Key(None, each["metadata"]["name"]) for each in seeds.list()]

    controller.watch(seeds, when=_changed)
    for resource, seeds_of in _INDEXED.items():
        caches.of(resource).index(_BY_SEED, seeds_of)
        controller.watch(caches.of(resource), keys=_seeds_before_and_after(resource), when=_changed)
    for resource in _OF_ALL_SEEDS:
        controller.watch(caches.of(resource), keys=all_seeds, when=_changed)
    return controller


class _Reconciler:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._faults: dict[str, tuple[str, ...]] = {}
        """Faults of each seed that an Event of its Seed shows already."""
        self._conflicts: dict[str, str] = {}
        """Conflict of each registration that an Event of the registration shows already."""

    async def reconcile(self, key: Key) -> None:
        """Change the installations of one Seed as the plan says."""
        seed = self._caches.of(resources.SEED).get(key.name)
        installations = self._caches.of(resources.CONTROLLER_INSTALLATION).by_index(_BY_SEED, key.name)
        if seed is None:
            self._faults.pop(key.name, None)
            for orphan in installations:
                await self._delete(orphan, f"Seed {key.name} does not exist")
            return
        wanted = self._plan(seed, installations)
        if wanted.create:
            fields = f"spec.seedRef.name={key.name}"
            wanted = self._plan(seed, await self._client.list(resources.CONTROLLER_INSTALLATION, fields=fields))
        for new in wanted.create:
            made = await self._client.create(new)
            log.info("seed %s: ControllerInstallation %s created", key.name, made["metadata"]["name"])
        for installation, patch in wanted.change:
            try:
                await patch_as_read(self._client, resources.CONTROLLER_INSTALLATION, dict(installation), patch)
            except NotFound:
                log.debug("ControllerInstallation %s is gone", installation["metadata"]["name"])
        for each in wanted.delete:
            await self._delete(each, f"seed {key.name} does not need it")
        await self._tell(seed, wanted.faults)
        await self._tell_conflicts()

    def _plan(self, seed: Object, installations: Iterable[ObjectView]) -> Plan:
        name = seed["metadata"]["name"]
        entries = self._caches.of(resources.CORE_BACKUP_ENTRY).by_index(_BY_SEED, name)
        bucket_names = sorted({each["spec"]["bucketName"] for each in entries})
        buckets = self._caches.of(resources.CORE_BACKUP_BUCKET)
        deployments = self._caches.of(resources.CONTROLLER_DEPLOYMENT).list()
        return plan(
            Facts(
                seed=seed,
                registrations=self._caches.of(resources.CONTROLLER_REGISTRATION).list(),
                deployments={each["metadata"]["name"]: each for each in deployments},
                installations=installations,
                shoots=self._caches.of(resources.SHOOT).by_index(_BY_SEED, name),
                buckets=buckets.by_index(_BY_SEED, name),
                entry_buckets=[found for each in bucket_names if (found := buckets.get(each)) is not None],
            )
        )

    async def _delete(self, installation: ObjectView, why: str) -> None:
        metadata = installation["metadata"]
        if "deletionTimestamp" in metadata:
            return
        if await self._client.delete(resources.CONTROLLER_INSTALLATION, metadata["name"], uid=metadata["uid"]):
            log.info("ControllerInstallation %s deleted: %s", metadata["name"], why)

    async def _tell(self, seed: Object, faults: tuple[str, ...]) -> None:
        """Write an Event for each fault that is new since this process has started."""
        name = seed["metadata"]["name"]
        for fault in faults:
            if fault not in self._faults.get(name, ()):
                log.warning("seed %s: %s", name, fault)
                await emit(self._client, seed, _COMPONENT, "ExtensionNotInstalled", fault, "Warning")
        self._faults[name] = faults

    async def _tell_conflicts(self) -> None:
        """Write an Event for each registration that is primary beside an older one, once per process."""
        cache = self._caches.of(resources.CONTROLLER_REGISTRATION)
        conflicts = conflicts_of(cache.list())
        new = {name: said for name, said in conflicts.items() if self._conflicts.get(name) != said}
        self._conflicts = conflicts
        for name, said in new.items():
            log.warning("%s", said)
            if (registration := cache.get(name)) is not None:
                about = {**registration, "apiVersion": resources.CONTROLLER_REGISTRATION.api_version}
                about["kind"] = resources.CONTROLLER_REGISTRATION.kind
                await emit(self._client, about, _COMPONENT, "TwoPrimaryRegistrations", said, "Warning")


def _named(*fields: str) -> Any:
    """Function that returns the seeds in these fields of an object, each a dotted path."""

    def seeds(obj: Object) -> list[str]:
        found = set()
        for field in fields:
            value: Any = obj
            for step in field.split("."):
                value = (value or {}).get(step)
            if value:
                found.add(value)
        return sorted(found)

    return seeds


_INDEXED = {
    # Both seeds of a control plane that moves: its extension objects are in the source until the move ends.
    resources.SHOOT: _named("spec.seedName", "status.seedName"),
    resources.CORE_BACKUP_BUCKET: _named("spec.seedName"),
    resources.CORE_BACKUP_ENTRY: _named("spec.seedName", "status.seedName"),
    resources.CONTROLLER_INSTALLATION: _named("spec.seedRef.name"),
}
"""Kinds whose objects belong to seeds, with the function that returns these seeds."""
_OF_ALL_SEEDS = (resources.CONTROLLER_REGISTRATION, resources.CONTROLLER_DEPLOYMENT)
_WATCHED = (resources.SEED, *_INDEXED, *_OF_ALL_SEEDS)


def _seeds_before_and_after(resource: resources.Resource) -> Any:
    seeds_of = _INDEXED[resource]

    def keys(event: WatchEvent) -> list[Key]:
        found = {*seeds_of(event.object), *(seeds_of(event.old) if event.old else ())}
        return [Key(None, each) for each in sorted(found)]

    return keys


def _changed(event: WatchEvent) -> bool:
    """Whether an installation may depend on what has changed; most changes are of statuses, which do not matter."""
    return event.type == "DELETED" or event.old is None or _relevant(event.old) != _relevant(event.object)


def _relevant(obj: Object) -> Object:
    """Parts of an object on which installations depend. Statuses have two of them: a Shoot's or a BackupEntry's seed,
    and condition Required of an installation with the existence of other conditions."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    kept = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    # Shoots and BackupEntries have a namespace. Their labels and annotations change with each operation.
    fields = ("deletionTimestamp",) if "namespace" in metadata else ("labels", "annotations", "deletionTimestamp")
    return {
        **kept,
        "metadata": [metadata.get(each) for each in fields],
        "status": (
            status.get("seedName"),
            find_condition(obj, CONTROLLER_INSTALLATION_REQUIRED).get("status"),
            bool(status.get("conditions")),
        ),
    }
