"""A person's own kubeconfig may get credentials from a program or from an identity provider."""

import base64
import contextlib
import importlib.util
import json
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from aiohttp import web

from api.resources import NAMESPACE
from kube.client import KubeClient
from kube.errors import Unauthorized, Unreachable
from kube.kubeconfig import endpoint_of, resolved
from tests.unit.kube.api_server import refuse
from tests.unit.kube.pki import certificates

PROGRAM = """\
import json, os, pathlib, sys
runs = pathlib.Path(__file__).with_name("runs")
count = len(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text("x" * count)
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert os.environ["GREETING"] == "hello" and info["kind"] == "ExecCredential"
status = json.loads(pathlib.Path(__file__).with_name("status.json").read_text())
if "token" in status:
    status["token"] += str(count)
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


@contextlib.asynccontextmanager
async def served(handle, context):
    """Port of an HTTPS server of localhost."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def kubeconfig(server, user):
    return {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "olga"}}],
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "olga", "user": user}],
    }


@pytest.fixture
def program(api, tmp_path):
    """A kubeconfig with a program that issues token-1, token-2 and so on, and is executed in its directory."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "status.json").write_text(json.dumps({"token": "token-"}))
    settings = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["program.py"],
        "env": [{"name": "GREETING", "value": "hello"}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(api.url, {"exec": settings})))
    return path


def only(token):
    """Answers of an API server that accepts this token alone."""
    good = f"Bearer {token}"
    return lambda request: None if request.headers.get("Authorization") == good else refuse(401, "Unauthorized", "no")


def runs(program):
    return len(program.with_name("runs").read_text())


async def test_program_of_the_own_kubeconfig_issues_the_token(api, program):
    api.answer = only("token-1")

    async with KubeClient.from_kubeconfig(program, run_programs=True) as client:
        await client.list(NAMESPACE)
        await client.list(NAMESPACE)

    assert runs(program) == 1


async def test_refused_token_is_issued_again_once_for_each_request(api, program):
    api.answer = only("token-2")

    async with KubeClient.from_kubeconfig(program, run_programs=True) as client:
        await client.list(NAMESPACE)
        assert runs(program) == 2

        api.answer = lambda request: refuse(401, "Unauthorized", "no")
        with pytest.raises(Unauthorized):
            await client.list(NAMESPACE)
    assert runs(program) == 3


async def test_token_is_renewed_before_it_expires(api, program):
    soon = (datetime.now(UTC) + timedelta(seconds=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
    program.with_name("status.json").write_text(json.dumps({"token": "token-", "expirationTimestamp": soon}))
    seen = []
    api.answer = lambda request: seen.append(request.headers["Authorization"])

    async with KubeClient.from_kubeconfig(program, run_programs=True) as client:
        await client.list(NAMESPACE)
        await client.list(NAMESPACE)

    assert seen == ["Bearer token-1", "Bearer token-2"]


async def test_program_may_issue_a_client_certificate(program, tmp_path):
    ca, server, user = certificates("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=ca.decode())
    (tmp_path / "server.pem").write_bytes(server)
    context.load_cert_chain(tmp_path / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    pair = {"clientCertificateData": user.decode(), "clientKeyData": user.decode()}
    (tmp_path / "status.json").write_text(json.dumps(pair))
    peers = []

    async def handle(request):
        peers.append(dict(pair[0] for pair in request.transport.get_extra_info("peercert")["subject"])["commonName"])
        return web.json_response({"metadata": {}, "items": []})

    async with served(handle, context) as port:
        config = json.loads(program.read_text())
        config["clusters"][0]["cluster"] = {
            "server": f"https://localhost:{port}",
            "certificate-authority-data": base64.b64encode(ca).decode(),
        }
        program.write_text(json.dumps(config))
        async with KubeClient.from_kubeconfig(program, run_programs=True) as client:
            assert await client.list(NAMESPACE) == []

    assert peers == ["someone"]


async def test_credentials_can_be_resolved_without_a_client(program):
    """The codec endpoint takes the user's credentials for the garden, too."""
    endpoint = resolved(endpoint_of(json.loads(program.read_text()), program.parent, trusted=program))

    assert (endpoint.token, endpoint.issuer) == ("token-1", None)


