"""An API server reaches its shoot by either of two VPN servers: no new connection fails when one end is lost.

The proxies are real: the one beside the API server, and those of both servers, with mutual TLS. Clients are played.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.components import vpn_egress, vpn_seed_server, vpn_shoot
from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed

ENVOY = Path(sys.prefix) / "bin" / "envoy"
HOST = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
"""Loopback addresses that no other run of this test uses: the first half for server 0, the second for server 1."""
FIRST = (1, 129)
"""Last parts of the servers' own addresses."""

_REQUEST_SECONDS = 30.0
"""A busy machine needs seconds where the proxies need tenths."""

pytestmark = pytest.mark.timeout(120)


class World:
    """Two servers with two clients each, and the proxy beside an API server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: dict[int, asyncio.subprocess.Process] = {}
        self.clients: dict[tuple[int, int], asyncio.Server] = {}
        self.configs: dict[int, Path] = {}
        self.socket = str(directory / "proxy.sock")

    async def client(self, server: int, number: int, status: str = "200 OK") -> None:
        """Connect client ``number`` to a server. It answers a CONNECT with the numbers of both."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(f"HTTP/1.1 {status}\r\n\r\n{server}{number}".encode())
                while data := await reader.read(100):
                    writer.write(data)
            writer.close()

        address = f"{HOST}.{FIRST[server] + 1 + number}"
        self.clients[server, number] = await asyncio.start_server(serve, address, vpn_shoot.PROXY_PORT)

    def lose_client(self, number: int) -> None:
        """End one client pod, with its tunnels to both servers."""
        for server in (0, 1):
            self.clients.pop((server, number)).close()

    async def start(self, server: int) -> None:
        self.servers[server] = await _envoy(self.configs[server])

    async def stop(self, server: int, how: int = signal.SIGKILL) -> None:
        process = self.servers[server]
        process.send_signal(how)
        if how == signal.SIGKILL:
            await process.wait()

    async def end(self, beside: asyncio.subprocess.Process) -> None:
        for process in (beside, *self.servers.values()):
            if process.returncode is None:
                process.kill()
            await process.wait()
        for client in self.clients.values():
            client.close()

    async def connect(self) -> str:
        """Open a connection into the shoot; returns the numbers of its server and client, or the status."""
        _, writer, answer = await self.opened()
        writer.close()
        return answer

    async def opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        writer.write(b"CONNECT 10.0.0.7:10250 HTTP/1.1\r\nHost: 10.0.0.7:10250\r\n\r\n")
        status = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        return reader, writer, (await reader.readexactly(2)).decode() if status == b"200" else status.decode()

    async def until(self, expected: Callable[[str], bool]) -> None:
        async with asyncio.timeout(30):
            while not expected(await self.connect()):  # noqa: ASYNC110 -- no event tells which server is used
                await asyncio.sleep(0.05)


async def _envoy(config: Path) -> asyncio.subprocess.Process:
    argv = ["--config-path", str(config), "--disable-hot-restart", "--log-level", "error", "--concurrency", "1"]
    return await asyncio.create_subprocess_exec(ENVOY, *argv)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    _certificates(tmp_path)
    addresses = []
    for server in (0, 1):
        values = vpn_seed_server.VpnSeedServer("ns", f"{HOST}.0/24", "", "", "", index=server, servers=2)
        config = vpn_seed_server.proxy_config(values.own_network, chosen=True)
        addresses.append((f"{HOST}.{FIRST[server]}", _listening(config, f"{HOST}.{FIRST[server]}")))
        made.configs[server] = _written(config, tmp_path, f"server-{server}")
    config = vpn_egress.proxy_config(vpn_seed_server.NAMES, "/srv/secrets")
    metrics, listener = config["static_resources"]["listeners"]
    metrics["address"] = {"socket_address": {"address": f"{HOST}.1", "port_value": _free_port(f"{HOST}.1")}}
    listener["address"]["pipe"]["path"] = made.socket
    cluster = config["static_resources"]["clusters"][1]
    for each, (address, port) in zip(cluster["load_assignment"]["endpoints"], addresses, strict=True):
        (host,) = each["lb_endpoints"]
        host["endpoint"]["address"] = {"socket_address": {"address": address, "port_value": port}}
    path = _written(config, tmp_path, "egress")
    async with AsyncExitStack() as stack:
        for server in (0, 1):
            await made.start(server)
            for number in (0, 1):
                await made.client(server, number)
        beside = await _envoy(path)
        stack.push_async_callback(made.end, beside)
        async with asyncio.timeout(30):
            while True:
                try:
                    await made.connect()
                    break
                except OSError:
                    await asyncio.sleep(0.05)  # the proxy starts
        for _ in range(40):  # for 2 s: the first health checks of all proxies are over
            await made.until(lambda answer: answer == "00")
            await asyncio.sleep(0.05)
        yield made


def _written(config: dict[str, Any], directory: Path, name: str) -> Path:
    config["admin"]["address"] = {"pipe": {"path": str(directory / f"{name}-admin.sock")}}
    path = directory / f"{name}.json"
    path.write_text(json.dumps(config).replace("/srv/secrets", str(directory)))
    return path


def _listening(config: dict[str, Any], address: str) -> int:
    """Let the configuration's listeners have this address; returns the proxy's port."""
    ports = []
    for each in config["static_resources"]["listeners"]:
        ports.append(_free_port(address))
        each["address"] = {"socket_address": {"address": address, "port_value": ports[-1]}}
    return ports[-1]


