"""ManagedSeedSet: several ManagedSeeds of one template, each with a Shoot of its own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import SEED_MANAGEMENT
from api.core.v1beta1.shoot import ShootSpec
from api.meta import AGE, IMMUTABLE, Column, Conditions, Definition, KubeModel, KubeObject, LabelSelector, Timestamp
from api.seedmanagement.v1alpha1.managed_seed import ManagedSeedTemplateSpec


class TemplateMeta(KubeModel):
    """Metadata of an object that is made of a template."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ManagedSeedTemplate(KubeModel):
    metadata: TemplateMeta | None = None
    spec: ManagedSeedTemplateSpec = Field(default_factory=ManagedSeedTemplateSpec)


class ShootTemplate(KubeModel):
    metadata: TemplateMeta | None = None
    spec: ShootSpec


class RollingUpdateStrategy(KubeModel):
    partition: int = Field(default=0, ge=0)
    """Lowest ordinal of the replicas that get a changed template."""


class UpdateStrategy(KubeModel):
    type: Literal["RollingUpdate"] = "RollingUpdate"
    rolling_update: RollingUpdateStrategy | None = None


class ManagedSeedSetSpec(KubeModel):
    replicas: int = Field(default=1, ge=0)
    selector: LabelSelector
    """Selects the ManagedSeeds and Shoots of the set; the labels of both templates must match it."""
    template: ManagedSeedTemplate
    shoot_template: ShootTemplate
    update_strategy: UpdateStrategy | None = None
    revision_history_limit: Annotated[int, IMMUTABLE] = Field(default=10, ge=0)
    """Number of old revisions of the templates that are kept."""


class PendingReplica(KubeModel):
    """The replica that the set changes now; there is at most one."""

    name: str
    reason: Literal[
        "ShootReconciling",
        "ShootDeleting",
        "ShootReconcileFailed",
        "ShootDeleteFailed",
        "ManagedSeedPreparing",
        "ManagedSeedDeleting",
        "SeedNotReady",
        "ShootNotHealthy",
    ]
    since: Timestamp
    """Time since which the replica is pending for this reason."""
    retries: int | None = None
    """Number of times that the failed operation of the Shoot was retried."""


class ManagedSeedSetStatus(KubeModel):
    observed_generation: int | None = None
    replicas: int = 0
    """Number of replicas: Shoots with or without a ManagedSeed."""
    ready_replicas: int | None = None
    """Number of replicas whose Shoot is healthy and whose Seed is ready."""
    next_replica_number: int | None = None
    """Ordinal of the next replica. An ordinal is used once."""
    current_replicas: int | None = None
    """Number of replicas of ``currentRevision``."""
    updated_replicas: int | None = None
    """Number of replicas of ``updateRevision``."""
    current_revision: str | None = None
    update_revision: str | None = None
    collision_count: int | None = None
    """Number of times that the name of a revision was taken; it is part of the next name."""
    conditions: Conditions | None = None
    pending_replica: PendingReplica | None = None
    selector: str | None = None
    """The selector as text, for subresource scale."""


class ManagedSeedSet(KubeObject):
    definition: ClassVar[Definition] = Definition(
        SEED_MANAGEMENT,
        "v1alpha1",
        "managedseedsets",
        ("mss",),
        columns=(
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Desired", ".spec.replicas", "integer"),
            Column("Pending", ".status.pendingReplica.reason"),
            AGE,
        ),
        scale=(".spec.replicas", ".status.replicas", ".status.selector"),
    )

    spec: ManagedSeedSetSpec
    status: ManagedSeedSetStatus | None = None
