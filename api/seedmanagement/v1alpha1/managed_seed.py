"""ManagedSeed: a Shoot of namespace garden that hosts control planes, because a gardenlet runs in it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import SEED_MANAGEMENT
from api.meta import AGE, IMMUTABLE, Column, Conditions, Definition, KubeModel, KubeObject, Raw


class Image(KubeModel):
    """Image of the gardenlet: either ``ref``, or ``repository`` with ``tag``."""

    ref: str | None = None
    """Reference with a tag or a digest, like ``registry.example.org/gardener:v1.2.3``."""
    repository: str | None = None
    tag: str | None = None
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None


class GardenletDeployment(KubeModel):
    """Deployment of a gardenlet."""

    replica_count: int = Field(default=2, ge=1)
    revision_history_limit: int = Field(default=2, ge=0)
    """Number of old ReplicaSets that the Deployment keeps."""
    service_account_name: str | None = None
    """Name of the gardenlet's ServiceAccount; ``gardenlet`` if it is not set."""
    image: Image | None = None
    """Image of the gardenlet; that of the parent gardenlet if it is not set."""
    resources: Raw | None = None
    """Requests and limits of the container, as in a Pod."""
    pod_labels: dict[str, str] | None = None
    pod_annotations: dict[str, str] | None = None
    additional_volumes: list[Raw] | None = None
    additional_volume_mounts: list[Raw] | None = None
    env: list[Raw] | None = None
    tolerations: list[Raw] | None = None
    enable_health_probes: bool = True


class ManagedSeedGardenlet(KubeModel):
    """The gardenlet that runs in the Shoot."""

    deployment: GardenletDeployment | None = None
    config: Raw | None = None
    """GardenletConfiguration; its ``seedConfig`` is the template of the Seed. Admission fills it from the Shoot."""
    bootstrap: Annotated[Literal["BootstrapToken", "ServiceAccount", "None"], IMMUTABLE] = "BootstrapToken"
    """How the gardenlet gets its first access to the garden. ``None``: the configuration names a kubeconfig."""
    merge_with_parent: Annotated[bool, IMMUTABLE] = True
    """Whether the configuration of the parent gardenlet holds where ``deployment`` and ``config`` say nothing."""


class ManagedSeedTemplateSpec(KubeModel):
    """Spec of a ManagedSeed without its Shoot."""

    gardenlet: ManagedSeedGardenlet = Field(default_factory=ManagedSeedGardenlet)


class ManagedSeedShoot(KubeModel):
    """The Shoot that becomes a seed, in the namespace of the ManagedSeed."""

    name: Annotated[str, Field(min_length=1)]


class ManagedSeedSpec(ManagedSeedTemplateSpec):
    shoot: Annotated[ManagedSeedShoot, IMMUTABLE]


class ManagedSeedStatus(KubeModel):
    conditions: Conditions | None = None
    """Conditions ShootReconciled and SeedRegistered."""
    observed_generation: int | None = None


class ManagedSeed(KubeObject):
    definition: ClassVar[Definition] = Definition(
        SEED_MANAGEMENT,
        "v1alpha1",
        "managedseeds",
        ("ms",),
        columns=(
            Column("Registered", '.status.conditions[?(@.type=="SeedRegistered")].status'),
            Column("Shoot", ".spec.shoot.name"),
            AGE,
        ),
        selectable=(".spec.shoot.name",),
    )

    spec: ManagedSeedSpec
    status: ManagedSeedStatus | None = None
