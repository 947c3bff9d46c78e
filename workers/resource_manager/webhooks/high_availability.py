"""Replicas, zones and spreading of workloads whose namespace asks for it. Source: spec/resource-manager.md 7."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from api.high_availability import FAILURE_TOLERANCE_TYPE, HOST_SPREAD, REPLICAS, TYPE, ZONE_PINNING, ZONES
from api.labels import ZONE, is_true
from api.resources import HORIZONTAL_POD_AUTOSCALER, NAMESPACE, NODE
from kube.cache import Caches
from kube.client import KubeClient, Object
from workers.lib.reviews import Refusal, Review, change
from workers.resource_manager.config import HighAvailabilityConfig
from workers.resource_manager.webhooks.pods import Answer

_HOST = "kubernetes.io/hostname"
_HOSTS = 3
"""Number of nodes over which pods are spread, if there are as many pods."""
_TAINTS = {"not_ready": "node.kubernetes.io/not-ready", "unreachable": "node.kubernetes.io/unreachable"}
_SYNC_SECONDS = 5.0


@dataclass(frozen=True)
class Place:
    """Annotations of a namespace about the availability of its workloads."""

    tolerance: str | None = None
    """``node``, ``zone``, or empty if no failure must be survived; None if the namespace does not say."""
    zones: tuple[str, ...] = ()
    pinned: bool = False

    @classmethod
    def of(cls, namespace: Mapping[str, Any]) -> "Place":
        known = namespace["metadata"].get("annotations") or {}
        zones = sorted(filter(None, {each.strip() for each in known.get(ZONES, "").split(",")}))
        return cls(known.get(FAILURE_TOLERANCE_TYPE), tuple(zones), is_true(known.get(ZONE_PINNING)))

    def replicas(self, obj: Object) -> int | None:
        """Least number of replicas of an object; None if the object does not ask for it."""
        of_type = {"controller": 1 if self.tolerance == "" else 2, "server": 2}
        wanted = of_type.get((obj["metadata"].get("labels") or {}).get(TYPE, ""))
        given = (obj["metadata"].get("annotations") or {}).get(REPLICAS)
        if wanted is None or not given:
            return wanted
        if not given.isdecimal():
            raise Refusal(422, "Invalid", f"annotation {REPLICAS} is {given!r}: it must be a number of replicas")
        return int(given)


def keep_available(target: KubeClient, target_caches: Caches, config: HighAvailabilityConfig) -> Answer:
    """Webhook for Deployments, StatefulSets and HorizontalPodAutoscalers.

    ``strict_spreading.StrictSpreading`` calls it again when the number of nodes has become another.
    """
    nodes = target_caches.of(NODE)

    async def answer(review: Review) -> dict[str, Any]:
        if review.object is None or review.object["metadata"].get("deletionTimestamp"):
            return {}
        changed = deepcopy(review.object)
        if review.kind == "HorizontalPodAutoscaler":
            place = Place.of(await target.get(NAMESPACE, review.namespace))
            _raise_limits(changed["spec"], place.replicas(changed))
            return change(review.object, changed)
        namespace, scalers = await asyncio.gather(
            target.get(NAMESPACE, review.namespace), target.list(HORIZONTAL_POD_AUTOSCALER, review.namespace)
        )
        if not nodes.is_synced:
            await nodes.synced(_SYNC_SECONDS)
        scaled = [each["spec"] for each in scalers if _scales(each, review)]
        limit = scaled[0]["maxReplicas"] if scaled else None
        make_available(changed, Place.of(namespace), config, limit=limit, nodes=len(nodes.list()))
        return change(review.object, changed)

    return answer


def _scales(scaler: Object, review: Review) -> bool:
    reference = scaler["spec"]["scaleTargetRef"]
    wanted = (f"{review.group}/{review.version}", review.kind, review.name)
    return (reference.get("apiVersion"), reference["kind"], reference["name"]) == wanted


def _raise_limits(spec: Object, replicas: int | None) -> None:
    """Raise the limits of a HorizontalPodAutoscaler to this number of replicas. It may scale to zero if it says so."""
    if replicas is None or spec.get("minReplicas", 1) == 0:
        return
    spec["minReplicas"] = max(spec.get("minReplicas", 1), replicas)
    spec["maxReplicas"] = max(spec["maxReplicas"], spec["minReplicas"])


def make_available(
    workload: Object, place: Place, config: HighAvailabilityConfig, *, limit: int | None, nodes: int
) -> None:
    """Change a Deployment or StatefulSet.

    ``limit``: most replicas that a HorizontalPodAutoscaler may choose; None: there is none. ``nodes``: their number.
    """
    spec = workload["spec"]
    wanted, given = place.replicas(workload), spec.get("replicas") or 0
    if wanted is not None and given > 0 and (limit is None or given < wanted):
        spec["replicas"] = wanted
    replicas = spec.get("replicas") or 0
    pod = spec["template"]["spec"]
    if place.zones and (place.pinned or place.tolerance is not None):
        _pin(pod, place.zones)
    if replicas > 1:
        constraints = _constraints(place, max(replicas, limit or 0), strict=_is_strict(workload, place, nodes))
        others = [
            each for each in pod.get("topologySpreadConstraints") or () if each["topologyKey"] not in (_HOST, ZONE)
        ]
        pod["topologySpreadConstraints"] = others + [{**each, **_selection(workload)} for each in constraints]
    _tolerate(pod, config)


def _is_strict(workload: Object, place: Place, nodes: int) -> bool:
    """Whether a pod of a workload waits for a node without one. In a cluster of one node it would wait for ever."""
    host_spread = is_true((workload["metadata"].get("annotations") or {}).get(HOST_SPREAD))
    return nodes > 1 and (host_spread or bool(place.tolerance))


def is_spread(workload: Object, place: Place, *, nodes: int) -> bool:
    """Whether ``make_available`` would leave the strictness of a workload's constraint over nodes as it is.

    True if the workload has no such constraint: then the webhook has not changed it.
    """
    spec = workload["spec"]
    wanted = "DoNotSchedule" if _is_strict(workload, place, nodes) else "ScheduleAnyway"
    constraints = spec["template"]["spec"].get("topologySpreadConstraints") or ()
    found = [each["whenUnsatisfiable"] for each in constraints if each["topologyKey"] == _HOST]
    return (spec.get("replicas") or 0) < 2 or all(each == wanted for each in found)


def _pin(pod: Object, zones: Sequence[str]) -> None:
    """Let the pod run in these zones alone, whatever zones its affinity names."""
    affinity: Object = pod.get("affinity") or {}
    of_nodes: Object = affinity.get("nodeAffinity") or {}
    required: Object = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    pinned = {"key": ZONE, "operator": "In", "values": list(zones)}
    terms = []
    for each in required.get("nodeSelectorTerms") or [{}]:
        others = [one for one in each.get("matchExpressions") or () if one["key"] != ZONE]
        terms.append({**each, "matchExpressions": [*others, pinned]})
    required = {**required, "nodeSelectorTerms": terms}
    of_nodes = {**of_nodes, "requiredDuringSchedulingIgnoredDuringExecution": required}
    pod["affinity"] = {**affinity, "nodeAffinity": of_nodes}


def _constraints(place: Place, most: int, *, strict: bool) -> list[Object]:
    """Constraints without selector. ``most``: most replicas; ``strict``: whether a pod waits for another node."""
    hosts = {"minDomains": min(_HOSTS, most), "whenUnsatisfiable": "DoNotSchedule"}
    soft = {"whenUnsatisfiable": "ScheduleAnyway"}
    made: list[Object] = [{"maxSkew": 1, "topologyKey": _HOST, **(hosts if strict else soft)}]
    if len(place.zones) > 1 and place.tolerance in (None, "zone"):
        zones = {"minDomains": min(len(place.zones), most), "whenUnsatisfiable": "DoNotSchedule"}
        made.append({"maxSkew": 1, "topologyKey": ZONE, **zones})
    return made


def _selection(workload: Object) -> Object:
    """The pods that a constraint counts: those of the same revision of a Deployment, or all of a StatefulSet."""
    if workload["kind"] == "StatefulSet":
        return {"labelSelector": deepcopy(workload["spec"]["selector"])}
    labels = workload["spec"]["template"]["metadata"].get("labels") or {}
    return {"labelSelector": {"matchLabels": dict(labels)}, "matchLabelKeys": ["pod-template-hash"]}


def _tolerate(pod: Object, config: HighAvailabilityConfig) -> None:
    """Set the time after which pods leave a node that does not answer, if the pod does not say it."""
    limits = {
        _TAINTS["not_ready"]: config.default_not_ready_toleration_seconds,
        _TAINTS["unreachable"]: config.default_unreachable_toleration_seconds,
    }
    tolerations: list[Object] = pod.get("tolerations") or []
    for key, seconds in limits.items():
        if seconds is None or any(_covers(each, key) for each in tolerations):
            continue
        made = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        tolerations = [*tolerations, made]
    if tolerations:
        pod["tolerations"] = tolerations


def _covers(toleration: Object, key: str) -> bool:
    """Whether a toleration says how long a pod stays on a node with this taint, which has effect NoExecute."""
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")
