"""Admission's own authority and certificate, in a Secret of the garden, and the webhooks that trust them.

A renewal has three steps. The webhooks trust the new authority and the old one. Then admission serves a certificate
that the new authority signed. A day later the webhooks stop trusting the old authority. So the API server can call
admission at any time in between. All replicas may do each step: each replica writes with the ``resourceVersion`` that
it has read.

Validity and times are those of Gardener for a seed's authority: 30 days, renewal at 80 %, the old one kept for a day.
"""

import asyncio
import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from activities.secrets.crypto import CLOCK_SKEW, KeyAlgorithm, KeyPair, self_signed_ca, validity_of
from api import resources
from api.constants import ADMISSION_WEBHOOK_AUTHORITY, OPERATION, OPERATION_RENEW
from api.model import ApiModel
from api.times import timestamp
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import AlreadyExists, Conflict
from workers.admission.limits import NO_LIMITS, ResourceAdmissionConfiguration
from workers.admission.webhooks import converted_kinds, webhook_configurations
from workers.lib.serving import ShownCertificate, renewal_due, server_certificate

log = logging.getLogger(__name__)

SECRET = ADMISSION_WEBHOOK_AUTHORITY
VALIDITY = timedelta(days=30)
SETTLE = timedelta(minutes=1)
"""Time until every API server of the garden uses a changed webhook configuration."""
KEEP_OLD = timedelta(days=1)
_LONGEST_SLEEP = timedelta(hours=1)
_MANAGER = "gardener-admission"


class OwnCertificates(ApiModel):
    """Certificates that admission makes itself, where no files are given."""

    url: str
    """URL at which the garden's API server reaches admission, like ``https://admission.example.org:9443``."""
    namespace: str = "garden"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, repr=False)
class Held:
    """Content of the Secret."""

    authority: KeyPair
    old: tuple[bytes, ...]
    """Certificates of former authorities, while a replica may still serve a certificate that one of them signed."""
    serving: KeyPair

    @property
    def bundle(self) -> bytes:
        """The authorities that the garden's API server trusts; the current one first."""
        return b"".join((self.authority.certificate, *self.old))


class Step(Enum):
    RENEW_AUTHORITY = auto()
    RENEW_SERVING = auto()
    FORGET_OLD = auto()


def next_step(held: Held, host: str, *, asked: bool, trusted_since: datetime, now: datetime) -> Step | datetime:
    """The step to take now, or the time of the next check.

    ``trusted_since``: time since which the webhooks hold the current bundle.
    """
    if not held.old and (asked or now >= renewal_due(held.authority.certificate)):
        return Step.RENEW_AUTHORITY
    if not _is_by(held.serving, held.authority):
        return Step.RENEW_SERVING if now >= trusted_since + SETTLE else trusted_since + SETTLE
    # No certificate outlives its authority, and the authority is renewed before its end.
    if host not in _hosts(held.serving):
        return Step.RENEW_SERVING
    if held.old:
        forget = _made(held.serving.certificate) + KEEP_OLD
        return Step.FORGET_OLD if now >= forget else forget
    return renewal_due(held.authority.certificate)


def taken(held: Held, step: Step, host: str, now: datetime) -> Held:
    """Content of the Secret after a step."""
    match step:
        case Step.RENEW_AUTHORITY:
            return Held(_new_authority(now), (held.authority.certificate,), held.serving)
        case Step.RENEW_SERVING:
            return Held(held.authority, held.old, _new_serving(held.authority, host, now))
        case Step.FORGET_OLD:
            return Held(held.authority, (), held.serving)


def first(host: str, now: datetime) -> Held:
    authority = _new_authority(now)
    return Held(authority, (), _new_serving(authority, host, now))


