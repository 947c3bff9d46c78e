"""A front door without kube-apiserver: which certificates, headers, paths and messages get through to a server.

A real Envoy, with servers behind it that answer with what they have read.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from landscape.pki import Authority, KeyPair
from tests import front_door
from tests.front_door import Door, certificate, common_name, organization, request
from tests.unit.kube.waiting import until

SHOOT = "/apis/core.gardener.cloud/v1beta1/namespaces/garden-local/shoots/demo"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    door = front_door.door(tmp_path)
    async with door.with_servers():
        with door.running():
            await door.ready()
            yield door


async def test_a_certificate_becomes_the_identity_of_the_request(door: Door) -> None:
    got = (await door.ask(request("/version"), door.ca.issue("a", "alice", ["dev", "a,b"]))).got
    assert (got.server, got.identity) == ("kube-apiserver", ("alice", ["dev", "a,b"]))
    assert len(got.all("x-remote-extra-authentication.kubernetes.io%2fcredential-id")) == 1


async def test_a_request_without_a_certificate_arrives_on_a_connection_that_gives_no_identity(door: Door) -> None:
    """kube-apiserver sees it as it would without the door: no certificate, and the token of the client."""
    got = (await door.ask(request("/version", "Authorization: Bearer t"))).got
    assert (got.server, got.subject) == ("kube-apiserver", "")
    assert got.all("authorization") == ["Bearer t"]
    assert got.identity is None


async def test_subresources_reach_their_servers_with_certificate_token_and_impersonation(door: Door) -> None:
    """One of the two servers does not answer here, and the client does not see that."""
    alice = door.ca.issue("a", "alice", ["dev"])
    for _ in range(4):
        for subresource in ("adminkubeconfig", "viewerkubeconfig", "binding"):
            got = (await door.ask(request(f"{SHOOT}/{subresource}?dryRun=All", method="POST"), alice)).got
            assert (got.server, got.subject, got.identity) == (
                "subresources",
                "front-proxy-client",
                ("alice", ["dev"]),
            )
    token = "/apis/security.gardener.cloud/v1alpha1/namespaces/garden-local/workloadidentities/w/token"
    got = (await door.ask(request(token, "Authorization: Bearer t", "Impersonate-User: carol", method="POST"))).got
    assert (got.server, got.all("authorization"), got.all("impersonate-user")) == (
        "subresources",
        ["Bearer t"],
        ["carol"],
    )
    assert got.identity is None


async def test_a_path_reaches_kube_apiserver_as_the_client_has_written_it(door: Door) -> None:
    for path in ("/api/v1/namespaces/a/services/b/proxy/x%2Fy//z/../w;v?q=%20&q=a+b", f"{SHOOT}/status", SHOOT, "/"):
        got = (await door.ask(request(path))).got
        assert (got.server, got.path) == ("kube-apiserver", path)


ODD_PATHS = (
    "/" + SHOOT + "/adminkubeconfig",
    SHOOT + "//adminkubeconfig",
    SHOOT + "/adminkubeconfig/",
    SHOOT + "/x/../adminkubeconfig",
    SHOOT + "/./adminkubeconfig",
    SHOOT + "/adminkubeconfig;x=y",
    SHOOT + "/adminkubeconfi%67",
    SHOOT + "%2Fadminkubeconfig",
    SHOOT + "/ADMINKUBECONFIG",
    SHOOT.replace("core.", "CORE.") + "/adminkubeconfig",
    SHOOT.replace("core.", "coreX") + "/adminkubeconfig",
    SHOOT.replace("garden-local", "..") + "/adminkubeconfig",
    SHOOT.replace("garden-local", "garden%2Flocal") + "/adminkubeconfig",
    SHOOT.replace("demo", "..") + "/adminkubeconfig",
    SHOOT.replace("demo", "%2e%2e%2f") + "/adminkubeconfig",
    SHOOT.replace("demo", "demo%00") + "/adminkubeconfig",
    "/x" + SHOOT + "/adminkubeconfig",
    "/version?" + SHOOT + "/adminkubeconfig",
)


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_path_that_is_spelled_another_way_does_not_reach_the_subresource_servers(door: Door) -> None:
    """kube-apiserver gets it, as it is, and knows no such path: the two never read one path as two objects."""
    alice = door.ca.issue("a", "alice")
    for path in ODD_PATHS:
        answer = await door.ask(request(path, method="POST"), alice)
        assert answer.status == 400 or (answer.got.server, answer.got.path) == ("kube-apiserver", path), path


@pytest.mark.attack(actor="T6", asset="A1", finding=27)
async def test_a_certificate_that_does_not_verify_is_refused(door: Door, tmp_path: Path) -> None:
    """Certificates of another authority of the same name and of the request-header authority; expired; for servers."""
    root = [organization("system:masters"), common_name("root")]
    made = {
        "foreign": Authority(tmp_path / "foreign", "ca").issue("root", "root", ["system:masters"]),
        "request header": door.request_header_ca.issue("root", "front-proxy-client", ["system:masters"]),
        "expired": certificate(door.ca, tmp_path / "expired", root, lives=timedelta(minutes=-1)),
        "of a server": certificate(door.ca, tmp_path / "server", root, usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
    }
    for name, each in made.items():
        for path in ("/version", f"{SHOOT}/adminkubeconfig"):
            for more in ([], ["Authorization: Bearer t"], ["Connection: Upgrade", "Upgrade: websocket"]):
                answer = await door.ask(request(path, *more), each)
                assert answer.status in (401, 403), name
                assert answer.message.startswith("the front door refuses the ")
    assert door.seen == []


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_certificate_that_expires_is_refused_on_an_open_connection(door: Door, tmp_path: Path) -> None:
    user = certificate(door.ca, tmp_path / "short", [common_name("alice")], lives=timedelta(seconds=2))
    async with door.connected(user) as connection:
        assert (await connection.get()).status == 200
        refused = await until(lambda: _refused(connection), 20)
    assert refused.message == "the front door refuses the client certificate: it has expired: get a new one"


async def _refused(connection: front_door.Connection) -> front_door.Answer | None:
    answer = await connection.get()
    return answer if answer.status == 401 else None


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_session_is_never_resumed(door: Door) -> None:
    """Envoy would not verify the certificate of a resumed session again."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = door.context(door.ca.issue("a", "alice"))
        context.minimum_version = context.maximum_version = version
        assert await asyncio.to_thread(_resumes, door, context) is False


