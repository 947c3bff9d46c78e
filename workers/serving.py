"""A server's certificate that somebody renews while the server runs."""

import asyncio
import logging
import ssl
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
        # A pair that does not fit would leave the context without one.
        load_certificate(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), pair.certificate, pair.key)
        load_certificate(self.context, pair.certificate, pair.key)
        self.shown = pair
        return True


class ServingCertificate(ShownCertificate):
    """Out of files, and read again when they change."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises OSError or ssl.SSLError if the files cannot be used."""
        super().__init__()
        self._files = certificate, key
        self.show(self._read())

    async def follow(self, interval: float = LOOK_AGAIN) -> None:
        """Look at the files again and again, until cancelled. What cannot be used is told, and the old one kept."""
        refused: KeyPair | None = None
        while True:
            await asyncio.sleep(interval)
            try:
                found = self._read()
            except OSError as error:
                log.warning("certificate %s can't be read again: %s", self._files[0], error.strerror)
                continue
            if found == refused:
                continue
            try:
                if self.show(found):
                    log.info("certificate %s is renewed", self._files[0])
            except ssl.SSLError as error:
                refused = found
                log.warning("certificate %s and its key can't be used: %s", self._files[0], error.reason)

    def _read(self) -> KeyPair:
        certificate, key = (file.read_bytes() for file in self._files)
        return KeyPair(certificate, key)
