"""Decisions about objects of machine.sapcloud.io that several components must make alike. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from api.machine.names import NAME_LABEL, TRIGGER_DELETION


def is_deleting(found: Mapping[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def phase_of(machine: Mapping[str, Any]) -> str:
    """``status.currentStatus.phase``, empty for a new machine."""
    return str(((machine.get("status") or {}).get("currentStatus") or {}).get("phase") or "")


def is_alive(machine: Mapping[str, Any], deployment: str) -> bool:
    """Whether a machine counts for a deployment: it is not being deleted, and does not have to be replaced."""
    of_it = (machine["metadata"].get("labels") or {}).get(NAME_LABEL) == deployment
    return of_it and not is_deleting(machine) and phase_of(machine) != "Failed"


def chosen_machines(deployment: Mapping[str, Any], alive: Collection[str]) -> list[str]:
    """Machines that are alive and that the cluster autoscaler chose for deletion, in the autoscaler's order.

    Empty if there are not more machines than ``replicas``: then the size was raised again, and no machine must go.
    """
    if len(alive) <= int(deployment["spec"].get("replicas") or 0):
        return []
    text = (deployment["metadata"].get("annotations") or {}).get(TRIGGER_DELETION) or ""
    return [name for name in map(str.strip, text.split(",")) if name in alive]


def owner_uid(found: Mapping[str, Any]) -> str:
    """Uid of the controller in ``ownerReferences``; empty if there is none."""
    for reference in found["metadata"].get("ownerReferences") or []:
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def owner_name(found: Mapping[str, Any], kind: str) -> str | None:
    """Name of the controller in ``ownerReferences``, if it is of a kind."""
    for reference in found["metadata"].get("ownerReferences") or []:
        if reference.get("controller") and reference["kind"] == kind:
            return str(reference["name"])
    return None
