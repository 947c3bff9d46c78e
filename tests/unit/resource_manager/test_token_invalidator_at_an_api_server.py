"""Static tokens at a real API server and kube-controller-manager: which of them stop being accepted."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from activities.components import resource_manager_webhooks as registration
from api.resources import SECRET, SERVICE_ACCOUNT, TOKEN_REVIEW
from kube.cache import Caches
from kube.client import KubeClient
from tests.api_servers import API_SERVER, free_port, process
from tests.gardens import ADMIN, controllers
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.webhook_cluster import Cluster, Object
from workers.resource_manager.config import ResourceManagerConfig
from workers.resource_manager.token_invalidator import INVALID, TokenInvalidator

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]
ENABLED = {"tokenInvalidator": {"enabled": True}}
SKIP = {"token-invalidator.resources.gardener.cloud/skip": "true"}


@contextlib.asynccontextmanager
async def tokens(cluster: Cluster) -> AsyncIterator[None]:
    """Run the controller of Kubernetes that generates static tokens."""
    directory = cluster.server.directory
    (directory / "admin.kubeconfig").write_text(json.dumps(cluster.server.kubeconfig(ADMIN)))
    flags = (
        *(
            "--kubeconfig",
            "admin.kubeconfig",
            "--leader-elect=false",
            "--controllers",
            "serviceaccount-token-controller",
        ),
        *("--authentication-kubeconfig", "admin.kubeconfig", "--authorization-kubeconfig", "admin.kubeconfig"),
        *("--service-account-private-key-file", "sa.key", "--bind-address", "127.0.0.1", "--cert-dir", "certs"),
        *("--secure-port", str(free_port())),
    )
    async with process(directory, str(API_SERVER.with_name("kube-controller-manager")), *flags):
        yield


@contextlib.asynccontextmanager
async def invalidator(cluster: Cluster) -> AsyncIterator[None]:
    """Run controller and webhook of the resource manager."""
    cluster.show(cluster.authority)

    def run(client: KubeClient, caches: Caches) -> Awaitable[None]:
        return TokenInvalidator(client, caches, [None]).run()

    async with cluster.webhooks(ENABLED, {"tls": {"serverCertDir": str(cluster.directory)}}, ENABLED):
        await cluster.register(cluster.authority, names=(registration.TOKEN_INVALIDATOR,))
        async with controllers(cluster.admin, run):
            yield


async def account(cluster: Cluster, name: str, **fields: Any) -> None:
    """Create a ServiceAccount, and a Secret of the same name for its static token."""
    metadata: Object = {"name": name, "namespace": "default"}
    labels = fields.pop("labels", {})
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata, "labels": labels}, **fields}
    await cluster.admin.create(made)
    annotated = {**metadata, "annotations": {"kubernetes.io/service-account.name": name}}
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"}
    await cluster.admin.create({**kind, "metadata": annotated})


async def token(cluster: Cluster, name: str) -> str:
    found: str = ((await cluster.admin.get(SECRET, name, "default")).get("data") or {}).get("token", "")
    return found


async def accepts(cluster: Cluster, encoded: str) -> bool:
    """Whether the API server accepts a token."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    spec = {"token": base64.b64decode(encoded).decode()}
    review = await cluster.admin.request("POST", TOKEN_REVIEW.path(), body={**body, "spec": spec})
    return bool(review["status"].get("authenticated"))


async def works(cluster: Cluster, name: str) -> bool:
    found = await token(cluster, name)
    return found not in ("", INVALID) and await accepts(cluster, found)


async def is_invalid(cluster: Cluster, name: str) -> bool:
    return await token(cluster, name) == INVALID


@pytest.mark.row("token invalidator", "tokens of ServiceAccounts with automount false become AAAA; others work")
@pytest.mark.row("token invalidator", "a token that is generated again becomes invalid again")
async def test_static_tokens_of_accounts_that_mount_none_are_invalid(cluster: Cluster) -> None:
    async with tokens(cluster):
        await account(cluster, "before", automountServiceAccountToken=False)
        await until(lambda: works(cluster, "before"), 30)
        async with invalidator(cluster):
            await account(cluster, "after", automountServiceAccountToken=False)
            await account(cluster, "mounted")
            await account(cluster, "skipped", automountServiceAccountToken=False, labels=SKIP)
            for name in ("before", "after"):
                await until(partial(is_invalid, cluster, name), 30)
            for name in ("mounted", "skipped"):
                await until(partial(works, cluster, name), 30)

            await cluster.admin.patch(SECRET, "before", "default", {"data": {"token": None}})
            await until(lambda: is_invalid(cluster, "before"), 30)
            forged = base64.b64encode(b"another").decode()
            await cluster.admin.patch(SECRET, "before", "default", {"data": {"token": forged}})
            assert await is_invalid(cluster, "before")


@pytest.mark.row(
    "token invalidator", "label skip or automount true on the account: a new token that works is generated"
)
async def test_a_token_works_again_when_the_account_opts_out(cluster: Cluster) -> None:
    changes: dict[str, Object] = {
        "opts-out": {"metadata": {"labels": SKIP}},
        "mounts": {"automountServiceAccountToken": True},
    }
    async with tokens(cluster), invalidator(cluster):
        for name in changes:
            await account(cluster, name, automountServiceAccountToken=False)
            await until(partial(is_invalid, cluster, name), 30)
        for name, change in changes.items():
            await cluster.admin.patch(SERVICE_ACCOUNT, name, "default", change)
            await until(partial(works, cluster, name), 30)


@pytest.mark.row("token invalidator", "controller and webhook are enabled together; the gardenlet enables neither")
def test_controller_and_webhook_are_enabled_together() -> None:
    """A label alone changes no token, and a webhook alone is asked about no Secret."""
    tls = {"server": {"webhooks": {"tls": {"serverCertDir": "d"}}}}
    for part in ("controllers", "webhooks"):
        with pytest.raises(ValidationError, match="in both controllers and webhooks"):
            ResourceManagerConfig.model_validate({**tls, part: ENABLED})
    read = ResourceManagerConfig.model_validate(
        {**tls, "controllers": {"tokenValidator": {"enabled": True}}, "webhooks": ENABLED}
    )
    assert read.controllers.token_invalidator.enabled
    assert ResourceManagerConfig().controllers.token_invalidator.enabled is False
