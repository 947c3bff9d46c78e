"""Finds pods of a shoot that no component deletes: their controllers have created others. Source: spec/flows.md 10."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from api.decisions.conditions import find_condition
from api.resources import ObjectView

STUCK = timedelta(minutes=5)
"""How long a pod may take to end before it is deleted without waiting for its node."""
_REASONS = ("Evicted", "NodeAffinity", "NodeLost", "Preempting", "Terminated", "NodeShutdown")


class Removal(NamedTuple):
    pod: ObjectView
    force: bool


def removals(pods: Iterable[ObjectView], now: datetime) -> list[Removal]:
    """The pods to delete; ``force``: without waiting for the pod's node."""
    found = []
    for pod in pods:
        deleted = pod["metadata"].get("deletionTimestamp")
        if deleted:
            if now - datetime.fromisoformat(deleted) > STUCK:
                found.append(Removal(pod, True))
        elif _left_over(pod):
            found.append(Removal(pod, False))
    return found


def outline(pod: ObjectView, now: datetime) -> dict[str, Any] | None:
    """Fields that ``removals`` reads of a pod; None for pods that stay."""
    if not removals([pod], now):
        return None
    metadata, status = pod["metadata"], pod.get("status") or {}
    owners = [{"kind": each["kind"]} for each in metadata.get("ownerReferences") or () if each["kind"] == "ReplicaSet"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "deletionTimestamp") if key in metadata}
    disruptions = [
        {"type": each["type"], "status": each["status"]}
        for each in status.get("conditions") or ()
        if each["type"] == "DisruptionTarget"
    ]
    return {
        "metadata": {**kept, "ownerReferences": owners[:1]},
        "status": {"reason": status.get("reason") or "", "phase": status.get("phase"), "conditions": disruptions[:1]},
    }


def _left_over(pod: ObjectView) -> bool:
    status = pod.get("status") or {}
    reason, phase = status.get("reason") or "", status.get("phase")
    if reason in _REASONS or reason.startswith("OutOf"):
        return True
    disrupted = find_condition(pod, "DisruptionTarget").get("status") == "True"
    owners = pod["metadata"].get("ownerReferences") or ()
    replicated = any(each["kind"] == "ReplicaSet" for each in owners)
    return phase in ("Failed", "Succeeded") and (replicated or disrupted)
