"""A webhook server's own authority and certificate, in a Secret, and the webhooks that trust them.

A renewal has three steps. The webhooks trust the new authority and the old one. Then the server shows a certificate
that the new authority signed. A day later the webhooks stop trusting the old authority. So the API server can call
the server at any time in between. All replicas may do each step: each replica writes with the ``resourceVersion`` that
it has read.

Validity and times are those of Gardener for a seed's authority: 30 days, renewal at 80 %, the old one kept for a day.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from activities.secrets.crypto import CLOCK_SKEW, KeyAlgorithm, KeyPair, self_signed_ca, validity_of
from api import resources
from api.constants import OPERATION, OPERATION_RENEW
from api.times import timestamp
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import AlreadyExists, Conflict
from workers.lib.serving import ShownCertificate, renewal_due, server_certificate

log = logging.getLogger(__name__)

VALIDITY = timedelta(days=30)
SETTLE = timedelta(minutes=1)
"""Time until every API server of the cluster uses a changed webhook configuration."""
KEEP_OLD = timedelta(days=1)
_LONGEST_SLEEP = timedelta(hours=1)


@dataclass(frozen=True)
class Server:
    """The webhook server that has the certificates."""

    name: str
    """Common name of its certificates, and field manager of its webhooks."""
    host: str
    """Name by which the API server reaches it."""
    namespace: str
    secret: str
    """Name of the Secret."""


@dataclass(frozen=True, repr=False)
class Held:
    """Content of the Secret."""

    authority: KeyPair
    old: tuple[bytes, ...]
    """Certificates of former authorities, while a replica may still serve a certificate that one of them signed."""
    serving: KeyPair

    @property
    def bundle(self) -> bytes:
        """The authorities that the API server trusts; the current one first."""
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
    if not _is_by(held.serving, held.authority.certificate):
        # If the Secret has lost the old authority, the API server trusts the certificate no longer.
        is_trusted = any(_is_by(held.serving, each) for each in held.old)
        settled = trusted_since + SETTLE
        return settled if is_trusted and now < settled else Step.RENEW_SERVING
    # No certificate outlives its authority, and the authority is renewed before its end.
    if host not in _hosts(held.serving):
        return Step.RENEW_SERVING
    if held.old:
        forget = _made(held.serving.certificate) + KEEP_OLD
        return Step.FORGET_OLD if now >= forget else forget
    return renewal_due(held.authority.certificate)


def taken(held: Held, step: Step, server: Server, now: datetime) -> Held:
    """Content of the Secret after a step."""
    match step:
        case Step.RENEW_AUTHORITY:
            return Held(_new_authority(server, now), (held.authority.certificate,), held.serving)
        case Step.RENEW_SERVING:
            return Held(held.authority, held.old, _new_serving(held.authority, server, now))
        case Step.FORGET_OLD:
            return Held(held.authority, (), held.serving)


def first(server: Server, now: datetime) -> Held:
    authority = _new_authority(server, now)
    return Held(authority, (), _new_serving(authority, server, now))


class WebhookCertificates:
    """Reconciles the Secret and the webhooks, and makes the server show the certificate."""

    def __init__(
        self,
        client: KubeClient,
        server: Server,
        shown: ShownCertificate,
        trusting: Callable[[str], Iterable[Object]],
    ) -> None:
        """``trusting``: objects of the cluster with which API servers trust a bundle, which is PEM in base64."""
        self._client = client
        self._server = server
        self._shown = shown
        self._trusting = trusting
        self._trusted: tuple[bytes, datetime] = (b"", datetime.max.replace(tzinfo=UTC))
        """The bundle that this process has written to the webhooks, and since when."""
        self.ready = asyncio.Event()
        """Set once the server shows a certificate that the webhooks trust."""

    async def run(self) -> None:
        """Run until cancelled."""
        server = self._server
        key = Key(server.namespace, server.secret)
        controller = Controller(f"{server.name}-certificates", self._reconcile, workers=1, longest_delay=10.0)
        async with Cache(
            self._client, resources.SECRET, server.namespace, fields=f"metadata.name={server.secret}"
        ) as secrets:
            controller.watch(secrets, keys=lambda _: [key])
            controller.enqueue(key)
            await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        now = datetime.now(UTC)
        secret = await self._client.find(resources.SECRET, key.name, key.namespace)
        held = _held(secret) if secret is not None else None
        if held is None:
            await self._write(secret, first(self._server, now))
            log.info(
                "%s has an authority and a certificate of its own, until %s",
                self._server.name,
                timestamp(now + VALIDITY),
            )
            return Requeue(0.01)
        self._shown.show(held.serving)
        await self._have_trusted(held.bundle)
        self.ready.set()
        annotations = (secret or {}).get("metadata", {}).get("annotations") or {}
        step = next_step(
            held,
            self._server.host,
            asked=annotations.get(OPERATION) == OPERATION_RENEW,
            trusted_since=self._trusted[1],
            now=now,
        )
        if isinstance(step, Step):
            await self._write(secret, taken(held, step, self._server, now), renewed=step is Step.RENEW_AUTHORITY)
            log.info("certificates of %s: %s", self._server.name, step.name.lower().replace("_", " "))
            return Requeue(0.01)
        return Requeue(min(max(step - now, timedelta(seconds=1)), _LONGEST_SLEEP).total_seconds())

    async def _have_trusted(self, bundle: bytes) -> None:
        for each in self._trusting(base64.b64encode(bundle).decode()):
            await self._client.apply(each, manager=self._server.name)
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
                metadata: Object = {"name": self._server.secret, "namespace": self._server.namespace}
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
        log.warning("Secret %s holds no valid certificates: creating new ones", secret["metadata"]["name"])
        return None
    return held


def _split(bundle: bytes) -> Sequence[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [part + end for part in bundle.split(end) if part.strip()]


def _new_authority(server: Server, now: datetime) -> KeyPair:
    # Old and new authority have different names: a client that verifies a certificate looks its issuer up by name.
    return self_signed_ca(
        f"{server.name}-ca-{int(now.timestamp() * 1000)}", algorithm=KeyAlgorithm.P256, now=now, validity=VALIDITY
    )


def _new_serving(authority: KeyPair, server: Server, now: datetime) -> KeyPair:
    return server_certificate(server.name, server.host, authority, now, VALIDITY)


def _hosts(serving: KeyPair) -> set[str]:
    certificate = x509.load_pem_x509_certificate(serving.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _is_by(serving: KeyPair, authority: bytes) -> bool:
    leaf, ca = (x509.load_pem_x509_certificate(each) for each in (serving.certificate, authority))
    try:
        leaf.verify_directly_issued_by(ca)
    except (ValueError, InvalidSignature):
        return False
    return True


def _made(certificate: bytes) -> datetime:
    return validity_of(certificate)[0] + CLOCK_SKEW
