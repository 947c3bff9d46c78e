"""The gardenlet's own access to the garden: a client certificate that it requests, keeps in its seed, and renews.

The certificate is in a Secret of the seed. So every replica and every later process can use it, also while the garden
cannot be reached. The gardenlet requests the first certificate with a bootstrap token, and each later one with the one
before. The garden's address and CA come from the bootstrap kubeconfig, which is read each time.

Source: Gardener docs/concepts/gardenlet.md, "TLS Bootstrapping" and "Rotate Certificates Using Bootstrap kubeconfig".
"""

import asyncio
import base64
import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from activities.clusters import Clusters
from activities.secrets.crypto import KeyAlgorithm, KeyPair, new_key, private_pem, validity_of
from api import resources
from api.constants import OPERATION, OPERATION_RENEW, OPERATION_RENEW_KUBECONFIG, SEED_USER_PREFIX, SEEDS_GROUP
from api.times import timestamp
from kube.cache import Cache, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import AlreadyExists, ApiError, Conflict, NotFound, Unauthorized
from kube.kubeconfig import Endpoint, KubeconfigError, endpoint_of, parse_kubeconfig
from workers.gardenlet.config import GardenConnection, KubeconfigValidity
from workers.gardenlet.garden_caches import own_seed
from workers.lib.events import emit
from workers.lib.runtime import ConfigError
from workers.lib.signing_requests import CLIENT_SIGNER

log = logging.getLogger(__name__)

_MANAGER = "gardenlet"
_NOT_OURS = "this gardenlet's kubeconfig for the garden comes from a file: who wrote it renews it"
_KUBECONFIG = "kubeconfig"
_SIGNED_SECONDS = 60.0
_FIRST_LOOK, _LONGEST_LOOK = 0.25, 5.0
_BOOTSTRAP_AGAIN = 5.0
_UNREGISTERED_SECONDS = 1.0
_LOOK_AGAIN = 3600.0
"""Seconds. Longest pause until the controller checks again whether to renew. A timer of months would be unreliable, for
example because clocks are set."""


class NotSigned(Exception):
    """The garden gave no certificate; the text says why."""


@dataclass(frozen=True, repr=False)
class Held:
    """Access to the garden as the Secret holds it."""

    endpoint: Endpoint
    secret: Object

    @property
    def validity(self) -> tuple[datetime, datetime]:
        return validity_of(self.endpoint.certificate)

    def expired(self, now: datetime) -> bool:
        return now >= self.validity[1]


def renewal_time(certificate: bytes, validity: KubeconfigValidity) -> datetime:
    """When to request the next certificate: by default at 70 to 90 % of the validity.

    The time is derived from the certificate. So it differs between gardenlets, and is the same at each call.
    """
    begin, end = validity_of(certificate)
    draw = int.from_bytes(hashlib.sha256(certificate).digest()[:8]) / 2**64
    low, high = validity.auto_rotation_jitter_percentage_min, validity.auto_rotation_jitter_percentage_max
    return begin + (end - begin) * ((low + (high - low) * draw) / 100)


def foreign_subject(certificate: bytes, seed: str) -> str:
    """Subject of a client certificate if it is not that of the seed's gardenlet alone; empty if it is."""
    subject = x509.load_pem_x509_certificate(certificate).subject
    names = {(each.oid, each.value) for each in subject}
    own = {(NameOID.ORGANIZATION_NAME, SEEDS_GROUP), (NameOID.COMMON_NAME, f"{SEED_USER_PREFIX}{seed}")}
    return "" if names == own and len(list(subject)) == len(own) else subject.rfc4514_string()


def signing_request(seed: str, validity: timedelta | None) -> tuple[bytes, Object]:
    """A new key in PEM format, and the CertificateSigningRequest for it, whose name is a hash of its content."""
    key = new_key(KeyAlgorithm.P256)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, SEEDS_GROUP),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{SEED_USER_PREFIX}{seed}"),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    encoded = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    spec: Object = {
        "signerName": CLIENT_SIGNER,
        "request": encoded,
        "usages": ["digital signature", "key encipherment", "client auth"],
    }
    if validity is not None:
        spec["expirationSeconds"] = int(validity.total_seconds())
    return private_pem(key), {
        "apiVersion": resources.CERTIFICATE_SIGNING_REQUEST.api_version,
        "kind": resources.CERTIFICATE_SIGNING_REQUEST.kind,
        "metadata": {"name": f"seed-csr-{hashlib.sha256(encoded.encode()).hexdigest()[:16]}"},
        "spec": spec,
    }


