"""Applying a component, and knowing when and why it does not come up."""

import asyncio
import base64
import json

import pytest
from temporalio.exceptions import ApplicationError

from activities.components import base
from activities.managed_resources import secrets_checksum
from activities.seed import rollout
from api import resources
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until

NAMESPACE = "shoot--dev--a"
SELECT = {"app": "x"}
DEPLOYMENTS = "/apis/apps/v1/deployments"
PODS = "/api/v1/pods"
REPLICA_SETS = "/apis/apps/v1/replicasets"


@pytest.fixture
async def seed():
    async with ApiServer().running() as api, api.client() as client:
        caches = Caches(client)
        try:
            yield api, client, caches
        finally:
            await caches.close()


def component(text):
    config = base.versioned_config_map("x", NAMESPACE, {"config": text}, labels=SELECT)
    pod = {"containers": [], "volumes": [base.config_map_volume("config", config["metadata"]["name"])]}
    deployment = base.deployment("x", NAMESPACE, select=SELECT, replicas=1, pod=pod)
    return [config, deployment]


def deployment(**status):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x", "namespace": NAMESPACE, "generation": 2, "labels": SELECT},
        "spec": {"replicas": 1, "selector": {"matchLabels": SELECT}},
        "status": status,
    }


READY = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (READY, None),
        ({}, "is not observed yet"),
        ({**READY, "observedGeneration": 1}, "is not observed yet"),
        ({**READY, "updatedReplicas": 0}, "has 0 of 1 new pods"),
        ({**READY, "replicas": 2}, "has 1 old pods left"),
        ({**READY, "availableReplicas": 0}, "has 0 of 1 pods available"),
        (
            {**READY, "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]},
            "cannot create pods: quota",
        ),
    ],
)
def test_a_deployment_is_up_when_only_its_newest_pods_run(status, fault):
    assert rollout.rollout_fault(deployment(**status)) == fault


def test_a_missing_deployment_is_not_rolled_out():
    assert rollout.rollout_fault(None) == "does not exist"


async def test_the_wait_ends_with_the_event(seed):
    api, _, caches = seed
    api.put(DEPLOYMENTS, deployment())
    waiting = asyncio.create_task(rollout.wait_deployment(caches, "x", NAMESPACE, 30))
    while not api.watching:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.005)
    api.change(DEPLOYMENTS, "x", NAMESPACE, {"status": READY})

    await asyncio.wait_for(waiting, 2)


async def test_failing_pods_end_the_wait_with_their_names(seed, monkeypatch):
    """An operator must learn of a missing image from lastErrors, not from a timeout after five minutes."""
    monkeypatch.setattr(rollout, "_LOOK_AT_PODS_AFTER", 0.05)
    monkeypatch.setattr(rollout, "_GIVE_UP_AFTER", 0.2)
    api, _, caches = seed
    api.put(DEPLOYMENTS, deployment(observedGeneration=2, replicas=1, updatedReplicas=1))
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}
    pod = {
        "metadata": {"name": "x-1", "namespace": NAMESPACE, "labels": SELECT},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waiting}]},
    }
    api.put(PODS, pod)

    with pytest.raises(ApplicationError, match="pod x-1, container main: ImagePullBackOff") as failure:
        await rollout.wait_deployment(caches, "x", NAMESPACE, 30)
    assert failure.value.type == "ComponentUnhealthy"
    assert not failure.value.non_retryable


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        (
            "I1125 21:20:21.175807    1081 options.go:261] external host was not specified\n"
            'E1125 21:20:20.841091    1060 run.go:72] "command failed" err="unrecognized feature gate: FooBar"\n',
            "unrecognized feature gate: FooBar",
        ),
        (
            '{"ts":1,"msg":"Starting"}\n{"ts":2,"msg":"command failed","err":"unknown api groups foo/v1"}',
            "unknown api groups foo/v1",
        ),
        ("panic: runtime error\n\ngoroutine 1 [running]:", "panic: runtime error"),
        ("one\ntwo\n\n", "two"),
        ("[1, 2]", "[1, 2]"),
        ("x" * 500, "x" * 400 + "…"),
    ],
)
def test_the_last_error_of_a_log_is_told_without_its_head(log, words):
    assert rollout.last_words(log) == words


