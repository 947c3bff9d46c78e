"""Keeps the roles and bindings of a Project's members as its spec says, and takes back changes of others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from api import resources
from api.core.v1beta1.project import Project
from api.decisions.project_access import Manifest, is_project_binding, project_access, project_of_role
from api.resources import Resource
from kube.cache import Caches, key_of
from kube.client import KubeClient, Object, WatchEvent

KINDS = (resources.CLUSTER_ROLE, resources.CLUSTER_ROLE_BINDING, resources.ROLE_BINDING)

_BY_PROJECT = "project"
"""Index of ClusterRoles and ClusterRoleBindings by the Project that their names hold."""


class ProjectAccess:
    """Reads roles and bindings from caches. A change that a cache has not seen yet leads to another reconcile."""

    def __init__(self, client: KubeClient, caches: Caches, manager: str) -> None:
        self._client = client
        self._caches = caches
        self._manager = manager
        for kind in (resources.CLUSTER_ROLE, resources.CLUSTER_ROLE_BINDING):
            caches.of(kind).index(_BY_PROJECT, project_of_role)

    async def ensure(self, project: Project, namespace: str | None) -> None:
        """Apply the roles and bindings; delete those that no member has any more.

        ``namespace``: the namespace that belongs to the Project, None if it has none. A second run changes nothing.
        """
        wanted = project_access(project, namespace)
        # Rights end before others begin, and the API server refuses the binding of a role that does not exist.
        await self._delete(project.metadata.name, namespace, wanted)
        for bindings in (False, True):
            await asyncio.gather(*(self._apply(each) for each in wanted if ("roleRef" in each) is bindings))

    async def remove(self, project: str, namespace: str | None = None) -> None:
        """Delete all roles and bindings of a Project."""
        await self._delete(project, namespace, [])

    async def _delete(self, project: str, namespace: str | None, wanted: list[Manifest]) -> None:
        kept = [_fixed(each) for each in wanted]
        stale = [
            self._client.delete(resource, key_of(each).name, key_of(each).namespace, uid=each["metadata"]["uid"])
            for resource, found in self._found(project, namespace)
            for each in found
            if _fixed({"kind": resource.kind, **each}) not in kept
        ]
        await asyncio.gather(*stale)

    def _found(self, project: str, namespace: str | None) -> Iterable[tuple[Resource, Iterable[Object]]]:
        for resource in (resources.CLUSTER_ROLE_BINDING, resources.CLUSTER_ROLE):
            yield resource, self._caches.of(resource).by_index(_BY_PROJECT, project)
        if namespace:
            bindings = self._caches.of(resources.ROLE_BINDING).list(namespace)
            yield resources.ROLE_BINDING, [each for each in bindings if is_project_binding(each)]

    async def _apply(self, wanted: Manifest) -> None:
        resource, metadata = resources.resource_of(wanted), wanted["metadata"]
        live = self._caches.of(resource).get(metadata["name"], metadata.get("namespace"))
        await self._client.apply(wanted, manager=self._manager, live=live)


def _fixed(obj: Object) -> tuple[str, str, object]:
    """Parts that no update can change: a binding that refers to another role must be replaced."""
    return obj["kind"], obj["metadata"]["name"], obj.get("roleRef")


def concerns_access(event: WatchEvent) -> bool:
    """Whether an event is about a role or binding that this controller owns."""
    return is_project_binding(event.object) or bool(tuple(project_of_role(event.object)))
