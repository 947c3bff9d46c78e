"""WorkloadIdentities in the garden: writes their subjects, and keeps the keys of their issuer.

The issuer has the host that a Secret names for managed issuers of Shoots, too. Keys are in Secret
``workload-identity-issuer`` of namespace ``garden``; the discovery server publishes their public parts.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from datetime import UTC, datetime, timedelta

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from pydantic import Field

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm
from api import resources
from api.constants import (
    GARDEN_NAMESPACE,
    GARDENER_INFO,
    ISSUER_KEYS,
    OPERATION,
    OPERATION_RENEW,
    SHOOT_ISSUER_NAMESPACE,
    SYSTEM_PUBLIC_NAMESPACE,
)
from api.contracts.issuer_keys import IssuerKey, IssuerKeys, data_of, keys_in
from api.decisions import issuer, issuer_keys, workload_identity
from api.images import OWN_VERSION
from api.model import ApiModel
from kube.cache import Cache, Caches, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.errors import NotFound
from workers.lib.leader import Duration

log = logging.getLogger(__name__)

_MANAGER = "gardener-controller-manager"
_KEY_SIZE = KeyAlgorithm.RSA3072
"""AWS, Azure and Google accept RS256 with such a key."""
_LONGEST_PAUSE = timedelta(hours=1)


class WorkloadIdentityConfig(ApiModel):
    """Configuration of the issuer's keys."""

    key_period: Duration = Field(default=timedelta(days=90), ge=timedelta(days=1))
    """How long a key signs tokens. Then another key replaces it."""
    published_before_use: Duration = Field(default=timedelta(minutes=10), ge=timedelta(minutes=1))
    """How long a new key is published before it signs, so that no recipient has older copies of the keys.

    kube-apiserver keeps a copy for up to 60 s. It would refuse tokens of a key that signs earlier.
    """


async def run_workload_identity_controllers(client: KubeClient, caches: Caches, config: WorkloadIdentityConfig) -> None:
    """Run until cancelled."""
    identities = caches.of(resources.WORKLOAD_IDENTITY)
    hosts = caches.of(resources.SECRET, GARDEN_NAMESPACE, labels=issuer.SELECTOR)
    own = caches.of(resources.SECRET, GARDEN_NAMESPACE, fields=f"metadata.name={ISSUER_KEYS}")
    await asyncio.gather(*(each.synced() for each in (identities, hosts, own)))
    subjects = Controller("subjects of workload identities", _Subjects(client, identities).reconcile, workers=1)
    subjects.watch(identities, when=_lacks_subject)
    keeper = IssuerKeeper(client, hosts, config)
    keys = Controller("issuer of workload identities", keeper.reconcile, workers=1)
    for cache in (hosts, own):
        keys.watch(cache, keys=lambda _: (_ISSUER,))
    keys.enqueue(_ISSUER)
    await asyncio.gather(subjects.run(), keys.run())


def _lacks_subject(event: WatchEvent) -> bool:
    return event.type != "DELETED" and not (event.object.get("status") or {}).get("sub")


class _Subjects:
    def __init__(self, client: KubeClient, identities: Cache) -> None:
        self._client = client
        self._identities = identities

    async def reconcile(self, key: Key) -> None:
        """Write ``status.sub`` of a new WorkloadIdentity; a second run finds it. The API server keeps it for ever."""
        identity = self._identities.get(key.name, key.namespace)
        if identity is None or (identity.get("status") or {}).get("sub"):
            return
        status = {"status": {"sub": workload_identity.subject(identity["metadata"])}}
        try:
            await patch_as_read(self._client, resources.WORKLOAD_IDENTITY, identity, status, subresource="status")
        except NotFound:
            return


_ISSUER = Key(GARDEN_NAMESPACE, ISSUER_KEYS)


