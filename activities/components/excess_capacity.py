"""Placeholders that reserve room for new control planes: pods of the lowest priority, whose place any other pod takes.

A placeholder that was evicted waits for room again. A cluster autoscaler of the seed adds a node for it, so that
the next control plane finds room. Names and defaults: as Gardener's.
"""

from collections.abc import Mapping
from typing import Any

from activities.components import base, priority
from activities.components.base import Manifest
from api import images
from api.constants import GARDEN_NAMESPACE

NAME = "reserve-excess-capacity"
SELECT = base.control_plane_labels("kubernetes", NAME)
_INDEX = "reserve-excess-capacity/config"
"""Label: position of the reservation in the Seed."""
_DEFAULT = {"resources": {"cpu": "2", "memory": "6Gi"}}


def objects(seed: Mapping[str, Any]) -> list[Manifest]:
    """One Deployment for each reservation in ``spec.settings.excessCapacityReservation`` of a Seed."""
    return [_deployment(index, each) for index, each in enumerate(reservations(seed))]


def reservations(seed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The reservations of a Seed: by default one of 2 CPUs and 6 GiB."""
    settings = (seed["spec"].get("settings") or {}).get("excessCapacityReservation") or {}
    if not settings.get("enabled", True):
        return []
    return list(settings.get("configs") or [_DEFAULT])


def _deployment(index: int, reservation: Mapping[str, Any]) -> Manifest:
    name = f"{NAME}-{index}"
    amounts = {resource: str(amount) for resource, amount in reservation["resources"].items()}
    # Limits as high as requests: an extended resource must have both.
    container = {
        "name": "pause",
        "image": images.PAUSE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": base.restricted(),
    }
    return base.deployment(
        name,
        GARDEN_NAMESPACE,
        select={**SELECT, _INDEX: str(index)},
        replicas=1,
        # A placeholder that is replaced must leave its room first: there may be no room for another one.
        recreate=True,
        pod={
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": priority.RESERVE,
            "terminationGracePeriodSeconds": 5,
            "securityContext": base.non_root_pod(),
            "containers": [container],
            **({"nodeSelector": reservation["nodeSelector"]} if reservation.get("nodeSelector") else {}),
            **({"tolerations": reservation["tolerations"]} if reservation.get("tolerations") else {}),
        },
    )
