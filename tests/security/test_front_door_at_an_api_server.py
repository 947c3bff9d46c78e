"""A front door before a real API server: it takes each client for the user that it takes it for without the door.

Attacks of clients that want to be another user, and the streams that must pass.
"""

import asyncio
import contextlib
import functools
import json
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from cryptography import x509

from api import resources
from kube.client import MERGE_PATCH, KubeClient
from kube.errors import ApiError
from landscape import pki
from landscape.pki import KeyPair
from tests import front_door
from tests.api_servers import API_SERVER, etcd_command, free_port, running
from tests.front_door import API_SERVER_NAME, Door, certificate, common_name, organization, read_message, request
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

ADMIN, BOB = "token-of-the-administrator", "token-of-bob"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ASKED = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})


class Garden:
    """An API server, and the front door before it."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.directory = door.directory

    def client(self, user: KeyPair | str, *, direct: bool = False) -> KubeClient:
        """A client with a certificate or token; ``direct``: without the door."""
        port = self.door.api_server_port if direct else self.door.port
        server = f"https://localhost:{port}"
        if isinstance(user, str):
            return KubeClient.from_kubeconfig(pki.token_kubeconfig(server, self.door.ca, user, "garden"))
        return KubeClient.from_kubeconfig(pki.kubeconfig(server, self.door.ca, user, "garden"))

    async def review(self, user: KeyPair | None, *headers: str, direct: bool = False) -> dict[str, Any]:
        """``status.userInfo`` of a SelfSubjectReview; or the Status of a refusal."""
        port = self.door.api_server_port if direct else self.door.port
        more = (f"Content-Length: {len(ASKED)}", "Content-Type: application/json", *headers)
        async with self.door.connected(user, port=port) as connection:
            answer = await connection.ask(request(REVIEW, *more, method="POST") + ASKED)
        content: dict[str, Any] = json.loads(answer.body)
        found: dict[str, Any] = content["status"]["userInfo"] if answer.status == 201 else content
        return found

    def user(self, *subject: x509.NameAttribute[str]) -> KeyPair:
        return certificate(self.door.ca, self.directory / "user", subject)


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Garden]:
    garden = Garden(front_door.door(tmp_path_factory.mktemp("garden")))
    with api_server(garden.door), garden.door.running():
        asyncio.run(_serves(garden))
        yield garden


async def _serves(garden: Garden) -> None:
    await garden.door.ready()
    async with garden.client(ADMIN) as admin:
        await until(functools.partial(_ready, admin), 60)


@contextlib.contextmanager
def api_server(door: Door) -> Iterator[None]:
    """An etcd and an API server behind the door, with the flags that docs/operations/front-door.md asks for."""
    directory = door.directory
    etcd = f"http://127.0.0.1:{free_port()}"
    serving = door.ca.issue("kube-apiserver", "kube-apiserver", names=[API_SERVER_NAME, "localhost", "127.0.0.1"])
    service_account = pki.service_account_key(directory)
    (directory / "tokens.csv").write_text(f"{ADMIN},admin,1,system:masters\n{BOB},bob,2,dev\n")
    rules = [{"level": "Metadata"}]
    (directory / "audit.json").write_text(
        json.dumps(
            {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        )
    )
    server = (API_SERVER, "--etcd-servers", etcd, "--secure-port", door.api_server_port,
              "--bind-address", "127.0.0.1", "--tls-cert-file", serving.certificate,
              "--tls-private-key-file", serving.key, "--client-ca-file", door.ca.files.certificate,
              "--requestheader-client-ca-file", door.request_header_ca.files.certificate,
              "--requestheader-allowed-names", "front-proxy-client",
              "--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
              "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
              "--token-auth-file", "tokens.csv", "--service-account-issuer", "https://a.test",
              "--service-account-key-file", service_account.certificate,
              "--service-account-signing-key-file", service_account.key,
              "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
              "--audit-policy-file", "audit.json", "--audit-log-path", directory / "audit.log",
              "--audit-log-mode", "blocking")  # fmt: skip
    with contextlib.ExitStack() as stack:
        for command in (etcd_command(etcd), server):
            stack.enter_context(running(directory, *map(str, command)))
        yield


async def _ready(client: KubeClient) -> bool:
    try:
        await client.request("GET", "/readyz")
        await client.list(resources.NAMESPACE)
    except ApiError:
        return False
    return True


SUBJECTS: dict[str, Sequence[x509.NameAttribute[str]]] = {
    "a user": [common_name("alice")],
    "groups in their order": [organization("dev"), organization("ops"), common_name("alice")],
    "letters that separate": [organization("a,b;c=d"), common_name('a,O=system:masters+O="x"\\')],
    "other letters": [organization("größe"), common_name("jürgen 一")],
    "a user of the system": [organization("system:nodes"), common_name("system:node:n")],
}


async def test_a_certificate_is_the_same_user_with_and_without_the_front_door(garden: Garden) -> None:
    """User, groups, and what kube-apiserver records about the certificate."""
    for name, subject in SUBJECTS.items():
        user = garden.user(*subject)
        direct, behind = await garden.review(user, direct=True), await garden.review(user)
        assert behind == direct, name
        assert "system:authenticated" in behind["groups"], name
        assert behind["extra"]["authentication.kubernetes.io/credential-id"], name


async def test_tokens_and_clients_without_credentials_are_the_same_users(garden: Garden) -> None:
    for headers in ([], [f"Authorization: Bearer {BOB}"], ["Authorization: Bearer unknown"]):
        assert await garden.review(None, *headers) == await garden.review(None, *headers, direct=True)
    assert (await garden.review(None, f"Authorization: Bearer {BOB}"))["username"] == "bob"
    assert (await garden.review(None))["reason"] in ("Forbidden", "Unauthorized")


async def test_impersonation_passes_and_needs_the_right(garden: Garden) -> None:
    asked = ("Impersonate-User: carol", "Impersonate-Group: a", "Impersonate-Group: b,c")
    admin, alice = garden.user(organization("system:masters"), common_name("root")), SUBJECTS["a user"]
    direct, behind = await garden.review(admin, *asked, direct=True), await garden.review(admin, *asked)
    assert behind == direct
    assert (behind["username"], behind["groups"]) == ("carol", ["a", "b,c", "system:authenticated"])
    assert (await garden.review(garden.user(*alice), *asked))["reason"] == "Forbidden"


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_headers_of_an_identity_that_a_client_sends_have_no_effect(garden: Garden) -> None:
    """With a certificate, with a token and without both; in each spelling, and named by ``Connection``."""
    forged = (
        ["X-Remote-User: root", "X-Remote-Group: system:masters"],
        ["x_remote_user: root", "X_Remote_Group: system:masters", "X-REMOTE_GROUP: system:masters"],
        ["X-Remote-User: alice", "X-Remote-User: root", "X-Remote-Extra-Scopes: all", "X-Remote-Uid: 0"],
        ["X-Remote-Group: system:masters", "Connection: X-Remote-User, X-Remote-Group"],
    )
    alice = garden.user(organization("dev"), common_name("alice"))
    token = f"Authorization: Bearer {BOB}"
    for headers in forged:
        assert await garden.review(alice, *headers) == await garden.review(alice)
        assert await garden.review(None, token, *headers) == await garden.review(None, token)
        assert await garden.review(None, *headers) == await garden.review(None)


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_a_user_who_knows_the_api_servers_own_address_cannot_be_another_user_there(garden: Garden) -> None:
    """Headers count with a certificate of the request-header authority alone."""
    alice = garden.user(common_name("alice"))
    found = await garden.review(alice, "X-Remote-User: root", "X-Remote-Group: system:masters", direct=True)
    assert found["username"] == "alice"


@pytest.mark.attack(actor="T1", asset="A1", finding=27)
async def test_an_organization_with_a_blank_does_not_become_system_masters(garden: Garden) -> None:
    """Kubernetes signs ``system:masters `` for a user; HTTP would strip the blank."""
    for blank in ("system:masters ", " system:masters", "system:masters\t", "dev\r\nX-Remote-Group: system:masters"):
        found = await garden.review(garden.user(organization(blank), common_name("mallory")))
        assert found["reason"] == "Unauthorized"
        assert "blanks at its ends or control characters" in found["message"]


async def test_a_watch_shows_an_event_at_once(garden: Garden) -> None:
    async with garden.client(ADMIN) as client:
        listed = await client.request("GET", "/api/v1/namespaces/default/configmaps")
        version = listed["metadata"]["resourceVersion"]
        path = f"/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={version}"
        async with garden.door.connected(None) as watch:
            watch.writer.write(request(path, f"Authorization: Bearer {ADMIN}").encode())
            head = await watch.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            seen = []
            for number in range(3):
                await client.apply(_config_map(f"c-{number}"), manager="test")
                size = int(await watch.reader.readline(), 16)
                seen.append(json.loads(await watch.reader.readexactly(size))["object"]["metadata"]["name"])
                await watch.reader.readexactly(2)
    assert seen == ["c-0", "c-1", "c-2"]


def _config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


async def test_the_audit_log_shows_the_clients_address_and_not_the_one_it_claims(garden: Garden) -> None:
    alice = garden.user(common_name("alice"))
    async with garden.door.connected(alice) as connection:
        await connection.get("/version?forged", "X-Forwarded-For: 203.0.113.9", "X-Real-Ip: 203.0.113.9")
    lines = map(json.loads, (garden.directory / "audit.log").read_text().splitlines())
    [found] = [line for line in lines if line["requestURI"] == "/version?forged"]
    assert found["user"]["username"] == "alice"
    assert "203.0.113.9" not in found["sourceIPs"]
    assert len(found["sourceIPs"]) == 2, "the client, and the front door"


@pytest.mark.parametrize("protocol", ["SPDY/3.1", "websocket"])
async def test_a_terminal_reaches_a_pod_through_the_front_door(garden: Garden, protocol: str) -> None:
    """kube-apiserver upgrades the connection, here to a kubelet that sends back what it gets."""
    name, kubelet_port = protocol.lower().replace("/", "-"), free_port()
    serving = garden.door.ca.issue("kubelet", "kubelet", names=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(serving.certificate, serving.key)

    async def kubelet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, _, headers, _ = await read_message(reader)
        lower = {key.lower(): value for key, value in headers}
        switched = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {lower['upgrade']}"]
        writer.write("\r\n".join((*switched, "", "")).encode())
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(kubelet, "127.0.0.1", kubelet_port, ssl=context):
        async with garden.client(ADMIN) as admin:
            await _pod(admin, name, kubelet_port)
        upgrade = ["Connection: Upgrade", f"Upgrade: {protocol}", f"Authorization: Bearer {ADMIN}"]
        if protocol == "websocket":
            upgrade += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
            upgrade += ["Sec-WebSocket-Protocol: v4.channel.k8s.io"]
        path = f"/api/v1/namespaces/default/pods/{name}/exec?command=sh&stdin=true&stdout=true"
        async with garden.door.connected(None) as terminal:
            terminal.writer.write(request(path, *upgrade, method="GET" if protocol == "websocket" else "POST").encode())
            head = await terminal.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101"), head
            for sent in (b"first", b"second" * 10_000):
                terminal.writer.write(sent)
                assert await terminal.reader.readexactly(len(sent)) == sent


async def _pod(admin: KubeClient, name: str, kubelet_port: int) -> None:
    """A pod on a node whose kubelet is at this port."""
    await admin.request("POST", "/api/v1/nodes", body={"metadata": {"name": name}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }
    await admin.request("PATCH", f"/api/v1/nodes/{name}/status", body={"status": status}, content_type=MERGE_PATCH)
    account = {"metadata": {"name": "default"}}
    with contextlib.suppress(ApiError):
        await admin.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=account)
    spec = {"nodeName": name, "containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
    await admin.request("POST", "/api/v1/namespaces/default/pods", body={"metadata": {"name": name}, "spec": spec})
