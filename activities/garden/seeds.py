"""Garden's part of the operations of a Seed: finalizer, status, users, and the objects that the garden has for it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import transient
from activities.garden.events import MESSAGE_LIMIT
from activities.garden.seed_namespaces import (
    belongs_to,
    copy_secrets,
    deploy_namespace,
    secrets_of_garden,
)
from activities.heartbeat import heartbeating
from api import resources
from api.constants import FINALIZER, GARDEN_NAMESPACE, OPERATION, SEED_LEASE_NAMESPACE
from api.contracts.flows import SeedFailure
from api.contracts.operations import OperationType, SeedTask, TaskResult
from api.decisions.seeds import hindrances, is_asked
from api.names import seed_namespace
from api.resources import Resource
from api.times import timestamp
from kube.cache import Caches
from kube.client import KubeClient, Object
from kube.edit import edit
from kube.errors import Forbidden, NotFound
from kube.finalizers import has_finalizer

_GONE_SECONDS = 14 * 60.0
"""Seconds to wait for the deletion of objects; shorter than the timeout of the activity."""
_RELEASED_SECONDS = 60.0


class GardenSeedActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient, caches: Caches) -> None:
        self._garden = garden
        self._caches = caches

    # Start and end of an operation

    @activity.defn
    async def start_seed_operation(self, task: SeedTask) -> TaskResult:
        """Add the finalizer, remove the annotation that requests the operation, and report that the operation runs.

        A second run finds the finalizer, and writes the same status. An annotation that is written later stays, and a
        later operation handles it.
        """
        await self._edit(task, lambda live: _started(live, task))
        description = (
            "Deletion of Seed is running." if task.operation is OperationType.DELETE else "Seed is being reconciled."
        )
        await self._edit(task, lambda _: _status(task, "Processing", 0, description), subresource="status")
        return TaskResult()

    @activity.defn
    async def record_seed_failure(self, request: SeedFailure) -> None:
        """Write to the Seed's status which tasks have failed. A second run writes the same."""
        texts = "; ".join(f"{each.name}: {each.message}" for each in request.failed)
        description = f"{request.task.operation} failed at attempt {request.attempt}: {texts}"

        def change(live: Object) -> dict[str, Any]:
            progress = ((live.get("status") or {}).get("lastOperation") or {}).get("progress", 0)
            return _status(request.task, "Error", progress, description)

        await edit(
            self._garden, resources.SEED, request.task.name, None, change, uid=request.task.uid, subresource="status"
        )

    async def _edit(
        self, task: SeedTask, change: Callable[[Object], dict[str, Any] | None], *, subresource: str = ""
    ) -> Object:
        live = await edit(self._garden, resources.SEED, task.name, None, change, uid=task.uid, subresource=subresource)
        if live is None:
            raise ApplicationError(
                f"Seed {task.name} with uid {task.uid} does not exist any more", type="SeedGone", non_retryable=True
            )
        return live

    # Reconciliation

    @activity.defn
    async def deploy_seed_namespace(self, task: SeedTask) -> TaskResult:
        """Apply namespace ``seed-<name>`` and the copies of Secrets in it; a second run changes nothing.

        The controller-manager keeps the copies up to date afterwards.
        """
        seed = await self._garden.get(resources.SEED, task.name)
        await deploy_namespace(self._garden, seed)
        await copy_secrets(self._garden, seed, await secrets_of_garden(self._garden))
        return TaskResult(note=seed_namespace(task.name))

    # Deletion

    @activity.defn
    async def wait_seed_unused(self, task: SeedTask) -> TaskResult:
        """Succeed if nothing uses the Seed.

        Raises:
            ApplicationError: ``SeedInUse``, retried: names the users, and says what to do.
        """
        found = hindrances(
            task.name,
            task.uid,
            await self._garden.list(resources.SHOOT),
            await self._garden.list(resources.CORE_BACKUP_ENTRY),
            await self._list_if_served(resources.MANAGED_SEED, GARDEN_NAMESPACE),
        )
        if found:
            raise transient("SeedInUse", f"Seed {task.name} cannot be deleted yet: {'; '.join(found)}")
        return TaskResult()

    @activity.defn
    async def delete_garden_backup_bucket(self, task: SeedTask) -> TaskResult:
        """Delete the BackupBucket of the Seed, which has the Seed's uid as its name, and wait until it is gone."""
        await self._delete(resources.CORE_BACKUP_BUCKET, task.uid)
        return TaskResult(note=f"bucket {task.uid}")

    @activity.defn
    async def delete_controller_installations(self, task: SeedTask) -> TaskResult:
        """Delete the ControllerInstallations of the seed, and wait until the gardenlet has uninstalled them."""
        cache = self._caches.of(resources.CONTROLLER_INSTALLATION)

        def left() -> list[Object]:
            return [each for each in cache.list() if _installed_in(each, task.name)]

        found = await self._list_if_served(resources.CONTROLLER_INSTALLATION)
        ours = [each for each in found if _installed_in(each, task.name)]
        for each in ours:
            if "deletionTimestamp" not in each["metadata"]:
                await self._garden.delete(
                    resources.CONTROLLER_INSTALLATION, each["metadata"]["name"], uid=each["metadata"]["uid"]
                )
        if ours:
            await self._wait(
                cache.wait_until(lambda _: not left() or None, _GONE_SECONDS),
                lambda: f"ControllerInstallations {', '.join(each['metadata']['name'] for each in left())} still exist",
            )
        return TaskResult(note=f"{len(ours)} extensions")

    @activity.defn
    async def delete_seed_namespace(self, task: SeedTask) -> TaskResult:
        """Delete namespace ``seed-<name>`` with the copies of Secrets, and wait until it is gone.

        A namespace of that name that does not belong to the Seed stays.
        """
        name = seed_namespace(task.name)
        live = await self._garden.find(resources.NAMESPACE, name)
        if live is None or not belongs_to(live, task.uid):
            return TaskResult(note=f"namespace {name} does not exist")
        await self._delete(resources.NAMESPACE, name, live)
        return TaskResult(note=f"namespace {name}")

    @activity.defn
    async def release_seed(self, task: SeedTask) -> TaskResult:
        """Remove the finalizer, wait until the Seed is gone, and delete its Lease.

        The gardenlet renews the Lease until the Seed is gone. A second run finds no Seed, and deletes the Lease. If
        another component still has a finalizer on the Seed, the garbage collector deletes the Lease later, because the
        Seed owns it.
        """

        def released(live: Object) -> dict[str, Any] | None:
            if not has_finalizer(live, FINALIZER):
                return None
            return {"metadata": {"finalizers": [each for each in live["metadata"]["finalizers"] if each != FINALIZER]}}

        live = await edit(self._garden, resources.SEED, task.name, None, released, uid=task.uid)
        if live is not None and live["metadata"].get("finalizers"):
            return TaskResult(note=f"finalizers of others are left: {', '.join(live['metadata']['finalizers'])}")
        await self._gone(resources.SEED, task.name, task.uid, _RELEASED_SECONDS)
        lease = await self._garden.find(resources.LEASE, task.name, SEED_LEASE_NAMESPACE)
        owners = (lease or {}).get("metadata", {}).get("ownerReferences") or ()
        if lease is not None and any(each["uid"] == task.uid for each in owners):
            await self._garden.delete(resources.LEASE, task.name, SEED_LEASE_NAMESPACE, uid=lease["metadata"]["uid"])
        return TaskResult()

    async def _list_if_served(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """All objects of a kind; none if the garden does not have the kind."""
        try:
            return await self._garden.list(resource, namespace)
        except NotFound:
            return []

    async def _delete(self, resource: Resource, name: str, live: Object | None = None) -> None:
        """Delete an object that is in no namespace, and wait until it is gone."""
        live = live or await self._garden.find(resource, name)
        if live is None:
            return
        uid = live["metadata"]["uid"]
        try:
            await self._garden.delete(resource, name, uid=uid)
        except Forbidden as error:
            raise transient("NotReady", f"{resource.kind} {name} cannot be deleted yet: {error}") from None
        await self._gone(resource, name, uid, _GONE_SECONDS)

    async def _gone(self, resource: Resource, name: str, uid: str, seconds: float) -> None:
        """Wait until an object is gone."""
        cache = self._caches.of(resource)
        await self._wait(
            cache.wait_for(name, None, lambda live: live is None or live["metadata"]["uid"] != uid, seconds),
            lambda: f"{resource.kind} {name} still exists: {_finalizers(cache.get(name))}",
        )

    @staticmethod
    async def _wait(wait: Any, fault: Callable[[], str]) -> None:
        try:
            await heartbeating(wait, details=fault)
        except TimeoutError:
            raise transient("NotReady", fault()) from None


def _started(live: Object, task: SeedTask) -> dict[str, Any] | None:
    """Merge patch that adds the finalizer and removes the annotation; None if there is nothing to change.

    Raises ApplicationError ``SeedDeleting`` (final) if the Seed is to be reconciled, and is being deleted.
    """
    metadata: dict[str, Any] = {}
    if task.operation is not OperationType.DELETE:
        if "deletionTimestamp" in live["metadata"]:
            raise ApplicationError(f"Seed {task.name} is being deleted", type="SeedDeleting", non_retryable=True)
        if not has_finalizer(live, FINALIZER):
            metadata["finalizers"] = [*(live["metadata"].get("finalizers") or ()), FINALIZER]
    if is_asked(live):
        metadata["annotations"] = {OPERATION: None}
    return {"metadata": metadata} if metadata else None


def _status(task: SeedTask, state: str, progress: int, description: str) -> dict[str, Any]:
    operation = {
        "type": str(task.operation),
        "state": state,
        "progress": progress,
        "description": description[:MESSAGE_LIMIT],
        "lastUpdateTime": timestamp(datetime.now(UTC)),
    }
    return {"status": {"lastOperation": operation}}


def _installed_in(installation: Object, seed: str) -> bool:
    return bool(((installation.get("spec") or {}).get("seedRef") or {}).get("name") == seed)


def _finalizers(live: Object | None) -> str:
    found = ((live or {}).get("metadata") or {}).get("finalizers") or ()
    return f"finalizers {', '.join(found)}" if found else "it has no finalizer"
