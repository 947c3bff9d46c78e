"""Reconciles Projects: each gets a namespace, which is deleted or released with it, and the roles of its members."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from api import resources
from api.constants import FINALIZER, NAMESPACE_CREATED, NAMESPACE_PROJECT
from api.core.v1beta1.project import Project
from api.decisions.project import desired_namespace, namespace_name
from api.decisions.project_access import project_of_role
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.events import emit
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer
from workers.controller_manager.project_access import KINDS, ProjectAccess, concerns_access

log = logging.getLogger(__name__)

_MANAGER = "gardener-controller-manager"
_RECHECK_SECONDS = 60.0
BY_NAMESPACE = "spec.namespace"
"""Index of Projects by their namespace, see ``namespaces_of``."""


async def run_project_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    projects, namespaces, shoots = (
        caches.of(resource) for resource in (resources.PROJECT, resources.NAMESPACE, resources.SHOOT)
    )
    access = [caches.of(kind) for kind in KINDS]
    for cache in (projects, namespaces, shoots, *access):
        await cache.synced()
    projects.index(BY_NAMESPACE, namespaces_of)
    controller = Controller("projects", _ProjectReconciler(client, caches).reconcile, workers=2)

    def project_of_namespace(event: WatchEvent) -> Iterable[Key]:
        name = event.object["metadata"]["name"]
        namespace = name if event.object["kind"] == "Namespace" else event.object["metadata"]["namespace"]
        return [key_of(each) for each in projects.by_index(BY_NAMESPACE, namespace)]

    def project_of_access(event: WatchEvent) -> Iterable[Key]:
        if "namespace" in event.object["metadata"]:
            return project_of_namespace(event)
        return [Key(None, name) for name in project_of_role(event.object)]

    controller.watch(projects)
    for cache in access:
        controller.watch(cache, keys=project_of_access, when=concerns_access)
    controller.watch(namespaces, keys=project_of_namespace, when=lambda event: event.type != "MODIFIED")
    controller.watch(shoots, keys=project_of_namespace, when=lambda event: event.type == "DELETED")
    await controller.run()


def namespaces_of(project: Mapping[str, Any]) -> Iterable[str]:
    """The namespace of a Project; empty while the Project has none."""
    namespace = project.get("spec", {}).get("namespace")
    return (namespace,) if namespace else ()


class _ProjectReconciler:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._access = ProjectAccess(client, caches, _MANAGER)

    async def reconcile(self, key: Key) -> Requeue | None:
        obj = self._caches.of(resources.PROJECT).get(key.name)
        if obj is None:
            await self._access.remove(key.name)
            return None
        if "deletionTimestamp" in obj["metadata"]:
            return await self._delete(obj)
        return await self._ensure(obj)

    async def _ensure(self, obj: dict[str, Any]) -> Requeue | None:
        project = Project.of(obj)
        name = project.metadata.name
        if not has_finalizer(obj, FINALIZER):
            await ensure_finalizer(self._client, resources.PROJECT, obj, FINALIZER)
            return None  # this write triggers the next event
        if project.status is None or project.status.phase is None:
            obj, _ = await self._set_phase(obj, "Pending")
        namespace = namespace_name(project)
        found = await self._client.find(resources.NAMESPACE, namespace)
        try:
            wanted = desired_namespace(project, found)
        except PermissionError as error:
            obj, changed = await self._set_phase(obj, "Failed")
            if changed:
                await emit(self._client, obj, _MANAGER, "NamespaceReconcileFailed", str(error), "Warning")
            await self._access.ensure(project, None)
            return Requeue(_RECHECK_SECONDS)
        if not _covers(found, wanted):
            await self._client.apply(wanted, manager=_MANAGER)
        if project.spec.namespace != namespace:
            obj = await self._client.patch(resources.PROJECT, name, None, {"spec": {"namespace": namespace}})
        await self._access.ensure(project, namespace)
        obj, changed = await self._set_phase(obj, "Ready")
        if changed:
            text = f"namespace {namespace} is this project's"
            await emit(self._client, obj, _MANAGER, "NamespaceReconcileSuccessful", text)
        return None

    async def _delete(self, obj: dict[str, Any]) -> Requeue | None:
        if not has_finalizer(obj, FINALIZER):
            return None
        obj, _ = await self._set_phase(obj, "Terminating")
        project = Project.of(obj)
        namespace = namespace_name(project)
        shoots = await self._client.list(resources.SHOOT, namespace)
        if shoots:
            names = ", ".join(sorted(each["metadata"]["name"] for each in shoots))
            await emit(self._client, obj, _MANAGER, "NamespaceNotEmpty", f"still has Shoots: {names}", "Warning")
            return Requeue(_RECHECK_SECONDS)
        found = await self._client.find(resources.NAMESPACE, namespace)
        if found is not None:
            annotations = found["metadata"].get("annotations") or {}
            if annotations.get(NAMESPACE_PROJECT) == project.metadata.uid and annotations.get(NAMESPACE_CREATED):
                if "deletionTimestamp" not in found["metadata"]:
                    await self._client.delete(resources.NAMESPACE, namespace, uid=found["metadata"]["uid"])
                    await emit(self._client, obj, _MANAGER, "NamespaceMarkedForDeletion", f"deleting {namespace}")
                raise TryAgain(f"namespace {namespace} is still there")
            if annotations.get(NAMESPACE_PROJECT) == project.metadata.uid:
                await self._access.remove(project.metadata.name, namespace)
                release = {"metadata": {"annotations": {NAMESPACE_PROJECT: None}}}
                await self._client.patch(resources.NAMESPACE, namespace, None, release)
        await self._access.remove(project.metadata.name)
        await remove_finalizer(self._client, resources.PROJECT, obj, FINALIZER)
        return None

    async def _set_phase(self, obj: dict[str, Any], phase: str) -> tuple[dict[str, Any], bool]:
        """Write the phase; returns the updated object, and whether the phase has changed."""
        status = obj.get("status") or {}
        wanted = {"phase": phase, "observedGeneration": obj["metadata"]["generation"]}
        if all(status.get(key) == value for key, value in wanted.items()):
            return obj, False
        return await self._patch(obj, {"status": wanted}, subresource="status"), status.get("phase") != phase

    async def _patch(self, obj: dict[str, Any], patch: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        """Patch the Project that was read. Raises Conflict if it has changed since."""
        return await patch_as_read(self._client, resources.PROJECT, obj, patch, subresource=subresource)


def _covers(found: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    """Whether labels and annotations are as wanted, so that nothing needs to be written."""
    if found is None:
        return False
    return all(
        (found["metadata"].get(field) or {}).get(key) == value
        for field in ("labels", "annotations")
        for key, value in wanted["metadata"][field].items()
    )
