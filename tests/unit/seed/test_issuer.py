"""The issuer of a shoot's service account tokens, and its documents that are published in the garden."""

import base64
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.seed.issuer import Issuer, IssuerActivities, issuer_of
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.seed.test_references import NAMESPACE, SECRETS, TASK

OWN = "https://api.demo.local.internal.example.org"
MANAGED = "https://issuer.example.org:8445/projects/local/shoots/uid/issuer"
PUBLISHED = "gardener-system-shoot-issuer"
ROLE = {"gardener.cloud/role": "shoot-service-account-issuer"}


class Shoot:
    """API server of a shoot, with its documents about tokens."""

    def __init__(self) -> None:
        self.keys = ["1"]

    async def request(self, method: str, path: str, accept: str = "application/json") -> dict[str, Any]:
        assert method == "GET"
        if path == "/.well-known/openid-configuration":
            return {"issuer": MANAGED, "jwks_uri": f"{MANAGED}/jwks"}
        assert (path, accept) == ("/openid/v1/jwks", "application/jwk-set+json")
        return {"keys": [{"kid": each} for each in self.keys]}


class World:
    def __init__(self, garden: ApiServer, clusters: Any, shoot: Shoot) -> None:
        self.garden, self.clusters, self.shoot = garden, clusters, shoot
        self.activities = IssuerActivities(clusters)

    def name(self, host: str, name: str = "issuer") -> None:
        data = {"hostname": base64.b64encode(host.encode()).decode()}
        self.garden.put(SECRETS, {"metadata": {"name": name, "namespace": "garden", "labels": ROLE}, "data": data})

    def published(self) -> dict[str, Any] | None:
        secret = self.garden.find(SECRETS, "local--uid", PUBLISHED)
        return secret and {key: json.loads(base64.b64decode(value)) for key, value in secret["data"].items()}


def view(annotation: str = "", **server: Any) -> ClusterView:
    annotations = {"authentication.gardener.cloud/issuer": annotation} if annotation else {}
    shoot = {
        "metadata": {"name": "demo", "uid": "uid", "annotations": annotations},
        "spec": {"kubernetes": {"kubeAPIServer": server}},
    }
    seed = {"spec": {"dns": {"internal": {"domain": "internal.example.org"}}}}
    return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot, "seed": seed}})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GardenServer().running() as garden, garden.client() as client:
        shoot = Shoot()

        async def shoot_client(_: str) -> Shoot:
            return shoot

        yield World(garden, SimpleNamespace(garden=client, shoot=shoot_client), shoot)


async def test_the_issuer_is_the_api_server_or_the_one_in_the_spec(world: World) -> None:
    assert await issuer_of(world.clusters, view()) == Issuer(OWN)
    mine = {"issuer": "https://me.example.org"}
    assert await issuer_of(world.clusters, view(serviceAccountConfig=mine)) == Issuer("https://me.example.org")


async def test_managed_they_are_from_the_gardens_host(world: World) -> None:
    world.name("issuer.example.org:8445")
    assert await issuer_of(world.clusters, view("managed")) == Issuer(MANAGED, f"{MANAGED}/jwks")


@pytest.mark.parametrize("hosts", [(), ("a.example.org", "b.example.org")])
async def test_a_garden_without_exactly_one_issuer_host_is_reported_to_operators(
    world: World, hosts: tuple[str, ...]
) -> None:
    for number, host in enumerate(hosts):
        world.name(host, f"issuer-{number}")
    with pytest.raises(ApplicationError, match=f"has {len(hosts)} Secrets .* there must be one") as raised:
        await issuer_of(world.clusters, view("managed"))
    assert not raised.value.non_retryable


async def test_published_documents_follow_the_keys_and_a_second_run_writes_nothing(world: World) -> None:
    await world.activities.sync_public_sa_keys(TASK)
    assert world.published() == {
        "openid-config": {"issuer": MANAGED, "jwks_uri": f"{MANAGED}/jwks"},
        "jwks": {"keys": [{"kid": "1"}]},
    }
    secret = world.garden.find(SECRETS, "local--uid", PUBLISHED)
    assert secret is not None
    assert secret["metadata"]["labels"] == {
        "authentication.gardener.cloud/public-keys": "serviceaccount",
        "project.gardener.cloud/name": "local",
        "shoot.gardener.cloud/name": "demo",
        "shoot.gardener.cloud/namespace": "garden-local",
    }
    world.garden.requests.clear()
    await world.activities.sync_public_sa_keys(TASK)
    assert [method for method, _ in world.garden.requests if method != "GET"] == []

    world.shoot.keys = ["1", "2"]
    await world.activities.sync_public_sa_keys(TASK)
    assert (world.published() or {})["jwks"] == {"keys": [{"kid": "1"}, {"kid": "2"}]}


async def test_only_the_published_documents_are_deleted_and_a_second_run_finds_nothing(world: World) -> None:
    other = {"name": "local--other", "namespace": PUBLISHED}
    world.garden.put(SECRETS, {"metadata": other})
    await world.activities.sync_public_sa_keys(TASK)
    for _ in range(2):
        await world.activities.delete_public_sa_keys(TASK)
        assert world.published() is None
    assert world.garden.find(SECRETS, "local--other", PUBLISHED)
