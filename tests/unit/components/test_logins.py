"""A real API server with the files that the component makes: issuers, webhooks and kubeconfigs of an owner.

The files are replaced as a kubelet replaces those of a ConfigMap or Secret: it renames a link in the directory, then
removes the old files.
"""

import base64
import contextlib
import json
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from activities.components import alerts, apiserver
from activities.components.apiserver import AuthorizationWebhook
from api import resources
from api.validation import logins
from api.validation.expressions import check_authentication_expressions
from kube.client import KubeClient
from kube.errors import ApiError, Forbidden, Unauthorized
from landscape.pki import Authority
from tests import api_servers, oidc
from tests.api_servers import free_port, process
from tests.unit.api.test_expressions import ACCEPTED, CLAIM_RULES, CONDITIONS, USER_RULES
from tests.unit.api.test_logins import KUBECONFIG, WEBHOOK
from tests.unit.components.test_apiserver import deployment, flags, server
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(300, func_only=True),
]

AUDIENCE = "cluster"
RELOAD_SECONDS = 90
"""The API server sees a changed file when the kubelet removes the old one, and reads it once a minute in any case."""


class Files:
    """Files of mounted ConfigMaps and Secrets below a directory in place of ``/etc/kubernetes``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._revision = 0

    def mount(self, made: list[dict[str, Any]]) -> None:
        """Write the volumes of the Deployment, except for certificates and keys."""
        for volume in deployment(made)["spec"]["template"]["spec"]["volumes"]:
            kind, name = (
                ("ConfigMap", volume["configMap"]["name"])
                if "configMap" in volume
                else ("Secret", volume["secret"]["secretName"])
            )
            found = [each for each in made if (each["kind"], each["metadata"]["name"]) == (kind, name)]
            if found:
                self._write(self.directory / volume["name"], _content(found[0]))

    def _write(self, at: Path, files: Mapping[str, str]) -> None:
        at.mkdir(exist_ok=True)
        old = at / os.readlink(at / "..data") if (at / "..data").is_symlink() else None
        self._revision += 1
        version = at / f"..{self._revision}"
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(text.replace("/etc/kubernetes", str(self.directory)))
            if not (at / name).is_symlink():
                (at / name).symlink_to(Path("..data") / name)
        (at / "..next").symlink_to(version.name)
        (at / "..next").rename(at / "..data")
        if old is not None:
            shutil.rmtree(old)


def _content(obj: Mapping[str, Any]) -> dict[str, str]:
    data: dict[str, str] = obj["data"]
    if obj["kind"] == "ConfigMap":
        return data
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


class Cluster:
    """An etcd and an API server whose files of logins are those of the component."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = Files(directory / "kubernetes")
        self.files.directory.mkdir()
        self.port = free_port()
        self.pid = 0

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator["Cluster"]:
        made = apiserver.objects(server(**settings))
        self.files.mount(made)
        wanted = flags(made)
        own = {
            name: wanted[name].replace("/etc/kubernetes", str(self.files.directory))
            for name in wanted
            if name.startswith(("authentication-", "authorization-", "admission-control-", "enable-admission-"))
        }
        tokens = "token-of-the-test,admin,1,system:masters\n"
        own_flags = (f"--{name}={value}" for name, value in own.items())
        commands = api_servers.commands(self.directory, self.port, tokens, "--v", "2", *own_flags)
        started = (process(self.directory, *each) for each in commands)
        async with next(started), next(started), self.client("token-of-the-test") as admin:
            await api_servers.ready(admin)
            self.pid = _pid(self.port)
            yield self
            assert _pid(self.port) == self.pid

    def change(self, **settings: Any) -> None:
        """Apply other settings, as the kubelet does with a changed ConfigMap and Secret. The pod must stay."""
        self.files.mount(apiserver.objects(server(**settings)))

    def client(self, token: str) -> KubeClient:
        return api_servers.client(self.port, token)

    def kubeconfig(self, token: str) -> dict[str, Any]:
        return api_servers.kubeconfig(self.port, token)

    async def user(self, token: str) -> dict[str, Any] | None:
        """The user that the API server sees in a token; None if it refuses the token."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        async with self.client(token) as client:
            try:
                found = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
            except Unauthorized:
                return None
        user: dict[str, Any] = found["status"]["userInfo"]
        return user

    async def name(self, token: str) -> str | None:
        user = await self.user(token)
        return user["username"] if user else None

    @property
    def log(self) -> str:
        return (self.directory / "kube-apiserver.log").read_text()


def _pid(port: int) -> int:
    """The process that has this port as an argument."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if command[0].endswith(b"kube-apiserver") and str(port).encode() in command:
                    return int(entry.name)
    raise AssertionError(f"no API server has port {port}")


