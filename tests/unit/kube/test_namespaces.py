"""How a namespace ends: as soon as it is empty, and never before."""

import asyncio

import pytest

from kube import namespaces
from tests.unit.kube.api_server import refuse
from tests.unit.kube.waiting import until

NAMESPACES, PODS, SECRETS = "/api/v1/namespaces", "/api/v1/pods", "/api/v1/secrets"
WORKERS = "/apis/extensions.gardener.cloud/v1alpha1/workers"
NAME = "shoot--dev--one"


def kind(resource, kind, verbs=("list", "delete", "deletecollection"), scope="Namespaced"):
    return {"resource": resource, "scope": scope, "verbs": list(verbs), "responseKind": {"kind": kind}}


@pytest.fixture
def cluster(api):
    """A cluster with a few kinds, and a namespace that is being deleted."""
    api.discovery["/api"] = [
        {
            "metadata": {},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        kind("namespaces", "Namespace", scope="Cluster"),
                        kind("bindings", "Binding", verbs=("create",)),
                        kind("pods", "Pod"),
                        kind("secrets", "Secret"),
                    ],
                }
            ],
        }
    ]
    api.discovery["/apis"] = [
        {
            "metadata": {"name": "extensions.gardener.cloud"},
            "versions": [{"version": "v1alpha1", "freshness": "Current", "resources": [kind("workers", "Worker")]}],
        }
    ]
    api.put(
        NAMESPACES,
        {
            "kind": "Namespace",
            "metadata": {"name": NAME, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["test/none"]},
            "spec": {"finalizers": ["kubernetes"]},
        },
    )
    return api


def put(api, path, name, namespace=NAME, **metadata):
    api.put(path, {"metadata": {"name": name, "namespace": namespace, **metadata}})


def exists(api):
    return api.find(NAMESPACES, NAME) is not None


async def test_a_namespace_is_gone_at_once_with_all_that_is_in_it(cluster, client):
    put(cluster, PODS, "scheduler")
    put(cluster, SECRETS, "ca")
    put(cluster, SECRETS, "ca", namespace="other")

    async with namespaces.ending(client, NAME):
        await until(lambda: not exists(cluster))

    assert {place[2] for place in cluster.objects if place[1] == NAME} == set()
    assert cluster.find(SECRETS, "ca", "other")


async def test_a_finalizer_is_respected_and_its_removal_ends_the_namespace(cluster, client):
    put(cluster, WORKERS, "one", finalizers=["extensions.gardener.cloud/worker"])

    async with namespaces.ending(client, NAME):
        worker = await until(lambda: cluster.find(WORKERS, "one", NAME)["metadata"].get("deletionTimestamp"))
        assert worker
        await until(lambda: cluster.watching)
        assert exists(cluster)
        cluster.change(WORKERS, "one", NAME, {"metadata": {"finalizers": None}})
        await until(lambda: not exists(cluster))


async def test_an_object_created_at_the_last_moment_is_deleted_with_its_namespace(cluster, client):
    """A request that was admitted before the deletion may be written after we looked."""
    put(cluster, PODS, "scheduler")
    late: list[str] = []

    def answer(request):
        if cluster.swept and request.method == "GET" and request.path.endswith("/pods") and not late:
            late.append(put(cluster, SECRETS, "late"))

    cluster.answer = answer
    async with namespaces.ending(client, NAME):
        await until(lambda: not exists(cluster))

    assert cluster.find(SECRETS, "late", NAME) is None


async def test_pods_keep_their_grace_unless_they_may_be_forced(cluster, client):
    put(cluster, PODS, "machine")

    async with namespaces.ending(client, NAME):
        await until(lambda: not exists(cluster))

    assert [options.get("gracePeriodSeconds") for path, _, options in cluster.swept if path.endswith("/pods")] == [None]


async def test_only_pods_without_a_stateful_set_are_forced(cluster, client):
    put(cluster, PODS, "scheduler")
    put(cluster, PODS, "etcd-main-0", labels={"statefulset.kubernetes.io/pod-name": "etcd-main-0"})

    async with namespaces.ending(client, NAME, force_pods=True):
        await until(lambda: not exists(cluster))

    forced, graceful = [each for each in cluster.swept if each[0].endswith("/pods")]
    assert forced[1] == "!statefulset.kubernetes.io/pod-name"
    assert forced[2]["gracePeriodSeconds"] == 0
    assert graceful[1] == "statefulset.kubernetes.io/pod-name"
    assert "gracePeriodSeconds" not in graceful[2]


async def test_kinds_without_deletion_of_collections_are_deleted_one_by_one(cluster, client):
    put(cluster, SECRETS, "one")
    put(cluster, SECRETS, "two")
    collection = f"/api/v1/namespaces/{NAME}/secrets"
    cluster.answer = lambda request: (
        refuse(405, "MethodNotAllowed", "") if (request.method, request.path) == ("DELETE", collection) else None
    )

    async with namespaces.ending(client, NAME):
        await until(lambda: not exists(cluster))


async def test_a_namespace_that_is_not_deleted_is_left_alone(cluster, client):
    cluster.put(NAMESPACES, {"metadata": {"name": "alive"}, "spec": {"finalizers": ["kubernetes"]}})
    put(cluster, SECRETS, "ca", namespace="alive")

    async with namespaces.ending(client, "alive"):
        await until(lambda: cluster.count("GET", f"{NAMESPACES}/alive"))
        await asyncio.sleep(0.05)

    assert cluster.find(SECRETS, "ca", "alive")
    assert cluster.find(NAMESPACES, "alive")


async def test_with_kinds_unknown_the_end_is_left_to_the_namespace_controller(cluster, client, caplog):
    """Objects of an aggregated API that is away now would be orphans."""
    cluster.discovery["/apis"][0]["versions"][0] = {"version": "v1alpha1", "freshness": "Stale"}
    put(cluster, SECRETS, "ca")
    caplog.set_level("INFO")

    async with namespaces.ending(client, NAME):
        await until(lambda: "extensions.gardener.cloud does not answer" in caplog.text)

    assert exists(cluster)
    assert cluster.find(SECRETS, "ca", NAME)


async def test_a_refusal_leaves_the_rest_to_the_namespace_controller(cluster, client, caplog):
    put(cluster, SECRETS, "ca")
    cluster.answer = lambda request: refuse(403, "Forbidden", "no") if request.method == "DELETE" else None
    caplog.set_level("INFO")

    async with namespaces.ending(client, NAME):
        await until(lambda: "left to the namespace controller" in caplog.text)

    assert exists(cluster)


async def test_finalizers_of_others_on_the_namespace_stay(cluster, client):
    cluster.change(NAMESPACES, NAME, None, {"spec": {"finalizers": ["example.org/quota", "kubernetes"]}})

    async with namespaces.ending(client, NAME):
        await until(lambda: cluster.find(NAMESPACES, NAME)["spec"]["finalizers"] == ["example.org/quota"])
