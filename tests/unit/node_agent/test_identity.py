"""How an agent comes to its certificate, and keeps one."""

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.unit.kube.api_server import ApiServer
from workers.node_agent import init
from workers.node_agent.identity import Identity, renew_at
from workers.node_agent.system import System

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
AUTHORITY = ec.generate_private_key(ec.SECP256R1())


def certificate_for(request: dict[str, Any]) -> bytes:
    csr = x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(csr.subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(csr.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(AUTHORITY, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


async def decide(api: ApiServer, *, approve: bool, seen: set[str]) -> None:
    """Do what resource manager and controller manager do together."""
    while True:
        for (path, _, name), request in list(api.objects.items()):
            if path == CSRS and name not in seen:
                seen.add(name)
                status: dict[str, Any] = {"conditions": [{"type": "Approved" if approve else "Denied"}]}
                if approve:
                    status["certificate"] = base64.b64encode(certificate_for(request)).decode()
                api.change(CSRS, name, None, {"status": status})
                return
        await asyncio.sleep(0.01)


@pytest.fixture
def identity(api: ApiServer, state: Path, tmp_path: Path) -> Identity:
    ca = tmp_path / "ca.crt"
    ca.write_text("")
    return Identity(api.url, ca, state)


def test_the_request_names_machine_and_group() -> None:
    """The resource manager approves by these names."""
    _, body = init.signing_request("machine-1")
    csr = x509.load_pem_x509_csr(base64.b64decode(body["spec"]["request"]))
    assert csr.subject.rfc4514_string() == "CN=gardener.cloud:node-agent:machine:machine-1,O=gardener.cloud:node-agents"
    assert body["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client"


def test_a_machine_s_name_may_be_as_long_as_kubernetes_allows() -> None:
    """X.520 ends a common name at 64 characters; prefix and name of a machine easily have more."""
    machine = "shoot--local--demo-" + "x" * 44
    _, body = init.signing_request(machine)
    csr = x509.load_pem_x509_csr(base64.b64decode(body["spec"]["request"]))
    (name,) = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == f"gardener.cloud:node-agent:machine:{machine}"


async def test_a_first_boot_s_request_is_taken_up(api: ApiServer, identity: Identity, state: Path) -> None:
    """The first boot asks before the kubelet starts; a second request would be refused once the Node exists."""
    key, body = init.signing_request("machine-1")
    credentials = init.Credentials(state)
    init.write_private(credentials.pending_key, key)
    init.write_private(credentials.pending, body["metadata"]["name"].encode())
    api.put(CSRS, body)
    seen: set[str] = set()
    deciding = asyncio.create_task(decide(api, approve=True, seen=seen))
    client = await asyncio.wait_for(identity.client(), 10)
    await deciding
    await client.close()

    assert seen == {body["metadata"]["name"]}
    assert credentials.key.read_bytes() == key
    assert credentials.key.stat().st_mode & 0o777 == 0o600
    assert not credentials.pending.exists()
    assert not credentials.pending_key.exists()


async def test_the_kubelet_gets_another_certificate_by_its_own_right(
    api: ApiServer, identity: Identity, tmp_path: Path
) -> None:
    """A rotation of the CAs needs it: the kubelet itself asks for one only before the old one expires."""
    system = System(tmp_path / "root")
    directory = system.path("/var/lib/kubelet/pki")
    directory.mkdir(parents=True)
    key, body = init.signing_request("machine-1")
    (directory / "kubelet-client-2026.pem").write_bytes(certificate_for(body) + key)
    link = directory / "kubelet-client-current.pem"
    link.symlink_to("kubelet-client-2026.pem")
    (directory / "kubelet-server-current.pem").write_text("old")
    for _ in range(2):
        before, seen = link.read_bytes(), {each for _, _, each in api.objects}
        deciding = asyncio.create_task(decide(api, approve=True, seen=seen))
        async with asyncio.timeout(10):
            await identity.renew_kubelet(system, "machine-1")
        await deciding

        found = x509.load_pem_x509_certificate(link.read_bytes())
        assert found.subject.rfc4514_string() == "CN=system:node:machine-1,O=system:nodes"
        private = serialization.load_pem_private_key(link.read_bytes(), None)
        assert private.public_key() == found.public_key()
        assert link.read_bytes() != before
        assert link.is_symlink()
        assert link.resolve().stat().st_mode & 0o777 == 0o600
        assert not (directory / "kubelet-server-current.pem").exists(), "the kubelet requests another one at its start"
    (request,) = [each for (path, _, name), each in api.objects.items() if path == CSRS][:1]
    assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"


async def test_a_denied_request_is_created_again(
    api: ApiServer, identity: Identity, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine object may become visible to the resource manager only after our request."""
    monkeypatch.setattr("workers.node_agent.identity._AGAIN_SECONDS", 0.01)
    seen: set[str] = set()

    async def judge() -> None:
        await decide(api, approve=False, seen=seen)
        await decide(api, approve=True, seen=seen)

    judging = asyncio.create_task(judge())
    client = await asyncio.wait_for(identity.client(), 10)
    await judging
    await client.close()
    assert len(seen) == 2
    assert init.Credentials(state).certificate.exists()


async def test_an_agent_with_a_certificate_asks_for_nothing(api: ApiServer, identity: Identity, state: Path) -> None:
    """After a restart the bootstrap token is gone."""
    key, body = init.signing_request("machine-1")
    credentials = init.Credentials(state)
    init.write_private(credentials.key, key)
    init.write_private(credentials.certificate, certificate_for(body))
    credentials.bootstrap_token.unlink()
    client = await identity.client()
    await client.close()
    assert not api.requests


def test_a_certificate_is_renewed_at_80_percent_of_its_validity() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert renew_at(begin, begin + timedelta(days=10)) == begin + timedelta(days=8)


class Server:
    """Answers of an API server to the first boot, in turn."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def create(self, server: str, ca_file: str, token: str, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        if answer := self.answers.pop(0):
            raise answer


def boot(state: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(init, "_create", server.create)
    monkeypatch.setattr(init, "_FIRST_DELAY", 0.001)
    config = state / "config.yaml"
    config.write_text(json.dumps({"server": "https://x", "caFile": "/ca", "stateDirectory": str(state)}))
    init.main(str(config))


def test_a_first_boot_repeats_the_same_request_until_it_is_answered(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new key with each attempt would leave requests that no process waits for."""
    server = Server(OSError("connection refused"), OSError("timed out"), None)
    boot(state, monkeypatch, server)
    assert len({body["metadata"]["name"] for body in server.bodies}) == 1
    assert init.Credentials(state).pending.read_text() == server.bodies[0]["metadata"]["name"]
    assert "abcdef.0123456789abcdef" not in capsys.readouterr().err


def test_a_later_boot_asks_for_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet waits for this program at each boot."""
    init.write_private(init.Credentials(state).certificate, b"certificate")
    server = Server()
    boot(state, monkeypatch, server)
    assert server.bodies == []
