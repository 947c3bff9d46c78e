"""TokenRequest: body of the subresource of WorkloadIdentities that issues tokens. It is never stored."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from api.constants import SECURITY
from api.meta import Definition, KubeModel, KubeObject, Timestamp


class ContextObject(KubeModel):
    """The object for which a seed needs the token. Claim ``gardener.cloud`` of the token names it."""

    api_version: str
    kind: str
    """Shoot, Seed, BackupBucket or BackupEntry."""
    name: str
    namespace: str | None = None
    uid: str


class TokenRequestSpec(KubeModel):
    context_object: ContextObject | None = None
    expiration_seconds: int | None = None
    """Validity of the token in seconds; default 3600. The server raises it to an hour, and lowers it to 48 hours."""


class TokenRequestStatus(KubeModel):
    token: str
    expiration_timestamp: Timestamp


class TokenRequest(KubeObject):
    definition: ClassVar[Definition] = Definition(SECURITY, "v1alpha1", "tokenrequests")

    spec: TokenRequestSpec = Field(default_factory=TokenRequestSpec)
    status: TokenRequestStatus | None = None
