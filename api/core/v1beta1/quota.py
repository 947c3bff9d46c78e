"""Quota: limit of resources of all Shoots that use the same credentials, or belong to one project."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.constants import CORE
from api.meta import AGE, IMMUTABLE, Column, Definition, KubeModel, KubeObject, ObjectReference, Quantity


class QuotaSpec(KubeModel):
    cluster_lifetime_days: int | None = Field(default=None, ge=1)
    metrics: dict[str, Quantity]
    """Limits by resource: cpu, gpu, memory, storage.standard, storage.premium, loadbalancer."""
    scope: Annotated[ObjectReference, IMMUTABLE]


class Quota(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "quotas",
        ("squota",),
        columns=(
            Column("Scope", ".spec.scope.kind"),
            Column("Cluster Lifetime", ".spec.clusterLifetimeDays", "integer"),
            AGE,
        ),
        status=False,
    )

    spec: QuotaSpec
