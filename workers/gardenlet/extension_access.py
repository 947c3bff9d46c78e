"""Grants extensions their rights in control planes that exist already, and keeps these rights up to date.

An activity of each operation does the same for one Shoot. This controller does it for all Shoots when an extension is
installed, upgraded or removed, and when a gardenlet starts that is newer than the control planes.
"""

import asyncio
import logging
from collections.abc import Iterable

from activities.clusters import Clusters
from activities.seed.extension_access import ExtensionAccess, SharedSecret, shared_by_seed, shared_by_source
from activities.seed.namespace import shoot_uid
from api import resources
from kube.cache import Key
from kube.client import WatchEvent
from kube.controller import Controller
from kube.errors import NotFound

log = logging.getLogger(__name__)

_SOURCE_PREFIX = "source-"
"""Prefix of the name of a BackupEntry for the bucket of the source, the seed that a control plane has left."""


class ExtensionAccessController:
    """Keeps the rights of extensions up to date. One per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._access = ExtensionAccess(clusters)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._registrations = clusters.garden_caches.of(resources.CONTROLLER_REGISTRATION)
        self._key = Key(None, clusters.seed_name)

    async def run(self) -> None:
        """Run until cancelled."""
        roles, bindings = self._access.roles, self._access.bindings
        await asyncio.gather(*(each.synced() for each in (self._namespaces, roles, bindings)))
        control_planes = Controller("rights of extensions in control planes", self._bind)
        control_planes.watch(self._namespaces)
        control_planes.watch(roles, keys=lambda _: self._control_planes())
        control_planes.watch(bindings, keys=_place)
        secrets = Controller("Secrets of the seed that extensions use", self._share, workers=1)
        secrets.enqueue(self._key)
        for cache in (roles, self._registrations):
            secrets.watch(cache, keys=lambda _: [self._key])
        await asyncio.gather(control_planes.run(), secrets.run())

    def _control_planes(self) -> list[Key]:
        return [Key(None, each["metadata"]["name"]) for each in self._namespaces.list() if shoot_uid(each)]

    async def _bind(self, key: Key) -> None:
        """Bind the roles of extensions in one control plane. ``key``: its namespace."""
        namespace = self._namespaces.get(key.name)
        if namespace is None or shoot_uid(namespace) is None or namespace["metadata"].get("deletionTimestamp"):
            return
        try:
            await self._access.bind(key.name)
        except NotFound as error:
            log.debug("namespace %s is gone: %s", key.name, error)

    async def _share(self, key: Key) -> None:
        """Share Secrets with extensions. ``key``: our Seed.

        Changes of the Seed do not call this function: the workflow that reconciles the Seed shares the Secrets then.
        """
        seed = await self._clusters.garden.find(resources.SEED, key.name)
        if seed is None or "deletionTimestamp" in seed["metadata"]:
            return
        for each in [*shared_by_seed(seed), *await self._shared_by_sources()]:
            await self._access.share(each)

    async def _shared_by_sources(self) -> list[SharedSecret]:
        shared = []
        for entry in await self._clusters.garden.list(resources.CORE_BACKUP_ENTRY):
            name, spec = entry["metadata"]["name"], entry["spec"]
            if not name.startswith(_SOURCE_PREFIX) or spec.get("seedName") != self._clusters.seed_name:
                continue
            try:
                bucket = await self._clusters.garden.get(resources.CORE_BACKUP_BUCKET, spec["bucketName"])
            except NotFound as error:
                log.warning("BackupEntry %s: %s", name, error)
                continue
            shared.append(shared_by_source(name, bucket))
        return shared


def _place(event: WatchEvent) -> Iterable[Key]:
    """Key of the namespace of a RoleBinding."""
    return [Key(None, event.object["metadata"]["namespace"])]
