"""Writes the status of CloudProfiles, and of the NamespacedCloudProfiles that extend them.

A CloudProfile shows the current stage of each version, a NamespacedCloudProfile the merged spec. Both are for users and
clients: our processes evaluate stages and merge at each reading. Source: spec/api-core.md 2, 12.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime

from api import resources
from api.core.v1beta1.cloud_profile import CloudProfile, CloudProfileStatus
from api.core.v1beta1.namespaced_cloud_profile import NamespacedCloudProfileStatus
from api.decisions.profiles import merged, parent_of
from api.decisions.versions import current_stages, next_stage
from api.meta import KubeModel
from api.resources import Object, Resource
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller, Requeue
from kube.errors import NotFound

_CHILDREN = "cloudprofile whose status they follow"
_LONGEST_SECONDS = 24 * 3600.0
"""A stage may begin years from now, longer than a timer can wait."""


async def run_profile_controllers(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    profiles, children = (caches.of(each) for each in (resources.CLOUD_PROFILE, resources.NAMESPACED_CLOUD_PROFILE))
    await asyncio.gather(profiles.synced(), children.synced())
    children.index(_CHILDREN, _parent)
    reconciler = _ProfileReconciler(client, caches)

    def children_of(event: WatchEvent) -> Iterable[Key]:
        return [key_of(each) for each in children.by_index(_CHILDREN, event.object["metadata"]["name"])]

    stages = Controller("stages of cloudprofiles", reconciler.write_stages, workers=1)
    stages.watch(profiles)
    merging = Controller("namespacedcloudprofiles", reconciler.write_merged, workers=2)
    merging.watch(children)
    merging.watch(profiles, keys=children_of)
    await asyncio.gather(stages.run(), merging.run())


class _ProfileReconciler:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._profiles = caches.of(resources.CLOUD_PROFILE)
        self._children = caches.of(resources.NAMESPACED_CLOUD_PROFILE)

    async def write_stages(self, key: Key) -> Requeue | None:
        """Write the current stage of each version, and come back when the next stage begins."""
        obj = self._profiles.get(key.name)
        if obj is None:
            return None
        now, profile = datetime.now(UTC), CloudProfile.of(obj)
        await self._write(resources.CLOUD_PROFILE, obj, current_stages(profile, now), CloudProfileStatus)
        following = next_stage(profile, now)
        if following is None:
            return None
        return Requeue(min((following - now).total_seconds() + 1.0, _LONGEST_SECONDS))

    async def write_merged(self, key: Key) -> None:
        """Write the merged spec. It stays as it is while the parent does not exist."""
        obj = self._children.get(key.name, key.namespace)
        parent = self._profiles.get(parent_of(obj)) if obj is not None else None
        if obj is None or parent is None:
            return
        status = {
            "cloudProfileSpec": merged(parent, obj)["spec"],
            "observedGeneration": obj["metadata"]["generation"],
        }
        await self._write(resources.NAMESPACED_CLOUD_PROFILE, obj, status, NamespacedCloudProfileStatus)

    async def _write(self, kind: Resource, obj: Object, status: Object, shape: type[KubeModel]) -> None:
        """Replace the status, unless it says the same. A merge patch would keep entries that are gone."""
        if "status" in obj and shape.model_validate(obj["status"]) == shape.model_validate(status):
            return
        with contextlib.suppress(NotFound):
            header = {"apiVersion": kind.api_version, "kind": kind.kind}
            await self._client.replace({**obj, **header, "status": status}, subresource="status")


def _parent(profile: Object) -> Iterable[str]:
    return (parent_of(profile),)
