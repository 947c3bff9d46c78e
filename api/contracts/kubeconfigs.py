"""Records of the kubeconfigs that were issued for a Shoot: their users, and whether they were discarded."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from api.model import ApiModel

SHOWN_DIGITS = 8
"""Number of digits of a serial number that the CLI shows, and that users must type."""


class Discard(ApiModel):
    """Statement of a user that all copies of a kubeconfig are deleted."""

    by: str
    at: str
    """Time of the statement, RFC 3339."""
    reason: str = Field(min_length=1, max_length=500)


class IssuedKubeconfig(ApiModel):
    """One issued kubeconfig."""

    user: str
    issuer: str
    """Common name of the CA that issued its certificate."""
    expires: str
    """End of its validity, RFC 3339."""
    discarded: Discard | None = None

    def expired(self, now: datetime) -> bool:
        """Whether its certificate has expired."""
        return datetime.fromisoformat(self.expires) <= now


def issued(config_map: Mapping[str, Any] | None) -> dict[str, IssuedKubeconfig]:
    """Issued kubeconfigs by the serial numbers of their certificates, sorted; empty if there is no record."""
    data: Mapping[str, str] = (config_map or {}).get("data") or {}
    return {serial: IssuedKubeconfig.model_validate_json(data[serial]) for serial in sorted(data)}


def noted(entry: IssuedKubeconfig) -> str:
    """JSON of a record, as the ConfigMap holds it."""
    return entry.model_dump_json(exclude_none=True)
