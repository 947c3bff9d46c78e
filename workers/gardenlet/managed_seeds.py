"""Makes Shoots of this seed seeds of their own: deploys a gardenlet into the Shoot of each ManagedSeed.

The gardenlet stores nothing, and no step waits: each reconciliation compares the objects of the garden and of the
Shoot with the wanted ones (docs/decisions/0020). The garden makes the identity of the new gardenlet, and deletes the
Seed of a ManagedSeed that is deleted (``workers.controller_manager.managed_seeds``). Source: Gardener
docs/concepts/gardenlet.md, "ManagedSeed controller"; spec/api-core.md 8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from activities.clusters import Clusters
from api import resources
from api.constants import FINALIZER, GARDEN_NAMESPACE, OPERATION, OPERATION_RECONCILE
from api.decisions import managed_seeds
from api.decisions.conditions import find_condition, set_conditions
from api.decisions.managed_seeds import SEED_REGISTERED, SHOOT_RECONCILED
from api.times import timestamp
from kube.cache import Cache, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import Forbidden, NotFound
from kube.finalizers import has_finalizer, remove_finalizer
from workers.gardenlet import child_gardenlet
from workers.gardenlet.charts import ChartError, rendered
from workers.gardenlet.config import GardenletConfig
from workers.gardenlet.garden_caches import shoots_here

log = logging.getLogger(__name__)

_MANAGER = "gardenlet"
_SYNC_SECONDS = 600.0
"""Period in which the deployed objects are compared again, so that an object that a user deleted comes back."""
_AGAIN_SECONDS = 5.0
_BY_SHOOT = "shoot"
"""Index of ManagedSeeds by the name of their Shoot."""


class ManagedSeedController:
    """Reconciles the ManagedSeeds of Shoots of this seed. One replica of the gardenlet runs it."""

    def __init__(self, clusters: Clusters, config: GardenletConfig) -> None:
        self._clusters = clusters
        self._config = config
        self._registered = clusters.garden_caches.of(resources.MANAGED_SEED)
        self._registered.index(_BY_SHOOT, _shoots_of)
        self._shoots = shoots_here(clusters)
        self._seeds: dict[str, Cache] = {}
        """Cache of the Seed of each ManagedSeed of this seed, by name."""
        self._controller = Controller("managed-seeds", self._reconcile, workers=2)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(self._registered.synced(), self._shoots.synced())
        self._controller.watch(self._registered)
        self._controller.watch(self._shoots, keys=self._of_shoot)
        await self._controller.run()

    def _of_shoot(self, event: WatchEvent) -> Iterable[Key]:
        metadata = event.object["metadata"]
        if metadata.get("namespace") != GARDEN_NAMESPACE:
            return ()
        return [key_of(each) for each in self._registered.by_index(_BY_SHOOT, metadata["name"])]

    async def _reconcile(self, key: Key) -> Requeue | None:
        owner = self._registered.get(key.name, key.namespace)
        if owner is None or key.namespace != GARDEN_NAMESPACE:
            return None
        shoot = self._shoots.get(managed_seeds.shoot_name(owner), GARDEN_NAMESPACE)
        if shoot is None or not has_finalizer(owner, FINALIZER):
            return None  # another seed's, or the garden has not seen the ManagedSeed yet: both end with an event
        seed = await self._seed(key.name)
        if "deletionTimestamp" in owner["metadata"]:
            return await self._remove(owner, shoot, seed)
        if not managed_seeds.is_reconciled(shoot):
            last = (shoot.get("status") or {}).get("lastOperation") or {}
            text = f"the Shoot's last operation is {last.get('type', 'none')} {last.get('state', '')}".rstrip()
            await self._tell(owner, _condition(SHOOT_RECONCILED, "False", "Reconciling", text))
            return None
        reconciled = _condition(SHOOT_RECONCILED, "True", "Reconciled", "the Shoot is reconciled")
        await self._deploy(owner, shoot, reconciled)
        await self._answer(owner)
        await self._tell(owner, reconciled, _registered(key.name, seed), observed=True)
        return Requeue(_SYNC_SECONDS)

    async def _seed(self, name: str) -> Object | None:
        """The Seed; from now on its events requeue the ManagedSeed."""
        cache = self._seeds.get(name)
        if cache is None:
            cache = self._clusters.garden_caches.of(resources.SEED, fields=f"metadata.name={name}")
            self._seeds[name] = cache
            self._controller.watch(cache, keys=lambda _: (Key(GARDEN_NAMESPACE, name),))
        await cache.synced()
        return cache.get(name)

    async def _deploy(self, owner: Object, shoot: Object, reconciled: Object) -> None:
        """Apply the gardenlet and its Secrets. A second run finds them, and sends no request that changes nothing."""
        identity = await self._identity(owner)
        if identity is None:
            text = "waiting for the garden to make the identity of the gardenlet"
            await self._tell(owner, reconciled, _condition(SEED_REGISTERED, "False", "IdentityMissing", text))
            raise TryAgain(text, after=_AGAIN_SECONDS)
        if self._config.temporal.tls is not None and not identity.get(managed_seeds.TLS_CERTIFICATE):
            text = (
                f"Secret {GARDEN_NAMESPACE}/{managed_seeds.identity_name(owner['metadata']['name'])} has no client "
                "certificate for Temporal: set managedSeeds of the controller-manager, or put tls.crt, tls.key and "
                "ca.crt into the Secret"
            )
            await self._tell(
                owner, reconciled, _condition(SEED_REGISTERED, "False", "TemporalCertificateMissing", text)
            )
            raise TryAgain(text)
        try:
            objects = (await rendered(child_gardenlet.chart(owner, self._config))).objects
        except (child_gardenlet.BadConfiguration, ChartError) as error:
            await self._tell(owner, reconciled, _condition(SEED_REGISTERED, "False", "GardenletInvalid", str(error)))
            raise TryAgain(str(error)) from None
        client = await self._shoot(shoot)
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": GARDEN_NAMESPACE, "labels": {"gardener.cloud/role": "garden"}},
        }
        secrets = child_gardenlet.secrets(owner, identity, self._clusters.garden.endpoint)
        for each in (namespace, *secrets, *objects):
            await client.apply(each, manager=_MANAGER)

    async def _identity(self, owner: Object) -> Mapping[str, str] | None:
        name = managed_seeds.identity_name(owner["metadata"]["name"])
        try:
            secret = await self._clusters.garden.find(resources.SECRET, name, GARDEN_NAMESPACE)
        except Forbidden:
            return None  # the authorizer refuses a Secret that does not exist yet, too
        data: Mapping[str, str] = (secret or {}).get("data") or {}
        return data if data.get(managed_seeds.CODEC_KEY) else None

    async def _shoot(self, shoot: Object) -> KubeClient:
        try:
            return await self._clusters.shoot(shoot["status"]["technicalID"])
        except NotFound:
            raise TryAgain("there is no access to the Shoot yet", after=_AGAIN_SECONDS) from None

    async def _remove(self, owner: Object, shoot: Object, seed: Object | None) -> Requeue | None:
        """Remove the gardenlet once its Seed is gone, and the finalizer once the gardenlet is gone."""
        if seed is not None:
            last = (seed.get("status") or {}).get("lastOperation") or {}
            text = f"the Seed is being deleted: {last.get('description') or 'its gardenlet removes it'}"
            await self._tell(owner, _condition(SEED_REGISTERED, "False", "DeletionInProgress", text))
            return None
        client = await self._shoot(shoot)
        namespace = await client.find(resources.NAMESPACE, GARDEN_NAMESPACE)
        for each in (*await self._cluster_objects(owner), *([namespace] if namespace else [])):
            resource = resources.resource_of(each) if each is not namespace else resources.NAMESPACE
            await client.delete(resource, each["metadata"]["name"])
        if namespace is not None:
            text = "the gardenlet is being removed from the Shoot"
            await self._tell(owner, _condition(SEED_REGISTERED, "False", "DeletionInProgress", text))
            raise TryAgain(text, after=_AGAIN_SECONDS)
        try:
            await remove_finalizer(self._clusters.garden, resources.MANAGED_SEED, owner, FINALIZER)
        except Forbidden:
            return None  # the ManagedSeed is gone
        return None

    async def _cluster_objects(self, owner: Object) -> list[Object]:
        """Objects of the gardenlet outside of its namespace."""
        try:
            objects = (await rendered(child_gardenlet.chart(owner, self._config))).objects
        except (child_gardenlet.BadConfiguration, ChartError):
            return []  # such a gardenlet was never deployed
        return [each for each in objects if not resources.resource_of(each).namespaced]

    async def _answer(self, owner: Object) -> None:
        """Remove the request for this reconciliation."""
        if (owner["metadata"].get("annotations") or {}).get(OPERATION) == OPERATION_RECONCILE:
            done = {"metadata": {"annotations": {OPERATION: None}}}
            await patch_as_read(self._clusters.garden, resources.MANAGED_SEED, owner, done)

    async def _tell(self, owner: Object, *conditions: Object, observed: bool = False) -> None:
        """Write conditions that are new into the status."""
        metadata, status = owner["metadata"], owner.get("status") or {}
        known = status.get("conditions") or []
        told: Object = {"conditions": set_conditions(known, conditions, timestamp(datetime.now(UTC)))}
        if observed:
            told["observedGeneration"] = metadata.get("generation")
        if all(status.get(field) == value for field, value in told.items()):
            return
        place = resources.MANAGED_SEED, metadata["name"], metadata["namespace"]
        try:
            await self._clusters.garden.patch(*place, {"status": told}, subresource="status")
        except (Forbidden, NotFound):  # the ManagedSeed is gone
            return


def _shoots_of(owner: Object) -> Iterable[str]:
    return (managed_seeds.shoot_name(owner),)


def _registered(name: str, seed: Mapping[str, Any] | None) -> Object:
    """Condition SeedRegistered of a ManagedSeed whose gardenlet is deployed."""
    if seed is None:
        text = "the gardenlet is deployed, and has not registered its Seed yet: see its log in namespace garden"
        return _condition(SEED_REGISTERED, "False", "GardenletDeployed", text)
    ready = find_condition(seed, "GardenletReady")
    if ready.get("status") != "True":
        text = f"Seed {name} is registered; GardenletReady: {ready.get('message') or 'not reported yet'}"
        return _condition(SEED_REGISTERED, "Progressing", "SeedNotReady", text)
    return _condition(
        SEED_REGISTERED, "True", "SeedRegistered", f"Seed {name} is registered, and its gardenlet is ready"
    )


def _condition(type_: str, status: str, reason: str, message: str) -> Object:
    return {"type": type_, "status": status, "reason": reason, "message": message}
