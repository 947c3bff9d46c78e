"""A real API server that asks the authenticator about bearer tokens, with OpenIDConnects in that API server."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from activities.secrets.crypto import TEN_YEARS, KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed
from api import resources
from api.authentication.v1alpha1.openid_connect import OpenIDConnect
from api.crds import crd
from kube.client import load_certificate
from kube.errors import ApiError
from tests import oidc
from tests.api_servers import free_port
from tests.unit.components.test_logins import Cluster, authentication
from tests.unit.components.test_logins import token as cluster_token
from tests.unit.kube.waiting import until
from tests.unit.oidc_service.conftest import connect, token
from workers.oidc_service import authenticator, manifests, provider_keys
from workers.oidc_service.provider_keys import ProviderKeys

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(300, func_only=True),
]


class Authenticator:
    """The process of a shoot, with files as the extension makes them."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.port = free_port()
        options: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": TEN_YEARS}
        self.authority = self_signed_ca("extension-shoot-oidc-service", **options)
        self.server = signed(
            "a", ca=self.authority, usage=Usage.SERVER, dns_names=["localhost"], ip_addresses=["127.0.0.1"], **options
        )
        self.api_server = signed("kube-apiserver", ca=self.authority, usage=Usage.CLIENT, **options)
        self._monkeypatch = monkeypatch
        for name, content in (
            ("ca.crt", self.authority.certificate),
            ("tls.crt", self.server.certificate),
            ("tls.key", self.server.key),
        ):
            (directory / name).write_bytes(content)

    def kubeconfig(self) -> str:
        """The kubeconfig of the extension, with the address of this process."""
        pair = self.api_server
        parts = (base64.b64encode(each).decode() for each in (self.authority.certificate, pair.certificate, pair.key))
        made = manifests.webhook("shoot--local--demo", *parts)
        text = base64.b64decode(made["data"]["kubeconfig"]).decode()
        return text.replace("https://oidc-webhook-authenticator/", f"https://127.0.0.1:{self.port}/")

    @contextlib.asynccontextmanager
    async def running(self, cluster: Cluster) -> AsyncIterator[None]:
        """Like ``authenticator.run`` in a pod; the issuers are on this machine, where no tenant's issuer may be."""
        kubeconfig = self.directory / "kubeconfig.yaml"
        kubeconfig.write_text(yaml.safe_dump(cluster.kubeconfig("token-of-the-test")))
        files = {
            "certificateFile": str(self.directory / "tls.crt"),
            "privateKeyFile": str(self.directory / "tls.key"),
            "clientCaFile": str(self.directory / "ca.crt"),
        }
        config = {
            "targetClientConnection": {"kubeconfig": str(kubeconfig)},
            "server": {"address": "127.0.0.1", "port": self.port, **files},
        }
        file = self.directory / "config.yaml"
        file.write_text(json.dumps(config))
        self._monkeypatch.setattr(
            authenticator, "ProviderKeys", lambda blocked: ProviderKeys(blocked, check_addresses=False)
        )
        running = asyncio.create_task(authenticator.run(str(file)))
        try:
            await until(lambda: self.answers(), 30)
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def answers(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            return (await self.ask("a", self.api_server))["authenticated"] is False
        return False

    async def ask(self, token: str, pair: KeyPair | None) -> Any:
        """Status of a TokenReview, as a client with this certificate gets it."""
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        if pair is not None:
            load_certificate(context, pair.certificate, pair.key)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.post(f"https://127.0.0.1:{self.port}/validate-token", json=body) as answer,
        ):
            return (await answer.json())["status"]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authenticator:
    (tmp_path / "authenticator").mkdir()
    return Authenticator(tmp_path / "authenticator", monkeypatch)


async def test_users_log_in_by_both_ways_also_after_the_issuer_has_new_keys(
    tmp_path: Path, issuer: oidc.Issuer, process: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One issuer is in the API server's configuration, the other one in an OpenIDConnect."""
    monkeypatch.setattr(provider_keys, "PAUSE_SECONDS", 0.0)
    (tmp_path / "second").mkdir()
    with oidc.issuer(tmp_path / "second") as second:
        settings = {"authentication": authentication(second, prefix="second:"), "token_webhook": process.kubeconfig()}
        async with Cluster(tmp_path).running(**settings) as cluster, cluster.client("token-of-the-test") as admin:
            await admin.create(crd(OpenIDConnect))
            await until(lambda: _served(admin), 30)
            assert await cluster.name(token(issuer, "ann")) is None, "the authenticator is not there yet"
            async with process.running(cluster):
                await admin.create(connect(issuer).to_wire())
                await until(lambda: _is(cluster, token(issuer, "ann"), "company/ann"), 60)
                user = await cluster.user(token(issuer, "bob", "developers"))
                assert user is not None
                assert user["groups"] == ["company/developers", "system:authenticated"]
                assert user["extra"]["gardener.cloud/authenticator/name"] == ["company"]
                assert user["extra"]["gardener.cloud/authenticator/uid"]
                assert await cluster.name(cluster_token(second, "cyd")) == "second:cyd"

                issuer.rotate()
                second.rotate()
                assert await cluster.name(token(issuer, "dan")) == "company/dan"
                assert await cluster.name(cluster_token(second, "dan")) == "second:dan"

                await admin.delete(resources.OPENID_CONNECT, "company")
                await until(lambda: _is(cluster, token(issuer, "eve"), None), 60)


async def _served(admin: Any) -> bool:
    with contextlib.suppress(ApiError):
        await admin.list(resources.OPENID_CONNECT)
        return True
    return False


async def _is(cluster: Cluster, token: str, name: str | None) -> bool:
    return await cluster.name(token) == name
