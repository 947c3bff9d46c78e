"""What of a Shoot's objects is stored encrypted, and how: as it is wanted, and as it is.

The spec says what is wanted; ``status.credentials.encryptionAtRest`` says what is. A difference is a rotation of the
key that completes by itself: everything is written anew once, as it is wanted now. Source: spec/credentials.md 6,
where a change of the kinds alone keeps the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

DEFAULT_PROVIDER = "aescbc"
GCM = "aesgcm"


@dataclass(frozen=True)
class Encryption:
    provider: str = DEFAULT_PROVIDER
    """``aescbc``, ``aesgcm`` or ``secretbox``; its keys have 32 bytes, so both of AES are AES-256."""
    resources: frozenset[str] = frozenset()
    """Kinds beside Secrets, as in ``deployments.apps``."""

    @classmethod
    def _of(cls, config: Mapping[str, Any]) -> Self:
        provider = (config.get("provider") or {}).get("type") or DEFAULT_PROVIDER
        return cls(provider, frozenset(config.get("resources") or ()) - {"secrets"})

    @classmethod
    def wanted(cls, shoot: Mapping[str, Any]) -> Self:
        """By the spec of a Shoot as the API has it."""
        return cls._of((shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}).get("encryptionConfig") or {})

    @classmethod
    def at_rest(cls, shoot: Mapping[str, Any]) -> Self:
        """By its status. Of a Shoot that tells none, those kinds are encrypted that it wants, by the default."""
        found = known(shoot)
        return cls._of(found) if found is not None else cls(resources=cls.wanted(shoot).resources)

    def status(self) -> dict[str, Any]:
        """As ``encryptionAtRest`` has it."""
        return {"provider": {"type": self.provider}, "resources": sorted(self.resources)}


def known(shoot: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``status.credentials.encryptionAtRest``; None if it is not told yet."""
    found: Mapping[str, Any] | None = ((shoot.get("status") or {}).get("credentials") or {}).get("encryptionAtRest")
    return found


def changes(shoot: Mapping[str, Any]) -> bool:
    """Whether what is stored is not yet stored as it is wanted."""
    return Encryption.wanted(shoot) != Encryption.at_rest(shoot)
