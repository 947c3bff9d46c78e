"""Says whose pods to give the requests that they need, and how."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from api.constants import AUTOSCALING
from api.meta import AGE, Column, Definition, KubeModel, KubeObject, Timestamp

APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/63797"}
"""The API server asks for it: the group's name is one of Kubernetes itself."""

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
"""As ``api.meta.Quantity``, but for exponents with a fraction: the autoscaler cannot read them."""
Amounts = dict[str, Amount]
"""By resource."""


class ContainerControlledTarget(KubeModel):
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    api_version: str | None = None
    kind: str
    name: str


class EvictionRequirement(KubeModel):
    resources: list[str]
    """One of them has to change so."""
    change_requirement: Literal["TargetHigherThanRequests", "TargetLowerThanRequests"]


class PodUpdatePolicy(KubeModel):
    update_mode: Literal["Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto"] | None = None
    """Never; when they are made; by evicting them, too; or while they run. Default: Recreate."""
    min_replicas: Int32 | None = None
    """With fewer pods than that none is evicted."""
    eviction_requirements: list[EvictionRequirement] | None = None
    """All of them have to be met before a pod is evicted."""
    evict_after_oom_seconds: Annotated[Int32, Field(ge=1)] | None = None
    """A pod that ran out of memory so soon after its start is evicted."""


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
    """For so long after the pod is ready. Default: 0."""


class StartupBoost(KubeModel):
    cpu: CPUStartupBoost | None = None


class ContainerResourcePolicy(KubeModel):
    container_name: str | None = None
    mode: Literal["Auto", "Off"] | None = None
    """Whether anything is recommended for it. Default: Auto."""
    min_allowed: Amounts | None = None
    """Nothing less is recommended."""
    max_allowed: Amounts | None = None
    """Nothing more is recommended."""
    controlled_resources: list[str] | None = None
    """What is recommended. Default: cpu and memory."""
    controlled_values: Literal["RequestsAndLimits", "RequestsOnly"] | None = None
    """Whether limits change, too, in proportion. Default: they do."""
    oom_bump_up_ratio: Amount | None = None
    """By how much memory grows, as a factor, when a pod ran out of it."""
    oom_min_bump_up: Amount | None = None
    """By how much it grows at least."""
    memory_aggregation_interval_seconds: Annotated[Int32, Field(ge=1)] | None = None
    """Of so long the most that was used counts, once."""
    memory_aggregation_interval_count: Annotated[Int64, Field(ge=1)] | None = None
    """How many of these count."""
    startup_boost: StartupBoost | None = None
    """More while it starts."""


class PodResourcePolicy(KubeModel):
    container_policies: list[ContainerResourcePolicy] | None = None
    """At most one for each container; '*' is for all others."""


class Recommender(KubeModel):
    name: str


class VerticalPodAutoscalerSpec(KubeModel):
    target_ref: ContainerControlledTarget
    """Who makes the pods."""
    update_policy: PodUpdatePolicy | None = None
    """When pods get what is recommended."""
    resource_policy: PodResourcePolicy | None = None
    """Limits of what is recommended."""
    recommenders: list[Recommender] | None = None
    """Who recommends, at most one; by default: the cluster's own."""
    startup_boost: StartupBoost | None = None
    """More while a pod starts."""


class RecommendedContainerResources(KubeModel):
    container_name: str | None = None
    target: Amounts
    """What new pods get."""
    lower_bound: Amounts | None = None
    """Pods that have less are evicted."""
    upper_bound: Amounts | None = None
    """Pods that have more are evicted."""
    uncapped_target: Amounts | None = None
    """What it would be without the limits of the resource policy."""


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
