"""Zones of its seed to which a control plane is pinned: annotations of its namespace, and affinities of its pods.

Source: spec/resource-manager.md 7 (high availability).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from activities.components.base import Manifest
from api.labels import ZONE

_PREFIX = "high-availability-config.resources.gardener.cloud"
ZONES = f"{_PREFIX}/zones"
"""Annotation of a namespace: zones of its pods, with commas between them."""
ZONE_PINNING = f"{_PREFIX}/zone-pinning"
"""Annotation of a namespace: ``true`` if its pods may run in its zones alone."""


def annotations(shoot: Mapping[str, Any]) -> dict[str, str]:
    """Annotations of the namespace of a Shoot's control plane; empty if the Shoot names no zones."""
    zones = (shoot["spec"].get("controlPlane") or {}).get("zones") or ()
    return {ZONES: ",".join(zones), ZONE_PINNING: "true"} if zones else {}


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
