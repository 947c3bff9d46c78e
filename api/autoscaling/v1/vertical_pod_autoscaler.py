"""VerticalPodAutoscaler: sets resource requests of the pods of one controller to what they use."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from api.constants import AUTOSCALING
from api.meta import AGE, Column, Definition, KubeModel, KubeObject, Timestamp

APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/63797"}
"""Annotation that the API server requires, because the group's name is one of Kubernetes itself."""

Int32 = Annotated[int, Field(json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Amount = Annotated[
    str | int,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
        }
    ),
]
"""``api.meta.Quantity`` without exponents that have a fraction: the autoscaler cannot read these."""
Amounts = dict[str, Amount]
"""Amounts by name of the resource."""


class ContainerControlledTarget(KubeModel):
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    api_version: str | None = None
    kind: str
    name: str


class EvictionRequirement(KubeModel):
    resources: list[str]
    """Resources of which at least one must change in this direction."""
    change_requirement: Literal["TargetHigherThanRequests", "TargetLowerThanRequests"]


class PodUpdatePolicy(KubeModel):
    update_mode: Literal["Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto"] | None = None
    """Off: never. Initial: when pods are created. Recreate: also by eviction. InPlace…: while they run. Default:
    Recreate."""
    min_replicas: Int32 | None = None
    """Minimum number of pods: if there are fewer, no pod is evicted."""
    eviction_requirements: list[EvictionRequirement] | None = None
    """Requirements that must all be met before a pod is evicted."""
    evict_after_oom_seconds: Annotated[Int32, Field(ge=1)] | None = None
    """A pod that runs out of memory within this time after its start is evicted (seconds)."""


def _belongs(field: str, kind: str) -> dict[str, Any]:
    return {
        "rule": f"(self.type == '{kind}') == has(self.{field})",
        "message": f"{field} belongs to type {kind}, and that needs it",
    }


class CPUStartupBoost(KubeModel):
    model_config = ConfigDict(
        json_schema_extra={"x-kubernetes-validations": [_belongs("factor", "Factor"), _belongs("quantity", "Quantity")]}
    )

    type: Literal["Factor", "Quantity"]
    factor: Int32 | None = None
    quantity: Amount | None = None
    duration_seconds: Int32 | None = None
    """Duration of the boost after the pod is ready (seconds). Default: 0."""


class StartupBoost(KubeModel):
    cpu: CPUStartupBoost | None = None


class ContainerResourcePolicy(KubeModel):
    container_name: str | None = None
    mode: Literal["Auto", "Off"] | None = None
    """Whether the container gets recommendations. Default: Auto."""
    min_allowed: Amounts | None = None
    """Minimum of the recommendation."""
    max_allowed: Amounts | None = None
    """Maximum of the recommendation."""
    controlled_resources: list[str] | None = None
    """Resources that get recommendations. Default: cpu and memory."""
    controlled_values: Literal["RequestsAndLimits", "RequestsOnly"] | None = None
    """Whether limits change in proportion, too. Default: RequestsAndLimits."""
    oom_bump_up_ratio: Amount | None = None
    """Factor by which the recommended memory grows after a pod ran out of memory."""
    oom_min_bump_up: Amount | None = None
    """Minimum amount by which the recommended memory grows then."""
    memory_aggregation_interval_seconds: Annotated[Int32, Field(ge=1)] | None = None
    """Length of an interval whose peak usage of memory counts once (seconds)."""
    memory_aggregation_interval_count: Annotated[Int64, Field(ge=1)] | None = None
    """Number of these intervals that count."""
    startup_boost: StartupBoost | None = None
    """Higher requests while the container starts."""


class PodResourcePolicy(KubeModel):
    container_policies: list[ContainerResourcePolicy] | None = None
    """At most one policy for each container; '*' is for all others."""


class Recommender(KubeModel):
    name: str


class VerticalPodAutoscalerSpec(KubeModel):
    target_ref: ContainerControlledTarget
    """The controller that creates the pods."""
    update_policy: PodUpdatePolicy | None = None
    """Policy of when pods get the recommendation."""
    resource_policy: PodResourcePolicy | None = None
    """Limits of the recommendation."""
    recommenders: list[Recommender] | None = None
    """Recommenders to use, at most one. Default: the one of the cluster."""
    startup_boost: StartupBoost | None = None
    """Higher requests while a pod starts."""


class RecommendedContainerResources(KubeModel):
    container_name: str | None = None
    target: Amounts
    """Requests that new pods get."""
    lower_bound: Amounts | None = None
    """Pods with lower requests are evicted."""
    upper_bound: Amounts | None = None
    """Pods with higher requests are evicted."""
    uncapped_target: Amounts | None = None
    """The recommendation without the limits of the resource policy."""


class RecommendedPodResources(KubeModel):
    container_recommendations: list[RecommendedContainerResources] | None = None


class VerticalPodAutoscalerCondition(KubeModel):
    type: str
    status: str
    last_transition_time: Timestamp | None = None
    reason: str | None = None
    message: str | None = None
    observed_generation: Annotated[Int64, Field(ge=0)] | None = None


class VerticalPodAutoscalerStatus(KubeModel):
    recommendation: RecommendedPodResources | None = None
    conditions: list[VerticalPodAutoscalerCondition] | None = None
    observed_generation: Annotated[Int64, Field(ge=0)] | None = None


_TARGET = ".status.recommendation.containerRecommendations[0].target"


class VerticalPodAutoscaler(KubeObject):
    definition: ClassVar[Definition] = Definition(
        AUTOSCALING,
        "v1",
        "verticalpodautoscalers",
        ("vpa",),
        columns=(
            Column("Mode", ".spec.updatePolicy.updateMode"),
            Column("CPU", f"{_TARGET}.cpu"),
            Column("Mem", f"{_TARGET}.memory"),
            Column("Provided", ".status.conditions[?(@.type=='RecommendationProvided')].status"),
            AGE,
        ),
        protected=False,
        annotations=APPROVED,
    )

    spec: VerticalPodAutoscalerSpec
    status: VerticalPodAutoscalerStatus | None = None
