"""The seed's resource manager at a real API server, with the rights and the configuration that the gardenlet gives it.

The gardenlet has the rights of its chart.
"""

import asyncio
import base64
import functools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.components import resource_manager
from activities.components.base import to_json
from activities.seed import rollout
from activities.seed.system import garden_namespace
from api import resources
from kube.client import KubeClient
from kube.errors import Forbidden
from tests.api_servers import free_port
from tests.charts.test_rendering import rendered
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until
from workers.resource_manager import run

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

GARDENLET = "gardenlet"
MANAGER = "system:serviceaccount:garden:gardener-resource-manager"
EXTENSION = "system:serviceaccount:extension-a:a"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {GARDENLET: "", MANAGER: "", EXTENSION: ""})
    with made.running():
        asyncio.run(_prepared(made))
        yield made


async def _prepared(server: ApiServer) -> None:
    """Deploy the resource manager as the gardenlet."""
    rights = [each for each in rendered("gardenlet") if each["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    for each in rights:
        if each["kind"] == "ClusterRoleBinding":
            each["subjects"] = [{"kind": "User", "name": GARDENLET, "apiGroup": "rbac.authorization.k8s.io"}]
    await server.prepare_seed(*rights)
    async with server.client(GARDENLET) as gardenlet:
        await until(functools.partial(_accepted, gardenlet, garden_namespace()))
        await rollout.deploy(gardenlet, resource_manager.seed_objects(2))


async def _accepted(client: KubeClient, obj: Object) -> bool:
    """Whether the API server lets the client apply an object: it follows changes of roles within a second."""
    try:
        await client.apply(obj, manager="test")
    except Forbidden:
        await asyncio.sleep(0.05)  # the clock of a poll
        return False
    return True


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with server.client(ADMIN) as client:
        yield client


@pytest.fixture
async def running(server: ApiServer, admin: KubeClient, tmp_path: Path) -> AsyncIterator[None]:
    """The process, with the configuration of its pod, and a kubeconfig in place of its pod's account."""
    [file] = await admin.list(resources.CONFIG_MAP, "garden", labels="app=gardener-resource-manager")
    config = json.loads(file["data"]["config.yaml"])
    (tmp_path / "kubeconfig").write_text(json.dumps(server.kubeconfig(MANAGER)))
    config["sourceClientConnection"] = {"kubeconfig": str(tmp_path / "kubeconfig")}
    config["server"]["health"] = {"address": "127.0.0.1", "port": 0}
    config["server"]["webhooks"] |= {"bindAddress": "127.0.0.1", "port": free_port()}
    (tmp_path / "config.yaml").write_text(to_json(config))
    process = asyncio.create_task(run(str(tmp_path / "config.yaml")))
    yield
    process.cancel()
    await asyncio.gather(process, return_exceptions=True)


async def write(admin: KubeClient, namespace: str, *objects: Object, **spec: Any) -> None:
    """Apply ManagedResource ``one`` with its Secret."""
    data = {
        f"{number}.json": base64.b64encode(json.dumps(each).encode()).decode() for number, each in enumerate(objects)
    }
    place = {"name": "one", "namespace": namespace}
    for each in (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": place, "data": data},
        {
            "apiVersion": resources.MANAGED_RESOURCE.api_version,
            "kind": "ManagedResource",
            "metadata": place,
            "spec": {"secretRefs": [{"name": "one"}], **spec},
        },
    ):
        await admin.apply(each, manager="test")


def config_map(namespace: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "wanted", "namespace": namespace},
        "data": data,
    }


async def conditions(admin: KubeClient, namespace: str) -> dict[str, str]:
    found = await admin.get(resources.MANAGED_RESOURCE, "one", namespace)
    return {each["type"]: each["status"] for each in (found.get("status") or {}).get("conditions") or ()}


async def applied(admin: KubeClient, namespace: str) -> None:
    wanted = {"ResourcesApplied": "True", "ResourcesHealthy": "True", "ResourcesProgressing": "False"}

    async def is_applied() -> bool:
        return await conditions(admin, namespace) == wanted

    await until(is_applied, 60)


@pytest.mark.usefixtures("running")
async def test_managed_resources_of_class_seed_are_applied_in_all_namespaces(admin: KubeClient) -> None:
    for namespace in ("garden", "extension-a"):
        await write(admin, namespace, config_map(namespace, by="seed"), **{"class": "seed"})
    await write(admin, "shoot--a--b", config_map("shoot--a--b", by="shoot"))

    for namespace in ("garden", "extension-a"):
        await applied(admin, namespace)
        assert (await admin.get(resources.CONFIG_MAP, "wanted", namespace))["data"] == {"by": "seed"}
    assert await admin.find(resources.CONFIG_MAP, "wanted", "shoot--a--b") is None
    assert await conditions(admin, "shoot--a--b") == {}


@pytest.mark.usefixtures("running")
async def test_objects_follow_their_managed_resource_until_its_end(admin: KubeClient) -> None:
    await write(admin, "changing", config_map("changing", version="1"), **{"class": "seed"})
    await applied(admin, "changing")
    await write(admin, "changing", config_map("changing", version="2"), **{"class": "seed"})

    async def version() -> str:
        return str((await admin.get(resources.CONFIG_MAP, "wanted", "changing"))["data"]["version"])

    async def is_second() -> bool:
        return await version() == "2"

    async def is_gone() -> bool:
        return await admin.find(resources.MANAGED_RESOURCE, "one", "changing") is None

    await until(is_second)
    await admin.delete(resources.MANAGED_RESOURCE, "one", "changing")
    await until(is_gone)
    assert await admin.find(resources.CONFIG_MAP, "wanted", "changing") is None


@pytest.mark.usefixtures("running")
async def test_an_extension_gets_roles_with_rights_that_the_resource_manager_lacks(admin: KubeClient) -> None:
    """An extension's chart brings the rights of its own processes, for example on paths of the API server."""
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "extension-b"},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "extension-b"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "extension-b"},
        "subjects": [{"kind": "ServiceAccount", "name": "b", "namespace": "extension-b"}],
    }

    await write(admin, "garden", role, binding, **{"class": "seed"})

    await applied(admin, "garden")


async def test_the_resource_manager_acts_as_no_other_identity(server: ApiServer) -> None:
    """A faulty ManagedResource is applied with the rights of the resource manager, which are not an administrator's."""
    async with server.client(MANAGER) as manager:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        answers = {}
        for verb, resource in (("impersonate", "users"), ("impersonate", "serviceaccounts"), ("create", "secrets")):
            body = {**review, "spec": {"resourceAttributes": {"verb": verb, "resource": resource}}}
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            answers[verb, resource] = (await manager.request("POST", path, body=body))["status"]["allowed"]
    assert answers == {("impersonate", "users"): False, ("impersonate", "serviceaccounts"): False,
                       ("create", "secrets"): True}  # fmt: skip
