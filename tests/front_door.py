"""A front door on this machine: a real Envoy, and servers behind it that answer with what they got."""

import asyncio
import contextlib
import json
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from landscape.pki import Authority, KeyPair
from tests.api_servers import free_port
from tests.unit.kube.waiting import until
from workers import front_door
from workers.front_door import FrontDoorConfig

METRICS = {
    "envoy_http_downstream_rq_xx": {"envoy_response_code_class", "envoy_http_conn_manager_prefix"},
    "envoy_http_lua_errors": {"envoy_http_conn_manager_prefix"},
    "envoy_cluster_upstream_cx_connect_fail": {"envoy_cluster_name"},
    "envoy_listener_ssl_certificate_expiration_unix_time_seconds": {"envoy_tls_certificate", "envoy_listener_address"},
    "envoy_cluster_ssl_certificate_expiration_unix_time_seconds": {"envoy_tls_certificate", "envoy_cluster_name"},
}
"""Metrics of the door's Envoy that alerts and documents name, with their labels."""
ENVOY = Path(sys.executable).parent / "envoy"
API_SERVER_NAME = "kubernetes.default.svc"


@dataclass(frozen=True)
class Got:
    """A request as a server behind the front door has read it."""

    server: str
    subject: str
    """Common name of the certificate of the connection; empty without one."""
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def identity(self) -> tuple[str, list[str]] | None:
        """Name and groups in headers that the server believes."""
        users = self.all("x-remote-user")
        return (users[0], self.all("x-remote-group")) if users and self.subject else None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def got(self) -> Got:
        content = json.loads(self.body)
        content["headers"] = tuple(map(tuple, content["headers"]))
        return Got(**{**content, "body": content["body"].encode("latin-1")})

    @property
    def message(self) -> str:
        """Message of a ``Status``."""
        content: dict[str, Any] = json.loads(self.body)
        assert content["kind"] == "Status"
        assert content["code"] == self.status
        return str(content["message"])


class Connection:
    """A client's connection that sends bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, request: str | bytes) -> Answer:
        self.writer.write(request if isinstance(request, bytes) else request.encode("latin-1"))
        await self.writer.drain()
        return await self.answer()

    async def answer(self) -> Answer:
        version, status, headers, body = await read_message(self.reader)
        assert version == "HTTP/1.1"
        return Answer(int(status), {key.lower(): value for key, value in headers}, body)

    async def get(self, path: str = "/version", *headers: str) -> Answer:
        return await self.ask(request(path, *headers))


@contextlib.asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext) -> AsyncIterator[Connection]:
    """A connection to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=4 * 2**20)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


def request(path: str, *headers: str, method: str = "GET") -> str:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: garden.test", *headers, "", ""))