def authentication(*issuers: oidc.Issuer, prefix: str = "", anonymous: Any = None) -> dict[str, Any]:
    """Content of an owner's ConfigMap, as ``activities.seed.logins`` reads it."""
    content = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [
            {
                "issuer": {"url": each.url, "audiences": [AUDIENCE], "certificateAuthority": each.ca_file.read_text()},
                "claimMappings": {
                    "username": {"claim": "sub", "prefix": prefix},
                    "groups": {"claim": "groups", "prefix": prefix},
                },
            }
            for each in issuers
        ],
    } | ({"anonymous": anonymous} if anonymous else {})
    config, faults = logins.parse_authentication(json.dumps(content), 37)
    assert config is not None, str(faults)
    return logins.wire(config)


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[oidc.Issuer]:
    (tmp_path / "issuer").mkdir()
    with oidc.issuer(tmp_path / "issuer") as running:
        yield running


@pytest.fixture
def other(tmp_path: Path) -> Iterator[oidc.Issuer]:
    (tmp_path / "other").mkdir()
    with oidc.issuer(tmp_path / "other") as running:
        yield running


def token(issuer: oidc.Issuer, name: str, *groups: str, **claims: Any) -> str:
    return issuer.token(name, *groups, **{"aud": AUDIENCE, **claims})


async def test_a_new_issuer_and_its_new_keys_work_in_the_same_process(
    tmp_path: Path, issuer: oidc.Issuer, other: oidc.Issuer
) -> None:
    async with Cluster(tmp_path).running() as cluster:
        assert await cluster.name(token(issuer, "ann")) is None

        cluster.change(authentication=authentication(issuer, prefix="idp:"))
        await until(lambda: _is(cluster, token(issuer, "ann"), "idp:ann"), RELOAD_SECONDS)
        assert await cluster.name(token(other, "ann")) is None

        old = token(issuer, "ann", "developers")
        assert await cluster.name(old) == "idp:ann"
        issuer.rotate()
        await until(lambda: _is(cluster, token(issuer, "bob"), "idp:bob"), RELOAD_SECONDS)
        # The API server keeps a verified token for seconds. After that the withdrawn key no longer counts.
        await until(lambda: _is(cluster, old, None), RELOAD_SECONDS)

        cluster.change(authentication=authentication(other))
        await until(lambda: _is(cluster, token(other, "cyd"), "cyd"), RELOAD_SECONDS)
        await until(lambda: _is(cluster, token(issuer, "eve"), None), RELOAD_SECONDS)


async def _is(cluster: Cluster, token: str, name: str | None) -> bool:
    return await cluster.name(token) == name


async def test_an_expression_that_the_api_server_refuses_shows_in_the_metric_of_the_alert(
    tmp_path: Path, issuer: oidc.Issuer
) -> None:
    """Admission does not read literals. The API server keeps the issuers that it has, and says so in its log only."""
    before = authentication(issuer)
    rule = {"expression": "claims.sub.matches('[')"}
    after = {**before, "jwt": [{**before["jwt"][0], "claimValidationRules": [rule]}]}
    admitted, _ = logins.parse_authentication(json.dumps(after), 37)
    assert admitted is not None
    assert not check_authentication_expressions(admitted, 37)
    metric = "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds{"
    async with (
        Cluster(tmp_path).running(authentication=before) as cluster,
        cluster.client("token-of-the-test") as admin,
    ):
        cluster.change(authentication=after)
        await until(lambda: _shows(admin, metric, 'status="failure"'), RELOAD_SECONDS)
        assert await cluster.name(token(issuer, "ann")) == "ann"

        cluster.change(authentication=before)
        await until(lambda: _shows(admin, metric, 'status="success"'), RELOAD_SECONDS)
    assert metric[:-1] in json.dumps(alerts.rules(workers=False, vpn_servers=()))


