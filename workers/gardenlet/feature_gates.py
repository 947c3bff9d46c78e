"""Feature gates of a gardenlet: Gardener's names, each with the one value that this version implements.

A gate that this version implements in one way only is accepted with that value, and refused with another one. So a
configuration that was written for Gardener either means the same here, or is refused with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    value: bool
    """The value that this version implements."""
    because: str


GATES: Mapping[str, Gate] = {
    "DefaultSeccompProfile": Gate(True, "pods of control planes and of extensions have profile RuntimeDefault"),
    "InPlaceNodeUpdates": Gate(False, "nodes are updated by replacement: updateStrategy AutoRollingUpdate"),
    "IstioTLSTermination": Gate(False, "the gateway passes TLS through to API servers"),
    "LiveControlPlaneMigration": Gate(False, "a control plane stops while it moves to another seed"),
    "NodeAgentAuthorizer": Gate(True, "a node agent has the rights of its own node alone"),
    "CredentialsRotationWithoutWorkersRollout": Gate(True, "rotations may go without a rollout of the workers"),
    "ShootCredentialsBinding": Gate(True, "Shoots name CredentialsBindings"),
}
"""By Gardener's name."""


def values() -> dict[str, bool]:
    """Value of each gate, for the charts of extensions."""
    return {name: gate.value for name, gate in GATES.items()}


def faults(given: Mapping[str, bool]) -> list[str]:
    """Why the gates of a configuration are refused; empty if they are accepted."""
    found = []
    for name, value in sorted(given.items()):
        gate = GATES.get(name)
        if gate is None:
            found.append(f"featureGates.{name}: there is no such gate; known are {', '.join(sorted(GATES))}")
        elif value != gate.value:
            shown, wanted = str(value).lower(), str(gate.value).lower()
            found.append(f"featureGates.{name}: {shown} is not possible, this version has {wanted}: {gate.because}")
    return found
