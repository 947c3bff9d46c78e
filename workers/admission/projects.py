"""The Project that a namespace belongs to, and the names that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from api import resources
from api.constants import PROJECT_NAME
from api.names import technical_id
from api.resources import Resource

Object = dict[str, Any]


class Lookup(Protocol):
    """Reads the garden."""

    async def find(self, resource: Resource, name: str, namespace: str | None = None, /) -> Object | None: ...

    async def list(self, resource: Resource, namespace: str | None = None, /) -> list[Object]: ...


async def project_of(namespace: str, garden: Lookup) -> Object | None:
    """The Project whose namespace this is."""
    for each in await garden.list(resources.PROJECT):
        if has_namespace(each, namespace):
            return each
    # The list may lag behind a Project that has just been created; a label of its namespace holds the Project's name.
    found = await garden.find(resources.NAMESPACE, namespace)
    name = ((found or {}).get("metadata", {}).get("labels") or {}).get(PROJECT_NAME)
    project = await garden.find(resources.PROJECT, name) if name else None
    return project if project is not None and has_namespace(project, namespace) else None


def has_namespace(project: Mapping[str, Any], namespace: str) -> bool:
    """Whether a namespace belongs to a Project, according to the Project: a namespace's label may name any Project."""
    return bool((project.get("spec") or {}).get("namespace") == namespace)


async def control_plane(shoot: Mapping[str, Any], garden: Lookup) -> str | None:
    """Technical ID of a Shoot: the namespace of its control plane. None if the Shoot's namespace has no Project.

    It is computed from the names of Project and Shoot. ``status.technicalID`` holds the same, but decisions about
    rights must not depend on a status.
    """
    metadata = shoot["metadata"]
    project = await project_of(metadata["namespace"], garden)
    return technical_id(project["metadata"]["name"], metadata["name"]) if project else None
