"""The store of the logs of a Shoot's nodes: which requests pass its proxy, and with what.

A real Envoy with the configuration of the pod, and a server behind it that keeps what it has read. The real store is
attacked in tests/landscape/test_node_logs.py.
"""

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from activities.components import victoria_logs
from landscape.pki import Authority, KeyPair
from tests.api_servers import free_port
from tests.front_door import (
    ENVOY,
    Answer,
    Connection,
    certificate,
    common_name,
    connected,
    organization,
    read_message,
)
from tests.unit.components.test_manifests import IN_THE_SEED
from tests.unit.kube.waiting import until

pytestmark = pytest.mark.timeout(120)

UPLOAD = "/insert/journald/upload"
QUERY = "/select/logsql/query?query=*"
ENTRY = b"MESSAGE=hello\n\n"
JOURNAL = "Content-Type: application/vnd.fdo.journal"
PASSWORD = "Authorization: Basic " + base64.b64encode(b"admin:SENTINEL").decode()


@dataclass
class Store:
    """The proxy of a store, and what the server behind it has read: method, path, headers and body."""

    directory: Path
    ports: dict[int, int]
    ca: Authority
    """Authority of the Shoot: of the address of the store."""
    clients: Authority
    """Authority of the Shoot's clients."""
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def node(self) -> KeyPair:
        """Client certificate of a kubelet."""
        return self.clients.issue("node", "system:node:machine-1", ["system:nodes"])

    async def send(
        self, path: str, *headers: str, method: str = "GET", body: bytes | None = None, by: KeyPair | None = None
    ) -> Answer:
        """Send a request as it is, with this client certificate. Raises if the proxy ends the connection."""
        length = [] if body is None else [f"Content-Length: {len(body)}"]
        lines = (f"{method} {path} HTTP/1.1", "Host: store", *headers, *length, "", "")
        async with self.connected(by) as connection:
            return await connection.ask("\r\n".join(lines).encode() + (body or b""))

    async def upload(self, *headers: str, path: str = UPLOAD, by: KeyPair | None = None, body: bytes = ENTRY) -> Answer:
        return await self.send(path, JOURNAL, *headers, method="POST", body=body, by=by)

    @contextlib.asynccontextmanager
    async def connected(self, by: KeyPair | None) -> AsyncIterator[Connection]:
        tls = ssl.create_default_context(cafile=str(self.ca.files.certificate))
        if by:
            tls.load_cert_chain(by.certificate, by.key)
        async with connected(self.ports[victoria_logs.PORT], tls) as connection:
            yield connection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each request as VictoriaLogs does."""
        with contextlib.suppress(EOFError, OSError, asyncio.CancelledError), contextlib.closing(writer):
            while True:
                method, path, headers, body = await read_message(reader)
                self.seen.append((method, path, {key.lower(): value for key, value in headers}, body))
                writer.write(b"HTTP/1.1 200 OK\r\nAccept-Encoding: zstd\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()

    @property
    def log(self) -> Path:
        return self.directory / "envoy.log"

    @contextlib.contextmanager
    def proxy(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Envoy with the configuration of the pod."""
        command = [ENVOY, "-c", self.write(), "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def write(self) -> Path:
        """Write the files of the pod, with other places and ports; returns the configuration."""
        manifests = IN_THE_SEED[victoria_logs.NAME]
        [config] = [each["data"] for each in manifests if each["kind"] == "ConfigMap" and "envoy.json" in each["data"]]
        [secret] = [each["data"] for each in manifests if each["kind"] == "Secret"]
        server = self.ca.issue("store", "store", names=["127.0.0.1"])
        texts = {
            "/etc/envoy-users/users": base64.b64decode(secret["users"]),
            "/etc/envoy-tls/tls.crt": server.certificate.read_bytes(),
            "/etc/envoy-tls/tls.key": server.key.read_bytes(),
            "/etc/envoy-clients/bundle.crt": self.clients.files.certificate.read_bytes(),
        }
        made = config["envoy.json"].replace("/tmp/envoy-admin.sock", str(self.directory / "admin.sock"))
        for number, (place, content) in enumerate(texts.items()):
            file = self.directory / f"file-{number}"
            file.write_bytes(content)
            assert place in made
            made = made.replace(place, str(file))
        path = self.directory / "envoy.json"
        path.write_text(json.dumps(self._with_ports(json.loads(made))))
        return path

    def _with_ports(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: self.ports[each] if key == "port_value" else self._with_ports(each) for key, each in value.items()
            }
        return [self._with_ports(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    ports = {port: free_port() for port in (victoria_logs.PORT, 9480, 9481, 15000)}
    store = Store(tmp_path, ports, Authority(tmp_path / "pki", "ca"), Authority(tmp_path / "pki", "ca-client"))
    server = await asyncio.start_server(store.serve, "127.0.0.1", ports[9481], limit=64 * 2**20)
    with store.proxy() as process:
        async with aiohttp.ClientSession() as session:

            async def answers() -> bool:
                assert process.poll() is None, store.log.read_text()[-2000:]
                try:
                    async with session.get(f"http://127.0.0.1:{ports[15000]}/ready") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await until(answers, 30)
        yield store
    server.close()


async def test_a_node_writes_with_the_certificate_of_its_kubelet(store: Store) -> None:
    answer = await store.upload(by=store.node)

    assert answer.status == 200
    [(method, path, headers, body)] = store.seen
    assert (method, path, body) == ("POST", UPLOAD, ENTRY)
    assert headers["vl-extra-fields"] == "node=machine-1"
    assert "accept-encoding" not in answer.headers, "a node must not compress: the rate counts bytes"


@pytest.mark.parametrize("path", [QUERY, "/select/vmui", "/select/vmui/assets/index.js", "/select/buildinfo"])
async def test_users_read_with_the_password(store: Store, path: str) -> None:
    assert (await store.send(path, PASSWORD)).status == 200
    [(_, seen, headers, _)] = store.seen
    assert seen == path
    assert "authorization" not in headers


@pytest.mark.attack(actor="T6", asset="A3", finding=41)
@pytest.mark.parametrize("credentials", [(), (PASSWORD,)], ids=["nothing", "password"])
async def test_without_the_certificate_of_a_node_no_log_is_written(store: Store, credentials: tuple[str, ...]) -> None:
    """An owner who reads with the password cannot write entries in the name of a node."""
    assert (await store.upload(*credentials)).status == 403
    assert store.seen == []


@pytest.mark.attack(actor="T2", asset="A3", finding=41)
async def test_a_node_of_another_shoot_writes_nothing(store: Store) -> None:
    """Its certificate is of another authority; the subject may be the same."""
    other = Authority(store.directory / "other", "ca-client")

    with pytest.raises((ssl.SSLError, OSError, EOFError)):
        await store.upload(by=other.issue("node", "system:node:machine-1", ["system:nodes"]))
    assert store.seen == []


@pytest.mark.attack(actor="T1", asset="A3", finding=41)
@pytest.mark.parametrize(
    ("name", "organizations"),
    [
        ("alice", []),
        ("admin", ["system:masters"]),
        ("system:node:machine-1", []),
        ("system:node:machine-1", ["system:masters"]),
        ("system:node:machine-1", ["system:nodes", "system:masters"]),
        ("machine-1", ["system:nodes"]),
        ("system:node:", ["system:nodes"]),
        ("system:node:a,O=system:nodes", []),
        ("system:node:a\\", ["system:nodes"]),
        ("system:node:a=b", ["system:nodes"]),
        ("system:node:a+b", ["system:nodes"]),
        ("system:node:A", ["system:nodes"]),
        ("gardener.cloud:node-agent:machine:machine-1", ["gardener.cloud:node-agents"]),
    ],
    ids=str,
)
async def test_another_client_of_the_shoot_writes_nothing(store: Store, name: str, organizations: list[str]) -> None:
    """The same authority signs the certificates of administrators, and those that an owner approves."""
    other = store.clients.issue("other", name, organizations)

    assert (await store.upload(by=other)).status == 403
    assert store.seen == []


@pytest.mark.attack(actor="T2", asset="A3", finding=41)
async def test_the_expired_certificate_of_a_node_writes_nothing(store: Store) -> None:
    subject = [organization("system:nodes"), common_name("system:node:machine-1")]
    expired = certificate(store.clients, store.directory, subject, lives=timedelta(seconds=-1))

    with pytest.raises((ssl.SSLError, OSError, EOFError)):
        await store.upload(by=expired)
    assert store.seen == []


@pytest.mark.attack(actor="T2", asset="A3", finding=41)
@pytest.mark.parametrize("path", [QUERY, "/select/logsql/tail?query=*", "/select/vmui/", "/select/buildinfo"])
async def test_a_node_reads_no_logs(store: Store, path: str) -> None:
    """Logs of other nodes are not its own."""
    assert (await store.send(path, by=store.node)).status == 401
    assert (await store.send(path, "Authorization: Basic YWRtaW46YWRtaW4=", by=store.node)).status == 401
    assert (await store.send(path)).status == 401
    assert store.seen == []


@pytest.mark.attack(actor="T2", asset="A3", finding=41)
@pytest.mark.parametrize(
    "path",
    [
        "/delete/run_task?filter=*",
        "/internal/force_merge",
        "/internal/select/query",
        "/internal/partition/detach?name=20261129",
        "/internal/insert",
        "/insert/jsonline",
        "/insert/journald",
        "/insert/journald/upload/",
        "/insert/journald/uploads",
        "/insert/elasticsearch/_bulk",
        "/api/v2/logs",
        "/flags",
        "/metrics",
        "/debug/pprof/profile",
        "/health",
        "/",
        "/select/tenant_ids",
        "/select/vmuis",
        "/select/vmalert/api/v1/rules",
        "/select/logsql/../../delete/run_task?filter=*",
        "/select/logsql/%2e%2e/%2e%2e/delete/run_task?filter=*",
        "/select/logsql/..%2f..%2fdelete/run_task?filter=*",
        "/select/vmui/..%5c..%5cdelete",
        "/insert/journald/upload/../../../delete/run_task?filter=*",
        "//delete//run_task?filter=*",
    ],
)
async def test_no_other_path_of_the_store_is_reached_not_even_with_certificate_and_password(
    store: Store, path: str
) -> None:
    for method, body in (("GET", None), ("POST", b"")):
        assert (await store.send(path, PASSWORD, method=method, body=body, by=store.node)).status in (400, 401)
        assert (await store.send(path, PASSWORD, method=method, body=body)).status in (400, 403)
    assert store.seen == []


@pytest.mark.attack(actor="T2", asset="A3", finding=41)
@pytest.mark.parametrize(
    "header",
    [
        "VL-Extra-Fields: node=machine-2",
        "vl-extra-fields: a=b",
        "VL-Stream-Fields: MESSAGE",
        "VL-Ignore-Fields: node",
        "VL-Time-Field: MESSAGE",
        "VL-Msg-Field: MESSAGE",
        "VL-Debug: 1",
        "AccountID: 7",
        "ProjectID: 7",
        "Content-Encoding: zstd",
        "X-Forwarded-For: 198.18.2.2",
    ],
)
async def test_a_node_cannot_write_in_the_name_of_another_one_or_change_how_it_is_stored(
    store: Store, header: str
) -> None:
    query = "?extra_fields=node%3Dmachine-2&_stream_fields=MESSAGE&ignore_fields=node&_time_field=X&AccountID=7&debug=1"
    assert (await store.upload(header, path=UPLOAD + query, by=store.node)).status == 200

    [(_, path, headers, _)] = store.seen
    assert path == UPLOAD
    assert headers["vl-extra-fields"] == "node=machine-1"
    name = header.partition(":")[0].lower()
    assert name == "vl-extra-fields" or headers.get(name) != header.partition(": ")[2]
    assert not [key for key in headers if key.startswith("vl-") and key != "vl-extra-fields"]


@pytest.mark.attack(actor="T2", asset="A2", finding=41)
async def test_nodes_send_no_more_than_the_rate_of_the_store(store: Store) -> None:
    """Without a limit a node would fill the disk of the store as fast as the network lets it."""
    begun = time.monotonic()
    size = 2 * 2**20
    assert (await store.upload(by=store.node, body=b"x" * size)).status == 200

    took = time.monotonic() - begun
    assert len(store.seen[0][3]) == size
    assert took > size / (512 * 1024) - 1.5, f"{size} bytes took {took:.1f} s"
