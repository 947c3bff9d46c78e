"""The kinds of the vertical pod autoscaler, by which its users say what to autoscale and read what is recommended.

Fields and their limits: those of its API, version v1.
"""

from typing import Any

from activities.components import base
from activities.components.base import Manifest

GROUP = "autoscaling.k8s.io"

Schema = dict[str, Any]

_APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/63797"}
"""The API server asks for it: the group's name is one of Kubernetes itself."""


def definitions() -> list[Manifest]:
    """CustomResourceDefinitions."""
    return [_autoscalers(), _checkpoints()]


def _definition(kind: str, short: str, schema: Schema, **version: Any) -> Manifest:
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": base.metadata(f"{plural}.{GROUP}", annotations=_APPROVED),
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "scope": "Namespaced",
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
            ],
        },
    }


# What schemas are made of


def _object(*required: str, about: str = "", **fields: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": fields}
    if required:
        schema["required"] = list(required)
    return _described(schema, about)


def _array(items: Schema, about: str = "") -> Schema:
    return _described({"type": "array", "items": items}, about)


def _string(*choices: str, about: str = "") -> Schema:
    return _described({"type": "string", **({"enum": list(choices)} if choices else {})}, about)


def _integer(bits: int, minimum: int | None = None, about: str = "") -> Schema:
    limit = {} if minimum is None else {"minimum": minimum}
    return _described({"type": "integer", "format": f"int{bits}", **limit}, about)


def _time(*, nullable: bool = False) -> Schema:
    return {"type": "string", "format": "date-time", **({"nullable": True} if nullable else {})}


def _quantity(about: str = "") -> Schema:
    schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
        "x-kubernetes-int-or-string": True,
    }
    return _described(schema, about)


def _amounts(about: str) -> Schema:
    """By resource."""
    return _described({"type": "object", "additionalProperties": _quantity()}, about)


def _described(schema: Schema, about: str) -> Schema:
    return {**schema, "description": about} if about else schema


def _kind(about: str, *required: str, **fields: Schema) -> Schema:
    known = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return _object(*required, about=about, **known, **fields)


# VerticalPodAutoscaler


def _autoscalers() -> Manifest:
    schema = _kind(
        "Says whose pods to give the requests that they need, and how.", "spec", spec=_spec(), status=_status()
    )
    columns = {
        "Mode": ("string", ".spec.updatePolicy.updateMode"),
        "CPU": ("string", ".status.recommendation.containerRecommendations[0].target.cpu"),
        "Mem": ("string", ".status.recommendation.containerRecommendations[0].target.memory"),
        "Provided": ("string", ".status.conditions[?(@.type=='RecommendationProvided')].status"),
        "Age": ("date", ".metadata.creationTimestamp"),
    }
    printed = [{"name": name, "type": type_, "jsonPath": path} for name, (type_, path) in columns.items()]
    return _definition(
        "VerticalPodAutoscaler", "vpa", schema, additionalPrinterColumns=printed, subresources={"status": {}}
    )


def _spec() -> Schema:
    target = {
        **_object("kind", "name", about="Who makes the pods.", apiVersion=_string(), kind=_string(), name=_string()),
        "x-kubernetes-map-type": "atomic",
    }
    return _object(
        "targetRef",
        targetRef=target,
        updatePolicy=_update_policy(),
        resourcePolicy=_object(
            about="Limits of what is recommended.",
            containerPolicies=_array(_container_policy(), "At most one for each container; '*' is for all others."),
        ),
        recommenders=_array(
            _object("name", name=_string()), "Who recommends, at most one; by default: the cluster's own."
        ),
        startupBoost=_startup_boost("More while a pod starts."),
    )


def _update_policy() -> Schema:
    requirement = _object(
        "resources",
        "changeRequirement",
        resources=_array(_string(), "One of them has to change so."),
        changeRequirement=_string("TargetHigherThanRequests", "TargetLowerThanRequests"),
    )
    return _object(
        about="When pods get what is recommended.",
        updateMode=_string(
            "Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto",
            about="Never; when they are made; by evicting them, too; or while they run. Default: Recreate.",
        ),
        minReplicas=_integer(32, about="With fewer pods than that none is evicted."),
        evictionRequirements=_array(requirement, "All of them have to be met before a pod is evicted."),
        evictAfterOOMSeconds=_integer(32, 1, "A pod that ran out of memory so soon after its start is evicted."),
    )  # fmt: skip


def _container_policy() -> Schema:
    return _object(
        containerName=_string(),
        mode=_string("Auto", "Off", about="Whether anything is recommended for it. Default: Auto."),
        minAllowed=_amounts("Nothing less is recommended."),
        maxAllowed=_amounts("Nothing more is recommended."),
        controlledResources=_array(_string(), "What is recommended. Default: cpu and memory."),
        controlledValues=_string(
            "RequestsAndLimits", "RequestsOnly", about="Whether limits change, too, in proportion. Default: they do."
        ),
        oomBumpUpRatio=_quantity("By how much memory grows, as a factor, when a pod ran out of it."),
        oomMinBumpUp=_quantity("By how much it grows at least."),
        memoryAggregationIntervalSeconds=_integer(32, 1, "Of so long the most that was used counts, once."),
        memoryAggregationIntervalCount=_integer(64, 1, "How many of these count."),
        startupBoost=_startup_boost("More while it starts."),
    )


def _startup_boost(about: str) -> Schema:
    cpu = _object(
        "type",
        type=_string("Factor", "Quantity"),
        factor=_integer(32),
        quantity=_quantity(),
        durationSeconds=_integer(32, about="For so long after the pod is ready. Default: 0."),
    )
    cpu["x-kubernetes-validations"] = [
        {
            "rule": f"(self.type == '{kind}') == has(self.{field})",
            "message": f"{field} belongs to type {kind}, and that needs it",
        }
        for kind, field in (("Factor", "factor"), ("Quantity", "quantity"))
    ]
    return _object(about=about, cpu=cpu)


def _status() -> Schema:
    recommended = _object(
        "target",
        containerName=_string(),
        target=_amounts("What new pods get."),
        lowerBound=_amounts("Pods that have less are evicted."),
        upperBound=_amounts("Pods that have more are evicted."),
        uncappedTarget=_amounts("What it would be without the limits of the resource policy."),
    )
    condition = _object(
        "type",
        "status",
        type=_string(),
        status=_string(),
        lastTransitionTime=_time(),
        reason=_string(),
        message=_string(),
        observedGeneration=_integer(64, 0),
    )
    return _object(
        recommendation=_object(containerRecommendations=_array(recommended)),
        conditions=_array(condition),
        observedGeneration=_integer(64, 0),
    )


# VerticalPodAutoscalerCheckpoint


def _checkpoints() -> Manifest:
    histogram = _object(
        referenceTimestamp=_time(nullable=True),
        # By number of the bucket.
        bucketWeights={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        totalWeight={"type": "number"},
    )
    schema = _kind(
        "What the recommender has seen of a container, to go on with after its restart.",
        spec=_object(vpaObjectName=_string(), containerName=_string()),
        status=_object(
            lastUpdateTime=_time(nullable=True),
            version=_string(about="Of the format."),
            cpuHistogram=histogram,
            memoryHistogram=histogram,
            firstSampleStart=_time(nullable=True),
            lastSampleStart=_time(nullable=True),
            totalSamplesCount={"type": "integer"},
        ),
    )
    return _definition("VerticalPodAutoscalerCheckpoint", "vpacheckpoint", schema)
