"""In-place updates: how machine-controller-manager and node agent tell each other about the update of one machine.

The names on Nodes are those of Gardener's machine-controller-manager. What the machine controllers decide by is in the
Machine, which no node can write: a Node says no more than the result of its own update. Source: GEP-31.
"""

from collections.abc import Mapping
from typing import Any, Final

from api.machine.objects import phase_of

CANDIDATE: Final = "node.machine.sapcloud.io/candidate-for-update"
"""Label of a Node, value ``true``: the configuration of its pool has changed, and its update has not begun."""
SELECTED: Final = "node.machine.sapcloud.io/selected-for-update"
"""Label of a Node, value ``true``: the update may begin. A user sets it in pools that are updated manually."""
RESULT: Final = "node.machine.sapcloud.io/update-result"
"""Label of a Node: result of its update, written by the node agent."""
SUCCESSFUL: Final = "successful"
FAILED: Final = "failed"
FAILED_REASON: Final = "node.machine.sapcloud.io/update-failed-reason"
"""Annotation of a Node: why its update has failed, written by the node agent."""

CONDITION: Final = "InPlaceUpdate"
"""Type of a Node's condition. The machine-controller-manager writes it; the constants below are its reasons."""
IS_CANDIDATE: Final = "CandidateForUpdate"
IS_SELECTED: Final = "SelectedForUpdate"
IS_READY: Final = "ReadyForUpdate"
HAS_SUCCEEDED: Final = "UpdateSuccessful"
HAS_FAILED: Final = "UpdateFailed"

UPDATING: Final = "InPlaceUpdating"
"""Phase of a Machine; the two phases below end it."""
UPDATED: Final = "InPlaceUpdateSuccessful"
UPDATE_FAILED: Final = "InPlaceUpdateFailed"
PHASES: Final = frozenset({UPDATING, UPDATED, UPDATE_FAILED})

TARGET: Final = "machine.sapcloud.io/in-place-update-to"
"""Annotation of a Machine: the MachineClass to which its update leads. It stays until the MachineSet of this class has
the Machine. From the success of the update until then, no MachineSet creates or deletes a machine because of it."""
SINCE: Final = "machine.sapcloud.io/in-place-update-since"
"""Annotation of a Machine: when it was selected. It stays until its Node is usable again."""
DRAINED_FOR: Final = "machine.sapcloud.io/in-place-update-drained-for"
"""Annotation of a Machine: the target for which its Node was drained and released to the node agent."""

NO_SCALE_UP: Final = "node.machine.sapcloud.io/scale-up-disabled"
"""Label of a MachineSet, value ``true``: create no machines, because the set's class is not the newest."""


def annotation(machine: Mapping[str, Any], name: str) -> str:
    """An annotation's value; empty if there is none."""
    return str((machine["metadata"].get("annotations") or {}).get(name) or "")


def is_under_way(machine: Mapping[str, Any]) -> bool:
    """Whether a machine is selected for an update, and not yet counted as a machine of its target."""
    return bool(annotation(machine, TARGET))


def is_moving(machine: Mapping[str, Any]) -> bool:
    """Whether a machine is updated, and on its way from the set of its former class to that of its target."""
    return is_released(machine) and phase_of(machine) == UPDATED


def is_released(machine: Mapping[str, Any]) -> bool:
    """Whether the node agent may update the machine: its Node is drained for the target of now."""
    return is_under_way(machine) and annotation(machine, DRAINED_FOR) == annotation(machine, TARGET)


def reason_of(node: Mapping[str, Any]) -> str:
    """Reason of a Node's condition about its update; empty without one."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((str(each.get("reason") or "") for each in conditions if each["type"] == CONDITION), "")


def result_of(node: Mapping[str, Any]) -> str:
    """Result of its update that a Node reports, successful or failed; empty without one."""
    said = (node["metadata"].get("labels") or {}).get(RESULT)
    return said if said in (SUCCESSFUL, FAILED) else ""