async def read_message(reader: asyncio.StreamReader) -> tuple[str, str, list[tuple[str, str]], bytes]:
    """First two words, headers and body of a request or an answer. Raises EOFError at the end of the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    headers = [(key, value.strip(" \t")) for key, _, value in pairs]
    lower = {key.lower(): value for key, value in headers}
    body = b""
    if lower.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    elif "content-length" in lower:
        body = await reader.readexactly(int(lower["content-length"]))
    return *first.split(" ")[:2], headers, body  # type: ignore[return-value]


@dataclass
class Door:
    """A running front door."""

    directory: Path
    port: int
    health_port: int
    api_server_port: int
    servers_port: int
    ca: Authority
    """Authority of the garden: of its address, and of its users."""
    request_header_ca: Authority
    process: "subprocess.Popen[bytes] | None" = None
    seen: list[Got] = field(default_factory=list)
    """All requests that a server behind the door has read."""
    access_log: str = "All"
    events: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    """Events that kube-apiserver sends to a watch."""

    def config(self, **changes: Any) -> FrontDoorConfig:
        certificate = self.ca.issue("front-door", "garden", names=["127.0.0.1", "localhost"])
        identity = self.request_header_ca.issue("front-door-identity", "front-proxy-client")
        content: dict[str, Any] = {
            "server": {
                "address": "127.0.0.1",
                "port": self.port,
                "certificateFile": str(certificate.certificate),
                "privateKeyFile": str(certificate.key),
                "clientCaFile": str(self.ca.files.certificate),
            },
            "apiServer": {
                "endpoints": [f"127.0.0.1:{self.api_server_port}"],
                "caFile": str(self.ca.files.certificate),
                "serverName": API_SERVER_NAME,
            },
            "subresources": {
                "endpoints": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{self.servers_port}"],
                "caFile": str(self.ca.files.certificate),
                "serverName": "127.0.0.1",
            },
            "requestHeaderIdentity": {
                "certificateFile": str(identity.certificate),
                "privateKeyFile": str(identity.key),
            },
            "directory": str(self.directory / "envoy"),
            "accessLog": self.access_log,
            "adminSocket": str(self.directory / "admin.sock"),
            "health": {"address": "127.0.0.1", "port": self.health_port},
        }
        return FrontDoorConfig.model_validate(content | changes)

    def write(self) -> Path:
        """Write Envoy's files; returns that of its configuration."""
        config = self.config()
        config.directory.mkdir(exist_ok=True)
        for name, content in front_door.files(config).items():
            (config.directory / name).write_text(content)
        return config.directory / front_door.CONFIG_FILE

    @contextlib.contextmanager
    def running(self) -> Iterator["Door"]:
        command = [ENVOY, "-c", self.write(), "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart"]
        command += ["--file-flush-interval-msec", "100"]
        with (self.directory / "envoy.log").open("ab") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        try:
            yield self
        finally:
            self.process.kill()
            self.process.wait()

    def logged(self) -> list[dict[str, Any]]:
        """Lines of the access log so far."""
        lines = (self.directory / "envoy.log").read_text().splitlines()
        return [each for line in lines if line.startswith("{") and (each := json.loads(line))["logger"] == "access"]

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Envoy's metrics: value by name and labels."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.health_port}/stats/prometheus") as answer,
        ):
            # Not by prometheus_client's parser, which adds "_total" to the names of counters.
            lines = re.findall(r"^(\w+)\{(.*)\} (\S+)$", await answer.text(), re.MULTILINE)
            return {(name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))): float(to) for name, labels, to in lines}

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as session:
            await until(lambda: self._answers(session), 30)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "envoy.log").read_text()[-2000:]
        try:
            async with session.get(f"http://127.0.0.1:{self.health_port}/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    def context(self, certificate: KeyPair | None = None, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca.files.certificate))
        if certificate:
            context.load_cert_chain(certificate.certificate, certificate.key)
        context.set_alpn_protocols(list(protocols or ("http/1.1",)))
        return context

    @contextlib.asynccontextmanager
    async def connected(
        self, certificate: KeyPair | None = None, *protocols: str, port: int = 0
    ) -> AsyncIterator[Connection]:
        """A connection to the door, or to another port."""
        async with connected(port or self.port, self.context(certificate, *protocols)) as connection:
            yield connection

    async def ask(self, sent: str | bytes, certificate: KeyPair | None = None) -> Answer:
        async with self.connected(certificate) as connection:
            return await connection.ask(sent)

    # -- servers behind the door

    @contextlib.asynccontextmanager
    async def with_servers(self) -> AsyncIterator["Door"]:
        """Servers that answer each request with what they have read; a certificate is optional at "kube-apiserver"."""
        api_server = self.ca.issue("kube-apiserver", "kube-apiserver", names=[API_SERVER_NAME])
        servers = self.ca.issue("subresources", "subresources", names=["127.0.0.1"])
        listening = [
            await self._serve("kube-apiserver", self.api_server_port, api_server, ssl.CERT_OPTIONAL),
            await self._serve("subresources", self.servers_port, servers, ssl.CERT_REQUIRED),
        ]
        try:
            yield self
        finally:
            for each in listening:
                each.close()

    async def _serve(self, name: str, port: int, certificate: KeyPair, mode: ssl.VerifyMode) -> asyncio.Server:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.certificate, certificate.key)
        context.load_verify_locations(self.request_header_ca.files.certificate)
        context.verify_mode = mode

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = writer.get_extra_info("peercert") or {}
            subject = dict(pair for part in peer.get("subject", ()) for pair in part).get("commonName", "")
            with contextlib.suppress(EOFError, OSError, asyncio.CancelledError), contextlib.closing(writer):
                while True:
                    method, path, headers, body = await read_message(reader)
                    got = Got(name, subject, method, path, tuple(headers), body)
                    self.seen.append(got)
                    if got.all("upgrade"):
                        switched = (
                            "HTTP/1.1 101 Switching Protocols",
                            "Connection: Upgrade",
                            f"Upgrade: {got.all('upgrade')[0]}",
                        )
                        writer.write("\r\n".join((*switched, "", "")).encode())
                        while data := await reader.read(65536):
                            writer.write(data)
                            await writer.drain()
                        return
                    if "watch=true" in path:
                        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                        while event := await self.events.get():
                            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                            await writer.drain()
                        return
                    content = json.dumps({**got.__dict__, "body": body.decode("latin-1")}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
                    await writer.drain()

        return await asyncio.start_server(serve, "127.0.0.1", port, ssl=context, limit=4 * 2**20)


def door(directory: Path) -> Door:
    return Door(
        directory,
        port=free_port(),
        health_port=free_port(),
        api_server_port=free_port(),
        servers_port=free_port(),
        ca=Authority(directory / "pki", "ca"),
        request_header_ca=Authority(directory / "pki", "front-proxy-ca"),
    )


def certificate(
    authority: Authority,
    directory: Path,
    subject: x509.Name | Sequence[x509.NameAttribute],
    *,
    lives: timedelta = timedelta(hours=1),
    usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.CLIENT_AUTH,),
) -> KeyPair:
    """A certificate with any subject, which ends in ``lives``."""
    signer = serialization.load_pem_private_key(authority.files.key.read_bytes(), password=None)
    issuer = x509.load_pem_x509_certificate(authority.files.certificate.read_bytes())
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject if isinstance(subject, x509.Name) else x509.Name(subject))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + lives)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    directory.mkdir(exist_ok=True)
    files = KeyPair(directory / "tls.crt", directory / "tls.key")
    files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files


def common_name(value: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, value)


def organization(value: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.ORGANIZATION_NAME, value)