class IssuerKeeper:
    """Makes, publishes, rotates and withdraws the keys of the issuer."""

    def __init__(self, client: KubeClient, hosts: Cache, config: WorkloadIdentityConfig) -> None:
        self._client = client
        self._hosts = hosts
        self._config = config

    async def reconcile(self, key: Key) -> Requeue | None:
        """One pass. If it is cut off anywhere, the next one continues: a key signs only after it was published."""
        url = self._url()
        await self._inform(url)
        if url is None:
            return None  # the Secret that names the host wakes this controller
        secret = await self._client.find(resources.SECRET, ISSUER_KEYS, GARDEN_NAMESPACE)
        keys = self._known(secret, url)
        now, period = datetime.now(UTC), self._config.key_period
        requested = _requested(secret)
        if issuer_keys.needs_key(keys, now, period, requested=requested):
            keys = keys.model_copy(update={"keys": (*keys.keys, await asyncio.to_thread(new_key))})
            log.info("made key %s of issuer %s", keys.keys[-1].id, url)
        keys = issuer_keys.settled(keys, now)
        secret = await self._write(secret, keys)
        await self._publish(keys)
        if any(each.signs_from is None for each in keys.keys):
            # The time of publication counts, not the time at which this pass began.
            now = datetime.now(UTC)
            keys = issuer_keys.published(keys, now, self._config.published_before_use)
            await self._write(secret, keys)
        pause = issuer_keys.next_change(keys, now, period) - datetime.now(UTC)
        return Requeue(max(0.0, min(pause, _LONGEST_PAUSE).total_seconds()))

    async def _inform(self, url: str | None) -> None:
        """Write the version of this installation and the issuer's URL, which all users may read.

        Owners configure this URL in their clouds. A second pass writes the same.
        """
        info = {"version": OWN_VERSION, **({"workloadIdentityIssuerURL": url} if url else {})}
        metadata = {"name": GARDENER_INFO, "namespace": SYSTEM_PUBLIC_NAMESPACE}
        data = {"gardenerAPIServer": yaml.safe_dump(info)}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await self._client.apply(manifest, manager=_MANAGER)

    def _url(self) -> str | None:
        """URL of the issuer; None if no Secret names the host, or several name different hosts."""
        found = [(each.get("data") or {}).get(issuer.HOSTNAME) for each in self._hosts.list()]
        names = {base64.b64decode(each).decode() for each in found if each}
        if len(names) != 1:
            if names:
                log.warning("Secrets with label %s name %d hosts, there must be one", issuer.SELECTOR, len(names))
            return None
        return f"https://{names.pop()}{workload_identity.PATH}"

    def _known(self, secret: Object | None, url: str) -> IssuerKeys:
        """The present keys. Keys of a Secret that cannot be read are replaced: their tokens are lost in any case."""
        try:
            found = keys_in(secret)
        except ValueError as error:
            log.error("Secret %s/%s: %s; making a new key", GARDEN_NAMESPACE, ISSUER_KEYS, error)
            found = None
        return (found or IssuerKeys(issuer=url)).model_copy(update={"issuer": url})

    async def _write(self, secret: Object | None, keys: IssuerKeys) -> Object:
        """Write the keys if they differ, and remove the request for a rotation. Raises Conflict if others wrote."""
        data = data_of(keys)
        if secret is None:
            metadata = {"name": ISSUER_KEYS, "namespace": GARDEN_NAMESPACE}
            made = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
            return await self._client.create(made)
        if secret.get("data") == data and not _requested(secret):
            return secret
        answered = {"annotations": {OPERATION: None}} if _requested(secret) else {}
        return await patch_as_read(self._client, resources.SECRET, secret, {"metadata": answered, "data": data})

    async def _publish(self, keys: IssuerKeys) -> None:
        configuration, key_set = issuer_keys.documents(keys)
        texts = {issuer.OPENID_CONFIGURATION: configuration, issuer.KEY_SET: key_set}
        data = {name: json.dumps(text, sort_keys=True).encode() for name, text in texts.items()}
        await self._client.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": workload_identity.PUBLISHED,
                    "namespace": SHOOT_ISSUER_NAMESPACE,
                    "labels": dict(workload_identity.PUBLIC_KEYS),
                },
                "type": "Opaque",
                "data": {name: base64.b64encode(text).decode() for name, text in data.items()},
            },
            manager=_MANAGER,
        )


def _requested(secret: Object | None) -> bool:
    annotations = ((secret or {}).get("metadata") or {}).get("annotations") or {}
    return annotations.get(OPERATION) == OPERATION_RENEW


def new_key() -> IssuerKey:
    """A new RSA key, which takes up to a second of a core."""
    private = crypto.new_key(_KEY_SIZE)
    assert isinstance(private, rsa.RSAPrivateKey)
    public = private.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    key_id = base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")
    members = RSAAlgorithm.to_jwk(public, as_dict=True)
    return IssuerKey(
        id=key_id,
        public={"kty": "RSA", "use": "sig", "alg": "RS256", "kid": key_id, "n": members["n"], "e": members["e"]},
        private=private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
