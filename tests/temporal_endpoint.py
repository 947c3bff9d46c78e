"""A Temporal that asks for certificates: a dev server, and before it the Envoy of a landscape."""

import contextlib
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from landscape import mutual_tls
from landscape.pki import KeyPair, TemporalAuthority
from workers.lib.temporal import TemporalServer, TemporalTLS

_START_SECONDS = 30


@dataclass(frozen=True)
class Endpoint:
    """Where the Envoy listens, and the authority that signs for its clients."""

    address: str
    directory: Path
    authority: TemporalAuthority

    def server(self, certificate: KeyPair, ca: Path | None = None) -> TemporalServer:
        """How a process with this certificate connects."""
        tls = TemporalTLS(
            ca_file=ca or self.authority.of_servers,
            certificate_file=certificate.certificate,
            private_key_file=certificate.key,
        )
        return TemporalServer(address=self.address, tls=tls)

    def polls(self) -> list[dict[str, Any]]:
        """What Envoy wrote about polls: the certificate of each, when it began and when it ended."""
        file = self.directory / "gateway" / "polls.log"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


def serial(certificate: x509.Certificate) -> str:
    """The serial number as Envoy writes it: whole bytes."""
    number = certificate.serial_number
    return number.to_bytes((number.bit_length() + 7) // 8, "big").hex()


@contextlib.contextmanager
def mutual_tls_before(target: str) -> Iterator[Endpoint]:
    """``target``: HOST:PORT of a server without TLS."""
    # Not pytest's directory, whose path is too long to be read at a glance in errors.
    with tempfile.TemporaryDirectory(prefix="temporal-tls-") as made:
        directory = Path(made)
        authority = TemporalAuthority(directory / "tls")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        certificate = authority.for_server("server", ["127.0.0.1"])
        command = mutual_tls.write(
            directory / "gateway", address, target, certificate, authority.of_clients, metrics=None
        )
        with (directory / "envoy.log").open("wb") as log:
            envoy = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_until_it_listens(envoy, address, directory / "envoy.log")
            yield Endpoint(address, directory, authority)
        finally:
            envoy.terminate()
            envoy.wait()


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.05)  # the clock of a poll
    raise AssertionError(f"Envoy does not listen at {address}: {log.read_text()[-2000:]}")
