"""Defaults of a Project: its creator and its owner. Source: spec/api-core.md 4."""

from __future__ import annotations

from typing import TypeVar

from api.access import RBAC
from api.core.v1beta1.project import Project, ProjectMember, Subject
from api.decisions.project_access import OWNER, VIEWER, roles_of

S = TypeVar("S", bound=Subject)

_SERVICE_ACCOUNT = "system:serviceaccount:"


def subject_of(user: str) -> Subject:
    """RBAC subject of a user name."""
    if user.startswith(_SERVICE_ACCOUNT):
        namespace, _, name = user.removeprefix(_SERVICE_ACCOUNT).partition(":")
        return Subject(kind="ServiceAccount", name=name, namespace=namespace)
    return Subject(kind="User", api_group=RBAC, name=user)


def default_project(project: Project, old: Project | None, user: str) -> None:
    if project.metadata.deletion_timestamp:
        return
    spec = project.spec = project.spec
    if old is None:
        spec.created_by = subject_of(user)
    elif old.spec.created_by is not None:
        spec.created_by = old.spec.created_by
    members = list(spec.members or [])
    if spec.owner is None:
        spec.owner = next((_as(Subject, each) for each in members if OWNER in roles_of(each)), spec.created_by)
    for member in members:
        if member.role is None and not member.roles:
            member.role = VIEWER
    owner = spec.owner
    if owner is not None:
        for member in members:
            if "owner" in (member.roles or []) and not _same(member, owner):
                member.roles = [role for role in member.roles or [] if role != "owner"]
        found = next((each for each in members if _same(each, owner)), None)
        if found is None:
            found = _as(ProjectMember, owner)
            members.append(found)
        found.role, *further = dict.fromkeys([*_roles(found), "admin", "owner"])
        found.roles = further
    if members:
        spec.members = members


def _roles(member: ProjectMember) -> list[str]:
    return [*([member.role] if member.role else []), *(member.roles or [])]


def _as(model: type[S], subject: Subject) -> S:
    """The same subject in another model."""
    return model(kind=subject.kind, api_group=subject.api_group, name=subject.name, namespace=subject.namespace)


def _same(one: Subject, other: Subject) -> bool:
    return (one.kind, one.name, one.namespace) == (other.kind, other.name, other.namespace)
