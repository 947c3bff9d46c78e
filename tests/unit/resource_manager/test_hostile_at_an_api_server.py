"""Bad and hostile ManagedResources at a real API server: each is named in its condition, and none harms another."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from api.resources import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    MANAGED_RESOURCE,
    NAMESPACE,
    SECRET,
    resource_of,
)
from kube.client import Object
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.at_api_server import Manager

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

LIMITED = "limited"
"""User with the rights of a resource manager that may change ConfigMaps alone."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {LIMITED: ""})
    with made.running():
        asyncio.run(_prepared(made))
        yield made


async def _prepared(server: ApiServer) -> None:
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["resources.gardener.cloud"], "resources": ["*"], "verbs": ["*"]},
    ]
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": LIMITED}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": LIMITED},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": LIMITED},
        "subjects": [{"kind": "User", "name": LIMITED, "apiGroup": group}],
    }
    await server.prepare_seed(role, binding)


@pytest.fixture
async def manager(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[Manager]:
    namespace = request.node.originalname.removeprefix("test_").replace("_", "-")[:55].strip("-")
    async with server.client(ADMIN) as admin, server.client(LIMITED) as limited:
        made = Manager(admin, namespace)
        if "limited" in request.node.originalname:
            made.user = limited
        await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        await made.start()
        yield made
        await made.stop()


def config_map(manager: Manager, name: str, **content: Any) -> Object:
    metadata = {"name": name, "namespace": manager.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **content}


async def exists(manager: Manager, name: str) -> bool:
    return await manager.admin.find(CONFIG_MAP, name, manager.namespace) is not None


@pytest.mark.row("ManagedResource", "a document that cannot be decoded stops no other; the condition names all")
async def test_documents_around_a_bad_one_are_applied(manager: Manager) -> None:
    def document(name: str) -> str:
        return json.dumps(config_map(manager, name))

    deep = "a: " + "[" * 100_000
    raw = "\n---\n".join([document("a"), "bad: {", document("b"), deep, "kind: NoVersion", document("c")])
    await manager.write(config_map(manager, "d"), raw=raw)

    message = await manager.sees("Applied", "False", "DecodingFailed")
    assert [await exists(manager, name) for name in "abcd"] == [True] * 4
    for part in ("is not YAML at line", "inside one another", "has no apiVersion and kind"):
        assert part in message


@pytest.mark.row("ManagedResource", "an object that cannot be applied stops no other; the condition names all")
async def test_objects_beside_refused_ones_are_applied(manager: Manager) -> None:
    refused = [
        config_map(manager, "Not_A_Name"),
        {"apiVersion": "no.such/v1", "kind": "Thing", "metadata": {"name": "unknown"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "empty"}, "spec": {"ports": "none"}},
        config_map(manager, "../../kube-system/x"),
        config_map(manager, "mistyped", data=["a"]),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "partial"}, "spec": {"replicas": 1}},
    ]
    last = {"apiVersion": "example.org/v1", "kind": "Zzz", "metadata": {"name": "z"}}
    await manager.write(*refused, config_map(manager, "good"), last)

    message = await manager.sees("Applied", "False", "ApplyFailed")
    assert await exists(manager, "good")
    for name in ("Not_A_Name", "Thing", "empty", "kube-system", "mistyped", "partial", "Zzz"):
        assert name in message


@pytest.mark.row("ManagedResource", "objects of kind List, and of typed lists, are applied one by one")
async def test_the_items_of_lists_are_applied(manager: Manager) -> None:
    items = [config_map(manager, "a"), config_map(manager, "b")]
    typed = [{"metadata": {"name": "c", "namespace": manager.namespace}}]
    await manager.write(
        {"apiVersion": "v1", "kind": "List", "items": items},
        {"apiVersion": "v1", "kind": "ConfigMapList", "items": typed},
    )
    await manager.runs()

    assert [await exists(manager, name) for name in "abc"] == [True] * 3
    names = [each["name"] for each in (await manager.get())["status"]["resources"]]
    assert names == ["a", "b", "c"]


