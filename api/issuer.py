"""The managed issuer of a shoot's service account tokens: where third parties find the keys by which they trust them.

The garden names a host (a Secret of role ``shoot-service-account-issuer``), a seed publishes keys in a Secret of the
garden, and the discovery server of the garden serves them at that host. Source: spec/api-core.md 10.1,
spec/credentials.md 2.
"""

from collections.abc import Mapping

from api.constants import AUTHENTICATION_ISSUER, ROLE

MANAGED = "managed"
ISSUER_ROLE = "shoot-service-account-issuer"
SELECTOR = f"{ROLE}={ISSUER_ROLE}"
"""Of the Secret in namespace ``garden`` that names the host."""
HOSTNAME = "hostname"
"""Its key: the host, with a port if it is not 443."""

PATH = "/projects/{project}/shoots/{uid}/issuer"
"""Of an issuer, at that host."""
PUBLIC_KEYS = {"authentication.gardener.cloud/public-keys": "serviceaccount"}
"""Label of the Secrets with what is published."""
OPENID_CONFIGURATION, KEY_SET = "openid-config", "jwks"
"""Their keys."""


def is_managed(annotations: Mapping[str, str] | None) -> bool:
    """Whether a Shoot asks for it."""
    return (annotations or {}).get(AUTHENTICATION_ISSUER) == MANAGED


def issuer_url(hostname: str, project: str, uid: str) -> str:
    """What the tokens of a Shoot name as their issuer."""
    return f"https://{hostname}{PATH.format(project=project, uid=uid)}"


def key_set_url(issuer: str) -> str:
    """Where the public keys of an issuer are."""
    return f"{issuer}/jwks"


def secret_name(project: str, uid: str) -> str:
    """The Secret with what a Shoot publishes."""
    return f"{project}--{uid}"
