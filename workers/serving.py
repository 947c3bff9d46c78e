"""A server's certificate out of files that somebody else renews."""

import asyncio
import logging
import ssl
from pathlib import Path

from activities.kube.client import load_certificate

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0
"""Seconds. Kubelets bring a renewed Secret to its files within two minutes."""


class ServingCertificate:
    """Shown to whoever connects; read again when its files change, so that nobody has to start the server anew.

    Connections that are open keep what they were shown.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises OSError or ssl.SSLError if the files cannot be used."""
        self._files = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._shown = self._read()
        load_certificate(self.context, *self._shown)

    async def follow(self, interval: float = LOOK_AGAIN) -> None:
        """Look at the files again and again, until cancelled. What cannot be used is told, and the old one kept."""
        refused = self._shown
        while True:
            await asyncio.sleep(interval)
            try:
                found = self._read()
            except OSError as error:
                log.warning("certificate %s can't be read again: %s", self._files[0], error.strerror)
                continue
            if found in (self._shown, refused):
                continue
            try:
                # A pair that does not fit would leave the context without one.
                load_certificate(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), *found)
            except ssl.SSLError as error:
                refused = found
                log.warning("certificate %s and its key can't be used: %s", self._files[0], error.reason)
                continue
            load_certificate(self.context, *found)
            self._shown = found
            log.info("certificate %s is renewed", self._files[0])

    def _read(self) -> tuple[bytes, bytes]:
        certificate, key = (file.read_bytes() for file in self._files)
        return certificate, key
