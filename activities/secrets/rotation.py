"""Start and phase of each credentials rotation, read from a Shoot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

COMPLETING = "Completing"

CERTIFICATE_AUTHORITIES = "certificateAuthorities"
SERVICE_ACCOUNT_KEY = "serviceAccountKey"
ETCD_ENCRYPTION_KEY = "etcdEncryptionKey"
SSH_KEYPAIR = "sshKeypair"
OBSERVABILITY = "observability"

# Source: spec/credentials.md 2; certificate authorities are all names that are "ca" or begin with "ca-".
_BY_NAME = {
    "kube-apiserver-static-token": CERTIFICATE_AUTHORITIES,
    "service-account-key": SERVICE_ACCOUNT_KEY,
    "kube-apiserver-etcd-encryption-key": ETCD_ENCRYPTION_KEY,
    "ssh-keypair": SSH_KEYPAIR,
    "observability-ingress-users": OBSERVABILITY,
}


@dataclass(frozen=True)
class RotationState:
    """State of the rotation of one kind of credentials."""

    initiated: int | None = None
    """Start of the last rotation in Unix seconds."""
    phase: str = ""


@dataclass(frozen=True)
class Rotation:
    """``status.credentials.rotation`` of a Shoot, by its keys."""

    states: Mapping[str, RotationState] = field(default_factory=dict)

    @classmethod
    def of_shoot(cls, shoot: Mapping[str, Any]) -> "Rotation":
        """Read the rotations of a raw Shoot, for example of the Shoot in a ``Cluster`` object."""
        rotation = shoot.get("status", {}).get("credentials", {}).get("rotation", {})
        return cls(
            {
                kind: RotationState(_unix(state.get("lastInitiationTime")), state.get("phase", ""))
                for kind, state in rotation.items()
                if isinstance(state, Mapping)
            }
        )

    def of(self, name: str) -> RotationState:
        """State of the rotation to which the secret with this stable name belongs; an empty state if there is none."""
        kind = _BY_NAME.get(name)
        if kind is None and (name == "ca" or name.startswith("ca-")):
            kind = CERTIFICATE_AUTHORITIES
        return self.states.get(kind, RotationState()) if kind else RotationState()


def _unix(time: str | None) -> int | None:
    return int(datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()) if time else None