class GardenAccess:
    """Reads, creates and renews the Secret with the kubeconfig for the garden."""

    def __init__(self, seed: KubeClient, seed_name: str, config: GardenConnection) -> None:
        """Raises ConfigError if the bootstrap kubeconfig cannot be used."""
        assert config.kubeconfig_secret is not None
        self._seed = seed
        self._seed_name = seed_name
        self._config = config
        self._namespace = config.kubeconfig_secret.namespace
        self._name = config.kubeconfig_secret.name
        self._bootstrap()

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def connect(self) -> KubeClient:
        """A client for the garden, with the certificate in the Secret if it is valid.

        Otherwise requests a certificate, and retries until the garden issues it.
        """
        while True:
            try:
                held = await self.read()
                if held is None or held.expired(datetime.now(UTC)):
                    held = await self.renew(held)
                return KubeClient(held.endpoint)
            except (ApiError, NotSigned) as error:
                log.warning("access to the garden: %s; again in %.0f s", error, _BOOTSTRAP_AGAIN)
            await asyncio.sleep(_BOOTSTRAP_AGAIN)

    async def read(self) -> Held | None:
        """The access in the Secret; None if there is no Secret yet, or its content cannot be used."""
        secret = await self._found()
        return self._held(secret) if secret is not None else None

    async def follow(self, garden: KubeClient) -> None:
        """Use each certificate that any replica writes into the Secret. Requests in flight end with the old one."""
        cache = self.cache()

        def take(event: WatchEvent) -> None:
            if event.type == "DELETED" or (held := self._held(event.object)) is None:
                return
            if held.endpoint != garden.endpoint:
                garden.reconfigure(held.endpoint)
                log.info("going on with a client certificate for the garden until %s", timestamp(held.validity[1]))

        cache.subscribe(take)
        async with cache:
            await asyncio.Event().wait()

    def cache(self) -> Cache:
        """A cache of the Secret alone; the caller starts and closes the cache."""
        return Cache(self._seed, resources.SECRET, self._namespace, fields=f"metadata.name={self._name}")

    def wanted_at(self, held: Held) -> datetime:
        """When to renew the certificate: at once if an annotation of the Secret requests that."""
        annotations = held.secret["metadata"].get("annotations") or {}
        if annotations.get(OPERATION) == OPERATION_RENEW:
            return held.validity[0]
        return renewal_time(held.endpoint.certificate, self._config.kubeconfig_validity)

    async def renew(self, held: Held | None) -> Held:
        """Request a new certificate, test it, and write it into the Secret. Returns the new access.

        If another replica was faster, its certificate stays in the Secret and is returned. If the process is killed in
        between, it leaves a CertificateSigningRequest that the garden deletes within an hour.

        Raises:
            NotSigned: the request was denied, or not answered in time, or there are no credentials to request with.
            ApiError: garden or seed cannot be reached, or refuse a request.
        """
        asking = self._asking(held)
        try:
            async with KubeClient(asking) as client:
                pair = await self._certificate(client)
        except Unauthorized:
            bootstrap = self._bootstrap()
            if bootstrap is None or asking == bootstrap:
                raise
            # The garden may have lost the CA that signed our certificate.
            async with KubeClient(bootstrap) as client:
                pair = await self._certificate(client)
        endpoint = dataclasses.replace(asking, certificate=pair.certificate, key=pair.key, token="", token_file=None)
        async with KubeClient(endpoint) as client:
            await client.find(resources.SEED, self._seed_name)
        return await self._keep(endpoint, held)

    async def _certificate(self, client: KubeClient) -> KeyPair:
        key, request = signing_request(self._seed_name, self._config.kubeconfig_validity.validity)
        name = request["metadata"]["name"]
        await client.create(request)
        delay, waited = _FIRST_LOOK, 0.0
        while True:
            csr = await client.get(resources.CERTIFICATE_SIGNING_REQUEST, name)
            status = csr.get("status") or {}
            if status.get("certificate"):
                return KeyPair(base64.b64decode(status["certificate"]), key)
            for condition in status.get("conditions") or ():
                if condition["type"] in ("Denied", "Failed"):
                    why = condition.get("message") or condition.get("reason", "")
                    raise NotSigned(f"CertificateSigningRequest {name}: {condition['type']}: {why}")
            if waited >= _SIGNED_SECONDS:
                raise NotSigned(
                    f"CertificateSigningRequest {name} is not answered after {_SIGNED_SECONDS:.0f} s: "
                    "is the garden's controller-manager running?"
                )
            await asyncio.sleep(delay)
            waited, delay = waited + delay, min(delay * 2, _LONGEST_LOOK)

    async def _keep(self, endpoint: Endpoint, held: Held | None) -> Held:
        secret: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "type": "Opaque",
            "data": {_KUBECONFIG: base64.b64encode(_kubeconfig(endpoint)).decode()},
        }
        try:
            found = held.secret if held is not None else await self._found()
            if found is None:
                return Held(endpoint, await self._create(secret))
            annotations = dict(found["metadata"].get("annotations") or {})
            annotations.pop(OPERATION, None)
            metadata = found["metadata"] | {"annotations": annotations}
            return Held(endpoint, await self._seed.replace(found | {"metadata": metadata, "data": secret["data"]}))
        except (AlreadyExists, Conflict):
            theirs = await self.read()
            if theirs is None or (held is not None and theirs.endpoint.certificate == held.endpoint.certificate):
                raise
            return theirs

    async def _found(self) -> Object | None:
        return await self._seed.find(resources.SECRET, self._name, self._namespace)

    async def _create(self, secret: Object) -> Object:
        try:
            return await self._seed.create(secret)
        except NotFound:  # the namespace does not exist yet
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
            await self._seed.apply(namespace, manager=_MANAGER)
            return await self._seed.create(secret)

    def _asking(self, held: Held | None) -> Endpoint:
        """Endpoint and credentials with which to request the next certificate."""
        if held is not None and not held.expired(datetime.now(UTC)):
            return held.endpoint
        bootstrap = self._bootstrap()
        if bootstrap is None:
            what = "has expired" if held is not None else "is not there, or holds no client certificate"
            raise NotSigned(
                f"the kubeconfig in {self} {what}, and gardenClientConnection.bootstrapKubeconfig is not set"
            )
        return bootstrap

    def _bootstrap(self) -> Endpoint | None:
        path = self._config.bootstrap_kubeconfig
        if path is None:
            return None
        try:
            return endpoint_of(parse_kubeconfig(path.read_bytes()), path.parent)
        except OSError as error:
            raise ConfigError(f"reading bootstrapKubeconfig {path}: {error.strerror}") from None
        except KubeconfigError as error:
            raise ConfigError(f"bootstrapKubeconfig {path}: {error}") from None

    def _held(self, secret: Object) -> Held | None:
        encoded = (secret.get("data") or {}).get(_KUBECONFIG)
        if not encoded:
            return None
        try:
            endpoint = endpoint_of(parse_kubeconfig(base64.b64decode(encoded)))
            if not endpoint.certificate or not endpoint.key:
                return None
            validity_of(endpoint.certificate)
        except ValueError as error:
            # The text of our own error quotes nothing of the Secret. Another error may, so its text is not logged.
            why = str(error) if isinstance(error, KubeconfigError) else "not in PEM format"
            log.warning("the kubeconfig in %s can't be used: %s", self, why)
            return None
        if (bootstrap := self._bootstrap()) is not None:
            endpoint = dataclasses.replace(
                endpoint,
                server=bootstrap.server,
                ca=bootstrap.ca,
                insecure=bootstrap.insecure,
                tls_server_name=bootstrap.tls_server_name,
                proxy=bootstrap.proxy,
            )
        return Held(endpoint, secret)