def _free_port(address: str) -> int:
    with socket.socket() as free:
        free.bind((address, 0))
        port: int = free.getsockname()[1]
    return port


def _certificates(directory: Path) -> None:
    now = datetime.now(UTC)
    authority = self_signed_ca("ca-vpn", algorithm=KeyAlgorithm.P256, now=now, validity=timedelta(days=1))

    def pair(name: str, usage: Usage) -> KeyPair:
        hour = timedelta(hours=1)
        return signed(
            name, ca=authority, usage=usage, algorithm=KeyAlgorithm.P256, now=now, validity=hour, dns_names=[name]
        )

    server, client = pair("vpn-seed-server", Usage.SERVER), pair("kube-apiserver-http-proxy-client", Usage.CLIENT)
    files = {"server": server, "vpn-client": client}
    for name, each in files.items():
        (directory / name).mkdir()
        (directory / name / "tls.crt").write_bytes(each.certificate)
        (directory / name / "tls.key").write_bytes(each.key)
    for name in ("ca", "vpn-ca"):
        (directory / name).mkdir()
        (directory / name / "bundle.crt").write_bytes(authority.certificate)


class Probe:
    """A new connection each 20 ms."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers: list[str] = []
        self.slowest = 0.0

    async def _once(self) -> None:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                self.answers.append(await self._world.connect())
        except (OSError, asyncio.IncompleteReadError) as error:
            self.answers.append(repr(error))
        self.slowest = max(self.slowest, time.monotonic() - begun)

    async def run(self, until: Awaitable[None]) -> None:
        end = asyncio.ensure_future(until)
        under_way = set()
        while not end.done():
            under_way.add(asyncio.create_task(self._once()))
            await asyncio.sleep(0.02)
        await end
        await asyncio.gather(*under_way)

    @property
    def failed(self) -> list[str]:
        return [each for each in self.answers if each not in ("00", "01", "10", "11")]


@contextmanager
def measured(what: str, world: World) -> Any:
    probe = Probe(world)
    yield probe
    counts = {each: probe.answers.count(each) for each in sorted(set(probe.answers))}
    print(f"{what}: {len(probe.answers)} connections {counts}, slowest {probe.slowest:.2f} s")
    assert len(probe.answers) > 20
    assert not probe.failed, probe.failed


@pytest.mark.parametrize("server", [0, 1])
async def test_no_new_connection_fails_when_a_server_is_killed_and_comes_back(world: World, server: int) -> None:
    other = str(1 - server)

    async def harm() -> None:
        await asyncio.sleep(0.5)
        await world.stop(server)
        await world.until(lambda answer: answer[0] == other)
        await asyncio.sleep(2)
        await world.start(server)
        await world.until(lambda answer: answer[0] == "0")

    with measured(f"server {server} killed", world) as probe:
        await probe.run(harm())


@pytest.mark.parametrize("number", [0, 1])
async def test_no_new_connection_fails_when_a_client_is_lost(world: World, number: int) -> None:
    async def harm() -> None:
        await asyncio.sleep(0.5)
        world.lose_client(number)
        await world.until(lambda answer: answer[1] == str(1 - number))
        await asyncio.sleep(3)

    with measured(f"client {number} lost", world) as probe:
        await probe.run(harm())


async def test_no_new_connection_fails_when_a_server_does_not_answer_any_more(world: World) -> None:
    """As on a node that hangs."""

    async def harm() -> None:
        await asyncio.sleep(0.5)
        await world.stop(0, signal.SIGSTOP)
        await world.until(lambda answer: answer[0] == "1")
        await asyncio.sleep(3)
        await world.stop(0, signal.SIGCONT)
        await world.until(lambda answer: answer[0] == "0")

    with measured("server 0 hangs", world) as probe:
        await probe.run(harm())


async def test_a_server_without_a_client_is_not_used(world: World) -> None:
    """A server that has just started: its clients need seconds to dial."""
    for number in (0, 1):
        world.clients.pop((0, number)).close()
    async with asyncio.timeout(15):
        assert (await world.connect())[0] == "1", "the request takes the other server"
    async with asyncio.timeout(5):
        assert {(await world.connect())[0] for _ in range(5)} == {"1"}


async def test_a_request_waits_while_there_is_no_server(world: World) -> None:
    for server in (0, 1):
        await world.stop(server)
    waiting = asyncio.create_task(world.connect())
    done, _ = await asyncio.wait([waiting], timeout=2)
    assert not done
    await world.start(1)
    async with asyncio.timeout(30):
        assert (await waiting)[0] == "1"


async def test_an_error_of_the_shoot_is_told_at_once(world: World) -> None:
    """A webhook without a pod, for example: the other server would give the same answer."""
    for server in (0, 1):
        world.clients.pop((server, 0)).close()
        await world.client(server, 0, "503 Service Unavailable")
    async with asyncio.timeout(5):
        await world.until(lambda answer: answer == "503")


async def test_an_open_stream_ends_with_its_server_and_no_other_stream_does(world: World) -> None:
    """The API server's client must open a stream again: its bytes cannot move to another connection."""
    reader, writer, answer = await world.opened()
    assert answer[0] == "0"
    writer.write(b"x")
    assert await reader.read(1) == b"x"

    await world.stop(1)
    await asyncio.sleep(2)
    writer.write(b"y")
    assert await reader.read(1) == b"y", "the stream goes on while the other server is lost"

    await world.stop(0)
    with suppress(ConnectionResetError):
        async with asyncio.timeout(5):
            assert await reader.read(1) == b""
    writer.close()
