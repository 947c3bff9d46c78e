"""A server's certificate that somebody renews while the server runs."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from activities.kube.client import load_certificate
from activities.secrets.crypto import KeyPair

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0
"""Seconds. Kubelets bring a renewed Secret to its files within two minutes."""


class ShownCertificate:
    """Shown to whoever connects; another one needs no other server. Connections that are open keep what they saw."""

    def __init__(self) -> None:
        """Without one until the first is shown."""
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.shown: KeyPair | None = None

    def show(self, pair: KeyPair) -> bool:
        """From now on; false if it is shown already. Raises ssl.SSLError, and keeps the old one, if it does not fit."""
        if pair == self.shown:
            return False
        check_pair(pair)  # a pair that does not fit would leave the context without one
        load_certificate(self.context, pair.certificate, pair.key)
        self.shown = pair
        return True


class ServingCertificate(ShownCertificate):
    """Out of files, and read again when they change."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises OSError or ssl.SSLError if the files cannot be used."""
        super().__init__()
        self._files = certificate, key
        self.show(KeyPair(*read_files(self._files)))

    async def follow(self, interval: float = LOOK_AGAIN) -> None:
        """Look at the files again and again, until cancelled. What cannot be used is told, and the old one kept."""
        assert self.shown is not None

        async def use(certificate: bytes, key: bytes) -> None:
            try:
                self.show(KeyPair(certificate, key))
            except ssl.SSLError as error:
                raise Unusable(str(error.reason)) from None

        await follow_files(self._files, (self.shown.certificate, self.shown.key), use, interval)


class Unusable(Exception):
    """The content of files cannot be used; says why."""


def check_pair(pair: KeyPair) -> None:
    """Raises ssl.SSLError if certificate and key do not fit."""
    load_certificate(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), pair.certificate, pair.key)


def read_files(files: Sequence[Path]) -> tuple[bytes, ...]:
    return tuple(file.read_bytes() for file in files)


async def follow_files(
    files: Sequence[Path], used: tuple[bytes, ...], use: Callable[..., Awaitable[None]], interval: float = LOOK_AGAIN
) -> None:
    """Give the contents of a certificate's files to ``use`` when they differ from ``used``, until cancelled.

    The first file is the certificate. Unusable contents are told once, and tried again at each look: ``use`` raises
    Unusable.
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
                log.warning("certificate %s and its key stay as they are; the files %s", files[0], why)
                told = why
            continue
        used, told = found, ""
        log.info("certificate %s is renewed", files[0])