def _resumes(door: Door, context: ssl.SSLContext) -> bool:
    session = None
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", door.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
        ):
            connection.sendall(request("/version").encode())
            assert b"alice" in connection.recv(65536)
            session = connection.session
    return bool(connection.session_reused)


ODD_SUBJECTS: dict[str, Sequence[x509.NameAttribute[str]]] = {
    "no common name": [organization("system:masters")],
    "two common names": [common_name("alice"), common_name("root")],
    "a blank at the end": [common_name("root ")],
    "a blank at the start": [common_name(" root")],
    "a tab at the end": [common_name("root\t")],
    "a line break": [common_name("alice\r\nX-Remote-Group: system:masters")],
    "a zero": [common_name("root\0alice")],
    "an organization with a blank": [organization("system:masters "), common_name("alice")],
    "an organization with a line break": [organization("dev\nX-Remote-User: root"), common_name("alice")],
    "a uid": [common_name("alice"), x509.NameAttribute(x509.ObjectIdentifier("1.3.6.1.4.1.57683.2"), "0")],
}


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_subject_that_headers_cannot_carry_is_refused(door: Door, tmp_path: Path) -> None:
    """The message says what is wrong with the certificate; no server sees the request."""
    for name, subject in ODD_SUBJECTS.items():
        answer = await door.ask(request("/version"), certificate(door.ca, tmp_path / "user", subject))
        assert (answer.status, name) == (401, name)
        assert answer.message.startswith("the front door refuses the client certificate: ")
    assert door.seen == []


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_name_that_looks_like_another_attribute_stays_a_name(door: Door, tmp_path: Path) -> None:
    """Separators, escapes, other encodings, and attributes that share one place in the subject."""
    bmp = x509.NameAttribute(NameOID.COMMON_NAME, "a,O=system:masters", _type=_ASN1Type.BMPString)
    shared = x509.Name(
        [x509.RelativeDistinguishedName([common_name("a+O=system:masters"), organization("dev,O=system:masters")])]
    )
    subjects = {
        "a,O=system:masters": [common_name("a,O=system:masters")],
        "a\\,O=system:masters": [common_name("a\\,O=system:masters")],
        'a"+CN=root': [common_name('a"+CN=root')],
        "#0c04726f6f74": [common_name("#0c04726f6f74")],
    }
    for name, subject in subjects.items():
        got = (await door.ask(request("/version"), certificate(door.ca, tmp_path / "user", subject))).got
        assert got.identity == (name, [])
    got = (await door.ask(request("/version"), certificate(door.ca, tmp_path / "user", [bmp]))).got
    assert got.identity == ("a,O=system:masters", [])
    got = (await door.ask(request("/version"), certificate(door.ca, tmp_path / "user", shared))).got
    assert got.identity == ("a+O=system:masters", ["dev,O=system:masters"])


