"""Keys of the issuer of WorkloadIdentities: made by the controller-manager, used by the subresource server."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, Field, ValidationError

from api.model import ApiModel

_KEY = "keys.json"


class IssuerKey(ApiModel):
    id: str
    """Claim ``kid``: digest of the public key."""
    public: dict[str, str]
    """JSON Web Key."""
    private: str = Field(default="", repr=False)
    """PEM; empty once the key has signed its last token."""
    signs_from: AwareDatetime | None = None
    """Time from which the key signs; None: the key is not published yet."""
    until: AwareDatetime | None = None
    """Time at which the last token that the key has signed has expired; None: the key may still sign."""


class IssuerKeys(ApiModel):
    issuer: str
    """Claim ``iss``."""
    keys: tuple[IssuerKey, ...] = ()
    """In the order of their creation."""

    def signing(self, now: datetime) -> IssuerKey | None:
        """The newest key that may sign now."""
        usable = [each for each in self.keys if each.private and each.signs_from and each.signs_from <= now]
        return max(usable, key=lambda each: each.signs_from or now, default=None)


def keys_in(secret: Mapping[str, Any] | None) -> IssuerKeys | None:
    """The keys in the Secret; None if there are none. Raises ValueError, which quotes nothing."""
    encoded = ((secret or {}).get("data") or {}).get(_KEY)
    if not encoded:
        return None
    try:
        return IssuerKeys.model_validate_json(base64.b64decode(encoded))
    except (ValidationError, binascii.Error):
        raise ValueError(f"key {_KEY} of the Secret cannot be read") from None


def data_of(keys: IssuerKeys) -> dict[str, str]:
    """Data of the Secret."""
    return {_KEY: base64.b64encode(keys.model_dump_json(by_alias=True).encode()).decode()}