async def test_an_api_server_compiles_the_expressions_that_admission_accepts(
    tmp_path: Path, issuer: oidc.Issuer
) -> None:
    found = [(path, each) for path, value in ACCEPTED for each in (value if isinstance(value, list) else [value])]
    own = authentication(issuer)
    jwt = {
        **own["jwt"][0],
        "claimValidationRules": [each for path, each in found if path == CLAIM_RULES],
        "userValidationRules": [each for path, each in found if path == USER_RULES],
    }
    mapped = [each.get("expression") or each["valueExpression"] for path, each in found if "claimMappings" in path]
    extra = [{"key": f"example.org/{index}", "valueExpression": each} for index, each in enumerate(mapped)]
    jwt["claimMappings"] = {**jwt["claimMappings"], "extra": extra}
    conditions = [each for path, each in found if path == CONDITIONS]
    assert len(mapped) + len(conditions) + len(jwt["claimValidationRules"]) + len(jwt["userValidationRules"]) == len(
        found
    )
    webhook = {
        "type": "Webhook",
        "name": "mine",
        "webhook": {**WEBHOOK, "matchConditionSubjectAccessReviewVersion": "v1", "matchConditions": conditions},
    }
    settings: dict[str, Any] = {
        "authentication": {**own, "jwt": [jwt]},
        "webhooks": [AuthorizationWebhook(webhook, KUBECONFIG)],
    }
    async with Cluster(tmp_path).running(**settings) as cluster:
        assert await cluster.name("token-of-the-test") == "admin"


async def _shows(admin: KubeClient, *parts: str) -> bool:
    text = str(await admin.request("GET", "/metrics"))
    return any(all(part in line for part in parts) for line in text.splitlines())


async def test_an_issuer_names_neither_users_nor_groups_of_the_system(tmp_path: Path, issuer: oidc.Issuer) -> None:
    """The owner maps names and groups without a prefix."""
    async with Cluster(tmp_path).running(authentication=authentication(issuer)) as cluster:
        user = await cluster.user(token(issuer, "ann", "developers"))
        assert user is not None
        assert (user["username"], user["groups"]) == ("ann", ["developers", "system:authenticated"])

        assert await cluster.user(token(issuer, "system:kube-controller-manager")) is None
        assert await cluster.user(token(issuer, "ann", "developers", "system:masters")) is None


async def test_anonymous_clients_read_health_and_what_the_owner_adds(tmp_path: Path) -> None:
    anonymous = {"enabled": True, "conditions": [{"path": "/version"}]}
    files = authentication(anonymous=anonymous)
    async with Cluster(tmp_path).running(authentication=files) as cluster, cluster.client("") as visitor:
        assert (await visitor.request("GET", "/version"))["major"] == "1"
        assert await visitor.request("GET", "/livez") == "ok"
        with pytest.raises(Unauthorized):
            await visitor.request("GET", "/api")


