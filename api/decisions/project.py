"""Decisions about Projects as pure functions. Source: spec/api-core.md 4, 12."""

from __future__ import annotations

import hashlib
from typing import Any

from api.constants import NAMESPACE_CREATED, NAMESPACE_KEEP, NAMESPACE_PROJECT, PROJECT_NAME, ROLE, ROLE_PROJECT
from api.core.v1beta1.project import Project


def namespace_name(project: Project) -> str:
    """Name of the Project's namespace: the one that the owner chose, or else a name that others cannot guess."""
    if project.spec.namespace:
        return project.spec.namespace
    suffix = hashlib.sha256(project.metadata.uid.encode()).hexdigest()[:5]
    return f"garden-{project.metadata.name}-{suffix}"


def desired_namespace(project: Project, found: dict[str, Any] | None) -> dict[str, Any]:
    """Manifest of the namespace for server-side apply: created for the Project, or adopted and kept after it.

    Raises:
        PermissionError: the namespace exists and is not marked as this Project's.
    """
    name = namespace_name(project)
    labels = {ROLE: ROLE_PROJECT, PROJECT_NAME: project.metadata.name}
    annotations = {NAMESPACE_PROJECT: project.metadata.uid}
    if found is None:
        annotations[NAMESPACE_CREATED] = "true"
    else:
        metadata = found["metadata"]
        theirs = metadata.get("labels") or {}
        if any(theirs.get(key) != value for key, value in labels.items()):
            raise PermissionError(
                f"namespace {name} exists and is not marked for project {project.metadata.name}; "
                f"label it {ROLE}={ROLE_PROJECT} and {PROJECT_NAME}={project.metadata.name}, or choose another"
            )
        marks = metadata.get("annotations") or {}
        owner = marks.get(NAMESPACE_PROJECT)
        if owner not in (None, "", project.metadata.uid) and not marks.get(NAMESPACE_KEEP):
            raise PermissionError(f"namespace {name} belongs to another project with uid {owner}")
        annotations[NAMESPACE_CREATED if NAMESPACE_CREATED in marks else NAMESPACE_KEEP] = "true"
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
    }
