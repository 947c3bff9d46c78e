"""Force-delete a Shoot: delete its objects in seed and garden, without a request to its cloud or to the shoot.

A second run deletes what is left. Source: spec/flows.md 4.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from temporalio import activity

from activities.clusters import Clusters
from activities.components import base, machine_controller_manager
from activities.seed import rollout
from activities.seed.extension_kinds import IN_NAMESPACE, Kind, all_of
from activities.seed.extension_operations import Extensions
from api import resources
from api.contracts.operations import ShootTask, TaskResult
from api.resources import Resource
from kube.errors import NotFound

_EXTENSION_KINDS = tuple(
    Kind(resource.plural, resource, existing=all_of(resource))
    for resource in IN_NAMESPACE
    if resource != resources.DNS_RECORD
)
"""All kinds of extension objects, except those that other tasks delete: DNSRecord and BackupEntry."""
_MACHINE_KINDS = (
    resources.MACHINE_DEPLOYMENT,
    resources.MACHINE_SET,
    resources.MACHINE,
    resources.MACHINE_CLASS,
)
_POD_SECONDS = 120
_RELEASE_SECONDS = 30
"""Source: spec/flows.md 4."""


class ForceDeletionActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._extensions = Extensions(clusters)

    @activity.defn
    async def delete_extension_objects(self, task: ShootTask) -> TaskResult:
        """Delete the objects of all kinds; their controllers find in the Cluster that the Shoot is force-deleted."""
        found = await asyncio.gather(*(kind.there(self._clusters, task) for kind in _EXTENSION_KINDS))
        await asyncio.gather(*(self._extensions.delete(kind, task) for kind in _EXTENSION_KINDS))
        return TaskResult(note=f"{sum(map(len, found))} deleted")

    @activity.defn
    async def wait_extension_objects_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the extension objects are gone: their controllers have released them."""
        await asyncio.gather(*(self._extensions.wait_deleted(kind, task) for kind in _EXTENSION_KINDS))
        return TaskResult()

    @activity.defn
    async def wait_machine_controller_manager_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the machine-controller-manager has stopped, and acts on no machine any more."""
        select = base.control_plane_labels(machine_controller_manager.NAME)
        await rollout.wait_pods_gone(self._clusters.seed_caches, task.technical_id, select, _POD_SECONDS)
        return TaskResult()

    @activity.defn
    async def force_delete_machine_objects(self, task: ShootTask) -> TaskResult:
        """Delete the objects of machines, but not the machines in the cloud.

        Raises TimeoutError after 30 s, with the names of the objects that are left.
        """
        released = [await self._release(task, kind) for kind in _MACHINE_KINDS]
        await self._wait_gone(task, *_MACHINE_KINDS)
        return TaskResult(note=f"{sum(released)} objects")

    @activity.defn
    async def force_delete_managed_resources(self, task: ShootTask) -> TaskResult:
        """Delete the ManagedResources; release those for the shoot without deletion of their objects.

        The resource manager of the seed deletes the objects of those for the seed. Raises TimeoutError after 30 s,
        with the names of the ManagedResources that are left.
        """
        for each in await self._clusters.seed.list(resources.MANAGED_RESOURCE, task.technical_id):
            if each["spec"].get("keepObjects"):
                await self._patch(resources.MANAGED_RESOURCE, each, {"spec": {"keepObjects": False}})
        released = await self._release(
            task, resources.MANAGED_RESOURCE, finalizers=lambda each: not each["spec"].get("class")
        )
        await self._wait_gone(task, resources.MANAGED_RESOURCE)
        return TaskResult(note=f"{released} objects")

    @activity.defn
    async def force_delete_configmaps_and_secrets(self, task: ShootTask) -> TaskResult:
        """Delete all ConfigMaps and Secrets, and drop their finalizers: they would block the namespace's deletion."""
        released = [await self._release(task, kind) for kind in (resources.CONFIG_MAP, resources.SECRET)]
        return TaskResult(note=f"{sum(released)} objects")

    async def _release(
        self, task: ShootTask, kind: Resource, *, finalizers: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> int:
        """Delete all objects of a kind, then drop the finalizers of those that ``finalizers`` selects.

        The order matters: a controller may add its finalizer again to an object that is not being deleted.
        """
        found = await self._clusters.seed.list(kind, task.technical_id)
        for each in found:
            metadata = each["metadata"]
            await self._clusters.seed.delete(kind, metadata["name"], task.technical_id, uid=metadata["uid"])
        for each in await self._clusters.seed.list(kind, task.technical_id):
            if each["metadata"].get("finalizers") and finalizers(each):
                await self._patch(kind, each, {"metadata": {"finalizers": None}})
        return len(found)

    async def _patch(self, kind: Resource, live: dict[str, Any], patch: dict[str, Any]) -> None:
        metadata = live["metadata"]
        try:
            await self._clusters.seed.patch(kind, metadata["name"], metadata["namespace"], patch)
        except NotFound:
            return

    async def _wait_gone(self, task: ShootTask, *kinds: Resource) -> None:
        for kind in kinds:
            caches = self._clusters.seed_caches
            await rollout.wait_none_left(caches, kind, task.technical_id, _RELEASE_SECONDS, what=kind.kind)
