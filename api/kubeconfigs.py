"""Kubeconfigs of a Shoot that were given out: who got them, and which of them nobody has any more."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from api.model import ApiModel

SHOWN_DIGITS = 8
"""Of a serial number: as many as people get to see, and have to type."""


class Discard(ApiModel):
    """Somebody's word that nobody has a kubeconfig any more."""

    by: str
    at: str
    """RFC 3339."""
    reason: str = Field(min_length=1, max_length=500)


class IssuedKubeconfig(ApiModel):
    """One that was given out."""

    user: str
    issuer: str
    """Common name of the authority that its certificate is by."""
    expires: str
    """RFC 3339."""
    discarded: Discard | None = None

    def expired(self, now: datetime) -> bool:
        """Whether it is of no use any more."""
        return datetime.fromisoformat(self.expires) <= now


def issued(config_map: Mapping[str, Any] | None) -> dict[str, IssuedKubeconfig]:
    """By the serial numbers of their certificates, in their order; none if nothing was ever noted."""
    data: Mapping[str, str] = (config_map or {}).get("data") or {}
    return {serial: IssuedKubeconfig.model_validate_json(data[serial]) for serial in sorted(data)}


def noted(entry: IssuedKubeconfig) -> str:
    """As it is written down."""
    return entry.model_dump_json(exclude_none=True)