@pytest.mark.row("ManagedResource", "a cluster-scoped object beside its definition is neither pruned nor created again")
async def test_a_cluster_scoped_object_beside_its_definition_stays(manager: Manager) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": CUSTOM_RESOURCE_DEFINITION.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITION.kind,
        "metadata": {"name": "things.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    await manager.write(definition, {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "one"}})
    await manager.runs()
    kind = await manager.admin.resource_for("example.org/v1", "Thing")
    uid = (await manager.admin.get(kind, "one"))["metadata"]["uid"]
    await manager.reconciled()
    await manager.reconciled()

    assert (await manager.admin.get(kind, "one"))["metadata"]["uid"] == uid


@pytest.mark.row("ManagedResource", "annotation ignore: nothing is applied or deleted, also if its class changes")
async def test_an_ignored_one_keeps_its_objects_when_its_class_changes(manager: Manager) -> None:
    await manager.write(config_map(manager, "kept"))
    await manager.runs()
    other: Object = {"class": "other"}
    await manager.write(config_map(manager, "kept"), annotations={"resources.gardener.cloud/ignore": "true"}, **other)
    await manager.sees("Applied", "True", "ManagedResourceIgnored")
    await manager.write(config_map(manager, "later"), name="later")
    await manager.runs("later")

    assert await exists(manager, "kept")


@pytest.mark.row("ManagedResource", "injectLabels: a change resets health and progress to ChecksPending")
async def test_injected_labels_reach_objects_that_did_not_change(manager: Manager) -> None:
    await manager.write(config_map(manager, "a"))
    await manager.sees("Healthy", "True")
    before = (await manager.condition("Healthy"))["lastTransitionTime"]
    await asyncio.sleep(1)  # the clock of conditions has seconds
    await manager.write(config_map(manager, "a"), injectLabels={"added": "1"})
    await manager.until(lambda each: "added" in (each["metadata"].get("labels") or {}), CONFIG_MAP, "a")
    await manager.sees("Healthy", "True")

    assert (await manager.condition("Healthy"))["lastTransitionTime"] > before


@pytest.mark.row("hostile", "a cycle of ownership between ManagedResources")
async def test_managed_resources_that_own_each_other_harm_no_other(manager: Manager) -> None:
    """Each holds the other, and its own Secret and namespace's objects. Both can be deleted."""
    place = {"namespace": manager.namespace}
    one, two = (
        {
            "apiVersion": MANAGED_RESOURCE.api_version,
            "kind": "ManagedResource",
            "metadata": {**place, "name": name},
            "spec": {"secretRefs": [{"name": name}]},
        }
        for name in ("one", "two")
    )
    await manager.write(two, name="one")
    await manager.write(one, name="two")
    await manager.write(config_map(manager, "good"), name="good")
    await manager.runs("good")
    for name in ("one", "two"):
        await manager.sees("Applied", "True", name=name)
        await manager.admin.delete(MANAGED_RESOURCE, name, manager.namespace)

    async def are_gone() -> bool:
        found = await manager.admin.list(MANAGED_RESOURCE, manager.namespace)
        return [each["metadata"]["name"] for each in found] == ["good"]

    await until(are_gone, 60)
    assert await exists(manager, "good")


@pytest.mark.row("hostile", "huge: a document whose aliases stand for millions of values; a Secret of many objects")
async def test_a_huge_one_harms_no_other(manager: Manager) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    await manager.write(config_map(manager, "beside"), raw=bomb, name="bomb")
    await manager.write(*(config_map(manager, f"many-{number}") for number in range(300)), name="many")
    await manager.write(config_map(manager, "good"), name="good")

    await manager.runs("good")
    assert "aliases" in await manager.sees("Applied", "False", "DecodingFailed", name="bomb")
    await manager.runs("many")
    assert await exists(manager, "beside")
    assert await exists(manager, "many-299")


@pytest.mark.row("hostile", "another class: it is not touched")
async def test_one_of_another_class_is_not_touched(manager: Manager) -> None:
    other: Object = {"class": "other"}
    await manager.write(config_map(manager, "foreign"), name="foreign", **other)
    await manager.write(config_map(manager, "good"), name="good")
    await manager.runs("good")

    assert "status" not in await manager.get("foreign")
    assert not await exists(manager, "foreign")


@pytest.mark.row("hostile", "a kind and cluster-scoped objects for which the resource manager has no right")
async def test_objects_that_a_limited_manager_may_not_write_harm_no_other(manager: Manager) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "taken-over"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": manager.namespace}}
    await manager.write(namespace, secret, config_map(manager, "beside"), name="bad")
    await manager.write(config_map(manager, "good"), name="good")

    await manager.runs("good")
    message = await manager.sees("Applied", "False", "ApplyFailed", name="bad")
    assert "Namespace taken-over" in message
    assert "Secret" in message
    assert await exists(manager, "beside")
    assert await manager.admin.find(NAMESPACE, "taken-over") is None
    assert await manager.admin.find(SECRET, "s", manager.namespace) is None


@pytest.mark.row("ManagedResource", "delete-on-invalid-update, deletion-propagation-on-invalid-update: created again")
async def test_an_object_that_cannot_be_updated_is_created_again_if_allowed(manager: Manager) -> None:
    kind = resource_of("batch/v1", "Job")

    def job(image: str) -> Object:
        pod = {"containers": [{"name": "c", "image": image}], "restartPolicy": "Never"}
        prefix = "resources.gardener.cloud"
        annotations = {
            f"{prefix}/delete-on-invalid-update": "true",
            # By default the Job would wait for a controller that orphans its pods.
            f"{prefix}/deletion-propagation-on-invalid-update": "Background",
        }
        metadata = {"name": "x", "namespace": manager.namespace, "annotations": annotations}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}

    await manager.write(job("a"))
    await manager.runs()
    first = (await manager.admin.get(kind, "x", manager.namespace))["metadata"]["uid"]
    await manager.write(job("b"))
    found = await manager.until(lambda each: each["metadata"]["uid"] != first, kind, "x")

    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "b"