def _kubeconfig(endpoint: Endpoint) -> bytes:
    """A kubeconfig with all certificates and keys inline."""
    cluster: dict[str, Any] = {"server": endpoint.server}
    if endpoint.ca:
        cluster["certificate-authority-data"] = base64.b64encode(endpoint.ca.encode()).decode()
    if endpoint.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if endpoint.tls_server_name:
        cluster["tls-server-name"] = endpoint.tls_server_name
    if endpoint.proxy:
        cluster["proxy-url"] = endpoint.proxy
    user = {
        "client-certificate-data": base64.b64encode(endpoint.certificate).decode(),
        "client-key-data": base64.b64encode(endpoint.key).decode(),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "garden",
        "clusters": [{"name": "garden", "cluster": cluster}],
        "users": [{"name": "gardenlet", "user": user}],
        "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "gardenlet"}}],
    }
    return json.dumps(content).encode()


class GardenAccessController:
    """Renews the gardenlet's access in time, or when an annotation of its Secret or its Seed requests that.

    One replica of the gardenlet runs it.
    """

    def __init__(self, clusters: Clusters, access: GardenAccess | None) -> None:
        """Without ``access`` the writer of the kubeconfig file renews it; an Event answers requests to renew it."""
        self._clusters = clusters
        self._access = access
        self._controller = Controller("garden-access", self._reconcile, workers=1, longest_delay=300.0)

    async def run(self) -> None:
        """Run until cancelled."""
        ours = Key(None, self._clusters.seed_name)
        self._controller.watch(own_seed(self._clusters), when=lambda event: _is_asked(event.object))
        self._controller.enqueue(ours)
        if self._access is None:
            await self._controller.run()
            return
        async with self._access.cache() as secrets:
            self._controller.watch(secrets, keys=lambda _: [ours])
            await self._controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        if self._access is None:
            if (seed := await self._seed(key)) is not None and _is_asked(seed):
                await self._answer(seed, "KubeconfigNotRenewed", _NOT_OURS, "Warning")
            return None
        held = await self._access.read()
        if held is None or datetime.now(UTC) >= self._access.wanted_at(held):
            # Renew before the first request to the garden, which accepts no expired certificate.
            held = await self._renew(held)
        # Not from the cache, which may still hold a request that has been answered.
        seed = await self._seed(key)
        if seed is None:
            return Requeue(_UNREGISTERED_SECONDS)
        if _is_asked(seed):
            held = await self._renew(held)
            until = timestamp(held.validity[1])
            await self._answer(seed, "KubeconfigRenewed", f"the gardenlet has a client certificate until {until}")
        await self._show(seed, held)
        if subject := foreign_subject(held.endpoint.certificate, key.name):
            text = (
                f"the certificate in {self._access} is for {subject}, not for this seed's gardenlet alone: delete the "
                "Secret, and find out where the certificate comes from"
            )
            log.error("%s", text)
            await emit(self._clusters.garden, seed, _MANAGER, "ForeignCertificate", text, "Warning")
        left = (self._access.wanted_at(held) - datetime.now(UTC)).total_seconds()
        return Requeue(min(max(left, 1.0), _LOOK_AGAIN))

    async def _renew(self, held: Held | None) -> Held:
        assert self._access is not None
        try:
            renewed = await self._access.renew(held)
        except NotSigned as error:
            raise TryAgain(str(error)) from None
        log.info("the client certificate for the garden is renewed, until %s", timestamp(renewed.validity[1]))
        return renewed

    async def _seed(self, key: Key) -> Object | None:
        return await self._clusters.garden.find(resources.SEED, key.name)

    async def _show(self, seed: Object, held: Held) -> None:
        until = timestamp(held.validity[1])
        if (seed.get("status") or {}).get("clientCertificateExpirationTimestamp") != until:
            status = {"status": {"clientCertificateExpirationTimestamp": until}}
            await self._clusters.garden.patch(
                resources.SEED, seed["metadata"]["name"], None, status, subresource="status"
            )

    async def _answer(
        self, seed: Object, reason: str, message: str, type: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        done = {"metadata": {"annotations": {OPERATION: None}}}
        await self._clusters.garden.patch(resources.SEED, seed["metadata"]["name"], None, done)
        await emit(self._clusters.garden, seed, _MANAGER, reason, message, type)


def _is_asked(seed: Mapping[str, Any]) -> bool:
    return (seed["metadata"].get("annotations") or {}).get(OPERATION) == OPERATION_RENEW_KUBECONFIG