class Webhook:
    """An owner's authorizer: it allows what ``allowed`` says."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[str] = []
        self.allowed: set[str] = set()
        self.authority = Authority(directory, "webhook-ca")
        self._pair = self.authority.issue("webhook", "webhook", names=["127.0.0.1"])
        self.url = f"https://127.0.0.1:{free_port()}"
        self.bearer: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Webhook"]:
        async def answer(request: web.Request) -> web.Response:
            body = await request.json()
            spec = body["spec"]
            user = spec["user"] if "user" in spec else spec["containers"][0]["image"]
            self.asked.append(user)
            self.bearer.append(request.headers.get("Authorization", ""))
            return web.json_response({**body, "status": {"allowed": user in self.allowed}})

        app = web.Application()
        app.router.add_post("/", answer)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self._pair.certificate, self._pair.key)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(self.url.rpartition(":")[2]), ssl_context=tls).start()
        try:
            yield self
        finally:
            await runner.cleanup()

    def kubeconfig(self, bearer: str) -> dict[str, Any]:
        ca = base64.b64encode(self.authority.pem.encode()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "w", "cluster": {"server": f"{self.url}/", "certificate-authority-data": ca}}],
            "users": [{"name": "w", "user": {"token": bearer}}],
            "contexts": [{"name": "w", "context": {"cluster": "w", "user": "w"}}],
            "current-context": "w",
        }

    def authorizer(self, bearer: str) -> AuthorizationWebhook:
        webhook = {
            "authorizedTTL": "1s",
            "unauthorizedTTL": "1s",
            "timeout": "5s",
            "subjectAccessReviewVersion": "v1",
            "failurePolicy": "Deny",
        }
        content = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthorizationConfiguration",
            "authorizers": [{"type": "Webhook", "name": "mine", "webhook": webhook}],
        }
        config, _ = logins.parse_authorization(json.dumps(content), 37)
        assert config is not None
        assert not logins.check_authorization(config, minor=37, kubeconfigs=["mine"])
        return AuthorizationWebhook(logins.wire(config.authorizers[0]), self.kubeconfig(bearer))


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[Webhook]:
    (tmp_path / "webhook").mkdir()
    async with Webhook(tmp_path / "webhook").running() as running:
        yield running


async def test_a_new_authorizer_is_asked_after_rbac_in_the_same_process(
    tmp_path: Path, issuer: oidc.Issuer, webhook: Webhook
) -> None:
    webhook.allowed.add("ann")
    files = authentication(issuer)
    async with Cluster(tmp_path).running(authentication=files) as cluster:
        assert not await lists(cluster, token(issuer, "ann"))
        assert webhook.asked == []

        cluster.change(authentication=files, webhooks=[webhook.authorizer("first")])
        await until(lambda: lists(cluster, token(issuer, "ann")), RELOAD_SECONDS)
        assert not await lists(cluster, token(issuer, "bob"))
        assert await lists(cluster, "token-of-the-test")
        assert "admin" not in webhook.asked, "a user that is allowed in any case"
        assert {"system:apiserver"} & set(webhook.asked) == set()
        assert set(webhook.bearer) == {"Bearer first"}

        cluster.change(authentication=files, webhooks=[webhook.authorizer("second")])
        await until(lambda: _uses(cluster, webhook, token(issuer, "ann"), "Bearer second"), RELOAD_SECONDS)

        cluster.change(authentication=files)
        await until(lambda: _refused(cluster, token(issuer, "ann")), RELOAD_SECONDS)


async def _uses(cluster: Cluster, webhook: Webhook, token: str, bearer: str) -> bool:
    await lists(cluster, token)
    return webhook.bearer[-1] == bearer


async def _refused(cluster: Cluster, token: str) -> bool:
    return not await lists(cluster, token)


async def lists(cluster: Cluster, token: str) -> bool:
    """Whether a user may list Secrets."""
    async with cluster.client(token) as client:
        try:
            await client.list(resources.SECRET, "default")
        except Forbidden:
            return False
    return True


async def test_the_kubeconfig_of_an_admission_plugin_is_used(tmp_path: Path, webhook: Webhook) -> None:
    """ImagePolicyWebhook lets in what the owner's webhook allows."""
    limits = {"allowTTL": 50, "denyTTL": 50, "retryBackoff": 500, "defaultAllow": False}
    plugin = {"name": "ImagePolicyWebhook", "kubeconfigSecretName": "images", "config": {"imagePolicy": limits}}
    settings = {
        "settings": {"admissionPlugins": [plugin]},
        "plugin_kubeconfigs": {"ImagePolicyWebhook": webhook.kubeconfig("images")},
    }
    webhook.allowed.add("good:1")
    async with Cluster(tmp_path).running(**settings) as cluster, cluster.client("token-of-the-test") as admin:
        await until(lambda: _creates(admin, account()), 30)
        assert await _creates(admin, pod("good:1"))
        assert not await _creates(admin, pod("bad:1"))
        assert set(webhook.bearer) == {"Bearer images"}


def account() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}}


def pod(image: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": image.partition(":")[0], "namespace": "default"},
        "spec": {"automountServiceAccountToken": False, "containers": [{"name": "a", "image": image}]},
    }


async def _creates(admin: KubeClient, obj: dict[str, Any]) -> bool:
    try:
        await admin.create(obj)
    except ApiError:
        return False
    return True