@pytest.mark.parametrize(
    ("log", "type_"),
    [
        ('E1125 21:20:20.841091 1060 run.go:72] "command failed" err="unrecognized feature gate: X"', "ERR_RETRYABLE_"),
        ('E1125 21:20:20.841091 1060 run.go:72] "command failed" err="etcd grpc connection not ready"', "Component"),
    ],
)
async def test_a_component_that_ends_is_reported_in_its_own_words(seed, monkeypatch, log, type_):
    """ "CrashLoopBackOff, last exit code 1" does not tell an owner which value of the spec is wrong."""
    monkeypatch.setattr(rollout, "_LOOK_AT_PODS_AFTER", 0.05)
    monkeypatch.setattr(rollout, "_GIVE_UP_AFTER", 0.2)
    api, _, caches = seed
    api.put(DEPLOYMENTS, deployment(observedGeneration=2, replicas=1, updatedReplicas=1))
    state = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "message": log}},
    }
    status = {"phase": "Running", "containerStatuses": [{"name": "kube-apiserver", **state}]}
    api.put(PODS, {"metadata": {"name": "x-1", "namespace": NAMESPACE, "labels": SELECT}, "status": status})

    with pytest.raises(ApplicationError, match='CrashLoopBackOff, last exit code 1: "') as failure:
        await rollout.wait_deployment(caches, "x", NAMESPACE, 30)
    assert str(failure.value.type).startswith(type_)
    assert log.split('err="')[1].rstrip('"') in str(failure.value)


async def test_a_wait_that_takes_too_long_says_what_it_waited_for(seed, monkeypatch):
    monkeypatch.setattr(rollout, "_LOOK_AT_PODS_AFTER", 0.05)
    api, _, caches = seed
    api.put(DEPLOYMENTS, deployment(observedGeneration=2, replicas=1, updatedReplicas=1))

    with pytest.raises(TimeoutError, match="Deployment shoot--dev--a/x has 0 of 1 pods available"):
        await rollout.wait_deployment(caches, "x", NAMESPACE, 0.2)


async def test_configuration_of_the_revision_before_last_goes(seed):
    """The previous revision stays: its pods may start once more while they are replaced."""
    api, client, _ = seed
    for text in ("one", "two", "three"):
        await rollout.deploy(client, component(text))

    names = {place[2] for place in api.objects if place[0] == "/api/v1/configmaps"}
    assert names == {component(text)[0]["metadata"]["name"] for text in ("two", "three")}


async def test_a_second_run_changes_nothing(seed):
    api, client, _ = seed
    await rollout.deploy(client, component("one"))
    before = json.dumps(sorted(map(str, api.objects)))
    await rollout.deploy(client, component("one"))

    assert json.dumps(sorted(map(str, api.objects))) == before
    assert not [request for request in api.requests if request[0] == "DELETE"]


async def test_deleting_a_missing_object_succeeds(seed):
    _, client, _ = seed
    await rollout.delete(client, [(resources.DEPLOYMENT, "x")], NAMESPACE)


async def test_a_managed_resource_is_awaited_with_its_present_secret(seed):
    """A Secret changes under its name: the generation of the ManagedResource does not show it."""
    api, _, caches = seed
    path = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "managedresource-x", "namespace": NAMESPACE},
        "data": {"a": base64.b64encode(b"new").decode()},
    }
    api.put("/api/v1/secrets", secret)
    conditions = [
        {"type": "ResourcesApplied", "status": "True"},
        {"type": "ResourcesHealthy", "status": "True"},
        {"type": "ResourcesProgressing", "status": "False"},
    ]
    resource = {
        "metadata": {"name": "x", "namespace": NAMESPACE, "generation": 1},
        "status": {"observedGeneration": 1, "secretsDataChecksum": "old", "conditions": conditions},
    }
    api.put(path, resource)
    with pytest.raises(TimeoutError, match="other Secrets applied"):
        await rollout.wait_managed_resource(caches, "x", NAMESPACE, 0.2)

    api.change(path, "x", NAMESPACE, {"status": {"secretsDataChecksum": secrets_checksum([secret])}})
    await rollout.wait_managed_resource(caches, "x", NAMESPACE, 2)


