"""Encryption of a Shoot's resources in etcd: which resources, and by which provider; desired and present state.

The desired state is in the spec, the present one in ``status.credentials.encryptionAtRest``. If they differ, the
encryption key is rotated, and the rotation completes automatically: all resources are rewritten once, in the desired
way. Source: spec/credentials.md 6, where a change of the resources alone keeps the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

DEFAULT_PROVIDER = "aescbc"
GCM = "aesgcm"


@dataclass(frozen=True)
class Encryption:
    provider: str = DEFAULT_PROVIDER
    """``aescbc``, ``aesgcm`` or ``secretbox``; its keys have 32 bytes, so both AES providers use AES-256."""
    resources: frozenset[str] = frozenset()
    """Resources in addition to Secrets, for example ``deployments.apps``."""

    @classmethod
    def _of(cls, config: Mapping[str, Any]) -> Self:
        provider = (config.get("provider") or {}).get("type") or DEFAULT_PROVIDER
        return cls(provider, frozenset(config.get("resources") or ()) - {"secrets"})

    @classmethod
    def wanted(cls, shoot: Mapping[str, Any]) -> Self:
        """Encryption that the spec of a Shoot wants."""
        return cls._of((shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}).get("encryptionConfig") or {})

    @classmethod
    def at_rest(cls, shoot: Mapping[str, Any]) -> Self:
        """Encryption in the status of a Shoot. If the status has none: the resources of the spec, by the default."""
        found = known(shoot)
        return cls._of(found) if found is not None else cls(resources=cls.wanted(shoot).resources)

    def status(self) -> dict[str, Any]:
        """Value of ``status.credentials.encryptionAtRest``."""
        return {"provider": {"type": self.provider}, "resources": sorted(self.resources)}


def known(shoot: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``status.credentials.encryptionAtRest`` of a Shoot; None if it is not set yet."""
    found: Mapping[str, Any] | None = ((shoot.get("status") or {}).get("credentials") or {}).get("encryptionAtRest")
    return found


def changes(shoot: Mapping[str, Any]) -> bool:
    """Whether resources in etcd are not yet encrypted as the spec wants."""
    return Encryption.wanted(shoot) != Encryption.at_rest(shoot)
