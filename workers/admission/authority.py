"""The certificate authority that the garden's API server and admission share, in a Secret of the garden.

The API server reads the authority of the seed authorizer from a file. So this authority is valid for ten years, unlike
the authority of the webhooks (``workers.admission.certificates``). It signs the seed authorizer's certificate, which
each replica of admission makes for itself and renews. It also signs the client certificate that the API server shows to
admission. The holder of the Secret can impersonate either side. The seed authorizer lets no gardenlet read the Secret,
see ``workers.admission.seed_authorizer``.
"""

import asyncio
import base64
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509

from activities.secrets.crypto import (
    TEN_YEARS,
    KeyAlgorithm,
    KeyPair,
    Usage,
    load_private,
    self_signed_ca,
    signed,
    validity_of,
)
from api import resources
from api.constants import ADMISSION_AUTHORITY, GARDEN_NAMESPACE
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import AlreadyExists
from workers.lib.serving import ShownCertificate, renewal_due, server_certificate

log = logging.getLogger(__name__)

CLIENT = "kube-apiserver"
"""Common name of the API server's client certificate."""
_SERVING_VALIDITY = timedelta(days=30)
_CLIENT_VALIDITY = timedelta(days=365)
_LONGEST_SLEEP = timedelta(hours=1)


class UnusableAuthority(Exception):
    """The Secret exists, but does not hold a certificate and its key."""


async def find_or_create(client: KubeClient, now: datetime) -> KeyPair:
    """The authority of this garden; the first call creates it.

    Raises:
        UnusableAuthority: the Secret has to be repaired or deleted by an operator. It is not replaced here, because the
            API server would not trust another authority.
    """
    while (secret := await client.find(resources.SECRET, ADMISSION_AUTHORITY, GARDEN_NAMESPACE)) is None:
        made = self_signed_ca(
            f"{ADMISSION_AUTHORITY}-{int(now.timestamp())}", algorithm=KeyAlgorithm.P256, now=now, validity=TEN_YEARS
        )
        try:
            await client.create(_secret(made))
        except AlreadyExists:
            continue
        log.info("admission and the garden's API server have an authority: Secret %s", ADMISSION_AUTHORITY)
        return made
    return _authority(secret)


def client_certificate(authority: KeyPair, now: datetime) -> KeyPair:
    """A client certificate for the garden's API server to call admission with; valid for a year."""
    return signed(
        CLIENT, ca=authority, usage=Usage.CLIENT, algorithm=KeyAlgorithm.P256, now=now, validity=_CLIENT_VALIDITY
    )


class SharedAuthority:
    """Makes admission serve certificates that the authority signed, and accept clients with such certificates."""

    def __init__(
        self,
        client: KubeClient,
        *,
        host: str = "",
        shown: ShownCertificate | None = None,
        accepting: Sequence[ShownCertificate] = (),
    ) -> None:
        """``shown`` gets certificates for ``host``; each of ``accepting`` gets the authority of its clients."""
        self._client = client
        self._host = host
        self._shown = shown
        self._accepting = accepting
        self._serving: KeyPair | None = None
        self._signed_by: KeyPair | None = None
        self.ready = asyncio.Event()
        """Set once certificates are served and clients are accepted."""

    @property
    def needed(self) -> bool:
        return self._shown is not None or bool(self._accepting)

    async def run(self) -> None:
        """Run until cancelled."""
        key = Key(GARDEN_NAMESPACE, ADMISSION_AUTHORITY)
        controller = Controller("admission-authority", self._reconcile, workers=1, longest_delay=10.0)
        async with Cache(
            self._client, resources.SECRET, GARDEN_NAMESPACE, fields=f"metadata.name={ADMISSION_AUTHORITY}"
        ) as secrets:
            controller.watch(secrets, keys=lambda _: [key])
            controller.enqueue(key)
            await controller.run()

    async def _reconcile(self, _: Key) -> Requeue:
        now = datetime.now(UTC)
        try:
            authority = await find_or_create(self._client, now)
        except UnusableAuthority as error:
            # Admission keeps its certificates, and with them goes on serving the API server.
            raise TryAgain(str(error), after=10.0) from None
        for each in self._accepting:
            each.accept(authority.certificate)
        if self._shown is not None and (authority != self._signed_by or now >= self._renewal()):
            self._serving = server_certificate(
                "gardener-seed-authorizer", self._host, authority, now, _SERVING_VALIDITY
            )
            self._signed_by = authority
            self._shown.show(self._serving)
            log.info("the seed authorizer shows a certificate until %s", validity_of(self._serving.certificate)[1])
        self.ready.set()
        return Requeue(min(max(self._renewal() - now, timedelta(seconds=1)), _LONGEST_SLEEP).total_seconds())

    def _renewal(self) -> datetime:
        """Time at which to renew the served certificate; the maximum of ``datetime`` without a certificate."""
        if self._serving is None:
            return datetime.max.replace(tzinfo=UTC)
        return renewal_due(self._serving.certificate)


def _secret(authority: KeyPair) -> Object:
    data = {"ca.crt": authority.certificate, "ca.key": authority.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": ADMISSION_AUTHORITY, "namespace": GARDEN_NAMESPACE},
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
    }


def _authority(secret: Object) -> KeyPair:
    data = {name: base64.b64decode(content) for name, content in (secret.get("data") or {}).items()}
    try:
        found = KeyPair(data["ca.crt"], data["ca.key"])
        certificate = x509.load_pem_x509_certificate(found.certificate)
        if certificate.public_key() != load_private(found.key).public_key():
            raise ValueError("they do not fit")
    except (KeyError, ValueError):
        raise UnusableAuthority(
            f"Secret {GARDEN_NAMESPACE}/{ADMISSION_AUTHORITY} has no ca.crt and ca.key that fit: restore it, or "
            "delete it for a new authority and give that one to the API server"
        ) from None
    return found