async def test_a_cache_that_is_late_is_no_rollout(seed, monkeypatch):
    """Secrets were written again by a terminating API server: the cache did not know of its successor yet."""
    api, client, caches = seed
    api.put(DEPLOYMENTS, deployment(**READY))
    await caches.of(resources.DEPLOYMENT).synced()
    answer = client.find

    async def find(*arguments):
        live = await answer(*arguments)
        return {**live, "metadata": {**live["metadata"], "generation": 3}}

    monkeypatch.setattr(client, "find", find)
    with pytest.raises(TimeoutError, match="is not observed yet"):
        await rollout.wait_deployment(caches, "x", NAMESPACE, 0.2)


def pod_requests(api):
    """A wait lists the Pods, and begins to watch once it has checked them."""
    return api.count("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")


async def test_terminating_pods_are_awaited_where_they_would_do_harm(seed):
    """An API server that was ending wrote Secrets with the encryption key that was dropped a minute later."""
    api, client, caches = seed
    api.put(DEPLOYMENTS, deployment(**READY))

    def pod(name, **metadata):
        return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": SELECT, "uid": f"uid-{name}", **metadata}}

    api.put(PODS, pod("new"))
    await asyncio.wait_for(rollout.wait_replaced(client, caches, "x", NAMESPACE, 30), 5)

    api.put(PODS, pod("old", deletionTimestamp="2026-11-22T08:00:00Z", finalizers=["x"]))
    with pytest.raises(TimeoutError, match="pods of shoot--dev--a/x have not ended: old"):
        await rollout.wait_replaced(client, caches, "x", NAMESPACE, 0.3)
    looks = pod_requests(api)
    waiting = asyncio.create_task(rollout.wait_replaced(client, caches, "x", NAMESPACE, 30))
    await until(lambda: pod_requests(api) == looks + 2)
    assert not waiting.done()
    api.remove(PODS, "old", NAMESPACE)
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_without_a_process_is_as_good_as_gone(seed, phase):
    """Users wait for it while a control plane moves, and the kubelet takes its time to clear up."""
    api, _, caches = seed
    ending = {"metadata": {"name": "x-1", "namespace": NAMESPACE, "labels": SELECT, "uid": "uid-1"}}
    api.put(PODS, {**ending, "status": {"phase": "Running"}})
    waiting = asyncio.create_task(rollout.wait_pods_gone(caches, NAMESPACE, SELECT, 30))
    await until(lambda: pod_requests(api) == 2)
    assert not waiting.done()
    api.change(PODS, "x-1", NAMESPACE, {"status": {"phase": phase}})
    await asyncio.wait_for(waiting, 5)


async def test_pods_that_need_no_grace_are_deleted_after_their_owners(seed):
    """Deleted before its ReplicaSet, a pod would be created again; deleted by it, it would use its whole grace."""
    api, client, caches = seed
    asked = []

    def note(request):
        if request.method == "DELETE":
            asked.append(request)

    api.answer = note
    owned = {"metadata": {"name": "x-1", "namespace": NAMESPACE, "labels": SELECT, "uid": "uid-1"}}
    for path, each in ((DEPLOYMENTS, deployment()), (REPLICA_SETS, owned), (PODS, owned)):
        api.put(path, each)
    for _ in range(2):
        await asyncio.wait_for(rollout.end(client, caches, NAMESPACE, SELECT, 30), 5)

    assert not api.objects
    options = [await request.json() for request in asked]
    assert [request.path.split("/")[-2] for request in asked] == ["deployments", "replicasets", "pods"]
    assert [each.get("propagationPolicy") for each in options] == ["Orphan", "Orphan", None]
    assert [each.get("gracePeriodSeconds") for each in options] == [None, None, 1]
    assert options[2]["preconditions"]["uid"] == "uid-1"
