"""Defaults of a Project: who made it, who owns it. Source: spec/api-core.md 4."""

from __future__ import annotations

from api.core.v1beta1.project import Project, ProjectMember, Subject

_RBAC = "rbac.authorization.k8s.io"
_SERVICE_ACCOUNT = "system:serviceaccount:"


def subject_of(user: str) -> Subject:
    """A user name as RBAC names its subject."""
    if user.startswith(_SERVICE_ACCOUNT):
        namespace, _, name = user.removeprefix(_SERVICE_ACCOUNT).partition(":")
        return Subject(kind="ServiceAccount", name=name, namespace=namespace)
    return Subject(kind="User", api_group=_RBAC, name=user)


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
        chosen = next((each for each in members if "owner" in [each.role, *(each.roles or [])]), spec.created_by)
        if chosen is not None:
            spec.owner = Subject(
                **chosen.model_dump(include=set(Subject.model_fields), exclude_none=True, by_alias=False)
            )
    for member in members:
        if member.role is None and not member.roles:
            member.role = "viewer"
    owner = spec.owner
    if owner is not None:
        for member in members:
            if "owner" in (member.roles or []) and not _same(member, owner):
                member.roles = [role for role in member.roles or [] if role != "owner"]
        found = next((each for each in members if _same(each, owner)), None)
        if found is None:
            found = ProjectMember(**owner.model_dump(exclude_none=True, by_alias=False))
            members.append(found)
        roles = [*([found.role] if found.role else []), *(found.roles or []), "admin", "owner"]
        found.role, *further = dict.fromkeys(roles)
        found.roles = further
    if members != (spec.members or []) or owner is not None:
        spec.members = members


def _same(one: Subject, other: Subject) -> bool:
    return (one.kind, one.name, one.namespace) == (other.kind, other.name, other.namespace)
