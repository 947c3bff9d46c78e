"""Tokens that no issuer has signed for a Shoot, and files of a tenant that would take over a control plane."""

import asyncio
import base64
import contextlib
import ipaddress
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.resolver import ThreadedResolver
from cryptography.hazmat.primitives.asymmetric import rsa
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.components.apiserver import AuthorizationWebhook, objects
from activities.secrets.crypto import TEN_YEARS, KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed
from activities.seed.logins import read_logins
from api import resources
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.validation import logins
from kube.client import load_certificate
from landscape import binaries
from landscape.pki import Authority
from landscape.plan import Plan
from landscape.progress import Progress
from tests import oidc
from tests.unit.admission.test_logins import NAMESPACE, PROGRAM, SERVER, WEBHOOKS, config_map, secret
from tests.unit.api.test_logins import AUTHORIZATION, KUBECONFIG, with_
from tests.unit.components.test_apiserver import server
from tests.unit.components.test_logins import Cluster, authentication
from tests.unit.kube.api_server import ApiServer
from tests.unit.landscape import test_logins as landscapes
from tests.unit.oidc_service.conftest import CLIENT, connect
from workers.lib.serving import ClientsFile, ServingCertificate
from workers.oidc_service import provider_keys
from workers.oidc_service.authenticator import PATH, application
from workers.oidc_service.provider_keys import Provider, ProviderFault, ProviderKeys
from workers.oidc_service.tokens import Rejected, user_of

OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
Forge = Callable[[oidc.Issuer, str], str]


def now() -> int:
    return int(time.time())


FORGERIES: dict[str, Forge] = {
    "key of another issuer": lambda issuer, aud: issuer.token("ann", key=OTHER_KEY, aud=aud),
    "algorithm none": lambda issuer, aud: issuer.unsigned_token("ann", aud=aud),
    "public key as shared secret": lambda issuer, aud: issuer.token_by_public_key("ann", aud=aud),
    "expired": lambda issuer, aud: issuer.token("ann", aud=aud, exp=now() - 60),
    "not yet valid": lambda issuer, aud: issuer.token("ann", aud=aud, nbf=now() + 600),
    "without an end": lambda issuer, aud: issuer.token("ann", aud=aud, exp=None),
    "other audience": lambda issuer, aud: issuer.token("ann", aud="another"),
    "other issuer's name": lambda issuer, aud: issuer.token("ann", aud=aud, iss="https://other.example.org"),
    "user of the system": lambda issuer, aud: issuer.token("system:kube-controller-manager", aud=aud),
    "group of the system": lambda issuer, aud: issuer.token("ann", "system:masters", aud=aud),
}


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[oidc.Issuer]:
    (tmp_path / "issuer").mkdir()
    with oidc.issuer(tmp_path / "issuer") as running:
        yield running


@pytest.mark.attack(actor="T6", asset="A3", finding=25)
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_token_names_no_user_by_an_openidconnect(issuer: oidc.Issuer, forgery: str) -> None:
    """The owner has chosen no prefixes, so the claims alone decide the names."""
    trusted = connect(issuer, usernamePrefix="-", groupsPrefix="-")
    keys = ProviderKeys(check_addresses=False)
    assert (await user_of(issuer.token("ann", "devs", aud=CLIENT), [trusted], keys)).groups == ("devs",)

    with pytest.raises(Rejected):
        await user_of(FORGERIES[forgery](issuer, CLIENT), [trusted], keys)


@pytest.mark.binaries
@pytest.mark.usefixtures("kubernetes_is_built")
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.attack(actor="T6", asset="A3", finding=25)
async def test_a_forged_token_names_no_user_by_structured_authentication(tmp_path: Path, issuer: oidc.Issuer) -> None:
    """A real API server with the component's file; the owner has chosen empty prefixes."""
    async with Cluster(tmp_path).running(authentication=authentication(issuer)) as cluster:
        assert await cluster.name(issuer.token("ann", aud="cluster")) == "ann"
        for name, forge in FORGERIES.items():
            assert await cluster.name(forge(issuer, "cluster")) is None, name


@pytest.fixture
def kubernetes_is_built() -> None:
    asyncio.run(binaries.ensure(binaries.cluster_tools(), Progress(quiet=True)))


@pytest.mark.binaries
@pytest.mark.usefixtures("kubernetes_is_built")
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.attack(actor="T1", asset="A1", finding=25)
async def test_a_user_of_an_issuer_of_the_garden_is_no_operator_no_gardenlet_and_no_system_user(
    tmp_path: Path, issuer: oidc.Issuer
) -> None:
    """The file of a landscape's garden at a real API server. Its operator has chosen no prefix."""
    plan = Plan("mine", 1, binaries.KUBERNETES_VERSION, state_home=tmp_path)
    claims = {"username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""}}
    trusted = {"url": issuer.url, "audiences": ["garden"], "certificateAuthority": issuer.ca_file.read_text()}
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{"issuer": trusted, "claimMappings": claims}],
    }
    with landscapes.garden(plan, tmp_path) as server:
        await landscapes.trusts(plan, server, json.dumps(configuration))
        ann = await landscapes.user(server, issuer.token("ann", "devs", aud="garden"))
        assert ann == ("ann", ["devs", "system:authenticated"])

        for name, *groups in (
            ("gardener.cloud:system:seed:seed-1", "gardener.cloud:system:seeds"),
            ("ann", "gardener.cloud:system:operators"),
            ("gardener.cloud:system:controller-manager",),
        ):
            assert await landscapes.user(server, issuer.token(name, *groups, aud="garden")) is None, name
        for forgery, forge in FORGERIES.items():
            assert await landscapes.user(server, forge(issuer, "garden")) is None, forgery


