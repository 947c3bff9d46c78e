"""Limits the number of objects in the namespaces of Projects by ResourceQuotas.

Source: spec/api-core.md 12, "Project" and "Project ResourceQuota".
"""

import asyncio
from collections.abc import Iterable, Sequence

from api import resources
from api.decisions.project_usage import raised, with_template
from api.labels import matches
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from workers.controller_manager.project import BY_NAMESPACE, namespaces_of
from workers.controller_manager.project_usage import ProjectQuota

_NAME = "gardener"
"""Name of the ResourceQuota that is made from a template."""


async def run_project_quota_controllers(client: KubeClient, caches: Caches, quotas: Sequence[ProjectQuota]) -> None:
    """Run until cancelled."""
    projects, limits = caches.of(resources.PROJECT), caches.of(resources.RESOURCE_QUOTA)
    await asyncio.gather(projects.synced(), limits.synced(), caches.of(resources.SHOOT).synced())
    projects.index(BY_NAMESPACE, namespaces_of)
    reconciler = _QuotaReconciler(client, caches, quotas)

    def project_of(event: WatchEvent) -> Iterable[Key]:
        return [key_of(each) for each in projects.by_index(BY_NAMESPACE, event.object["metadata"]["namespace"])]

    templates = Controller("resource quotas of projects", reconciler.apply_template, workers=1)
    templates.watch(projects)
    templates.watch(limits, keys=project_of, when=lambda event: event.object["metadata"]["name"] == _NAME)
    raising = Controller("resource quotas", reconciler.raise_limits, workers=1)
    raising.watch(limits)
    await asyncio.gather(templates.run(), raising.run())


class _QuotaReconciler:
    def __init__(self, client: KubeClient, caches: Caches, quotas: Sequence[ProjectQuota]) -> None:
        self._client = client
        self._caches = caches
        self._quotas = quotas

    async def apply_template(self, key: Key) -> None:
        """Give the namespace of a Project the ResourceQuota of the first template that selects the Project."""
        project = self._caches.of(resources.PROJECT).get(key.name)
        if project is None or "deletionTimestamp" in project["metadata"]:
            return
        labels = project["metadata"].get("labels") or {}
        template = next((each.config for each in self._quotas if matches(each.project_selector, labels)), None)
        namespace = (project.get("spec") or {}).get("namespace")
        if template is None or not namespace:
            return
        found = await self._client.find(resources.RESOURCE_QUOTA, _NAME, namespace)
        hard = with_template(found, template)
        if found is None:
            if await self._client.find(resources.NAMESPACE, namespace) is None:
                raise TryAgain(f"namespace {namespace} does not exist yet")
            await self._client.create(_resource_quota(project, namespace, template))
        elif hard != (found.get("spec") or {}).get("hard") and "deletionTimestamp" not in found["metadata"]:
            await patch_as_read(self._client, resources.RESOURCE_QUOTA, found, {"spec": {"hard": hard}})

    async def raise_limits(self, key: Key) -> None:
        """Raise limits of a ResourceQuota in the namespace of a Project by what Gardener itself creates there."""
        quota = self._caches.of(resources.RESOURCE_QUOTA).get(key.name, key.namespace)
        if quota is None or not self._caches.of(resources.PROJECT).by_index(BY_NAMESPACE, key.namespace):
            return
        patch = raised(quota, len(self._caches.of(resources.SHOOT).list(key.namespace)))
        if patch is not None:
            await patch_as_read(self._client, resources.RESOURCE_QUOTA, quota, patch)


def _resource_quota(project: Object, namespace: str, template: Object) -> Object:
    metadata, given = project["metadata"], template.get("metadata") or {}
    owner = {"apiVersion": resources.PROJECT.api_version, "kind": resources.PROJECT.kind, "controller": True}
    return {
        "apiVersion": resources.RESOURCE_QUOTA.api_version,
        "kind": resources.RESOURCE_QUOTA.kind,
        "metadata": {
            "name": _NAME,
            "namespace": namespace,
            "labels": given.get("labels") or {},
            "annotations": given.get("annotations") or {},
            "ownerReferences": [
                {**owner, "blockOwnerDeletion": True, "name": metadata["name"], "uid": metadata["uid"]}
            ],
        },
        "spec": template["spec"],
    }
