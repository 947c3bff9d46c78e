"""A request into the shoot waits while an end of the tunnel is replaced, or takes another way."""

import asyncio
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.components import vpn_drain, vpn_seed_server, vpn_shoot

ENVOY = Path(sys.prefix) / "bin" / "envoy"
HOST = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
"""Loopback address that no other run of this test uses."""


# The server's proxy


@asynccontextmanager
async def client(number: int, status: str = "200 OK") -> AsyncIterator[None]:
    """The other end of a tunnel: it sends its number to each client that connects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readline()).startswith(b"CONNECT 10.0.0.7:10250 "):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\n\r\n{number}".encode())
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, f"{HOST}.{number}", vpn_shoot.PROXY_PORT)
    try:
        yield
    finally:
        server.close()


async def connect(port: int, **tls: Any) -> str:
    """Which client it was, or the status without success."""
    reader, writer = await asyncio.open_connection(f"{HOST}.1", port, **tls)
    try:
        writer.write(b"CONNECT 10.0.0.7:10250 HTTP/1.1\r\nHost: 10.0.0.7:10250\r\n\r\n")
        status = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).split()[1]
        return (await reader.readexactly(1)).decode() if status == b"200" else status.decode()
    finally:
        writer.close()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[int]:
    """The real one, but for its TLS."""
    config = vpn_seed_server.proxy_config(f"{HOST}.0/28")
    del config["static_resources"]["listeners"][1]["filter_chains"][0]["transport_socket"]
    async with served(config, tmp_path) as port:
        yield port


@asynccontextmanager
async def served(config: dict[str, Any], tmp_path: Path) -> AsyncIterator[int]:
    """Run Envoy with this configuration; yields its port."""
    metrics, listener = config["static_resources"]["listeners"]
    port = _free_port()
    for each, number in ((metrics, _free_port()), (listener, port)):
        each["address"] = {"socket_address": {"address": f"{HOST}.1", "port_value": number}}
    config["admin"]["address"] = {"pipe": {"path": str(tmp_path / "admin.sock")}}
    (tmp_path / "envoy.json").write_text(json.dumps(config))
    argv = ["--config-path", str(tmp_path / "envoy.json"), "--disable-hot-restart", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(ENVOY, *argv, "--concurrency", "1")
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection(f"{HOST}.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0.1)  # its process starts
        writer.close()
        yield port
    finally:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((f"{HOST}.1", 0))
        port: int = free.getsockname()[1]
    return port


@pytest.mark.timeout(90)
async def test_requests_wait_for_a_tunnel_and_take_the_first_one(proxy: int) -> None:
    """One client after the other, as in a roll-out of either end."""
    waiting = asyncio.create_task(connect(proxy))
    done, _ = await asyncio.wait([waiting], timeout=2)
    assert not done, "it waits until an end has dialled in"
    async with client(3):
        assert await waiting == "3"
        async with client(2):
            async with asyncio.timeout(20):
                while await connect(proxy) != "2":  # noqa: ASYNC110 -- that it is seen to be there is no event
                    await asyncio.sleep(0.1)
        assert {await connect(proxy) for _ in range(5)} == {"3"}, "one that refuses is not waited for"


async def test_an_error_of_the_shoot_ends_the_wait_at_once(proxy: int) -> None:
    """A webhook without a pod, for example."""
    async with client(2, "503 Service Unavailable"):
        assert await connect(proxy) == "503"


# An end that goes


_TWO_CONNECTIONS = """
import socket, sys, time
from activities.components import vpn_drain
with socket.create_server(("127.0.0.1", 9443)) as listening:
    ends = [(socket.create_connection(("127.0.0.1", 9443)), listening.accept()[0]) for _ in range(2)]
    for number, (asking, answering) in enumerate(ends):
        asking.sendall(b"question")
        answering.recv(8)
        time.sleep(0.05)
        if number == 0:
            answering.sendall(b"answer")
            asking.recv(6)
    time.sleep(0.4)
    vpn_drain.end_connections(9443)
    for asking, _ in ends:
        asking.settimeout(0.3)
        try:
            print("ended" if asking.recv(1) == b"" else "?")
        except ConnectionResetError:
            print("ended")
        except TimeoutError:
            print("goes on")
"""


def test_only_connections_without_an_outstanding_request_are_closed() -> None:
    """In a network of its own, whose administrator it is."""
    alone = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    argv = [*alone, sys.executable, "-c", _TWO_CONNECTIONS]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["ended", "goes on"], done.stderr


class Management(socketserver.StreamRequestHandler):
    """OpenVPN's management interface, with two clients and one that has no address yet."""

    asked: list[str]

    def handle(self) -> None:
        self.wfile.write(b">INFO:OpenVPN Management Interface Version 5 -- type 'help' for more info\r\n")
        while line := self.rfile.readline():
            self.asked.append(line.decode().strip())
            if line == b"status 3\n":
                rows = [(10, "7"), (9, "4"), (None, "8")]
                for last, number in rows:
                    address = f"198.19.255.{last}" if last else ""
                    row = ["CLIENT_LIST", "vpn-shoot-client", "10.1.0.3:4711", address, "", "1", "1", "now", "0"]
                    self.wfile.write("\t".join([*row, "UNDEF", number, "0", "AES-256-GCM"]).encode() + b"\r\n")
                self.wfile.write(b"END\r\n")
            else:
                self.wfile.write(b"SUCCESS: client-kill command succeeded\r\n")


@pytest.fixture
def management(tmp_path: Path) -> Iterator[str]:
    Management.asked = []
    path = str(tmp_path / "management.sock")
    with socketserver.ThreadingUnixStreamServer(path, Management) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield path
        server.shutdown()
        thread.join()


def test_a_terminating_vpn_server_disconnects_all_clients_except_the_used_one(
    management: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iptables = tmp_path / "iptables"
    iptables.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/rule\n')
    iptables.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    vpn_drain.main("-p tcp --dport 1194", 9443, 0.1, management)

    rule = (tmp_path / "rule").read_text()
    assert rule == "-w -I INPUT -p tcp --dport 1194 --syn -j REJECT --reject-with tcp-reset\n"
    assert Management.asked == ["status 3", "client-kill 7"]
