"""Records of the kubeconfigs that were issued for a Shoot: their users, and whether they were discarded."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError, field_validator

from api.model import ApiModel

_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)
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

    @field_validator("expires")
    @classmethod
    def _is_a_time(cls, expires: str) -> str:
        _TIME.validate_python(datetime.fromisoformat(expires))
        return expires

    def expired(self, now: datetime) -> bool:
        """Whether its certificate has expired."""
        return datetime.fromisoformat(self.expires) <= now


def issued(config_map: Mapping[str, Any] | None) -> dict[str, IssuedKubeconfig]:
    """Issued kubeconfigs by the serial numbers of their certificates, sorted; empty if there is no record.

    Members of the Project may write the ConfigMap. An entry that is no record is left out: it must not keep others from
    their kubeconfigs, nor a rotation from its end. A member could delete the entry as well.
    """
    data: Mapping[str, str] = (config_map or {}).get("data") or {}
    found = {serial: _record(data[serial]) for serial in sorted(data)}
    return {serial: entry for serial, entry in found.items() if entry is not None}


def _record(text: str) -> IssuedKubeconfig | None:
    try:
        return IssuedKubeconfig.model_validate_json(text)
    except ValidationError:
        return None


def noted(entry: IssuedKubeconfig) -> str:
    """JSON of a record, as the ConfigMap holds it."""
    return entry.model_dump_json(exclude_none=True)
