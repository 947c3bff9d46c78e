"""Objects that the cleanup deletes and keeps, and its message about objects that remain."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError

from activities.shoot import cleanup
from api.resources import (
    API_SERVICE,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    LEASE,
    MUTATING_WEBHOOK_CONFIGURATION,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REPLICA_SET,
    SERVICE,
    VALIDATING_WEBHOOK_CONFIGURATION,
    VOLUME_SNAPSHOT,
)
from tests.unit.kube.api_server import refuse
from tests.unit.kube.waiting import until

GRACE = "shoot.gardener.cloud/cleanup-kubernetes-resources-finalize-grace-period-seconds"


@pytest.fixture(autouse=True)
def _no_snapshots(shoot):
    shoot.answer = lambda request: (
        refuse(404, "NotFound", "no such group") if request.path == "/apis/snapshot.storage.k8s.io/v1" else None
    )


def put(server, resource, name, namespace="user", **metadata):
    spec = metadata.pop("spec", {})
    obj = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, **({"namespace": namespace} if resource.namespaced else {}), **metadata},
        "spec": spec,
    }
    return server.put(resource.path(), obj)


def owned_by(owner):
    return [
        {"kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
    ]


async def handles_another(server):
    """Wait until a Pod is deleted that is created only now: by then all earlier objects have been checked."""
    put(server, POD, "later")
    await until(lambda: server.find(POD.path(), "later", "user") is None)


def left(server):
    return sorted(f"{path.rsplit('/', 1)[1]}/{name}" for path, _, name in server.objects)


async def test_objects_of_users_are_deleted_and_system_objects_stay(shoot, activities, task):
    put(shoot, DEPLOYMENT, "theirs")
    put(shoot, SERVICE, "load-balancer", spec={"type": "LoadBalancer"})
    put(shoot, PERSISTENT_VOLUME_CLAIM, "data")
    put(shoot, NAMESPACE, "user")
    put(shoot, SERVICE, "kubernetes", "default")
    put(shoot, NAMESPACE, "default")
    put(shoot, NAMESPACE, "kube-system")
    put(shoot, NAMESPACE, "ours", labels={"shoot.gardener.cloud/no-cleanup": "true"})
    put(shoot, SERVICE, "kube-dns", "kube-system", labels={"resources.gardener.cloud/managed-by": "gardener"})
    put(shoot, POD, "static", "kube-system", annotations={"kubernetes.io/config.mirror": "x"})

    result = await activities.clean_kubernetes_resources(task)

    assert left(shoot) == [
        "namespaces/default",
        "namespaces/kube-system",
        "namespaces/ours",
        "pods/static",
        "services/kube-dns",
        "services/kubernetes",
    ]
    assert result.note == "4 objects deleted"


async def test_pods_of_our_deployments_stay_though_only_the_deployment_is_marked(shoot, activities, task):
    """Deleting vpn-shoot's pod in the middle of the cleanup would cut the tunnel it runs through."""
    deployment = put(
        shoot, DEPLOYMENT, "vpn-shoot", "kube-system", labels={"resources.gardener.cloud/managed-by": "gardener"}
    )
    replica_set = put(shoot, REPLICA_SET, "vpn-shoot-1", "kube-system", ownerReferences=owned_by(deployment))
    put(shoot, POD, "vpn-shoot-1-a", "kube-system", ownerReferences=owned_by(replica_set))
    theirs = put(shoot, DEPLOYMENT, "theirs", "kube-system")
    put(shoot, POD, "theirs-a", "kube-system", ownerReferences=owned_by(theirs))

    await activities.clean_kubernetes_resources(task)

    assert left(shoot) == ["deployments/vpn-shoot", "pods/vpn-shoot-1-a", "replicasets/vpn-shoot-1"]


async def test_a_load_balancer_is_waited_for(shoot, activities, task):
    put(shoot, SERVICE, "lb", finalizers=["service.kubernetes.io/load-balancer-cleanup"])
    put(shoot, NAMESPACE, "user")
    cleaning = asyncio.create_task(activities.clean_kubernetes_resources(task))
    await until(lambda: shoot.find(SERVICE.path(), "lb", "user")["metadata"].get("deletionTimestamp"))
    await handles_another(shoot)
    assert not cleaning.done()
    # Namespaces are deleted last: the controller that cleans up a Service may need other objects in them.
    assert "deletionTimestamp" not in shoot.find(NAMESPACE.path(), "user")["metadata"]

    shoot.change(SERVICE.path(), "lb", "user", {"metadata": {"finalizers": None}})
    await cleaning
    assert left(shoot) == []


