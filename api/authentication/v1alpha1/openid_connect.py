"""OpenIDConnect: an issuer of tokens that a Shoot accepts in addition to those of its API server's configuration.

The kind is served in the Shoot. Source: GEP-12, spec/api-core.md 9.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import AUTHENTICATION
from api.meta import AGE, Bytes, Column, Definition, KubeModel, KubeObject

SigningAlgorithm = Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"]
"""Algorithms with a public key. With ``none`` or a shared secret, each client could sign tokens. Source: RFC 7518."""
NO_PREFIX = "-"
"""Value of a prefix that adds none."""


class OpenIDConnectSpec(KubeModel):
    issuer_url: Annotated[str, Field(pattern=r"^https://")]
    """Issuer in the tokens, and base URL of its discovery document."""
    client_id: Annotated[str, Field(min_length=1)]
    """Audience that a token must name."""
    username_claim: Annotated[str, Field(min_length=1)] = "sub"
    username_prefix: str | None = None
    """Put before each user name. Default: the object's name and a slash; ``-`` for none."""
    groups_claim: str = "groups"
    """Claim with a text or a list of texts."""
    groups_prefix: str | None = None
    """Put before each group. Default: the object's name and a slash; ``-`` for none."""
    supported_signing_algs: list[SigningAlgorithm] = Field(default=["RS256"], min_length=1)
    required_claims: dict[str, str] | None = None
    """Claims that a token must have with exactly these values."""
    ca_bundle: Bytes | None = None
    """Certificates in PEM format that sign the issuer's server certificate. Default: the CAs of the image."""


class OpenIDConnect(KubeObject):
    definition: ClassVar[Definition] = Definition(
        AUTHENTICATION,
        "v1alpha1",
        "openidconnects",
        ("oidc", "oidcs"),
        namespaced=False,
        columns=(
            Column("Issuer", ".spec.issuerURL"),
            Column("Client ID", ".spec.clientID"),
            Column("Username Claim", ".spec.usernameClaim"),
            Column("Groups Claim", ".spec.groupsClaim"),
            AGE,
        ),
        status=False,
        protected=False,
    )

    spec: OpenIDConnectSpec
