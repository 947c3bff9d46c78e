"""Only the garden's API server asks admission, and not more at once than admission can answer."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, load_private, private_pem, self_signed_ca, signed
from api.resources import SECRET
from kube.client import load_certificate
from tests.api_servers import free_port
from tests.unit.api.shoots import SEED, changed
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.admission.authority import client_certificate, find_or_create
from workers.admission.process import AdmissionConfig, Certificates
from workers.admission.process import serving as both_ports
from workers.admission.seed_authorizer import PATH, Request, allows
from workers.admission.webhooks import INTERNAL_DOMAIN_PATH, LIMIT_PATH, MUTATE_PATH, VALIDATE_PATH
from workers.lib import serving, webhook_clients

NOW = datetime.now(UTC)
OPTIONS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": NOW, "validity": timedelta(days=1)}
WEBHOOKS = (MUTATE_PATH, VALIDATE_PATH, LIMIT_PATH, INTERNAL_DOMAIN_PATH)
PATHS = (*WEBHOOKS, PATH)
BUSY = 429


@dataclass
class Admission:
    """Both ports of admission, with reviews that wait if a test wants them to."""

    authority: KeyPair
    servers: bytes
    """PEM of the authorities of both ports."""
    urls: dict[str, str]
    reviewed: list[str] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def api_server(self) -> KeyPair:
        return client_certificate(self.authority, NOW)

    def client(self, pair: KeyPair | None) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cadata=self.servers.decode())
        if pair is not None:
            load_certificate(context, pair.certificate, pair.key)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0))

    async def ask(self, path: str, pair: KeyPair | None) -> int:
        async with self.client(pair) as client, client.post(self.urls[path], json={}) as answer:
            return answer.status


def routes(admission: Callable[[], Admission], *paths: str) -> web.Application:
    async def review(request: web.Request) -> web.Response:
        await request.read()
        admission().reviewed.append(request.path)
        if request.path != PATH:
            await admission().free.wait()
        return web.json_response({})

    app = web.Application()
    for path in paths:
        app.router.add_post(path, review)
    return app


@asynccontextmanager
async def admission_with(**config: Any) -> AsyncIterator[Admission]:
    ports = {"webhooks": free_port(), "authorizer": free_port()}
    url = {name: f"https://127.0.0.1:{port}" for name, port in ports.items()}
    configuration = AdmissionConfig.model_validate(
        {
            "gardenClientConnection": {},
            "server": {"address": "127.0.0.1", "port": ports["webhooks"]},
            "seedAuthorizer": {"address": "127.0.0.1", "port": ports["authorizer"], "url": url["authorizer"]},
            "certificates": {"url": url["webhooks"]},
            **config,
        }
    )
    async with ApiServer().running() as api, api.client() as garden, AsyncExitStack() as stack:
        certificates = Certificates(configuration, garden)
        tasks = [asyncio.create_task(each) for each in certificates.work]
        stack.push_async_callback(lambda: asyncio.gather(*tasks, return_exceptions=True))
        stack.callback(lambda: [each.cancel() for each in tasks])
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.wait() for each in certificates.ready))
        authority = await find_or_create(garden, NOW)
        webhook = await garden.get(SECRET, "gardener-admission", "garden")
        servers = authority.certificate + base64.b64decode(webhook["data"]["ca.crt"])
        made = Admission(authority, servers, {})
        made.urls = {path: url["authorizer" if path == PATH else "webhooks"] + path for path in PATHS}
        made.free.set()
        of_webhooks, of_authorizer = routes(lambda: made, *WEBHOOKS), routes(lambda: made, PATH)
        await stack.enter_async_context(both_ports(configuration, certificates, of_webhooks, of_authorizer))
        yield made
        made.free.set()


@pytest.fixture
async def admission() -> AsyncIterator[Admission]:
    async with admission_with(clientAuthentication={}) as made:
        yield made


@pytest.mark.parametrize("path", PATHS)
async def test_the_api_server_is_answered(admission: Admission, path: str) -> None:
    assert await admission.ask(path, admission.api_server) == 200


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_without_a_certificate_gets_no_answer(admission: Admission, path: str) -> None:
    """A made-up review reveals which Secrets exist, and the rights of any user or seed."""
    if path == PATH:
        with pytest.raises(aiohttp.ClientError):
            await admission.ask(path, None)
    else:  # the port of conversions, for which the API server shows no certificate
        assert await admission.ask(path, None) == 403
    assert admission.reviewed == []


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_with_the_certificate_of_another_authority_gets_no_answer(
    admission: Admission, path: str
) -> None:
    """The name in it is the API server's."""
    foreign = signed("kube-apiserver", ca=self_signed_ca("ca", **OPTIONS), usage=Usage.CLIENT, **OPTIONS)

    with pytest.raises(aiohttp.ClientError):
        await admission.ask(path, foreign)
    assert admission.reviewed == []


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
async def test_a_serving_certificate_of_admission_is_refused_as_client_certificate(admission: Admission) -> None:
    """The authority signs servers, too."""
    server = signed("kube-apiserver", ca=admission.authority, usage=Usage.SERVER, **OPTIONS)

    with pytest.raises(aiohttp.ClientError):
        await admission.ask(PATH, server)
    assert admission.reviewed == []