# Issuers at addresses inside the seed


class Inside:
    """A server on this machine, as a process of the seed would be, and what it was asked."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[str] = []
        self.answer: Any = {}
        self._pair = Authority(directory, "inside-ca").issue(
            "inside", "inside", names=["issuer.example.org", "127.0.0.1"]
        )
        self.ca = (directory / "inside-ca.crt").read_bytes()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Inside"]:
        async def answer(request: web.Request) -> web.StreamResponse:
            self.asked.append(request.path)
            found = self.answer(request) if callable(self.answer) else web.json_response(self.answer)
            return await found if asyncio.iscoroutine(found) else found

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self._pair.certificate, self._pair.key)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        self.url = f"https://issuer.example.org:{self.port}"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
async def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inside]:
    """Public DNS says that the issuer's name is an address of this machine."""
    (tmp_path / "inside").mkdir()

    async def resolve(self: Any, host: str, port: int = 0, family: Any = 0) -> list[dict[str, Any]]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 4}]

    monkeypatch.setattr(ThreadedResolver, "resolve", resolve)
    async with Inside(tmp_path / "inside").running() as running:
        yield running


@pytest.mark.attack(actor="T1", asset="A2", finding=25)
async def test_an_issuers_name_that_leads_into_the_seed_is_not_asked(inside: Inside) -> None:
    with pytest.raises(ProviderFault):
        await ProviderKeys().find(Provider(inside.url, inside.ca), "first")
    assert inside.asked == []


@pytest.mark.attack(actor="T1", asset="A2", finding=25)
@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:{port}",
        "https://localhost:{port}",
        "https://[::ffff:127.0.0.1]:{port}",
        "https://127.1:{port}",
        "https://2130706433:{port}",
        "https://127.0.0。1:{port}",
        "https://127.0.0．1:{port}",
        "https://127.0.0.①:{port}",
        "https://127.0.0.%31:{port}",
        "https://kubernetes.default.ｓｖｃ",
        "http://issuer.example.org:{port}",
        "https://169.254.169.254",
        "https://kube-apiserver",
        "https://prometheus.garden.svc",
        "https://10.2.0.1",
        "https://[64:ff9b::a02:1]",
        "https://[64:ff9b::a9fe:a9fe]",
        "https://[2002:7f00:1::]",
    ],
)
async def test_an_issuers_address_inside_the_seed_is_not_asked(inside: Inside, url: str) -> None:
    keys = ProviderKeys([ipaddress.ip_network("10.2.0.0/16")])
    with pytest.raises(ProviderFault):
        await keys.find(Provider(url.format(port=inside.port), inside.ca), "first")
    assert inside.asked == []


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the issuer's address was a public one, so that its answers count."""
    monkeypatch.setattr(provider_keys, "blocked_fault", lambda address, blocked, why_blocked: "")


@pytest.mark.attack(actor="T1", asset="A2", finding=25)
@pytest.mark.usefixtures("reachable")
async def test_an_issuer_cannot_send_the_authenticator_to_other_addresses(inside: Inside) -> None:
    """By a redirect, or by the address of its keys."""

    def redirect(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"{inside.url}/secret"})

    inside.answer = redirect
    with pytest.raises(ProviderFault):
        await ProviderKeys().find(Provider(inside.url, inside.ca), "first")
    assert inside.asked == ["/.well-known/openid-configuration"]

    for target in (f"http://issuer.example.org:{inside.port}/keys", "https://etcd-main-client:2379/v3", "file:///etc"):
        inside.asked.clear()
        inside.answer = {"issuer": inside.url, "jwks_uri": target}
        with pytest.raises(ProviderFault):
            await ProviderKeys().find(Provider(inside.url, inside.ca), "first")
        assert inside.asked == ["/.well-known/openid-configuration"]


@pytest.mark.attack(actor="T1", asset="A2", finding=25)
@pytest.mark.usefixtures("reachable")
async def test_an_issuer_without_end_takes_neither_memory_nor_time(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"[" * 65536)
        return response

    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    keys = ProviderKeys()
    inside.answer = endless
    with pytest.raises(ProviderFault):
        await keys.find(Provider(inside.url, inside.ca), "first")
    monkeypatch.setattr(provider_keys, "_FETCH_SECONDS", 0.3)
    monkeypatch.setattr(provider_keys, "PAUSE_SECONDS", 0.0)
    inside.answer = silent
    async with asyncio.timeout(10):
        with pytest.raises(ProviderFault):
            await keys.find(Provider(inside.url, inside.ca), "first")


