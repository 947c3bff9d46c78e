"""A renewed certificate is shown without a new process: while admission starts anew, no Shoot can be written."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed
from tests.unit.kube.waiting import until
from workers.lib.serving import ServingCertificate

NOW = datetime.now(UTC)
OPTIONS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": NOW, "validity": timedelta(days=1)}
CA = self_signed_ca("ca", **OPTIONS)


class Server:
    def __init__(self, directory: Path) -> None:
        self.files = directory / "tls.crt", directory / "tls.key"
        self.first = self.renew("first")
        self.certificate = ServingCertificate(*self.files)
        self.url = ""

    def renew(self, name: str) -> KeyPair:
        pair = signed(name, ca=CA, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], **OPTIONS)
        self.write(pair.certificate, pair.key)
        return pair

    def write(self, certificate: bytes, key: bytes) -> None:
        for file, content in zip(self.files, (certificate, key), strict=True):
            file.write_bytes(content)

    async def shown(self) -> str:
        """To a new connection."""
        port = int(self.url.rsplit(":", 1)[1])
        context = ssl.create_default_context(cadata=CA.certificate.decode())
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return x509.load_der_x509_certificate(der).subject.rfc4514_string()

    async def until_shown(self, name: str) -> None:
        async def is_shown() -> bool:
            return await self.shown() == f"CN={name}"

        await until(is_shown)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    app = web.Application()
    app.router.add_get("/", _answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=made.certificate.context)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"https://{host}:{port}"
    following = asyncio.create_task(made.certificate.follow(interval=0.02))
    yield made
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    await runner.cleanup()


async def _answer(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def test_a_renewed_certificate_is_shown_to_new_connections_and_breaks_no_old_one(server: Server) -> None:
    context = ssl.create_default_context(cadata=CA.certificate.decode())
    connector = aiohttp.TCPConnector(ssl=context, limit=1)
    async with aiohttp.ClientSession(connector=connector) as kept:
        assert await (await kept.get(server.url)).text() == "ok"
        assert await server.shown() == "CN=first"
        server.renew("second")
        await server.until_shown("second")
        assert await (await kept.get(server.url)).text() == "ok"


async def test_what_cannot_be_used_is_told_once_and_the_old_one_kept(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate comes before its key, or half of it."""
    another = signed("another", ca=CA, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], **OPTIONS)
    server.write(another.certificate, server.first.key)
    await until(lambda: "can't be used" in caplog.text)
    await asyncio.sleep(0.1)
    assert caplog.text.count("can't be used") == 1
    assert await server.shown() == "CN=first"

    server.files[0].unlink()
    await until(lambda: "can't be read again" in caplog.text)
    assert await server.shown() == "CN=first"

    server.write(another.certificate, another.key)
    await server.until_shown("another")


def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path) -> None:
    made = Server(tmp_path)
    made.write(made.first.certificate, b"no key")
    with pytest.raises(ssl.SSLError):
        ServingCertificate(*made.files)
