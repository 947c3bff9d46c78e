"""Secrets with a token of a WorkloadIdentity in place of a static key, and the tokens in them.

An activity writes such a Secret and gets its first token; ``workers.gardenlet.token_requestor`` renews the token.
Source: spec/api-core.md 9 and 13, GEP-26.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from activities.clusters import Clusters
from activities.seed.rollout import MANAGER
from api import resources
from api.decisions import workload_identity as names
from api.resources import SECRET, WORKLOAD_IDENTITY, Object, ObjectView
from api.times import parsed, timestamp
from kube.client import KubeClient
from kube.edit import patch_as_read

LIFETIME = timedelta(hours=6)
"""Requested lifetime of a token. Source: Gardener."""
_RENEWED_AT = 0.8


class Unusable(Exception):
    """A Secret does not say for which WorkloadIdentity, and for which Shoot, it needs a token."""


def renewal(issued: datetime, expires: datetime, chance: float) -> datetime:
    """When to renew a token: at 80 % of its lifetime, and up to 5 % of the lifetime earlier.

    ``chance``, from 0 to 1, decides how much earlier, so that not all tokens are renewed at once.
    """
    return issued + (expires - issued) * (_RENEWED_AT - 0.05 * chance)


async def deploy_secret(
    clusters: Clusters, identity: ObjectView, shoot: ObjectView, place: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    """Write a Secret for a WorkloadIdentity, with a token. A second run finds both, and keeps a token that is good.

    ``place``: name and namespace of the Secret. ``shoot``: the context of the token.
    """
    metadata, target = identity["metadata"], identity["spec"]["targetSystem"]
    config = target.get("providerConfig")
    secret = await clusters.seed.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                **place,
                "labels": {**labels, names.PURPOSE: names.TOKEN_REQUESTOR, names.PROVIDER: target["type"]},
                "annotations": {
                    names.NAME: metadata["name"],
                    names.NAMESPACE: metadata["namespace"],
                    names.CONTEXT_OBJECT: names.context_object(resources.SHOOT, shoot["metadata"]),
                },
            },
            "type": "Opaque",
            "data": {} if config is None else {names.CONFIG: _encoded(json.dumps(config, sort_keys=True))},
        },
        manager=MANAGER,
    )
    await ensure_token(clusters, secret, wanted=identity)


async def drop_token(seed: KubeClient, name: str, namespace: str) -> None:
    """Remove the token from a Secret that gets a static key next. A second run finds none.

    The label goes in the same write, so that no controller puts another token into the Secret.
    """
    secret = await seed.find(SECRET, name, namespace)
    if secret is None or (secret["metadata"].get("labels") or {}).get(names.PURPOSE) != names.TOKEN_REQUESTOR:
        return
    metadata = {"labels": {names.PURPOSE: None}, "annotations": {names.RENEW_TIMESTAMP: None}}
    await patch_as_read(seed, SECRET, secret, {"metadata": metadata, "data": {names.TOKEN: None}})


async def ensure_token(clusters: Clusters, secret: Object, wanted: ObjectView | None = None) -> datetime:
    """Request a token unless the Secret holds one that is not due; returns when the next one is due.

    ``wanted``: the WorkloadIdentity, if the caller knows it. Then a token of another identity, or for other audiences,
    is replaced.

    Raises:
        Unusable: if the annotations of the Secret cannot be used.
        Conflict: if the Secret has changed meanwhile: the next call requests another token.
    """
    due = _due(secret)
    if due is not None and (wanted is None or _is_of(secret, wanted)):
        return due
    metadata = secret["metadata"]
    annotations = metadata.get("annotations") or {}
    name, namespace = annotations.get(names.NAME), annotations.get(names.NAMESPACE)
    context = _context(secret)
    if not name or not namespace:
        raise Unusable(f"annotations {names.NAME} and {names.NAMESPACE} must name a WorkloadIdentity")
    issued = datetime.now(UTC)
    answer = await clusters.garden.request(
        "POST",
        WORKLOAD_IDENTITY.path(namespace, name, "token"),
        body={
            "apiVersion": WORKLOAD_IDENTITY.api_version,
            "kind": "TokenRequest",
            "spec": {"contextObject": context, "expirationSeconds": int(LIFETIME.total_seconds())},
        },
        doing=f"requesting a token of WorkloadIdentity {namespace}/{name}",
    )
    status = answer["status"]
    due = renewal(issued, datetime.fromisoformat(status["expirationTimestamp"]), random.random())
    patch = {
        "metadata": {"annotations": {names.RENEW_TIMESTAMP: timestamp(due)}},
        "data": {names.TOKEN: _encoded(status["token"])},
    }
    await patch_as_read(clusters.seed, SECRET, secret, patch)
    return due


def _due(secret: ObjectView) -> datetime | None:
    """When the token in a Secret must be renewed; None: now."""
    annotations = secret["metadata"].get("annotations") or {}
    due = parsed(annotations.get(names.RENEW_TIMESTAMP) or "")
    has_token = bool((secret.get("data") or {}).get(names.TOKEN))
    return due if due is not None and has_token and due > datetime.now(UTC) else None


def _is_of(secret: ObjectView, identity: ObjectView) -> bool:
    """Whether the token in a Secret has the subject and the audiences of a WorkloadIdentity, and is for its Shoot."""
    try:
        token = base64.b64decode(secret["data"][names.TOKEN]).decode()
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError):
        return False
    shoot = (claims.get("gardener.cloud") or {}).get("shoot") or {}
    return bool(
        claims.get("sub") == names.subject(identity["metadata"])
        and claims.get("aud") == identity["spec"]["audiences"]
        and shoot.get("uid") == _context(secret)["uid"]
    )


def uid_of_context(secret: ObjectView) -> str:
    """Uid of the Shoot for which a Secret needs a token. Raises Unusable."""
    return str(_context(secret)["uid"])


def _context(secret: ObjectView) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(secret["metadata"]["annotations"][names.CONTEXT_OBJECT])
        return {field: str(found[field]) for field in ("apiVersion", "kind", "name", "namespace", "uid")}
    except (KeyError, TypeError, ValueError):
        raise Unusable(f"annotation {names.CONTEXT_OBJECT} must name a Shoot as JSON") from None


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
