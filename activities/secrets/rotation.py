"""When which secrets were last asked to be rotated, and how far each rotation is; read from a Shoot."""

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
    """One kind of credentials."""

    initiated: int | None = None
    """Unix seconds of the last start."""
    phase: str = ""


@dataclass(frozen=True)
class Rotation:
    """``status.credentials.rotation`` of a Shoot, by its keys."""

    states: Mapping[str, RotationState] = field(default_factory=dict)

    @classmethod
    def of_shoot(cls, shoot: Mapping[str, Any]) -> "Rotation":
        """Read a raw Shoot, for example the one pinned in the ``Cluster`` resource."""
        rotation = shoot.get("status", {}).get("credentials", {}).get("rotation", {})
        return cls(
            {
                kind: RotationState(_unix(state.get("lastInitiationTime")), state.get("phase", ""))
                for kind, state in rotation.items()
                if isinstance(state, Mapping)
            }
        )

    def of(self, name: str) -> RotationState:
        """State of the rotation that the secret of this stable name takes part in, if any."""
        kind = _BY_NAME.get(name)
        if kind is None and (name == "ca" or name.startswith("ca-")):
            kind = CERTIFICATE_AUTHORITIES
        return self.states.get(kind, RotationState()) if kind else RotationState()


def _unix(time: str | None) -> int | None:
    return int(datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()) if time else None