@pytest.mark.attack(actor="T3", asset="A1", finding=16)
@pytest.mark.parametrize(
    "names",
    [
        ["gardener.cloud:system:seed:a"],
        ["KUBE-APISERVER"],
        ["kube-apiserver", "gardener.cloud:system:seed:a"],
        ["gardener.cloud:system:seed:a", "kube-apiserver"],
        [],
    ],
)
async def test_another_client_of_the_same_authority_is_refused(admission: Admission, names: list[str]) -> None:
    """Where the authority signs others as well, as that of a cluster does."""
    assert await admission.ask(PATH, client_of(admission.authority, names)) == 403
    assert admission.reviewed == []


def client_of(authority: KeyPair, names: list[str]) -> KeyPair:
    """A client's certificate with these common names."""
    key, ca = ec.generate_private_key(ec.SECP256R1()), x509.load_pem_x509_certificate(authority.certificate)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(minutes=1))
        .not_valid_after(NOW + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(load_private(authority.key), hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))


async def test_another_authority_of_clients_needs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of the authority that is gone is refused from then on, also if it had a session before."""
    monkeypatch.setattr(serving.ClientsFile.follow, "__defaults__", (0.02,))
    old, new = self_signed_ca("old", **OPTIONS), self_signed_ca("new", **OPTIONS)
    before, after = (signed("kube-apiserver", ca=each, usage=Usage.CLIENT, **OPTIONS) for each in (old, new))
    file = tmp_path / "ca.crt"
    file.write_bytes(old.certificate)
    async with admission_with(clientAuthentication={"caFile": str(file)}) as admission:
        assert await admission.ask(PATH, before) == 200

        file.write_bytes(b"half of it")
        await until(lambda: "can't be used" in caplog.text)
        assert await admission.ask(PATH, before) == 200
        file.write_bytes(new.certificate)

        async def answered() -> bool:
            try:
                return await admission.ask(PATH, after) == 200
            except aiohttp.ClientError:
                return False

        await until(answered)
        with pytest.raises(aiohttp.ClientError):
            await admission.ask(PATH, before)


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
async def test_a_flood_of_reviews_does_not_pile_up_in_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each review reads all Shoots and Seeds. Excess calls get Retry-After, and the API server retries."""
    monkeypatch.setattr(webhook_clients, "_PATIENCE", 0.2)
    async with admission_with(reviewsAtOnce=2) as admission, admission.client(None) as client:
        admission.free.clear()
        flood = [asyncio.create_task(status(client, admission.urls[VALIDATE_PATH])) for _ in range(20)]
        await until(lambda: sum(each.done() for each in flood) == 18)
        assert len(admission.reviewed) == 2
        assert await status(client, admission.urls[PATH], wait=False) == 200, "the other port has turns of its own"

        admission.free.set()
        answers = [await each for each in flood]
        assert answers.count(200) == 2
        assert answers.count(BUSY) == 18
        assert await status(client, admission.urls[VALIDATE_PATH]) == 200


async def status(client: aiohttp.ClientSession, url: str, *, wait: bool = True) -> int:
    """Status of one call; a refusal must say when to come again."""
    async with client.post(url, json={}) as answer:
        assert answer.status != BUSY or answer.headers["Retry-After"] == "1"
        return answer.status


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
async def test_a_caller_that_never_ends_its_review_does_not_keep_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a few open connections would stop all writes of the garden."""
    monkeypatch.setattr(webhook_clients, "_REVIEW_SECONDS", 0.2)
    async with admission_with(reviewsAtOnce=1) as admission, admission.client(None) as client:

        async def endless() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        slow = asyncio.create_task(client.post(admission.urls[VALIDATE_PATH], data=endless()))
        await asyncio.wait([slow], timeout=0.1)
        assert await status(client, admission.urls[VALIDATE_PATH]) == 200
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


@pytest.mark.attack(actor="T3", asset="A1", finding=9)
@pytest.mark.parametrize("name", ["gardener-admission", "gardener-admission-authority"])
async def test_a_gardenlet_does_not_get_the_keys_of_admission_by_a_reference_in_its_seed(name: str) -> None:
    """With them it would answer the API server in admission's place, and ask admission in the API server's."""
    reference = {"apiVersion": "v1", "kind": "Secret", "name": name, "namespace": "garden"}
    seed = changed(SEED, "spec.dns.internal.credentialsRef", reference)
    seed["metadata"]["labels"] = {"gardener.cloud/seed": "seed-1"}
    secret = {"metadata": {"name": name, "namespace": "garden", "labels": {"gardener.cloud/seed": "seed-1"}}}

    class Garden:
        async def find(self, resource: Any, name: str, namespace: str | None = None) -> dict[str, Any] | None:
            return seed if resource.kind == "Seed" else json.loads(json.dumps(secret))

        async def by_index(self, index: Any, value: str) -> list[dict[str, Any]]:
            return []

    request = Request("gardener.cloud:system:seed:seed-1", "get", SECRET, namespace="garden", name=name)
    assert not await allows(request, Garden())
