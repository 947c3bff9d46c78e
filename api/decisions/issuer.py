"""Managed issuer of a shoot's service account tokens: it publishes the keys by which third parties verify the tokens.

A Secret of the garden (role ``shoot-service-account-issuer``) names a host. The gardenlet writes the public keys into
another Secret of the garden, and the discovery server publishes them at that host. Source: spec/api-core.md 10.1,
spec/credentials.md 2.
"""

from collections.abc import Mapping

from api.constants import AUTHENTICATION_ISSUER, ROLE

MANAGED = "managed"
ISSUER_ROLE = "shoot-service-account-issuer"
SELECTOR = f"{ROLE}={ISSUER_ROLE}"
"""Label selector of the Secret in namespace ``garden`` that names the host."""
HOSTNAME = "hostname"
"""Key of that Secret: the host, with a port if it is not 443."""

PATH = "/projects/{project}/shoots/{uid}/issuer"
"""URL path of an issuer at that host."""
PUBLIC_KEYS = {"authentication.gardener.cloud/public-keys": "serviceaccount"}
"""Label of the Secrets with the published documents."""
OPENID_CONFIGURATION, KEY_SET = "openid-config", "jwks"
"""Keys of these Secrets."""


def is_managed(annotations: Mapping[str, str] | None) -> bool:
    """Whether the annotations of a Shoot request the managed issuer."""
    return (annotations or {}).get(AUTHENTICATION_ISSUER) == MANAGED


def issuer_url(hostname: str, project: str, uid: str) -> str:
    """URL of the issuer in the tokens of a Shoot."""
    return f"https://{hostname}{PATH.format(project=project, uid=uid)}"


def key_set_url(issuer: str) -> str:
    """URL of the public keys of an issuer."""
    return f"{issuer}/jwks"


def secret_name(project: str, uid: str) -> str:
    """Name of the Secret with the published documents of a Shoot."""
    return f"{project}--{uid}"
