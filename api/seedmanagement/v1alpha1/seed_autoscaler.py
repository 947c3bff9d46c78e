"""SeedAutoscaler: changes the number of replicas of a ManagedSeedSet by the use of its seeds. Source: GEP-13."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import SEED_MANAGEMENT
from api.meta import (
    AGE,
    Column,
    Conditions,
    Definition,
    KubeModel,
    KubeObject,
    Quantity,
    Timestamp,
)


class ScaleTargetReference(KubeModel):
    """The set that is scaled, in the namespace of the SeedAutoscaler."""

    api_version: Literal["seedmanagement.gardener.cloud/v1alpha1"]
    kind: Literal["ManagedSeedSet"]
    name: Annotated[str, Field(min_length=1)]


class MetricTarget(KubeModel):
    type: Literal["Utilization", "AverageValue"]
    average_utilization: Annotated[int | None, Field(ge=1, le=100)] = None
    """Percentage of the allocatable amount that is used, on average of all seeds; for type Utilization."""
    average_value: Quantity | None = None
    """Used amount of each seed, on average of all seeds; for type AverageValue."""


class ResourceMetric(KubeModel):
    name: Literal["shoots"]
    """A resource that a Seed has in ``status.capacity`` and ``status.allocatable``."""
    target: MetricTarget


class Metric(KubeModel):
    type: Literal["Resource"]
    resource: ResourceMetric


class ScalingRules(KubeModel):
    stabilization_window_seconds: Annotated[int | None, Field(ge=0, le=86400)] = None
    """Time for which all recommendations must ask for the change."""
    cooldown_seconds: Annotated[int | None, Field(ge=0, le=86400)] = None
    """Time after the last change, up or down, before the next one in this direction."""


class Behavior(KubeModel):
    """How fast the number of replicas changes. GEP-13 has no such field; names as in ``autoscaling/v2``."""

    scale_up: ScalingRules | None = None
    """Without a value: at once, and no more often than every 60 s."""
    scale_down: ScalingRules | None = None
    """Without a value: after 600 s in which fewer replicas were enough, and 600 s after the last change."""
    tolerance_percent: Annotated[int, Field(ge=0, le=90)] = 10
    """Part of the target by which the remaining seeds must stay below it before a seed is removed."""


class SeedAutoscalerSpec(KubeModel):
    scale_target_ref: ScaleTargetReference
    min_replicas: Annotated[int, Field(ge=0)] = 1
    max_replicas: Annotated[int, Field(ge=1)]
    metrics: Annotated[list[Metric], Field(min_length=1, max_length=4)]
    """The metric that asks for the most replicas decides."""
    behavior: Behavior | None = None


class SeedAutoscalerStatus(KubeModel):
    observed_generation: int | None = None
    current_replicas: int | None = None
    desired_replicas: int | None = None
    """Number of replicas that the SeedAutoscaler has set last, or would keep."""
    used_shoots: int | None = None
    """Number of Shoots on the seeds of the set."""
    allocatable_shoots: int | None = None
    """Number of Shoots for which the ready seeds of the set have capacity."""
    last_scale_time: Timestamp | None = None
    scale_down_since: Timestamp | None = None
    """Time since which fewer replicas have been enough without interruption."""
    conditions: Conditions | None = None
    """Conditions ScalingActive, AbleToScale and ScalingLimited, as a HorizontalPodAutoscaler has them."""


class SeedAutoscaler(KubeObject):
    definition: ClassVar[Definition] = Definition(
        SEED_MANAGEMENT,
        "v1alpha1",
        "seedautoscalers",
        columns=(
            Column("Target", ".spec.scaleTargetRef.name"),
            Column("Min", ".spec.minReplicas", "integer"),
            Column("Max", ".spec.maxReplicas", "integer"),
            AGE,
        ),
    )

    spec: SeedAutoscalerSpec
    status: SeedAutoscalerStatus | None = None