def deployment(namespace: str) -> Object:
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "one", "image": "i"}]}}
    metadata = {"name": "workload", "namespace": namespace}
    spec = {"selector": {"matchLabels": {"app": "w"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


async def _is_gone(manager: Manager) -> bool:
    return await manager.admin.find(MANAGED_RESOURCE, "one", manager.namespace) is None


@pytest.mark.row("hostile", "a namespace that is gone: its objects do not hold the deletion of the ManagedResource")
async def test_objects_without_namespace_hold_no_deletion(manager: Manager) -> None:
    """After a namespace was finalized by force, the API server refuses to remove finalizers of objects in it."""
    place = "gone-by-force"
    await manager.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
    held = {"name": "held", "namespace": place, "finalizers": ["example.org/held"]}
    held_map: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": held}
    await manager.write(held_map, deployment(place), config_map(manager, "beside"))
    await manager.runs()
    await manager.admin.delete(NAMESPACE, place)
    left = await manager.admin.get(NAMESPACE, place)
    finalized = {**left, "spec": {"finalizers": []}}
    await manager.admin.request("PUT", NAMESPACE.path(None, place, "finalize"), body=finalized)
    assert await manager.admin.find(NAMESPACE, place) is None
    assert await manager.admin.find(CONFIG_MAP, "held", place), "it is orphaned"

    await manager.admin.delete(MANAGED_RESOURCE, "one", manager.namespace)
    await until(lambda: _is_gone(manager), 30)

    assert await manager.admin.find(DEPLOYMENT, "workload", place) is None
    assert not await exists(manager, "beside")


@pytest.mark.row("hostile", "a namespace that is being deleted: a deletion waits only for finalizers")
async def test_objects_in_a_terminating_namespace_hold_no_deletion(manager: Manager) -> None:
    place = "terminating"
    await manager.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})

    def inside(name: str, **metadata: Any) -> Object:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": place, **metadata}}

    await manager.write(inside("held", finalizers=["example.org/held"]), inside("free"))
    await manager.runs()
    await manager.admin.delete(NAMESPACE, place)
    await manager.write(inside("held", finalizers=["example.org/held"]), inside("free"), inside("new"))
    assert "it is being terminated" in await manager.sees("Applied", "False", "ApplyFailed")

    await manager.admin.delete(MANAGED_RESOURCE, "one", manager.namespace)
    await until(lambda: _waits_for(manager, f"ConfigMap {place}/held is being deleted"), 30)
    await until(lambda: _is_deleted(manager, "free", place), 30)
    await manager.admin.patch(CONFIG_MAP, "held", place, {"metadata": {"finalizers": None}})
    await until(lambda: _is_gone(manager), 30)


async def _waits_for(manager: Manager, text: str) -> bool:
    condition = await manager.condition("Applied")
    return condition["reason"] == "DeletionPending" and text in condition["message"]


async def _is_deleted(manager: Manager, name: str, namespace: str) -> bool:
    return await manager.admin.find(CONFIG_MAP, name, namespace) is None
