"""A kubeconfig from the subresource server at the API server of its Shoot: a real one, with the Shoot's own roles."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.components import shoot_system
from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, Usage
from api import resources
from kube.client import KubeClient
from kube.errors import Forbidden, NotFound, Unauthorized
from tests.garden_api_server import ALICE, NAMESPACE, ROBOT, VICTOR, Garden, api_server, garden_of
from tests.gardens import ApiServer
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

ENCRYPTED = ("configmaps", "deployments.apps")


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
async def garden(server: ApiServer, tmp_path: Path) -> AsyncIterator[Garden]:
    """The Shoot's API server is the garden's. Its roles are those of a Shoot that encrypts two kinds."""
    async with garden_of(server, tmp_path) as made:
        await made.shoot(advertisedAddresses=[{"name": "external", "url": server.url}])
        await made.authorities(authority=server.client_authority, bundle=server.bundle)
        for each in shoot_system.objects(workers=False, encrypted=ENCRYPTED):
            await made.admin.apply(each, manager="test")
        yield made


@asynccontextmanager
async def shoot_of(garden: Garden, user: str, subresource: str) -> AsyncIterator[KubeClient]:
    answer = await garden.ask(user, subresource)
    assert answer.status == 201, answer.content
    async with KubeClient.from_kubeconfig(answer.kubeconfig) as client:
        yield client


async def name_and_groups(client: KubeClient) -> tuple[str, set[str]]:
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=kind)
    info: dict[str, Any] = answer["status"]["userInfo"]
    return info["username"], set(info["groups"])


@pytest.mark.parametrize("user", [ALICE, ROBOT])
async def test_the_api_server_reads_name_and_group_of_an_admin(garden: Garden, user: str) -> None:
    """The name of a service account has more characters than X.520 allows in a common name."""
    async with shoot_of(garden, user, "adminkubeconfig") as client:
        assert await name_and_groups(client) == (
            f"gardener.cloud:admin:{user}",
            {"gardener.cloud:project:admins", "system:authenticated"},
        )
        await until(lambda: client.find(resources.NAMESPACE, "kube-system"))
        await client.list(resources.SECRET, "kube-system")


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_viewer_of_a_shoot_writes_nothing_and_reads_no_secret(garden: Garden) -> None:
    async with shoot_of(garden, VICTOR, "viewerkubeconfig") as client:
        await until(lambda: _may_list(client, resources.POD))
        assert await _may_list(client, resources.SERVICE)
        assert await _may_list(client, resources.STATEFUL_SET)
        for hidden in (resources.SECRET, resources.CONFIG_MAP, resources.DEPLOYMENT):
            assert not await _may_list(client, hidden), hidden.plural
        with pytest.raises(Forbidden):
            await client.delete(resources.NAMESPACE, NAMESPACE)
        with pytest.raises(Forbidden):
            await client.request("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", body={})


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_viewer_of_a_shoot_reads_no_logs_of_a_node(garden: Garden) -> None:
    """The same right runs commands in all pods of the node, because a kubelet takes them by GET, too."""
    path, query = "/api/v1/nodes/no-such-node/proxy/logs/", {"query": "kubelet"}
    async with shoot_of(garden, VICTOR, "viewerkubeconfig") as client:
        await until(lambda: _may_list(client, resources.POD))
        with pytest.raises(Forbidden):
            await client.request("GET", path, query=query)
    async with shoot_of(garden, ALICE, "adminkubeconfig") as client:
        await until(lambda: client.find(resources.NAMESPACE, "kube-system"))
        with pytest.raises(NotFound):
            await client.request("GET", path, query=query)


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_an_expired_kubeconfig_is_refused_by_the_shoot(garden: Garden, server: ApiServer) -> None:
    answer = await garden.ask(ALICE)
    expired = crypto.signed(
        "gardener.cloud:admin:alice",
        ca=server.client_authority,
        usage=Usage.CLIENT,
        algorithm=KeyAlgorithm.P256,
        now=datetime.now(UTC) - timedelta(hours=2),
        validity=timedelta(hours=1),
        organizations=["gardener.cloud:system:admins"],
    )
    config = answer.kubeconfig
    config["users"][0]["user"] = {
        "client-certificate-data": base64.b64encode(expired.certificate).decode(),
        "client-key-data": base64.b64encode(expired.key).decode(),
    }

    async with KubeClient.from_kubeconfig(config) as client:
        with pytest.raises(Unauthorized):
            await client.list(resources.POD)


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_kubeconfig_of_one_shoot_is_refused_by_another(garden: Garden, server: ApiServer) -> None:
    await garden.shoot("other", advertisedAddresses=[{"name": "external", "url": server.url}])
    await garden.authorities("other", bundle=server.bundle)

    answer = await garden.ask(ALICE, shoot=f"{NAMESPACE}/other")

    async with KubeClient.from_kubeconfig(answer.kubeconfig) as client:
        with pytest.raises(Unauthorized):
            await client.list(resources.POD)


async def _may_list(client: KubeClient, resource: resources.Resource) -> bool:
    try:
        await client.list(resource, "kube-system")
    except Forbidden:
        return False
    return True
