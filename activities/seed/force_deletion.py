"""Deleting what seed and garden hold of a Shoot whose cloud is given up: nothing here asks the cloud or the shoot.

A second run finds less to do, or nothing. Source: spec/flows.md 4.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from temporalio import activity

from activities.clusters import Clusters
from activities.components import base, machine_controller_manager
from activities.seed import rollout
from activities.seed.extension_kinds import Kind, all_of
from activities.seed.extensions import Extensions
from api import resources
from api.operations import ShootTask, TaskResult
from api.resources import Resource
from kube.errors import NotFound

_EXTENSION_KINDS = tuple(
    Kind(resource.plural, resource, existing=all_of(resource))
    for resource in (
        resources.BASTION,
        resources.CONTAINER_RUNTIME,
        resources.CONTROL_PLANE,
        resources.EXTENSION,
        resources.INFRASTRUCTURE,
        resources.NETWORK,
        resources.OPERATING_SYSTEM_CONFIG,
        resources.WORKER,
    )
)
"""All but those that other tasks delete: DNSRecord and BackupEntry."""
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
        """Delete the objects of all kinds; their controllers know from the Cluster that the cloud is given up."""
        found = await asyncio.gather(*(kind.there(self._clusters, task) for kind in _EXTENSION_KINDS))
        await asyncio.gather(*(self._extensions.delete(kind, task) for kind in _EXTENSION_KINDS))
        return TaskResult(note=f"{sum(map(len, found))} deleted")

    @activity.defn
    async def wait_extension_objects_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until their controllers have let them go."""
        await asyncio.gather(*(self._extensions.wait_deleted(kind, task) for kind in _EXTENSION_KINDS))
        return TaskResult()

    @activity.defn
    async def wait_machine_controller_manager_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until it looks after no machine any more."""
        select = base.control_plane_labels(machine_controller_manager.NAME)
        await rollout.wait_pods_gone(self._clusters.seed_caches, task.technical_id, select, _POD_SECONDS)
        return TaskResult()

    @activity.defn
    async def force_delete_machine_objects(self, task: ShootTask) -> TaskResult:
        """Let go of machines without asking the cloud to delete them.

        Raises TimeoutError after 30 s, naming what is left.
        """
        released = [await self._release(task, kind) for kind in _MACHINE_KINDS]
        await self._wait_gone(task, *_MACHINE_KINDS)
        return TaskResult(note=f"{sum(released)} objects")

    @activity.defn
    async def force_delete_managed_resources(self, task: ShootTask) -> TaskResult:
        """Let go of what was brought into the shoot; what is in the seed is removed by its resource manager.

        Raises TimeoutError after 30 s, naming what is left.
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
        """Delete them whoever holds them: they would keep the namespace from going."""
        released = [await self._release(task, kind) for kind in (resources.CONFIG_MAP, resources.SECRET)]
        return TaskResult(note=f"{sum(released)} objects")

    async def _release(
        self, task: ShootTask, kind: Resource, *, finalizers: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> int:
        """Delete all objects of a kind, then drop the finalizers of those that ``finalizers`` says.

        In this order: a controller may put its finalizer back on an object that is not being deleted.
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
