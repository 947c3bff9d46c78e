"""A real API server for ManagedSeedSets, and a world in which the operations of Shoots and ManagedSeeds end."""

from collections.abc import Mapping
from typing import Any

from api import constants, resources
from api.resources import Resource
from kube.cache import Caches, Key
from kube.client import KubeClient
from kube.controller import TryAgain
from kube.errors import ApiError, Conflict
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.kube.waiting import until
from workers.controller_manager.managed_seed_sets import ManagedSeedSetConfig, ManagedSeedSetReconciler

Object = dict[str, Any]
GARDEN = constants.GARDEN_NAMESPACE
LABELS = {"pool": "local"}
MANAGED_SEEDS = resources.MANAGED_SEED


def managed_seed_set(name: str = "pool", **spec: Any) -> Object:
    """A set of one replica; its Shoots have the placeholder in their domain."""
    shoot = changed(SHOOT, "spec.dns", {"domain": "replica-name.example.org"})["spec"]
    return {
        "apiVersion": resources.MANAGED_SEED_SET.api_version,
        "kind": "ManagedSeedSet",
        "metadata": {"name": name, "namespace": GARDEN},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"gardenlet": {"config": {"seedConfig": {"metadata": {"labels": LABELS}}}}},
            },
            "shootTemplate": {"metadata": {"labels": LABELS}, "spec": shoot},
            **spec,
        },
    }


class Died(Exception):
    """The process was killed."""


