"""A real etcd with one member, whose certificate authorities change while a client writes to it."""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed
from etcd.client import EtcdClient, EtcdError, client_tls
from tests.api_servers import free_port
from tests.unit.etcd.test_backup_and_restore import BINARIES

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("etcd_is_built"), pytest.mark.timeout(60, func_only=True)]

NAME = "etcd-events-0"
OPTIONS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": timedelta(days=1)}


def authority(name: str) -> KeyPair:
    return self_signed_ca(name, **OPTIONS)


def server(ca: KeyPair) -> KeyPair:
    return signed("etcd-server", ca=ca, usage=Usage.SERVER_AND_CLIENT, ip_addresses=["127.0.0.1"], **OPTIONS)


class Member:
    """The wrapper as a process, with TLS files as the kubelet mounts them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tls = directory / "tls"
        self._tls.mkdir()
        self._numbers = count()
        self.port = free_port()
        self.endpoint = f"https://127.0.0.1:{self.port}"

    def mount(self, trusted: list[KeyPair], shown: KeyPair) -> None:
        own = self._tls / f"..{next(self._numbers)}"
        for path, content in {
            "client-ca/bundle.crt": b"".join(each.certificate for each in trusted),
            "client-server/tls.crt": shown.certificate,
            "client-server/tls.key": shown.key,
        }.items():
            (own / path).parent.mkdir(parents=True, exist_ok=True)
            (own / path).write_bytes(content)
        (self._tls / "..new").symlink_to(own.name)
        (self._tls / "..new").rename(self._tls / "..data")

    def client(self, trusted: KeyPair, own_by: KeyPair) -> ssl.SSLContext:
        pair = signed("etcd-client", ca=own_by, usage=Usage.CLIENT, **OPTIONS)
        for name, content in (("client.crt", pair.certificate), ("client.key", pair.key)):
            (self._directory / name).write_bytes(content)
        return client_tls(trusted.certificate, *(str(self._directory / name) for name in ("client.crt", "client.key")))

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        tls = {"cert-file": f"{self._tls}/client-server/tls.crt", "key-file": f"{self._tls}/client-server/tls.key"}
        config = {
            "etcd": {
                "listen-client-urls": self.endpoint,
                "listen-peer-urls": f"http://127.0.0.1:{free_port()}",
                "initial-cluster-token": "token",
                "enable-grpc-gateway": True,
                "socket-options": {"reuse-port": True},
                "client-transport-security": {
                    **tls,
                    "trusted-ca-file": f"{self._tls}/client-ca/bundle.crt",
                    "client-cert-auth": True,
                },
                "log-level": "error",
            },
            "dataDir": str(self._directory / "data"),
            "runDirectory": str(self._directory),
            "tlsDirectory": str(self._tls),
            "members": {NAME: "http://etcd-events-0.etcd-events-peer.ns.svc:2380"},
            "advertiseClientUrls": self.endpoint,
            "store": None,
        }
        file = self._directory / "wrapper.json"
        file.write_text(json.dumps(config))
        environment = {"POD_NAME": NAME, "ETCD_BINARY": str(BINARIES.expanduser() / "etcd"), "PATH": os.environ["PATH"]}
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.etcd.wrapper", str(file)], env=environment, text=True
        )
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(10) == 143

    async def accepts(self, tls: ssl.SSLContext) -> bool:
        with contextlib.suppress(EtcdError):
            async with EtcdClient(self.endpoint, tls) as client:
                await client.revision()
                return True
        return False

    async def until_accepts(self, tls: ssl.SSLContext) -> None:
        for _ in range(400):
            if await self.accepts(tls):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it does not accept this client")


class Writer:
    """Writes all the time, by a new connection each time: some meet the moment in which a listener closes."""

    def __init__(self, member: Member, tls: ssl.SSLContext) -> None:
        self._url = f"{member.endpoint}/v3/kv/put"
        self.tls = tls
        self.written = 0
        self.again = 0
        self.until = 1 << 30
        self.longest = 0.0
        self.enough = asyncio.Event()

    async def write(self) -> None:
        while True:
            begun = time.monotonic()
            body = {"key": base64.b64encode(b"key").decode(), "value": ""}
            try:
                async with (
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.tls)) as session,
                    session.post(self._url, json=body) as answer,
                ):
                    assert answer.status == 200, await answer.text()
            except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError):
                self.again += 1
                continue
            self.written += 1
            if self.written >= self.until:
                self.enough.set()
            self.longest = max(self.longest, time.monotonic() - begun)
            await asyncio.sleep(0.01)


async def test_no_write_fails_while_the_authorities_of_a_lone_member_are_rotated(tmp_path: Path) -> None:
    """Old, then both, then new: clients wait for a moment, and none is refused."""
    old, new = authority("old"), authority("new")
    member = Member(tmp_path)
    by_old = member.client(old, own_by=old)
    by_new = member.client(old, own_by=new)
    after = member.client(new, own_by=new)
    member.mount([old], server(old))
    with member.running():
        await member.until_accepts(by_old)
        assert not await member.accepts(by_new)
        writer = Writer(member, by_old)
        writing = [asyncio.create_task(writer.write()) for _ in range(3)]

        member.mount([new, old], server(old))
        await member.until_accepts(by_new)
        assert await member.accepts(by_old)
        both = ssl.create_default_context(cadata=(old.certificate + new.certificate).decode())
        both.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        writer.tls = both
        await asyncio.sleep(0.2)

        member.mount([new], server(new))
        await member.until_accepts(after)
        assert not await member.accepts(by_old)

        writer.until = writer.written + 20
        await asyncio.wait_for(writer.enough.wait(), 20)
        assert not any(task.done() for task in writing), [task.exception() for task in writing if task.done()]
        for task in writing:
            task.cancel()
        # A port without a listener would refuse a hundred a second.
        assert writer.again < 10
        print(f"{writer.written} writes, {writer.again} connected again, the longest took {writer.longest:.1f} s")


async def test_files_that_etcd_cannot_start_with_change_nothing(tmp_path: Path) -> None:
    ca = authority("ca")
    member = Member(tmp_path)
    tls = member.client(ca, own_by=ca)
    member.mount([ca], server(ca))
    with member.running() as process:
        await member.until_accepts(tls)
        member.mount([KeyPair(b"", b"")], KeyPair(b"", b""))
        await asyncio.sleep(2)
        assert await member.accepts(tls)
        assert process.poll() is None
