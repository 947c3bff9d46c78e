"""Roles of one Project's members, and their bindings. Source: spec/api-core.md 4, 11.

A role exists only while a member has it. The names are Gardener's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api.access import (
    PROJECT_MEMBER,
    PROJECT_SERVICE_ACCOUNT_MANAGER,
    PROJECT_VIEWER,
    RBAC,
    aggregation_rule,
    rule,
)
from api.constants import CORE, MANAGE_MEMBERS, PROJECT_NAME, ROLE
from api.core.v1beta1.project import Project, ProjectMember, Subject

Manifest = dict[str, Any]
Identity = tuple[str, str, str]

OWNER, ADMIN, VIEWER, UAM, SERVICE_ACCOUNT_MANAGER = ROLES = (
    "owner",
    "admin",
    "viewer",
    "uam",
    "serviceaccountmanager",
)
EXTENSION_PREFIX = "extension:"
MANAGERS = frozenset({OWNER, UAM})
"""Roles that include the verb manage-members."""

_SERVICE_ACCOUNT = "system:serviceaccount:"
_CHANGE = ["get", "patch", "update"]
_NAMES = {
    OWNER: "gardener.cloud:system:project:",
    ADMIN: "gardener.cloud:system:project-member:",
    UAM: "gardener.cloud:system:project-uam:",
    VIEWER: "gardener.cloud:system:project-viewer:",
}
"""Names of the ClusterRoles of one Project, without the Project's name at the end."""
_VERBS = {
    OWNER: [*_CHANGE, "delete", MANAGE_MEMBERS],
    ADMIN: [*_CHANGE, "delete"],
    UAM: [*_CHANGE, MANAGE_MEMBERS],
    VIEWER: ["get"],
}
"""Verbs on the Project itself."""
_SEE_THE_NAMESPACE = (OWNER, ADMIN, VIEWER)
_EXTENSION = "gardener.cloud:extension:project:"
_SHARED = {
    PROJECT_MEMBER: {OWNER, ADMIN},
    PROJECT_VIEWER: {VIEWER},
    PROJECT_SERVICE_ACCOUNT_MANAGER: {OWNER, SERVICE_ACCOUNT_MANAGER},
}
"""ClusterRoles that are bound in the namespace, and the members that they are bound to."""


def roles_of(member: ProjectMember) -> set[str]:
    return {*([member.role] if member.role else []), *(member.roles or [])}


def must_manage_members(project: Project, old: Project | None, author: Subject) -> bool:
    """Whether a write needs the verb manage-members: it changes the owner, or a member who is a user or group.

    The roles that include this verb need it for ServiceAccounts, too: a user who may read the Secrets of the namespace
    may act as its ServiceAccounts. The author of a new Project needs no verb to be its owner and to choose members.
    """
    if old is None:
        return project.spec.owner is None or _identity(project.spec.owner) != _identity(author)
    return _managed(project) != _managed(old)


def _managed(project: Project) -> tuple[Identity | None, set[tuple[Identity, frozenset[str]]]]:
    owner, members = project.spec.owner, set()
    for member in project.spec.members or []:
        roles = frozenset(roles_of(member))
        if _is_service_account(member):
            roles &= MANAGERS
        if roles:
            members.add((_identity(member), roles))
    return _identity(owner) if owner else None, members


def _identity(subject: Subject) -> Identity:
    return subject.kind, subject.name, subject.namespace or ""


def _is_service_account(subject: Subject) -> bool:
    return subject.kind == "ServiceAccount" or (subject.kind == "User" and subject.name.startswith(_SERVICE_ACCOUNT))


def project_access(project: Project, namespace: str | None) -> list[Manifest]:
    """Roles of a Project, then their bindings.

    ``namespace``: the namespace that belongs to the Project; None while it has none. Members then have only the rights
    on the Project itself, so that its owner can change or delete it.
    """
    name, owner = project.metadata.name, _owner_reference(project)
    members = project.spec.members or []
    roles, bindings = [], []
    for role, prefix in _NAMES.items():
        if subjects := _subjects(members, {role}):
            metadata: dict[str, Any] = {
                "name": f"{prefix}{name}",
                "labels": {PROJECT_NAME: name},
                "ownerReferences": owner,
            }
            rules = [rule([CORE], ["projects"], _VERBS[role]) | {"resourceNames": [name]}]
            if namespace and role in _SEE_THE_NAMESPACE:
                rules.append(rule([""], ["namespaces"], ["get"]) | {"resourceNames": [namespace]})
            roles.append(_object("ClusterRole", metadata) | {"rules": rules})
            bindings.append(_binding("ClusterRoleBinding", metadata, metadata["name"], subjects))
    for extension in sorted({role for each in members for role in roles_of(each) if role.startswith(EXTENSION_PREFIX)}):
        short = extension.removeprefix(EXTENSION_PREFIX)
        labels = {PROJECT_NAME: name, ROLE: "extension-project-role"}
        metadata = {"name": f"{_EXTENSION}{name}:{short}", "labels": labels, "ownerReferences": owner}
        aggregated = aggregation_rule({"rbac.gardener.cloud/aggregate-to-extension-role": short})
        roles.append(_object("ClusterRole", metadata) | aggregated)
        if namespace:
            in_namespace = metadata | {"namespace": namespace}
            subjects = _subjects(members, {extension})
            bindings.append(_binding("RoleBinding", in_namespace, metadata["name"], subjects))
    for shared, bound in _SHARED.items():
        if namespace and (subjects := _subjects(members, bound)):
            labels = {PROJECT_NAME: name}
            metadata = {"name": shared, "namespace": namespace, "labels": labels, "ownerReferences": owner}
            bindings.append(_binding("RoleBinding", metadata, shared, subjects))
    return roles + bindings


def project_of_role(role: Mapping[str, Any]) -> Iterable[str]:
    """Name of the Project that a ClusterRole or ClusterRoleBinding is for, by its own name; empty if it is for none.

    No Project's name and no role's name holds a colon.
    """
    name: str = role["metadata"]["name"]
    for prefix in (*_NAMES.values(), _EXTENSION):
        if name.startswith(prefix):
            return (name.removeprefix(prefix).partition(":")[0],)
    return ()


def is_project_binding(binding: Mapping[str, Any]) -> bool:
    """Whether a RoleBinding has a name that, in the namespace of a Project, only the controller-manager gives."""
    name: str = binding["metadata"]["name"]
    return name in _SHARED or name.startswith(_EXTENSION)


def _subjects(members: Iterable[ProjectMember], roles: set[str]) -> list[Manifest]:
    return [_subject(each) for each in members if roles & roles_of(each)]


def _subject(member: Subject) -> Manifest:
    if member.kind == "ServiceAccount":
        return {"kind": member.kind, "name": member.name, "namespace": member.namespace}
    return {"apiGroup": RBAC, "kind": member.kind, "name": member.name}


def _binding(kind: str, metadata: Manifest, role: str, subjects: list[Manifest]) -> Manifest:
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
    return _object(kind, metadata) | {"roleRef": reference, "subjects": subjects}


def _object(kind: str, metadata: Manifest) -> Manifest:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata}


def _owner_reference(project: Project) -> list[Manifest]:
    """Reference by which Kubernetes deletes the objects with the Project, even if its finalizer is removed by hand."""
    version, metadata = f"{CORE}/v1beta1", project.metadata
    return [{"apiVersion": version, "kind": "Project", "name": metadata.name, "uid": metadata.uid}]
