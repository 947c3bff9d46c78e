"""Tokens of WorkloadIdentities: bounds, claims, context, signature, audit. Source: spec/api-core.md 9."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import jwt

from api import resources
from api.constants import CORE, GARDEN_NAMESPACE, ISSUER_KEYS, PROJECT_NAME, SECURITY, SEED_USER_PREFIX, SEEDS_GROUP
from api.contracts.issuer_keys import IssuerKey, keys_in
from api.decisions import workload_identity
from api.decisions.credentials import binding_of
from api.decisions.workload_identity import LEAST_SECONDS, LONGEST, MOST_SECONDS, SHORTEST
from api.resources import Object, Resource
from api.security.v1alpha1.token_request import ContextObject, TokenRequest, TokenRequestSpec, TokenRequestStatus
from api.times import timestamp
from api.validation.workload_identity import names, seed_refers, shoot_refers
from kube.client import KubeClient
from workers.lib.access import User
from workers.lib.runtime import log_context
from workers.subresources.refusals import Refusal, forbidden, internal, invalid, not_found

log = logging.getLogger(__name__)

TOKEN = Resource(SECURITY, "v1alpha1", "WorkloadIdentity", "workloadidentities/token")
ALGORITHM = "RS256"
"""The one algorithm that all clouds accept."""
_CONTEXTS = {
    each.kind: each
    for each in (resources.SHOOT, resources.SEED, resources.CORE_BACKUP_BUCKET, resources.CORE_BACKUP_ENTRY)
}
IGNORED = f"spec.contextObject is ignored: the server reads it in requests of group {SEEDS_GROUP} alone"


@dataclass(frozen=True)
class Tokens:
    """Issues tokens. It keeps nothing in memory, so replicas sign with the same key."""

    garden: KubeClient

    async def issue(
        self, namespace: str, name: str, request: TokenRequest, user: User, *, dry_run: bool
    ) -> tuple[TokenRequest, list[str]]:
        """The request with its status, and warnings. With ``dry_run`` all is checked, and no token is made.

        A repeated request issues another token with another ``jti``. Raises Refusal.
        """
        lifetime = _lifetime(request.spec.expiration_seconds)
        identity = await self.garden.find(resources.WORKLOAD_IDENTITY, name, namespace)
        if identity is None:
            raise not_found(resources.WORKLOAD_IDENTITY, name)
        seed = _seed_of(user)
        asked = request.spec.context_object
        context = await self._context(seed, asked, identity) if seed and asked else {}
        now = datetime.now(UTC)
        issuer, key = await self._key(now)
        spec = TokenRequestSpec(context_object=asked, expiration_seconds=int(lifetime.total_seconds()))
        answer = request.model_copy(update={"spec": spec})
        warnings = [IGNORED] if asked and not seed else []
        if dry_run:
            return answer, warnings
        expires = now + lifetime
        claims = workload_identity.claims(identity, issuer, now, expires, str(uuid4()), context)
        try:
            token = await asyncio.to_thread(jwt.encode, claims, key.private, ALGORITHM, {"kid": key.id})
        except (jwt.PyJWTError, ValueError, TypeError):
            # "from None": the cause's text must not quote a key.
            raise internal(f"Secret {GARDEN_NAMESPACE}/{ISSUER_KEYS} holds no key that can sign") from None
        _audit(user, claims, key)
        status = TokenRequestStatus(token=token, expiration_timestamp=timestamp(expires))
        return answer.model_copy(update={"status": status}), warnings

    async def _key(self, now: datetime) -> tuple[str, IssuerKey]:
        """The issuer and the key that signs now. Read for each token, so that a rotation takes effect at once."""
        secret = await self.garden.find(resources.SECRET, ISSUER_KEYS, GARDEN_NAMESPACE)
        try:
            keys = keys_in(secret)
        except ValueError as error:
            raise internal(f"Secret {GARDEN_NAMESPACE}/{ISSUER_KEYS}: {error}") from None
        key = keys.signing(now) if keys else None
        if keys is None or key is None:
            raise Refusal(
                503,
                "this garden has no issuer of tokens for WorkloadIdentities yet: an operator must name its host in a "
                "Secret (docs/operations/workload-identity.md)",
            )
        return keys.issuer, key

    async def _context(self, seed: str, asked: ContextObject, identity: Object) -> Object:
        """Part of claim ``gardener.cloud`` about the object for which a seed needs the token. Raises 403.

        The object must exist with this uid, be at home in the seed, and refer to the WorkloadIdentity.
        """
        resource = _CONTEXTS.get(asked.kind)
        if resource is None or asked.api_version != resource.api_version:
            raise _refused(identity, f"must be one of {', '.join(_CONTEXTS)} of {CORE}/v1beta1")
        found = await self.garden.find(resource, asked.name, asked.namespace if resource.namespaced else None)
        if found is None or found["metadata"]["uid"] != asked.uid or not await self._uses(seed, found, identity):
            # One answer for all reasons: a seed must not learn whether an object of another seed exists.
            raise _refused(identity, f"seed {seed} has no such {asked.kind} that refers to this WorkloadIdentity")
        claim = {asked.kind[0].lower() + asked.kind[1:]: workload_identity.named(found["metadata"])}
        if resource in (resources.SHOOT, resources.CORE_BACKUP_ENTRY):
            claim |= await self._project(found["metadata"]["namespace"])
        if resource != resources.SEED:
            own = await self.garden.get(resources.SEED, seed)
            claim["seed"] = workload_identity.named(own["metadata"])
        return claim

    async def _uses(self, seed: str, found: Object, identity: Object) -> bool:
        """Whether an object belongs to a seed and refers to a WorkloadIdentity."""
        kind, spec, metadata = found["kind"], found["spec"], identity["metadata"]
        if kind == "Seed":
            return found["metadata"]["name"] == seed and seed_refers(found, metadata)
        if kind == "Shoot":
            if seed not in (spec.get("seedName"), (found.get("status") or {}).get("seedName")):
                return False
            return shoot_refers(found, await self._binding(found), metadata)
        if spec.get("seedName") != seed:
            return False
        if kind == "BackupEntry":
            bucket = await self.garden.find(resources.CORE_BACKUP_BUCKET, spec["bucketName"])
            spec = (bucket or {}).get("spec") or {}
        return names(spec.get("credentialsRef"), metadata)

    async def _binding(self, shoot: Object) -> Object | None:
        bound = binding_of(shoot)
        if bound is None:
            return None
        kind, name = bound
        return await self.garden.find(kind.resource, name, shoot["metadata"]["namespace"])

    async def _project(self, namespace: str) -> Object:
        found = await self.garden.get(resources.NAMESPACE, namespace)
        name = (found["metadata"].get("labels") or {}).get(PROJECT_NAME, "")
        project = await self.garden.find(resources.PROJECT, name) if name else None
        if project is None or project["spec"].get("namespace") != namespace:
            return {}
        return {"project": workload_identity.named(project["metadata"])}


def _seed_of(user: User) -> str:
    """The seed whose gardenlet asks; empty for other users."""
    is_gardenlet = SEEDS_GROUP in user.groups and user.name.startswith(SEED_USER_PREFIX)
    return user.name.removeprefix(SEED_USER_PREFIX) if is_gardenlet else ""


def _lifetime(wanted: int | None) -> timedelta:
    seconds = workload_identity.DEFAULT_SECONDS if wanted is None else wanted
    path, what = "spec.expirationSeconds", f"Invalid value: {seconds}: may not specify a duration"
    if seconds < LEAST_SECONDS:
        raise invalid("TokenRequest", SECURITY, "", path, f"{what} less than 10 minutes")
    if seconds > MOST_SECONDS:
        raise invalid("TokenRequest", SECURITY, "", path, f"{what} larger than 2^32 seconds")
    return min(max(timedelta(seconds=seconds), SHORTEST), LONGEST)


def _refused(identity: Object, why: str) -> Refusal:
    return forbidden(resources.WORKLOAD_IDENTITY, identity["metadata"]["name"], f"spec.contextObject: {why}")


def _audit(user: User, claims: Object, key: IssuerKey) -> None:
    """One line in the log, with its facts as fields. It names the token by its ``jti``."""
    facts: dict[str, Any] = {
        "audit": "workload identity token issued",
        "subresource": TOKEN.plural,
        "user": user.name,
        "subject": claims["sub"],
        "jti": claims["jti"],
        "key": key.id,
        "expires": datetime.fromtimestamp(claims["exp"], UTC).isoformat(),
        "context": {name: value for name, value in claims["gardener.cloud"].items() if name != "workloadIdentity"},
    }
    logged = log_context.set({**log_context.get({}), **facts})
    try:
        log.info("user %s got a token of %s until %s", user.name, facts["subject"], facts["expires"])
    finally:
        log_context.reset(logged)
