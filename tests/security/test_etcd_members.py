"""An etcd of several members: a member verifies answers in the name of the others."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed
from workers.etcd import membership
from workers.etcd.membership import Membership, Refused

NAMES = ["etcd-main-0", "etcd-main-1"]
CLUSTER = "shoot--one/etcd-main"
OPTIONS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": timedelta(days=1)}


def write(directory: Path, ca: KeyPair, trusted: KeyPair) -> dict[str, str]:
    """TLS files of a member, or of a process that pretends to be one."""
    directory.mkdir()
    pairs = {
        "server": signed("etcd-server", ca=ca, usage=Usage.SERVER_AND_CLIENT, ip_addresses=["127.0.0.1"], **OPTIONS),
        "client": signed("etcd-client", ca=ca, usage=Usage.CLIENT, **OPTIONS),
    }
    (directory / "ca.crt").write_bytes(trusted.certificate)
    for role, pair in pairs.items():
        (directory / f"{role}.crt").write_bytes(pair.certificate)
        (directory / f"{role}.key").write_bytes(pair.key)
    return {
        "trusted-ca-file": str(directory / "ca.crt"),
        "cert-file": str(directory / "server.crt"),
        "key-file": str(directory / "server.key"),
    }


def member(name: str, directory: Path, security: dict[str, str], wrappers: dict[str, str]) -> Membership:
    config = {
        "etcd": {"initial-cluster-token": CLUSTER, "client-transport-security": security},
        "dataDir": str(directory / "data"),
        "members": {each: f"https://{each}:2380" for each in NAMES},
        "membership": {
            "clients": {},
            "wrappers": wrappers,
            "tls": {
                "ca": security["trusted-ca-file"],
                "certificate": security["cert-file"].replace("server", "client"),
                "key": security["key-file"].replace("server", "client"),
            },
        },
    }
    return Membership(config, name)


@contextmanager
def pretending(name: str, tls: ssl.SSLContext | None) -> Iterator[int]:
    """A server that says in the name of a member that it has no data; its port."""

    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"name": name, "cluster": CLUSTER, "data": "none"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.fixture
def ca() -> KeyPair:
    return self_signed_ca("ca-etcd", **OPTIONS)


@pytest.mark.attack(actor="T6", asset="A3", finding=20)
@pytest.mark.parametrize("how", ["plain", "another-authority"])
def test_a_false_report_of_lost_data_in_the_name_of_a_member_is_rejected(tmp_path: Path, ca: KeyPair, how: str) -> None:
    """The first member would begin a new cluster, without the data that the others hold."""
    security = write(tmp_path / "own", ca, ca)
    tls = None
    if how == "another-authority":
        forged = write(tmp_path / "forged", self_signed_ca("ca-etcd", **OPTIONS), ca)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(forged["cert-file"], forged["key-file"])
    with pretending(NAMES[1], tls) as port:
        first = member(NAMES[0], tmp_path, security, {NAMES[1]: f"http://127.0.0.1:{port}"})

        with pytest.raises(Refused):
            first._data()


@pytest.mark.attack(actor="T6", asset="A3", finding=20)
def test_a_process_with_a_certificate_of_another_authority_gets_no_data(tmp_path: Path, ca: KeyPair) -> None:
    other = self_signed_ca("ca-etcd", **OPTIONS)
    second = member(NAMES[1], tmp_path, write(tmp_path / "own", ca, ca), {NAMES[1]: "http://127.0.0.1:0"})
    port = second.serve()
    security = write(tmp_path / "other", other, ca)
    stranger = member(NAMES[0], tmp_path, security, {NAMES[1]: f"http://127.0.0.1:{port}"})

    with pytest.raises(Refused):
        stranger._data()


def test_members_tell_each_other_of_their_data(tmp_path: Path, ca: KeyPair) -> None:
    security = write(tmp_path / "own", ca, ca)
    port = member(NAMES[1], tmp_path, security, {NAMES[1]: "http://127.0.0.1:0"}).serve()
    first = member(NAMES[0], tmp_path, security, {NAMES[1]: f"http://127.0.0.1:{port}"})

    assert first._data() == ["none", "none"]


@pytest.mark.attack(actor="T6", asset="A3", finding=20)
def test_a_flood_of_connections_does_not_pile_up_in_a_member(
    tmp_path: Path, ca: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection has a thread, and the member would run out of memory together with its etcd."""
    monkeypatch.setattr(membership, "_TIMEOUT", 60)
    security = write(tmp_path / "own", ca, ca)
    port = member(NAMES[1], tmp_path, security, {NAMES[1]: "http://127.0.0.1:0"}).serve()
    first = member(NAMES[0], tmp_path, security, {NAMES[1]: f"http://127.0.0.1:{port}"})
    silent = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(33)]

    assert silent[-1].recv(1) == b"", "the member closes it without an answer"
    for each in silent:
        each.close()
    while True:  # the member notices that they are closed
        with suppress(Refused):
            assert first._data() == ["none", "none"]
            break