async def test_remaining_objects_are_named_with_their_finalizers_and_retried(shoot, activities, task, monkeypatch):
    monkeypatch.setattr(cleanup, "_PATIENCE", 3.0)
    put(shoot, SERVICE, "lb", finalizers=["example.org/holds"])
    for number in range(12):
        put(shoot, PERSISTENT_VOLUME_CLAIM, f"pvc-{number:02}", finalizers=["kubernetes.io/pvc-protection"])

    with pytest.raises(ApplicationError) as failed:
        await activities.clean_kubernetes_resources(task)

    assert failed.value.type == "ERR_CLEANUP_CLUSTER_RESOURCES"
    assert not failed.value.non_retryable
    assert "Service user/lb (finalizers example.org/holds)" in failed.value.message
    assert "and 3 more" in failed.value.message


async def test_a_deletion_that_is_refused_is_quoted(shoot, activities, task, monkeypatch):
    monkeypatch.setattr(cleanup, "_PATIENCE", 3.0)
    put(shoot, DEPLOYMENT, "theirs")
    shoot.answer = lambda request: (
        refuse(403, "Forbidden", 'admission webhook "no.way" denied the request')
        if request.method == "DELETE"
        else refuse(404, "NotFound", "")
        if request.path.startswith("/apis/snapshot")
        else None
    )

    with pytest.raises(ApplicationError, match=r'Deployment user/theirs .*webhook "no.way" denied'):
        await activities.clean_kubernetes_resources(task)


async def test_finalizers_are_cleared_after_the_owners_grace(shoot, activities, clusters, task):
    clusters.annotations[GRACE] = "1"
    put(shoot, SERVICE, "lb", finalizers=["example.org/holds"])
    put(shoot, NAMESPACE, "user", finalizers=["kubernetes"])
    started = datetime.now(UTC)

    await activities.clean_kubernetes_resources(task)

    assert left(shoot) == []
    assert datetime.now(UTC) - started > timedelta(seconds=1)


async def test_finalizers_are_respected_for_five_minutes_by_default(shoot, activities, task, monkeypatch):
    monkeypatch.setattr(cleanup, "_PATIENCE", 3.0)
    now = datetime.now(UTC)
    for name, age in [("young", 4), ("old", 6)]:
        deleted = (now - timedelta(minutes=age)).isoformat()
        put(shoot, SERVICE, name, finalizers=["a/b"], deletionTimestamp=deleted)

    with pytest.raises(ApplicationError, match="Service user/young"):
        await activities.clean_kubernetes_resources(task)

    assert left(shoot) == ["services/young"]


async def test_finalizers_are_cleared_though_the_namespace_is_gone(shoot, activities, clusters, task):
    """The API server answers each change in a namespace that does not exist with 404."""
    clusters.annotations[GRACE] = "1"
    put(shoot, SERVICE, "lb", finalizers=["example.org/holds"])
    shoot.answer = lambda request: (
        refuse(404, "NotFound", 'namespaces "user" not found')
        if request.method == "PATCH" and shoot.find(NAMESPACE.path(), "user") is None
        else refuse(404, "NotFound", "no such group")
        if request.path == "/apis/snapshot.storage.k8s.io/v1"
        else None
    )

    await activities.clean_kubernetes_resources(task)

    assert shoot.find(SERVICE.path(), "lb", "user") is None


async def test_the_cleanup_does_not_wait_for_pods_on_deleted_nodes(shoot, activities, task):
    """A hibernated cluster has no kubelet that would confirm the end of a pod."""
    put(shoot, NODE, "alive")
    deleted = datetime.now(UTC).isoformat()
    put(shoot, POD, "lost", finalizers=["x/y"], deletionTimestamp=deleted, spec={"nodeName": "gone"})
    put(shoot, POD, "ending", finalizers=["x/y"], deletionTimestamp=deleted, spec={"nodeName": "alive"})
    cleaning = asyncio.create_task(activities.clean_kubernetes_resources(task))

    await until(lambda: shoot.count("DELETE", "/api/v1/namespaces/user/pods/lost"))
    await handles_another(shoot)
    assert shoot.count("DELETE", "/api/v1/namespaces/user/pods/ending") == 0
    for name in ("lost", "ending"):
        shoot.change(POD.path(), name, "user", {"metadata": {"finalizers": None}})
    await cleaning