async def test_program_without_credentials_is_named_and_its_output_is_not_quoted(program):
    program.with_name("program.py").write_text("import sys; print('SENTINEL'); sys.exit('SENTINEL')")

    async with KubeClient.from_kubeconfig(program, run_programs=True) as client:
        with pytest.raises(Unreachable, match="of user olga gave no credentials") as failed:
            await client.list(NAMESPACE)

    assert "SENTINEL" not in str(failed.value)


async def test_installation_without_the_official_package_says_what_to_install(program, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    async with KubeClient.from_kubeconfig(program, run_programs=True) as client:
        with pytest.raises(Unreachable, match=r"pip install 'gardener-on-temporal\[login\]'"):
            await client.list(NAMESPACE)


def jwt(subject, expires):
    parts = ({"alg": "none"}, {"sub": subject, "exp": expires})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join((*encoded, "c2lnbmF0dXJl"))


@pytest.fixture
async def provider(tmp_path):
    """An identity provider with TLS: it takes each refresh token once."""
    ca, server, _ = certificates("localhost")
    (tmp_path / "server.pem").write_bytes(server)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    found: dict[str, Any] = {"ca": base64.b64encode(ca).decode(), "refreshed": [], "asked": []}

    async def handle(request):
        found["asked"].append(request.path)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"token_endpoint": f"{found['url']}/token"})
        form = await request.post()
        found["refreshed"].append(form["refresh_token"])
        fresh = {"id_token": jwt("olga", int(time.time()) + 3600), "refresh_token": "second"}
        return web.json_response({**fresh, "access_token": "a", "token_type": "bearer"})

    async with served(handle, context) as port:
        found["url"] = f"https://localhost:{port}"
        yield found


def with_provider(api, provider, path, **more):
    settings = {
        "client-id": "kubernetes",
        "id-token": jwt("olga", 1),
        "refresh-token": "first",
        "idp-issuer-url": provider["url"],
        **more,
    }
    user = {"auth-provider": {"name": "oidc", "config": settings}}
    path.write_text(yaml.safe_dump(kubeconfig(api.url, user)))


async def test_expired_token_of_an_identity_provider_is_refreshed_and_kept_in_the_kubeconfig(api, provider, tmp_path):
    """Many providers accept a refresh token once: without the new one, kubectl would have to log in again."""
    path = tmp_path / "kubeconfig"
    with_provider(api, provider, path, **{"idp-certificate-authority-data": provider["ca"]})
    seen = []
    api.answer = lambda request: seen.append(request.headers["Authorization"])

    async with KubeClient.from_kubeconfig(path, run_programs=True) as client:
        await client.list(NAMESPACE)

    kept = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert provider["refreshed"] == ["first"]
    assert seen == [f"Bearer {kept['id-token']}"]
    assert (kept["refresh-token"], kept["idp-issuer-url"]) == ("second", provider["url"])


async def test_provider_without_a_trusted_certificate_is_asked_nothing(api, provider, tmp_path):
    """If the kubeconfig names no CA, the official package takes the address for refresh tokens from any server."""
    path = tmp_path / "kubeconfig"
    with_provider(api, provider, path)

    async with KubeClient.from_kubeconfig(path, run_programs=True) as client:
        with pytest.raises(Unreachable, match="auth-provider oidc of user olga gave no credentials"):
            await client.list(NAMESPACE)

    assert provider["asked"] == []


def test_official_package_is_not_imported_for_a_static_kubeconfig():
    """Its import takes longer than our own client's, and processes start while users wait."""
    code = "import sys, kube.client; sys.exit('kubernetes' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
