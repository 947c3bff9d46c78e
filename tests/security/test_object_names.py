"""A tenant writes a path for the name of an object, and a process of ours follows it with the rights of the process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api import resources
from kube.client import KubeClient
from kube.errors import Invalid, NotFound
from tests.unit.kube.api_server import ApiServer

OWN, VICTIM = "garden-own", "garden-victim"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "cloud", "namespace": VICTIM, "uid": "u-1"},
    "data": {"key": "U0VOVElORUw="},
}
PATHS = (
    f"../../{VICTIM}/secrets/cloud",
    f"..%2F..%2F{VICTIM}%2Fsecrets%2Fcloud",
    f"%2e%2e/%2e%2e/{VICTIM}/secrets/cloud",
    f".\t./..\n/{VICTIM}/secrets/cloud",
    f"../../../namespaces/{VICTIM}/secrets/cloud",
    "..",
    ".",
    ".\n.",
    "cloud?watch=true",
    "cloud#",
    "cloud/",
)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        server.put("/api/v1/secrets", SECRET)
        server.put("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VICTIM}})
        yield server


@pytest.fixture
async def client(api: ApiServer) -> AsyncIterator[KubeClient]:
    async with api.client() as client:
        yield client


@pytest.mark.attack(actor="T1", asset="A1", finding=25)
@pytest.mark.parametrize("name", PATHS)
async def test_a_name_that_is_a_path_leads_to_no_object_of_another_namespace(
    api: ApiServer, client: KubeClient, name: str
) -> None:
    """Admission asks whether the author may get the name in his own namespace, and every member may."""
    assert await client.find(resources.SECRET, name, OWN) is None
    with pytest.raises(NotFound):
        await client.get(resources.SECRET, name, OWN)
    assert not await client.delete(resources.SECRET, name, OWN)
    with pytest.raises((Invalid, NotFound)):
        await client.patch(resources.SECRET, name, OWN, {"data": {"key": ""}})
    assert api.objects[("/api/v1/secrets", VICTIM, "cloud")]["data"] == SECRET["data"]
    assert not [path for _, path in api.requests if VICTIM in path]


@pytest.mark.attack(actor="T1", asset="A1", finding=25)
async def test_an_empty_name_stands_for_no_collection(api: ApiServer, client: KubeClient) -> None:
    assert await client.find(resources.SECRET, "", VICTIM) is None
    assert not await client.delete(resources.SECRET, "", VICTIM)
    with pytest.raises(Invalid):
        await client.patch(resources.SECRET, "", VICTIM, {"data": {}})
    assert not api.requests
    assert len(api.objects) == 2


@pytest.mark.attack(actor="T1", asset="A1", finding=25)
@pytest.mark.parametrize("namespace", [f"{OWN}/../{VICTIM}", f"../namespaces/{VICTIM}", "..", f"{OWN}/secrets/x/.."])
async def test_a_namespace_that_is_a_path_leads_to_no_other_namespace(
    api: ApiServer, client: KubeClient, namespace: str
) -> None:
    assert await client.find(resources.SECRET, "cloud", namespace) is None
    assert await client.find(resources.NAMESPACE, namespace) is None
    with pytest.raises(NotFound):
        await client.list(resources.SECRET, namespace)
    made: dict[str, Any] = {**SECRET, "metadata": {"name": "mine", "namespace": namespace}}
    with pytest.raises(Invalid):
        await client.create(made)
    with pytest.raises(Invalid):
        await client.apply(made, manager="test")
    with pytest.raises(Invalid):
        await client.apply_blindly(made, manager="test")
    assert {place for place in api.objects if place[0] == "/api/v1/secrets"} == {("/api/v1/secrets", VICTIM, "cloud")}


async def test_names_with_colons_and_other_letters_are_names(api: ApiServer, client: KubeClient) -> None:
    """Names of RBAC's objects hold any letter but a slash and a percent sign."""
    for name in ("gardener.cloud:system:project:a", "a b", "ä", "a?b", "a#b", "a+b", "a\\b"):
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
        await client.apply(role, manager="test")
        assert (await client.get(resources.CLUSTER_ROLE, name))["metadata"]["name"] == name
        assert await client.delete(resources.CLUSTER_ROLE, name)