async def test_a_client_that_keeps_creating_objects_does_not_block_the_cleanup(shoot, activities, clusters, task):
    """A user's operator outside the cluster may create objects faster than we delete them."""
    clusters.annotations[GRACE] = "60"
    began = datetime.now(UTC) - timedelta(minutes=5)
    put(shoot, DEPLOYMENT, "late", creationTimestamp=(began + timedelta(minutes=2)).isoformat())
    put(shoot, DEPLOYMENT, "early", creationTimestamp=(began + timedelta(seconds=30)).isoformat())

    await activities.clean_kubernetes_resources(task.model_copy(update={"trigger": began.isoformat()}))

    assert left(shoot) == ["deployments/late"]


async def test_an_owner_may_skip_all_cleanups_except_of_billed_resources(shoot, activities, clusters, task):
    clusters.annotations["shoot.gardener.cloud/skip-cleanup"] = "true"
    put(shoot, DEPLOYMENT, "theirs")
    put(shoot, NAMESPACE, "user")
    put(shoot, SERVICE, "lb")
    put(shoot, PERSISTENT_VOLUME_CLAIM, "data")

    await activities.clean_kubernetes_resources(task)

    assert left(shoot) == ["deployments/theirs", "namespaces/user"]


async def test_volume_snapshots_are_deleted_if_the_cluster_has_their_kind(shoot, activities, task):
    shoot.answer = lambda _: None
    shoot.kinds["snapshot.storage.k8s.io/v1"] = []
    put(shoot, VOLUME_SNAPSHOT, "backup")

    await activities.clean_kubernetes_resources(task)

    assert left(shoot) == []


async def test_webhooks_of_the_user_go(shoot, activities, task):
    put(shoot, MUTATING_WEBHOOK_CONFIGURATION, "theirs")
    put(shoot, VALIDATING_WEBHOOK_CONFIGURATION, "theirs")
    put(shoot, MUTATING_WEBHOOK_CONFIGURATION, "ours", labels={"shoot.gardener.cloud/no-cleanup": "true"})

    await activities.clean_webhooks(task)

    assert left(shoot) == ["mutatingwebhookconfigurations/ours"]


async def test_aggregated_apis_go_before_custom_resources(shoot, activities, task):
    """With a broken aggregated API the server cannot know whether all objects of a kind are gone."""
    put(shoot, API_SERVICE, "v1.theirs.example.org", finalizers=["x/y"])
    put(shoot, API_SERVICE, "v1.apps", labels={"kube-aggregator.kubernetes.io/automanaged": "onstart"})
    put(shoot, CUSTOM_RESOURCE_DEFINITION, "foos.example.org")
    cleaning = asyncio.create_task(activities.clean_extended_apis(task))
    await until(lambda: shoot.find(API_SERVICE.path(), "v1.theirs.example.org")["metadata"].get("deletionTimestamp"))
    assert "deletionTimestamp" not in shoot.find(CUSTOM_RESOURCE_DEFINITION.path(), "foos.example.org")["metadata"]
    shoot.change(API_SERVICE.path(), "v1.theirs.example.org", None, {"metadata": {"finalizers": None}})
    await cleaning

    assert left(shoot) == ["apiservices/v1.apps"]


async def test_an_empty_cluster_is_clean_at_once_and_twice(shoot, activities, task):
    for _ in range(2):
        assert (await activities.clean_kubernetes_resources(task)).note == ""


async def test_a_controller_manager_counts_as_active_only_while_it_renews_its_lease(
    shoot, activities, task, monkeypatch
):
    """A lease left over from before the cluster slept must not be taken for a running manager."""

    def renewed(ago):
        return {"renewTime": (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()}

    fresh = cleanup._lease_is_fresh
    answers: list[bool] = []

    def is_fresh(lease):
        answers.append(fresh(lease))
        return answers[-1]

    monkeypatch.setattr(cleanup, "_lease_is_fresh", is_fresh)
    put(shoot, LEASE, "kube-controller-manager", "kube-system", spec=renewed(60))
    waiting = asyncio.create_task(activities.wait_kube_controller_manager_active(task))
    await until(lambda: answers)
    assert not any(answers)
    assert not waiting.done()

    shoot.change(LEASE.path(), "kube-controller-manager", "kube-system", {"spec": renewed(0)})
    await asyncio.wait_for(waiting, 5)


async def test_an_unreachable_shoot_is_reported(shoot, activities, task, monkeypatch):
    monkeypatch.setattr(cleanup, "_SYNC_PATIENCE", 2.0)
    shoot.answer = lambda _: refuse(503, "ServiceUnavailable", "starting")

    with pytest.raises(TimeoutError, match=r"could not be listed within 2 s: .*503"):
        await activities.clean_webhooks(task)
