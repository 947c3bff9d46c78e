"""WorkloadIdentities: their names at a cloud, the claims of their tokens, and the Secrets that hold tokens.

Source: spec/api-core.md 9, GEP-26.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from api import resources
from api.constants import SECURITY
from api.resources import Object, ObjectView, Resource

DEFAULT_SECONDS = 3600
LEAST_SECONDS, MOST_SECONDS = 600, 2**32
"""Bounds of ``expirationSeconds`` in a request."""
SHORTEST, LONGEST = timedelta(hours=1), timedelta(hours=48)
"""Bounds of the lifetime of a token: a request for less or more gets these."""

PATH = "/garden/workload-identity/issuer"
"""URL path of the issuer at the host that also publishes the keys of Shoots."""
PUBLIC_KEYS = {"authentication.gardener.cloud/public-keys": "workload-identity"}
"""Label of the Secret with the published documents."""
PUBLISHED = "workload-identity-issuer"
"""Name of that Secret. Names of Secrets of Shoots contain ``--``."""

PURPOSE = "security.gardener.cloud/purpose"
TOKEN_REQUESTOR = "workload-identity-token-requestor"
"""Value of this label: the gardenlet keeps a token in the Secret."""
_PREFIX = f"workloadidentity.{SECURITY}/"
PROVIDER = f"{_PREFIX}provider"
REFERENCED = f"{_PREFIX}referenced"
"""Label, ``true``, of a Secret for a WorkloadIdentity in ``spec.resources`` of a Shoot."""
NAME, NAMESPACE = f"{_PREFIX}name", f"{_PREFIX}namespace"
CONTEXT_OBJECT = f"{_PREFIX}context-object"
RENEW_TIMESTAMP = f"{_PREFIX}token-renew-timestamp"
"""Annotation: when the gardenlet renews the token. Without it the gardenlet renews the token at once."""
REFERENCE_PREFIX = "workload-identity-ref-"
"""Prefix of the name of a Secret for a WorkloadIdentity in ``spec.resources`` of a Shoot."""
CONFIG, TOKEN = "config", "token"
"""Keys of such a Secret: ``providerConfig`` of the target system as JSON, and the token."""

_SUBJECT_PREFIX = "gardener.cloud:workloadidentity"
_UID_LENGTH = 36
LONGEST_SUBJECT = 255


def subject(metadata: Mapping[str, Any]) -> str:
    """Claim ``sub`` of the tokens of a WorkloadIdentity."""
    return ":".join((_SUBJECT_PREFIX, metadata["namespace"], metadata["name"], metadata["uid"]))


def longest_name(namespace: str) -> int:
    """Maximum length of the name of a WorkloadIdentity: a claim ``sub`` has at most 255 characters (OpenID Connect)."""
    return LONGEST_SUBJECT - len(f"{_SUBJECT_PREFIX}:{namespace}::") - _UID_LENGTH


def context_object(resource: Resource, metadata: Mapping[str, Any]) -> str:
    """Value of the annotation that names the object for which a token is requested."""
    named = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": metadata["name"],
        **({"namespace": metadata["namespace"]} if resource.namespaced else {}),
        "uid": metadata["uid"],
    }
    return json.dumps(named, separators=(",", ":"))


def claims(identity: ObjectView, issuer: str, now: datetime, expires: datetime, jti: str, context: Object) -> Object:
    """Claims of a token. ``context``: what claim ``gardener.cloud`` holds beside the WorkloadIdentity."""
    metadata = identity["metadata"]
    return {
        "iss": issuer,
        "sub": subject(metadata),
        "aud": list(identity["spec"]["audiences"]),
        "exp": int(expires.timestamp()),
        "iat": int(now.timestamp()),
        "nbf": int(now.timestamp()),
        "jti": jti,
        "gardener.cloud": {"workloadIdentity": named(metadata), **context},
    }


def named(metadata: Mapping[str, Any]) -> Object:
    """Reference to an object in claim ``gardener.cloud``."""
    return {field: metadata[field] for field in ("name", "namespace", "uid") if metadata.get(field)}


def is_identity(reference: Mapping[str, Any] | None) -> bool:
    """Whether a reference to credentials names a WorkloadIdentity."""
    found = reference or {}
    wanted = resources.WORKLOAD_IDENTITY
    return (found.get("apiVersion"), found.get("kind")) == (wanted.api_version, wanted.kind)
