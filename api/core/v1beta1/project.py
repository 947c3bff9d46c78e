"""Project: a namespace of Shoots, and its members with their roles."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import CORE
from api.meta import (
    AGE,
    IMMUTABLE_ONCE_SET,
    Column,
    Conditions,
    Definition,
    KubeModel,
    KubeObject,
    LabelSelector,
    Timestamp,
    Toleration,
    map_list,
)


class Subject(KubeModel):
    """A user, group or service account, as in RBAC."""

    kind: Literal["User", "Group", "ServiceAccount"]
    api_group: str | None = None
    name: str
    namespace: str | None = None


class ProjectMember(Subject):
    role: str | None = None
    roles: list[str] | None = None
    """Roles: owner, admin, viewer, uam, serviceaccountmanager, ``extension:<name>``."""


class ProjectTolerations(KubeModel):
    defaults: list[Toleration] | None = None
    whitelist: list[Toleration] | None = None


class DualApprovalForDeletion(KubeModel):
    resource: Literal["shoots"]
    selector: LabelSelector
    include_service_accounts: bool = True


class ProjectSpec(KubeModel):
    created_by: Annotated[Subject | None, IMMUTABLE_ONCE_SET] = None
    description: str | None = None
    owner: Subject | None = None
    purpose: str | None = None
    members: list[ProjectMember] | None = None
    namespace: Annotated[str | None, IMMUTABLE_ONCE_SET, Field(max_length=63)] = None
    tolerations: ProjectTolerations | None = None
    dual_approval_for_deletion: Annotated[list[DualApprovalForDeletion] | None, map_list("resource")] = None


class ProjectStatus(KubeModel):
    observed_generation: int | None = None
    phase: Literal["Pending", "Ready", "Failed", "Terminating"] | None = None
    stale_since_timestamp: Timestamp | None = None
    stale_auto_delete_timestamp: Timestamp | None = None
    last_activity_timestamp: Timestamp | None = None
    conditions: Conditions | None = None


class Project(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "projects",
        namespaced=False,
        columns=(
            Column("Namespace", ".spec.namespace"),
            Column("Status", ".status.phase"),
            Column("Owner", ".spec.owner.name"),
            Column("Creator", ".spec.createdBy.name"),
            AGE,
        ),
        selectable=(".spec.namespace",),
    )

    spec: ProjectSpec = Field(default_factory=ProjectSpec)
    status: ProjectStatus | None = None