FORGED = (
    "X-Remote-User: root",
    "x-remote-user: root",
    "X_Remote_User: root",
    "X-Remote_User: root",
    "X-Remote-Group: system:masters",
    "x_remote_group: system:masters",
    "X-Remote-Extra-Scopes: all",
    "X-Remote-Extra-Authentication.kubernetes.io%2fcredential-id: x",
    "X-Remote-Uid: 0",
    "X-Forwarded-For: 203.0.113.9",
    'X-Forwarded-Client-Cert: Subject="CN=root"',
    "X-Real-Ip: 203.0.113.9",
    "Forwarded: for=203.0.113.9",
    "X-Envoy-Max-Retries: 99",
    "X-Envoy-Original-Path: /",
    "X-Envoy-Upstream-Rq-Timeout-Ms: 1",
)


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_forged_header_arrives_at_no_server(door: Door) -> None:
    """At kube-apiserver and at the subresource servers, once and twice, with a certificate and without."""
    alice = door.ca.issue("a", "alice")
    for path in ("/version", f"{SHOOT}/adminkubeconfig"):
        for user in (None, alice):
            plain = (await door.ask(request(path), user)).got
            for forged in (*((each, each) for each in FORGED), FORGED, ("Connection: X-Remote-User", *FORGED)):
                got = (await door.ask(request(path, *forged), user)).got
                assert got.headers == plain.headers, forged


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_certificate_that_the_filter_could_not_read_lets_no_request_pass(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Envoy goes on after an error in a script: a request with a certificate must not become one without."""
    monkeypatch.setattr("workers.front_door._IDENTIFY", "function envoy_on_request(handle) error('broken') end")
    broken = front_door.door(tmp_path / "broken")
    async with broken.with_servers():
        with broken.running():
            await broken.ready()
            answer = await broken.ask(request("/version", "X-Remote-User: root"), broken.ca.issue("a", "alice"))
            assert (answer.status, answer.message) == (500, "the front door failed to read the client certificate")
            assert broken.seen == []


SMUGGLED = (
    ("Content-Length: 5", "Transfer-Encoding: chunked"),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding : chunked",),
    ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    ("Content-Length: 5", "Content-Length: 6"),
    ("Content-Length: +5",),
    ("X-Remote-User : root",),
    (" X-Remote-User: root",),
)


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_message_that_two_servers_could_read_in_two_ways_is_refused(door: Door) -> None:
    """Otherwise a part of one user's request could become the begin of another user's."""
    alice = door.ca.issue("a", "alice")
    hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\nX-Remote-User: root\r\n\r\n"
    for headers in SMUGGLED:
        answer = await door.ask(request("/version", *headers, method="POST") + hidden, alice)
        assert answer.status in (400, 501), headers
    assert door.seen == []


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_only_terminals_get_a_raw_connection_and_only_to_kube_apiserver(door: Door) -> None:
    alice = door.ca.issue("a", "alice")
    for path, protocol in ((f"{SHOOT}/adminkubeconfig", "websocket"), ("/x", "tcp"), ("/x", "connect-udp")):
        for user in (None, alice):
            answer = await door.ask(request(path, "Connection: Upgrade", f"Upgrade: {protocol}"), user)
            assert answer.status in (403, 404), path
    assert door.seen == []
    async with door.connected(alice) as terminal:
        assert (await terminal.get("/exec", "Connection: Upgrade", "Upgrade: SPDY/3.1")).status == 101
        terminal.writer.write(b"ls")
        assert await terminal.reader.readexactly(2) == b"ls"
    assert door.seen[-1].identity == ("alice", [])


@pytest.mark.attack(actor="T6", asset="A1", finding=27)
async def test_headers_beyond_the_limit_are_refused(door: Door) -> None:
    """The limit is that of kube-apiserver, 1 MiB."""
    accepted = await door.ask(request("/version", "X-Large: " + "a" * 900_000))
    assert accepted.got.all("x-large") == ["a" * 900_000]
    assert (await door.ask(request("/version", "X-Large: " + "a" * 1_100_000))).status == 431


async def test_a_server_that_is_away_is_told_as_a_status(door: Door, tmp_path: Path) -> None:
    alone = front_door.door(tmp_path / "alone")
    with alone.running():
        await alone.ready()
        answer = await alone.ask(request("/version"))
    assert answer.status == 503
    assert answer.message.startswith("the front door got no answer from a server behind it: ")


@pytest.mark.attack(actor="T6", asset="A1", finding=27)
async def test_the_access_log_holds_no_credentials_and_no_line_of_a_client(door: Door) -> None:
    """Queries hold commands and tokens. A name, a path or a header cannot write a line of its own."""
    alice = certificate(door.ca, door.directory / "user", [common_name('alice","code":"200')])
    secret = "SENTINEL-OF-A-CREDENTIAL"
    headers = [f"Authorization: Bearer {secret}", f"Cookie: a={secret}", f"Impersonate-User: {secret}"]
    await door.ask(request(f"/api/v1/x?token={secret}&command={secret}", *headers, "X-Remote-User: root"), alice)
    await door.ask(request(f"{SHOOT}/adminkubeconfig?t={secret}", *headers, 'User-Agent: a"\\b', method="POST"))
    await door.ask(request("/" + "a" * 5000))
    await door.ask('GET /%0a{"logger":"access"} HTTP/1.1\r\nHost: a\r\n\r\n')

    lines = await until(lambda: len(found := door.logged()) >= 4 and found, 30)
    assert secret not in (door.directory / "envoy.log").read_text()
    of_alice, of_servers, long, odd = lines
    assert (of_alice["user"], of_alice["path"], of_alice["code"]) == ('alice","code":"200', "/api/v1/x", 200)
    assert (of_alice["upstream"], of_alice["client"]) == ("kube-apiserver-with-identity", "127.0.0.1")
    assert (of_servers["user"], of_servers["path"]) == (None, f"{SHOOT}/adminkubeconfig")
    assert (of_servers["upstream"], of_servers["userAgent"]) == ("subresources", 'a"\\b')
    assert of_servers["milliseconds"] >= 0
    assert len(long["path"]) == 1024
    assert odd["code"] in (200, 400)


async def test_the_access_log_holds_errors_alone_if_it_is_configured_so(tmp_path: Path) -> None:
    quiet = front_door.door(tmp_path)
    quiet.access_log = "Errors"
    async with quiet.with_servers():
        with quiet.running():
            await quiet.ready()
            assert (await quiet.ask(request("/fine"))).status == 200
            assert (await quiet.ask(request("/refused", "Connection: Upgrade", "Upgrade: tcp"))).status == 403
            [line] = await until(quiet.logged, 30)
    assert (line["path"], line["code"], line["details"]) == ("/refused", 403, "upgrade_failed")


async def test_envoy_serves_the_metrics_of_alerts(tmp_path: Path) -> None:
    """Names, labels and meaning: a server that cannot be reached, ends of certificates, the filter's errors."""
    door = front_door.door(tmp_path)
    with door.running():
        await door.ready()
        assert (await door.ask(request(f"{SHOOT}/adminkubeconfig"))).status == 503
        found = await door.metrics()

    for name, labels in front_door.METRICS.items():
        shown = [{key for key, _ in each} for metric, each in found if metric == name]
        assert shown, name
        assert all(each == labels for each in shown), name
    [failed] = [
        value
        for (name, labels), value in found.items()
        if name == "envoy_cluster_upstream_cx_connect_fail" and ("envoy_cluster_name", "subresources") in labels
    ]
    assert failed >= 2
    ends = {
        dict(labels)["envoy_tls_certificate"]: value
        for (name, labels), value in found.items()
        if "certificate_expiration" in name
    }
    assert ends.keys() == {"certificate", "clients", "identity", "api-server-ca", "subresources-ca"}
    served = x509.load_pem_x509_certificate(door.config().server.certificate_file.read_bytes())
    assert ends["certificate"] == served.not_valid_after_utc.timestamp()


async def test_renewed_certificates_are_used_without_a_restart(door: Door, tmp_path: Path) -> None:
    """The address gets a new certificate; a withdrawn authority of clients opens no new connection."""
    alice = door.ca.issue("a", "alice")
    before = await _serial(door)
    files = door.config().server
    renewed = door.ca.issue("renewed", "garden", names=["127.0.0.1", "localhost"])
    renewed.key.replace(files.private_key_file)
    renewed.certificate.replace(files.certificate_file)
    await until(lambda: _differs(door, before), 20)
    assert (await door.ask(request("/version"), alice)).got.identity == ("alice", [])

    other = Authority(tmp_path / "other", "ca")
    bob = other.issue("b", "bob")
    served = tmp_path / "served.crt"
    served.write_bytes(door.ca.files.certificate.read_bytes())
    fresh = tmp_path / "fresh.crt"
    fresh.write_bytes(other.files.certificate.read_bytes())
    fresh.replace(files.client_ca_file)
    door.ca.files = KeyPair(served, door.ca.files.key)
    await until(lambda: _accepted(door, bob), 20)
    assert (await door.ask(request("/version"), alice)).status == 401


async def _serial(door: Door) -> str:
    async with door.connected() as connection:
        return str(connection.writer.get_extra_info("peercert")["serialNumber"])


async def _differs(door: Door, serial: str) -> bool:
    return await _serial(door) != serial


async def _accepted(door: Door, user: KeyPair) -> bool:
    return (await door.ask(request("/version"), user)).status == 200
