"""Zones of its seed in which a control plane runs: annotations of its namespace, and affinities of its pods.

Source: spec/resource-manager.md 7 (high availability).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from activities.components.base import Manifest
from api.high_availability import CONSIDER, FAILURE_TOLERANCE_TYPE, ZONE_PINNING, ZONES
from api.labels import ZONE

_OF_ZONE_FAILURES = 3
"""Number of zones of a control plane that survives the failure of a zone; the others are in one zone."""

LABELS = {CONSIDER: "true"}
"""Labels of the namespace of a control plane, so that the seed's resource manager makes workloads available."""


def annotations(
    shoot: Mapping[str, Any], seed: Mapping[str, Any] | None, namespace: Mapping[str, Any] | None
) -> dict[str, str]:
    """Annotations of the namespace of a Shoot's control plane.

    ``namespace``: as it is; None before it is created. Zones that a namespace has stay. A namespace that is older than
    its zones has all zones of its seed, since its volumes may be in each of them. A Shoot that names zones pins all of
    its control plane to them; else the zones are those of the workloads that the webhook changes.
    """
    control_plane = shoot["spec"].get("controlPlane") or {}
    available = control_plane.get("highAvailability") or {}
    tolerance = (available.get("failureTolerance") or {}).get("type") or ""
    made = {FAILURE_TOLERANCE_TYPE: tolerance}
    if named := control_plane.get("zones"):
        return made | {ZONES: ",".join(named), ZONE_PINNING: "true"}
    offered = ((seed or {}).get("spec") or {}).get("provider", {}).get("zones") or []
    known = (((namespace or {}).get("metadata") or {}).get("annotations") or {}).get(ZONES, "")
    chosen = known.split(",") if known else []
    if namespace is not None and not chosen:
        chosen = list(offered)
    missing = (_OF_ZONE_FAILURES if tolerance == "zone" else 1) - len(chosen)
    others = [each for each in _in_order_of(shoot, offered) if each not in chosen]
    chosen += others[: max(missing, 0)]
    return made | ({ZONES: ",".join(chosen)} if chosen else {})


def _in_order_of(shoot: Mapping[str, Any], zones: Sequence[str]) -> list[str]:
    """The zones in an order that differs between Shoots, so that control planes are spread over a seed's zones."""
    uid = shoot["metadata"]["uid"]
    return sorted(zones, key=lambda zone: hashlib.sha256(f"{uid}/{zone}".encode()).digest())


def pinned_zones(namespace: Mapping[str, Any] | None) -> list[str]:
    """Zones to which the pods of a namespace are pinned; empty if they may run in all."""
    known = ((namespace or {}).get("metadata") or {}).get("annotations") or {}
    return known[ZONES].split(",") if known.get(ZONE_PINNING) == "true" and known.get(ZONES) else []


def affinity(zones: Sequence[str]) -> Manifest:
    """Affinity of a pod that runs in these zones alone; empty without zones."""
    if not zones:
        return {}
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": list(zones)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"nodeAffinity": required}


def pinned(deployment: Mapping[str, Any], zones: Sequence[str]) -> Mapping[str, Any]:
    """The Deployment with pods that run in these zones alone; unchanged without zones."""
    if not zones:
        return deployment
    template = deployment["spec"]["template"]
    template = {**template, "spec": {**template["spec"], "affinity": affinity(zones)}}
    return {**deployment, "spec": {**deployment["spec"], "template": template}}