class AdmissionCertificates:
    """Reconciles the Secret and the webhooks, and makes admission serve the certificate."""

    def __init__(
        self,
        client: KubeClient,
        config: OwnCertificates,
        shown: ShownCertificate,
        limits: ResourceAdmissionConfiguration = NO_LIMITS,
    ) -> None:
        self._client = client
        self._config = config
        self._shown = shown
        self._limits = limits
        self._trusted: tuple[bytes, datetime] = (b"", datetime.max.replace(tzinfo=UTC))
        """The bundle that this process has written to the webhooks, and since when."""
        self.ready = asyncio.Event()
        """Set once admission serves a certificate that the webhooks trust."""

    async def run(self) -> None:
        """Run until cancelled."""
        key = Key(self._config.namespace, SECRET)
        controller = Controller("admission-certificates", self._reconcile, workers=1, longest_delay=10.0)
        async with Cache(
            self._client, resources.SECRET, self._config.namespace, fields=f"metadata.name={SECRET}"
        ) as secrets:
            controller.watch(secrets, keys=lambda _: [key])
            controller.enqueue(key)
            await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        now = datetime.now(UTC)
        secret = await self._client.find(resources.SECRET, key.name, key.namespace)
        held = _held(secret) if secret is not None else None
        if held is None:
            await self._write(secret, first(self._config.host, now))
            log.info("admission has an authority and a certificate of its own, until %s", timestamp(now + VALIDITY))
            return Requeue(0.01)
        self._shown.show(held.serving)
        await self._have_trusted(held.bundle)
        self.ready.set()
        annotations = (secret or {}).get("metadata", {}).get("annotations") or {}
        step = next_step(
            held,
            self._config.host,
            asked=annotations.get(OPERATION) == OPERATION_RENEW,
            trusted_since=self._trusted[1],
            now=now,
        )
        if isinstance(step, Step):
            await self._write(secret, taken(held, step, self._config.host, now), renewed=step is Step.RENEW_AUTHORITY)
            log.info("certificates of admission: %s", step.name.lower().replace("_", " "))
            return Requeue(0.01)
        return Requeue(min(max(step - now, timedelta(seconds=1)), _LONGEST_SLEEP).total_seconds())

    async def _have_trusted(self, bundle: bytes) -> None:
        url, encoded = self._config.url, base64.b64encode(bundle).decode()
        for each in (*webhook_configurations(url, encoded, self._limits), *converted_kinds(url, encoded)):
            await self._client.apply(each, manager=_MANAGER)
        if self._trusted[0] != bundle:
            self._trusted = bundle, datetime.now(UTC)

    async def _write(self, secret: Object | None, held: Held, *, renewed: bool = False) -> None:
        data = {
            "ca.crt": held.authority.certificate,
            "ca.key": held.authority.key,
            "old-ca.crt": b"".join(held.old),
            "tls.crt": held.serving.certificate,
            "tls.key": held.serving.key,
        }
        encoded = {name: base64.b64encode(content).decode() for name, content in data.items() if content}
        try:
            if secret is None:
                metadata: Object = {"name": SECRET, "namespace": self._config.namespace}
                made = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}
                await self._client.create(made)
                return
            metadata = dict(secret["metadata"])
            if renewed:
                annotations = metadata.get("annotations") or {}
                metadata["annotations"] = {name: text for name, text in annotations.items() if name != OPERATION}
            await self._client.replace(secret | {"metadata": metadata, "data": encoded})
        except (AlreadyExists, Conflict):
            raise TryAgain("another replica has written the Secret first", after=0.1) from None


def _held(secret: Object) -> Held | None:
    """Content of the Secret; None if a part is missing or is not a valid certificate."""
    data = {name: base64.b64decode(content) for name, content in (secret.get("data") or {}).items()}
    try:
        held = Held(
            KeyPair(data["ca.crt"], data["ca.key"]),
            tuple(_split(data.get("old-ca.crt", b""))),
            KeyPair(data["tls.crt"], data["tls.key"]),
        )
        for certificate in (held.authority.certificate, *held.old, held.serving.certificate):
            validity_of(certificate)
    except (KeyError, ValueError):
        log.warning("Secret %s holds no valid certificates: creating new ones", SECRET)
        return None
    return held


def _split(bundle: bytes) -> Sequence[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [part + end for part in bundle.split(end) if part.strip()]


def _new_authority(now: datetime) -> KeyPair:
    # Old and new authority have different names: a client that verifies a certificate looks its issuer up by name.
    return self_signed_ca(
        f"gardener-admission-ca-{int(now.timestamp() * 1000)}", algorithm=KeyAlgorithm.P256, now=now, validity=VALIDITY
    )


def _new_serving(authority: KeyPair, host: str, now: datetime) -> KeyPair:
    return server_certificate("gardener-admission", host, authority, now, VALIDITY)


def _hosts(serving: KeyPair) -> set[str]:
    certificate = x509.load_pem_x509_certificate(serving.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _is_by(serving: KeyPair, authority: KeyPair) -> bool:
    leaf, ca = (x509.load_pem_x509_certificate(each.certificate) for each in (serving, authority))
    try:
        leaf.verify_directly_issued_by(ca)
    except (ValueError, InvalidSignature):
        return False
    return True


def _made(certificate: bytes) -> datetime:
    return validity_of(certificate)[0] + CLOCK_SKEW