class MortalClient(KubeClient):
    """A client whose process is killed when it is about to send one write too many."""

    lives = 0
    """Number of writes that are still sent."""

    def _spend(self) -> None:
        if self.lives <= 0:
            raise Died
        self.lives -= 1

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return await super().create(*args, **kwargs)

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return await super().patch(*args, **kwargs)

    async def apply_blindly(self, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return await super().apply_blindly(*args, **kwargs)

    async def delete(self, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return await super().delete(*args, **kwargs)


class World:
    """The rest of the system: it ends the operations of Shoots and ManagedSeeds when a test says so."""

    def __init__(self, admin: KubeClient) -> None:
        self.admin = admin
        self.caches = Caches(admin)
        self.uids: dict[tuple[str, str], set[str]] = {}
        """Uids of all objects that there have ever been, by kind and name."""
        self.failing: set[str] = set()
        """Names of the Shoots whose operations fail."""
        self.failed_at = "2126-01-01T00:00:00Z"

    async def shoots(self) -> dict[str, Object]:
        return await self._named(resources.SHOOT)

    async def managed_seeds(self) -> dict[str, Object]:
        return await self._named(MANAGED_SEEDS)

    async def seeds(self) -> dict[str, Object]:
        return await self._named(resources.SEED, None)

    async def set_(self, name: str = "pool") -> Object:
        return await self.admin.get(resources.MANAGED_SEED_SET, name, GARDEN)

    async def status(self, name: str = "pool") -> Object:
        return dict((await self.set_(name)).get("status") or {})

    async def change(self, patch: Mapping[str, Any], name: str = "pool") -> Object:
        return await self.admin.patch(resources.MANAGED_SEED_SET, name, GARDEN, patch)

    async def _named(self, resource: Resource, namespace: str | None = GARDEN) -> dict[str, Object]:
        found = await self.admin.list(resource, namespace)
        for each in found:
            metadata = each["metadata"]
            self.uids.setdefault((resource.kind, metadata["name"]), set()).add(metadata["uid"])
        return {each["metadata"]["name"]: each for each in found}

    async def turn(self) -> None:
        """Every operation that was asked for ends."""
        for name, shoot in (await self.shoots()).items():
            if "deletionTimestamp" in shoot["metadata"] and name not in self.failing:
                await self._finish(resources.SHOOT, shoot)
            else:
                await self._operate(shoot)
        for name, managed_seed in (await self.managed_seeds()).items():
            if "deletionTimestamp" in managed_seed["metadata"]:
                await self.admin.delete(resources.SEED, name)
                await self._finish(MANAGED_SEEDS, managed_seed)
            else:
                await self._register(managed_seed)
        await self._wait_for_caches()

    async def _finish(self, resource: Resource, obj: Object) -> None:
        await self.admin.patch(resource, obj["metadata"]["name"], GARDEN, {"metadata": {"finalizers": None}})

    async def _operate(self, shoot: Object) -> None:
        name, generation = shoot["metadata"]["name"], shoot["metadata"]["generation"]
        failed, deleting = name in self.failing, "deletionTimestamp" in shoot["metadata"]
        operation = {
            "type": "Delete" if deleting else "Reconcile",
            "state": "Failed" if failed else "Succeeded",
            "lastUpdateTime": self.failed_at,
        }
        status = {"observedGeneration": generation, "lastOperation": operation}
        labels = {constants.SHOOT_STATUS: "unhealthy" if failed else "healthy"}
        metadata = {"labels": labels, "annotations": {constants.OPERATION: None}}
        if not deleting:
            metadata |= {"finalizers": [constants.FINALIZER]}
        known = shoot.get("status") or {}
        same = {key: known.get(key) for key in status} == status
        if same and labels.items() <= shoot["metadata"]["labels"].items():
            return
        await self.admin.patch(resources.SHOOT, name, GARDEN, {"metadata": metadata})
        await self.admin.patch(resources.SHOOT, name, GARDEN, {"status": status}, subresource="status")

    async def _register(self, managed_seed: Object) -> None:
        name = managed_seed["metadata"]["name"]
        conditions = [{"type": "SeedRegistered", "status": "True", "reason": "r", "message": ""}]
        status = {"observedGeneration": managed_seed["metadata"]["generation"], "conditions": conditions}
        if managed_seed.get("status") == status:
            return
        await self.admin.patch(MANAGED_SEEDS, name, GARDEN, {"metadata": {"finalizers": [constants.FINALIZER]}})
        await self.admin.patch(MANAGED_SEEDS, name, GARDEN, {"status": status}, subresource="status")
        await self.admin.apply({**changed(SEED), "metadata": {"name": name}, "status": {}}, manager="test")
        ready = [
            {"type": each, "status": "True", "reason": "r", "message": ""}
            for each in ("GardenletReady", "ExtensionsReady")
        ]
        await self.admin.patch(resources.SEED, name, None, {"status": {"conditions": ready}}, subresource="status")

    async def _wait_for_caches(self) -> None:
        """The caches of the controller know what the world has done."""
        for resource, namespace in ((resources.SEED, None), (resources.SHOOT, GARDEN)):
            cache = self.caches.of(resource)
            await cache.synced()
            wanted = {each["metadata"]["name"]: each["metadata"]["resourceVersion"]
                      for each in await self.admin.list(resource, namespace)}  # fmt: skip

            def same(wanted: dict[str, str] = wanted, cache: Any = cache, namespace: str | None = namespace) -> bool:
                return wanted == {
                    each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in cache.list(namespace)
                }

            await until(same)

    async def reconcile(self, client: KubeClient, name: str = "pool", config: Any = None) -> Exception | None:
        """One reconcile. Returns the obstacle that the controller would try again after."""
        await self._wait_for_caches()
        reconciler = ManagedSeedSetReconciler(client, self.caches, config or ManagedSeedSetConfig())
        try:
            await reconciler.reconcile(Key(GARDEN, name))
        except (ApiError, TryAgain, Conflict) as obstacle:
            return obstacle
        return None

    async def settle(self, client: KubeClient, name: str = "pool") -> None:
        """Reconcile, and let the world turn, until nothing changes any more."""
        before: object = None
        for _ in range(60):
            await self.reconcile(client, name)
            await self.turn()
            after = await self._versions()
            if after == before:
                return
            before = after
        raise AssertionError(f"the set {name} does not come to rest: {await self.status(name)}")

    async def _versions(self) -> object:
        found = []
        for resource in (resources.SHOOT, MANAGED_SEEDS, resources.MANAGED_SEED_SET, resources.CONTROLLER_REVISION):
            found += [
                (resource.kind, each["metadata"]["name"], each["metadata"]["generation" if "status" in each else "uid"],
                 str(each.get("status")), str(each["metadata"].get("labels")))
                for each in await self.admin.list(resource, GARDEN)
            ]  # fmt: skip
        return sorted(found)

    async def clear(self) -> None:
        for resource in (
            resources.SEED_AUTOSCALER,
            resources.MANAGED_SEED_SET,
            MANAGED_SEEDS,
            resources.SHOOT,
            resources.CONTROLLER_REVISION,
        ):
            for each in await self.admin.list(resource, GARDEN):
                name = each["metadata"]["name"]
                if each["metadata"].get("finalizers"):
                    await self.admin.patch(resource, name, GARDEN, {"metadata": {"finalizers": None}})
                await self.admin.delete(resource, name, GARDEN)
        for each in await self.admin.list(resources.SEED):
            await self.admin.delete(resources.SEED, each["metadata"]["name"])
        self.uids.clear()
