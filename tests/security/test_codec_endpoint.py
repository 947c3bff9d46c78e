"""The codec endpoint decodes histories for users of the garden who may get Shoots, and for them alone."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from activities.secrets.keyring import Keyring
from landscape.pki import Authority, KeyPair
from workers.codec_server import GardenAccess, application, user_of_certificate
from workers.lib.access import User
from workers.lib.codec import EncryptionCodec, ReadingCodec

UI = "http://198.18.0.1:8233"
KEYS = Keyring({"a": b"k" * 32})
CODEC = EncryptionCodec(KEYS)
PLAIN = {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "IngiCg=="}]}
READER, OUTSIDER = "token-of-a-reader", "token-of-an-outsider"


class Garden:
    """The garden's API server: knows two tokens, and lets readers get Shoots."""

    async def create(self, review: dict) -> dict:
        if review["kind"] == "TokenReview":
            name = {READER: "reader", OUTSIDER: "outsider"}.get(review["spec"]["token"])
            return {"status": {"authenticated": bool(name), "user": {"username": name or ""}}}
        asked = review["spec"]["resourceAttributes"]
        wanted = {"verb": "get", "group": "core.gardener.cloud", "resource": "shoots", "namespace": ""}
        assert asked | wanted == asked
        return {"status": {"allowed": review["spec"]["user"] == "reader"}}


async def sealed() -> str:
    [payload] = await CODEC.encode(json_format.ParseDict(PLAIN, Payloads()).payloads)
    return json_format.MessageToJson(Payloads(payloads=[payload]))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@asynccontextmanager
async def serving(authority: Authority) -> AsyncIterator[str]:
    """The endpoint by TLS, which lets clients show a certificate of the authority."""
    server = authority.issue("codec-server", "codec-server", names=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.files.certificate)
    context.load_cert_chain(server.certificate, server.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    runner = web.AppRunner(application(ReadingCodec(KEYS), GardenAccess(Garden()), (UI,)))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(
    authority: Authority,
    path: str = "/decode",
    *,
    token: str = "",
    certificate: KeyPair | None = None,
    body: str | None = None,
    origin: str = "",
) -> tuple[int, str, str | None]:
    """Status, text, and the origin that may read the answer."""
    context = ssl.create_default_context(cafile=authority.files.certificate)
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    headers = ({"Authorization": f"Bearer {token}"} if token else {}) | ({"Origin": origin} if origin else {})
    async with serving(authority) as url, ClientSession() as session:
        body = await sealed() if body is None else body
        async with session.post(f"{url}{path}", data=body, headers=headers, ssl=context) as answer:
            return answer.status, await answer.text(), answer.headers.get("Access-Control-Allow-Origin")


@pytest.mark.attack(actor="T5", asset="A5", finding=11)
async def test_client_without_credentials_gets_no_decoded_history(authority: Authority) -> None:
    """Reaching the port is not enough to read histories."""
    status, text, _ = await ask(authority)

    assert status == 401
    assert "bearer token" in text


@pytest.mark.attack(actor="T5", asset="A5", finding=11)
@pytest.mark.parametrize(("token", "expected"), [("made-up", 401), (OUTSIDER, 403)])
async def test_token_that_is_unknown_or_may_not_get_shoots_is_refused(
    authority: Authority, token: str, expected: int
) -> None:
    """A user of one project must not read the histories of all Shoots."""
    status, text, _ = await ask(authority, token=token)

    assert status == expected
    assert token not in text


@pytest.mark.attack(actor="T5", asset="A5", finding=11)
async def test_reader_gets_nothing_encoded(authority: Authority) -> None:
    """A reader who could encode would make payloads that workers accept."""
    status, _, _ = await ask(authority, "/encode", token=READER, body='{"payloads": []}')

    assert status == 404


@pytest.mark.attack(actor="T5", asset="A5", finding=11)
def test_certificate_with_two_common_names_is_no_user() -> None:
    """The endpoint and an API server could read two different users out of it."""
    subject = ((("commonName", "reader"),), (("commonName", "outsider"),))

    assert user_of_certificate({"subject": subject}) is None


async def test_reader_with_a_token_or_a_certificate_reads(authority: Authority) -> None:
    certificate = authority.issue("reader", "reader", ["a-group"])

    for credentials in ({"token": READER}, {"certificate": certificate}):
        status, text, _ = await ask(authority, **credentials)
        assert status == 200
        assert json_format.Parse(text, Payloads()) == json_format.ParseDict(PLAIN, Payloads())


async def test_certificate_of_an_outsider_is_refused(authority: Authority) -> None:
    status, _, _ = await ask(authority, certificate=authority.issue("outsider", "outsider"))

    assert status == 403


def test_organizations_of_a_certificate_are_groups() -> None:
    subject = ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "reader"),))

    assert user_of_certificate({"subject": subject}) == User("reader", ("a", "b", "system:authenticated"))


async def test_answers_name_the_origin_of_the_ui_and_no_other(authority: Authority) -> None:
    assert (await ask(authority, token=READER, origin=UI))[2] == UI
    assert (await ask(authority, origin=UI))[2] == UI, "the UI shows why it was refused"
    assert (await ask(authority, token=READER, origin="http://elsewhere"))[2] is None


@pytest.mark.parametrize("body", ["", "[1]", "no json", '{"payloads": [{"data": 5}]}'])
async def test_body_that_is_no_list_of_payloads_is_refused(authority: Authority, body: str) -> None:
    assert (await ask(authority, token=READER, body=body))[0] == 400


async def test_payload_under_an_unknown_key_is_refused(authority: Authority) -> None:
    other = EncryptionCodec(Keyring({"b": b"x" * 32}))
    [payload] = await other.encode([Payload(data=b"1")])
    body = json_format.MessageToJson(Payloads(payloads=[payload]))

    assert (await ask(authority, token=READER, body=body))[0] == 400
