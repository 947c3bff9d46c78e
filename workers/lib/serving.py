"""Server certificates, and authorities of client certificates, that change while a server runs."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, signed, validity_of
from api.names import is_ip_address
from kube.client import load_certificate

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0
"""Seconds between two reads of the files. Kubelets write a renewed Secret to its files within two minutes."""


def server_certificate(name: str, host: str, authority: KeyPair, now: datetime, validity: timedelta) -> KeyPair:
    """Certificate with common name ``name``, for a server that clients reach as ``host`` (DNS name or IP address)."""
    addresses, names = ([host], []) if is_ip_address(host) else ([], [host])
    return signed(
        name,
        ca=authority,
        usage=Usage.SERVER,
        algorithm=KeyAlgorithm.P256,
        now=now,
        validity=validity,
        dns_names=names,
        ip_addresses=addresses,
    )


def renewal_due(certificate: bytes) -> datetime:
    """Time to renew a certificate: 80 % of its validity are over."""
    begin, end = validity_of(certificate)
    return begin + (end - begin) * 0.8


class ShownCertificate:
    """The certificate that a server presents, and the authorities of its clients' certificates.

    A change of either needs no restart: each handshake uses the newest ones. Open connections keep the certificates
    that they began with.
    """

    def __init__(self, *, clients_show: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        """Handshakes fail until ``show`` has set the first certificate.

        ``clients_show``: whether clients must, may or need not present a certificate of the accepted authorities.
        """
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.verify_mode = clients_show
        # A resumed session would skip the check against the newest authority.
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        self.context.sni_callback = self._use_newest
        self._newest: ssl.SSLContext | None = None
        self.shown: KeyPair | None = None
        self.clients = b""
        """Authorities of client certificates, in PEM."""

    def show(self, pair: KeyPair) -> bool:
        """Present this pair from now on; returns False if it is in use already.

        Raises ssl.SSLError, and keeps the old pair, if the key is not that of the certificate.
        """
        return self._change(pair, self.clients)

    def accept(self, clients: bytes) -> bool:
        """Accept only clients of these authorities (PEM) from now on; returns False if they are in use already.

        Raises ssl.SSLError, and keeps the old authorities, if the PEM holds none.
        """
        if not clients.strip():
            raise ssl.SSLError("it holds no certificate")
        return self._change(self.shown, clients)

    def _change(self, pair: KeyPair | None, clients: bytes) -> bool:
        if (pair, clients) == (self.shown, self.clients):
            return False
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Without it, the connection would not reveal the client's certificate.
        context.verify_mode = self.context.verify_mode
        if pair is not None:
            load_certificate(context, pair.certificate, pair.key)
        if clients:
            context.load_verify_locations(cadata=clients.decode("ascii", "replace"))
        self.shown, self.clients = pair, clients
        self._newest = context if pair is not None else None
        return True

    def _use_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """Set the newest certificate; called in each handshake, also for clients that send no server name."""
        if self._newest is None:
            return ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._newest
        return None


class ServingCertificate(ShownCertificate):
    """A ``ShownCertificate`` from files, which are read again when they change."""

    def __init__(self, certificate: Path, key: Path, *, clients_show: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        """Raises OSError or ssl.SSLError if the files cannot be used."""
        super().__init__(clients_show=clients_show)
        self._files = certificate, key
        self.show(KeyPair(*read_files(self._files)))

    async def follow(self, interval: float = LOOK_AGAIN) -> None:
        """Read the files periodically until cancelled. Keep the old certificate while the files cannot be used."""
        assert self.shown is not None

        async def use(certificate: bytes, key: bytes) -> None:
            try:
                self.show(KeyPair(certificate, key))
            except ssl.SSLError as error:
                raise Unusable(str(error.reason)) from None

        await follow_files(self._files, (self.shown.certificate, self.shown.key), use, interval)


class ClientsFile:
    """A file with the authorities of the clients of one or more servers."""

    def __init__(self, file: Path, *servers: ShownCertificate) -> None:
        """Raises OSError or ssl.SSLError if the file cannot be used."""
        self._file = file
        self._servers = servers
        self._accepted = file.read_bytes()
        self._accept(self._accepted)

    async def follow(self, interval: float = LOOK_AGAIN) -> None:
        """Read the file periodically until cancelled. Keep the old authorities while the file cannot be used."""

        async def use(clients: bytes) -> None:
            try:
                self._accept(clients)
            except ssl.SSLError as error:
                raise Unusable(str(error)) from None

        await follow_files((self._file,), (self._accepted,), use, interval)

    def _accept(self, clients: bytes) -> None:
        for server in self._servers:
            server.accept(clients)


class Unusable(Exception):
    """The content of files cannot be used; the text says why."""


def check_pair(pair: KeyPair) -> None:
    """Check a pair. Raises ssl.SSLError if the key is not that of the certificate."""
    load_certificate(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), pair.certificate, pair.key)


def read_files(files: Sequence[Path]) -> tuple[bytes, ...]:
    return tuple(file.read_bytes() for file in files)


async def follow_files(
    files: Sequence[Path], used: tuple[bytes, ...], use: Callable[..., Awaitable[None]], interval: float = LOOK_AGAIN
) -> None:
    """Call ``use`` with the contents of certificate files whenever they differ from ``used``, until cancelled.

    ``use`` raises Unusable for contents that cannot be used: these are logged once, and tried again at each read.
    Messages name the first file.
    """
    told = ""
    while True:
        await asyncio.sleep(interval)
        try:
            found = read_files(files)
            if found == used:
                continue
            await use(*found)
        except (OSError, Unusable) as error:
            why = f"can't be used: {error}" if isinstance(error, Unusable) else f"can't be read again: {error.strerror}"
            if why != told:
                log.warning("certificates of %s stay as they are; the files %s", files[0], why)
                told = why
            continue
        used, told = found, ""
        log.info("certificate %s is renewed", files[0])