# Callers of the authenticator


@pytest.mark.attack(actor="T6", asset="A2", finding=25)
async def test_only_the_api_server_may_ask_the_authenticator(tmp_path: Path) -> None:
    """An answer reveals whether a token that was found somewhere is valid, and whose it is."""
    options: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": TEN_YEARS}
    authority, other = (self_signed_ca(name, **options) for name in ("own", "other"))
    serving = signed("authenticator", ca=authority, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], **options)
    for name, content in (
        ("ca.crt", authority.certificate),
        ("tls.crt", serving.certificate),
        ("tls.key", serving.key),
    ):
        (tmp_path / name).write_bytes(content)
    certificate = ServingCertificate(tmp_path / "tls.crt", tmp_path / "tls.key", clients_show=ssl.CERT_REQUIRED)
    ClientsFile(tmp_path / "ca.crt", certificate)
    runner = web.AppRunner(application(SimpleNamespace(list=list), ProviderKeys()))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}{PATH}"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "a"}}

    async def ask(pair: KeyPair | None) -> int:
        context = ssl.create_default_context(cadata=authority.certificate.decode())
        if pair is not None:
            load_certificate(context, pair.certificate, pair.key)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session, session.post(url, json=body) as answer:
            return answer.status

    try:
        assert await ask(signed("kube-apiserver", ca=authority, usage=Usage.CLIENT, **options)) == 200
        for stranger in (None, signed("kube-apiserver", ca=other, usage=Usage.CLIENT, **options), serving):
            with pytest.raises(aiohttp.ClientError):
                await ask(stranger)
    finally:
        await runner.cleanup()


# Files of a tenant


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as api:
        yield api


async def read(garden: ApiServer) -> Any:
    """Logins as the flow of a Shoot reads them, also if admission has not checked them."""
    shoot = {
        "metadata": {"name": "demo", "namespace": NAMESPACE, "uid": "u-1"},
        "spec": {
            "kubernetes": {
                "version": "1.37.1",
                "kubeAPIServer": {"structuredAuthorization": SERVER["structuredAuthorization"]},
            },
            "provider": {"type": "local", "workers": [{"name": "w"}]},
        },
    }
    view = ClusterView({"metadata": {"name": "shoot--local--demo"}, "spec": {"shoot": shoot}})
    task = ShootTask(
        shoot=ShootRef(namespace=NAMESPACE, name="demo", uid="u-1"),
        technical_id="shoot--local--demo",
        seed="seed-1",
        generation=1,
        operation=OperationType.RECONCILE,
    )
    async with garden.client() as client:
        return await read_logins(SimpleNamespace(garden=client), task, view, [])  # type: ignore[arg-type]


@pytest.mark.attack(actor="T1", asset="A2", finding=25)
@pytest.mark.parametrize(
    "authorizers",
    [
        [{"type": "AlwaysAllow", "name": "all"}],
        [{"type": "Webhook", "name": "rbac", "webhook": AUTHORIZATION["authorizers"][0]["webhook"]}],
        [with_(AUTHORIZATION, "authorizers/0/webhook/connectionInfo", {"type": "InClusterConfig"})["authorizers"][0]],
    ],
)
async def test_a_tenants_authorizer_does_not_take_the_place_of_rbac(
    garden: ApiServer, authorizers: list[dict[str, Any]]
) -> None:
    garden.put("/api/v1/configmaps", config_map("webhooks", AUTHORIZATION | {"authorizers": authorizers}))
    with pytest.raises(ApplicationError) as refused:
        await read(garden)
    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


def test_a_tenants_authorizer_comes_after_node_and_rbac() -> None:
    config, _ = logins.parse_authorization(json.dumps(AUTHORIZATION), 37)
    assert config is not None
    webhook = AuthorizationWebhook(logins.wire(config.authorizers[0]), KUBECONFIG)
    made = objects(server(webhooks=[webhook]))
    files = next(each for each in made if each["metadata"]["name"] == "kube-apiserver-authorization")["data"]
    found = json.loads(base64.b64decode(files["authorization-config.yaml"]))["authorizers"]
    assert [each["type"] for each in found] == ["Node", "RBAC", "Webhook"]


@pytest.mark.attack(actor="T1", asset="A2", finding=25)
async def test_a_webhooks_kubeconfig_runs_no_program_in_the_control_plane(garden: ApiServer) -> None:
    """The flow refuses it, too: the Secret may be older than admission's rule. Its content is in no error."""
    garden.put("/api/v1/configmaps", WEBHOOKS)
    garden.put("/api/v1/secrets", secret("webhook", {**PROGRAM, "preferences": {"a": "SENTINEL"}}))
    with pytest.raises(ApplicationError, match="runs a program in the control plane") as refused:
        await read(garden)
    assert "SENTINEL" not in str(refused.value)
    assert resources.SECRET.kind in str(refused.value)
