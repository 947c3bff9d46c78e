"""Effects of the resource manager on ManagedResources, seen from both clusters."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.decisions.conditions import set_conditions
from tests.unit.kube.api_server import refuse
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.conftest import CONFIG_MAPS, DEPLOYMENTS, MANAGED_RESOURCES, NAMESPACE, SECRETS
from workers.resource_manager.managed_resources import Condition, declared_scopes

FINALIZER = "resources.gardener.cloud/gardener-resource-manager"
ORIGIN = "resources.gardener.cloud/origin"
IGNORE = "resources.gardener.cloud/ignore"
MODE = "resources.gardener.cloud/mode"


def config_map(name="one", annotations=None, labels=None, namespace="kube-system", **data):
    metadata = {"name": name, "namespace": namespace}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def deployment(annotations=None, replicas=1, **spec):
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x", "namespace": "kube-system", "annotations": annotations or {}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template, **spec},
    }


def rolled_out(live, terminating=0):
    replicas = live["spec"]["replicas"]
    return {
        "status": {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": replicas,
            "readyReplicas": replicas,
            "terminatingReplicas": terminating,
            "conditions": [
                {"type": "Available", "status": "True"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
            ],
        }
    }


@pytest.mark.row(
    "ManagedResource", "origin, description and managed-by are written; status has references and conditions"
)
async def test_objects_are_applied_with_our_marks_and_reported(manager):
    await manager.start(cluster_id="seed-1")
    manager.write(config_map(a="1", labels={"own": "label"}), injectLabels={"shoot.gardener.cloud/no-cleanup": "true"})
    await manager.applied()

    live = manager.live(CONFIG_MAPS, "one")
    assert live["data"] == {"a": "1"}
    assert live["metadata"]["labels"] == {
        "own": "label",
        "shoot.gardener.cloud/no-cleanup": "true",
        "resources.gardener.cloud/managed-by": "gardener",
    }
    assert live["metadata"]["annotations"][ORIGIN] == f"seed-1:{NAMESPACE}/one"
    assert "DO NOT EDIT" in live["metadata"]["annotations"]["resources.gardener.cloud/description"]
    await manager.sees("Healthy", "True", "ResourcesHealthy")
    await manager.sees("Progressing", "False", "ResourcesRolledOut")
    status = manager.get()["status"]
    assert status["observedGeneration"] == 1
    assert [(r["kind"], r["namespace"], r["name"]) for r in status["resources"]] == [
        ("ConfigMap", "kube-system", "one")
    ]
    assert manager.get()["metadata"]["finalizers"] == [FINALIZER]


@pytest.mark.row("ManagedResource", "what the manifests no longer hold is deleted, what they change is updated")
async def test_an_object_no_longer_wanted_is_deleted_and_one_changed_is_updated(manager):
    await manager.start()
    manager.write(config_map("stays", a="1"), config_map("goes"))
    await manager.applied()
    manager.write(config_map("stays", a="2"))
    await manager.applied()

    assert manager.live(CONFIG_MAPS, "goes") is None
    assert manager.live(CONFIG_MAPS, "stays")["data"] == {"a": "2"}


@pytest.mark.row("ManagedResource", "while such a deletion is pending (DeletionPending), nothing new is applied")
async def test_while_a_pruned_object_lingers_nothing_new_is_applied(manager):
    """The old one may hold what the new one needs, a node port or a name."""
    await manager.start()
    manager.write(config_map("goes"))
    await manager.applied()
    manager.target.change(CONFIG_MAPS, "goes", "kube-system", {"metadata": {"finalizers": ["another/controller"]}})
    manager.write(config_map("new"))

    message = await manager.sees("Applied", "Progressing", "DeletionPending")
    assert "ConfigMap kube-system/goes is being deleted" in message
    assert manager.live(CONFIG_MAPS, "new") is None

    manager.target.change(CONFIG_MAPS, "goes", "kube-system", {"metadata": {"finalizers": None}})
    await manager.applied()
    assert manager.live(CONFIG_MAPS, "new") is not None


async def test_labels_that_others_set_stay_and_ours_go_when_we_drop_them(manager):
    await manager.start()
    manager.write(config_map(labels={"ours": "1", "kept": "1"}))
    await manager.applied()
    manager.target.change(CONFIG_MAPS, "one", "kube-system", {"metadata": {"labels": {"theirs": "1"}}})
    manager.write(config_map(labels={"kept": "1"}))
    await manager.applied()

    labels = manager.live(CONFIG_MAPS, "one")["metadata"]["labels"]
    assert labels == {"kept": "1", "theirs": "1", "resources.gardener.cloud/managed-by": "gardener"}


async def test_labels_that_others_set_go_if_ours_are_to_be_the_only_ones(manager):
    await manager.start()
    manager.target.put(CONFIG_MAPS, config_map(labels={"theirs": "1"}, annotations={"their": "note"}))
    manager.write(config_map(labels={"ours": "1"}), forceOverwriteLabels=True)
    await manager.applied()

    metadata = manager.live(CONFIG_MAPS, "one")["metadata"]
    assert metadata["labels"] == {"ours": "1", "resources.gardener.cloud/managed-by": "gardener"}
    assert metadata["annotations"]["their"] == "note"


@pytest.mark.row("ManagedResource", "a change of a Secret is applied; health and progress are ChecksPending until then")
async def test_a_changed_secret_alone_is_applied_and_no_old_health_is_taken_for_new(manager):
    """A waiter for a rollout must not see the health of the version before."""
    await manager.start()
    manager.write(deployment())
    await manager.applied()
    manager.target.change(DEPLOYMENTS, "x", "kube-system", rolled_out(manager.live(DEPLOYMENTS, "x")))
    await manager.sees("Healthy", "True")
    await manager.sees("Progressing", "False")

    manager.write(deployment(replicas=2))
    await manager.applied()

    assert "observed generation outdated (1/2)" in await manager.sees("Healthy", "False", "DeploymentUnhealthy")
    manager.target.change(DEPLOYMENTS, "x", "kube-system", rolled_out(manager.live(DEPLOYMENTS, "x")))
    await manager.sees("Healthy", "True")


async def test_an_object_seen_before_it_was_written_says_nothing_about_its_health(manager):
    """Watches lag: the health of the old Deployment would end the wait for the new one."""
    await manager.start()
    manager.write(deployment())
    await manager.applied()
    manager.target.change(DEPLOYMENTS, "x", "kube-system", rolled_out(manager.live(DEPLOYMENTS, "x")))
    await manager.sees("Healthy", "True")
    manager.target.watches_flow.clear()

    manager.write(deployment(replicas=2))

    await manager.sees("Applied", "True")
    await manager.sees("Healthy", "False", "DeploymentUnhealthy")


async def test_an_objects_changing_health_is_no_reason_to_apply_it_again(manager):
    """A rollout changes its status dozens of times; each apply of a large component costs dozens of requests."""
    await manager.start()
    manager.write(deployment())
    await manager.applied()
    await manager.sees("Healthy", "False")
    writes = sum(1 for method, _ in manager.target.requests if method == "PUT")
    manager.target.change(DEPLOYMENTS, "x", "kube-system", rolled_out(manager.live(DEPLOYMENTS, "x")))
    await manager.sees("Healthy", "True")

    assert sum(1 for method, _ in manager.target.requests if method == "PUT") == writes


@pytest.mark.row("health", "Deployment: it progresses while it has more or fewer pods than replicas")
async def test_a_deployment_progresses_until_its_old_pods_are_gone(manager):
    await manager.start()
    manager.write(deployment())
    await manager.applied()
    live = manager.live(DEPLOYMENTS, "x")
    manager.target.change(DEPLOYMENTS, "x", "kube-system", rolled_out(live, terminating=1))

    await manager.sees("Healthy", "True")
    assert "+1 non-terminated" in await manager.sees("Progressing", "True", "DeploymentProgressing")

    manager.target.change(DEPLOYMENTS, "x", "kube-system", rolled_out(live))
    await manager.sees("Progressing", "False")


@pytest.mark.row("health", "Deployment: its pods are counted if its status does not have their number")
async def test_pods_are_counted_where_the_deployment_does_not_say(manager):
    """Before Kubernetes 1.35 a Deployment's status knows nothing of terminating pods."""
    await manager.start()
    manager.write(deployment())
    await manager.applied()
    pods = "/api/v1/pods"
    for name in ("new", "old", "done"):
        phase = "Succeeded" if name == "done" else "Running"
        metadata = {"name": name, "namespace": "kube-system", "labels": {"app": "x"}}
        manager.target.put(pods, {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}})
    status = rolled_out(manager.live(DEPLOYMENTS, "x"))
    del status["status"]["terminatingReplicas"]
    manager.target.change(DEPLOYMENTS, "x", "kube-system", status)
    await manager.sees("Progressing", "True", "DeploymentProgressing")

    manager.target.remove(pods, "old", "kube-system")
    await manager.sees("Progressing", "False")


@pytest.mark.row("ManagedResource", "Healthy turns False: the objects are applied again")
async def test_a_deleted_object_is_applied_again(manager):
    await manager.start()
    manager.write(config_map())
    await manager.applied()
    await manager.sees("Healthy", "True")

    manager.target.remove(CONFIG_MAPS, "one", "kube-system")

    await until(lambda: manager.live(CONFIG_MAPS, "one"))
    await manager.sees("Healthy", "True")


@pytest.mark.row("health", "skip-health-check leaves an object out")
async def test_an_unhealthy_object_may_be_left_out_of_health(manager):
    await manager.start()
    manager.write(deployment({"resources.gardener.cloud/skip-health-check": "true"}))
    await manager.applied()

    await manager.sees("Healthy", "True")
    await manager.sees("Progressing", "False")


@pytest.mark.row("ManagedResource", "ApplyFailed: the condition names the object, and the next run tries again")
async def test_an_object_the_server_refuses_is_named_and_tried_again(manager):
    await manager.start()
    broken = True

    def answer(request):
        if broken and request.method == "PUT" and request.path.endswith("/bad"):
            return refuse(500, "InternalError", "webhook is down")
        return None

    manager.target.answer = answer
    manager.target.put(CONFIG_MAPS, config_map("bad"))
    manager.write(config_map("good"), config_map("bad"))
    message = await manager.sees("Applied", "False", "ApplyFailed")
    assert "replacing ConfigMap kube-system/bad" in message
    assert "webhook is down" in message

    broken = False
    await manager.applied()


@pytest.mark.row("ManagedResource", "objects of a run that failed are in the status, so that they are pruned")
async def test_objects_applied_before_a_failure_are_pruned(manager):
    """Else objects of a half-applied revision would stay for ever."""
    await manager.start()
    manager.target.put(CONFIG_MAPS, config_map("bad"))
    manager.target.answer = lambda request: (
        refuse(500, "InternalError", "no") if request.method == "PUT" and request.path.endswith("/bad") else None
    )
    manager.write(config_map("half"), config_map("bad"))
    await manager.sees("Applied", "False", "ApplyFailed")
    await until(lambda: manager.live(CONFIG_MAPS, "half"))
    manager.write(config_map("other"))
    await manager.applied()

    assert manager.live(CONFIG_MAPS, "half") is None


@pytest.mark.row("ManagedResource", "status names objects before they are created, also for a next process")
async def test_objects_are_in_the_status_before_they_are_created(manager):
    await manager.start()
    seen = []

    def answer(request):
        if request.method == "POST" and request.path.endswith("/configmaps"):
            status = manager.get().get("status") or {}
            seen.append([each["name"] for each in status.get("resources") or ()])
        return

    manager.target.answer = answer
    manager.write(config_map("first"), config_map("second"))
    await manager.applied()

    assert seen == [["first", "second"]] * 2
    assert all(ORIGIN in each["annotations"] for each in manager.get()["status"]["resources"])


@pytest.mark.row("ManagedResource", "an announced object is deleted only if its origin is the ManagedResource")
@pytest.mark.parametrize("deleted", [True, False], ids=["the ManagedResource is deleted", "it holds other objects"])
async def test_an_announced_object_of_another_component_stays(manager, deleted):
    """A process announces objects before it creates them. After a kill, one may be that of another component."""
    ours, foreign = (
        {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "kube-system", "name": name}
        for name in ("ours", "foreign")
    )
    manager.target.put(CONFIG_MAPS, config_map("ours", annotations={ORIGIN: f"{NAMESPACE}/one"}))
    manager.target.put(CONFIG_MAPS, config_map("foreign"))
    manager.write(config_map("other"))
    change = {"status": {"resources": [foreign, ours]}}
    manager.source.change(MANAGED_RESOURCES, "one", NAMESPACE, {"metadata": {"finalizers": [FINALIZER]}, **change})
    if deleted:
        manager.delete()
    await manager.start()

    await until(lambda: manager.live(CONFIG_MAPS, "ours") is None)
    await until(lambda: manager.get() is None if deleted else manager.condition("Applied")[0] == "True")
    assert manager.live(CONFIG_MAPS, "foreign") is not None


@pytest.mark.row("ManagedResource", "an object that the API server refuses to create does not stay in the status")
async def test_a_refused_object_leaves_the_status(manager):
    """Another component may create an object of this name later, and a deletion must not meet that one."""
    await manager.start()
    manager.target.answer = lambda request: (
        refuse(403, "Forbidden", "no") if request.method == "POST" and "/closed/" in request.path else None
    )
    manager.write(config_map("good"), config_map("refused", namespace="closed"))
    await manager.sees("Applied", "False", "ApplyFailed")

    assert [each["name"] for each in manager.get()["status"]["resources"]] == ["good"]


@pytest.mark.row("ManagedResource", "an origin in a namespace that is not served is ignored")
async def test_an_origin_in_another_namespace_is_not_read(manager):
    """Users of a shoot can write the annotation to any object; the instance may read no other namespace."""
    await manager.start()
    manager.write(config_map("mine"))
    await manager.applied()
    labels = {"resources.gardener.cloud/managed-by": "gardener"}
    for name, origin in (("elsewhere", "shoot--dev--two/one"), ("here", f"{NAMESPACE}/one")):
        manager.target.put(CONFIG_MAPS, config_map(name, annotations={ORIGIN: origin}, labels=labels))
    await manager.handles_another("later")

    reads = [path for _, path in manager.source.requests if path.endswith("/managedresources/one")]
    assert any(NAMESPACE in each for each in reads)
    assert not any("shoot--dev--two" in each for each in reads)


@pytest.mark.row("ManagedResource", "DecodingFailed: nothing is deleted, since the document may hold it")
async def test_a_document_that_cannot_be_read_spares_the_others_and_deletes_nothing(manager):
    await manager.start()
    manager.write(config_map("stays"), raw={"z.yaml": "kind: Secret\ndata: {password: SENTINEL"})
    message = await manager.sees("Applied", "False", "DecodingFailed")

    assert "key z.yaml of Secret managedresource-one is not YAML" in message
    assert "SENTINEL" not in message
    assert manager.live(CONFIG_MAPS, "stays") is not None

    manager.write(raw={"z.yaml": "still: {broken"})
    await manager.handles_another("later")
    assert manager.live(CONFIG_MAPS, "stays") is not None


@pytest.mark.row("ManagedResource", "CannotReadSecret: reported, and applied once the Secret exists")
async def test_a_missing_secret_is_reported_and_awaited(manager):
    await manager.start()
    manager.write(config_map())
    secret = manager.source.find(SECRETS, "managedresource-one", NAMESPACE)
    manager.source.remove(SECRETS, "managedresource-one", NAMESPACE)
    manager.write(name="two")
    manager.source.change(MANAGED_RESOURCES, "two", NAMESPACE, {"spec": {"secretRefs": [{"name": "later"}]}})
    assert "Secret shoot--dev--one/later" in await manager.sees("Applied", "False", "CannotReadSecret", name="two")

    secret["metadata"] = {"name": "later", "namespace": NAMESPACE}
    manager.source.put(SECRETS, secret)
    await manager.sees("Applied", "True", name="two")


@pytest.mark.row("ManagedResource", "deletion: first the objects, then the finalizer")
async def test_deleting_a_managed_resource_deletes_its_objects_then_its_finalizer(manager):
    await manager.start()
    manager.write(config_map(), deployment())
    await manager.applied()
    manager.target.change(DEPLOYMENTS, "x", "kube-system", {"metadata": {"finalizers": ["foregroundDeletion"]}})
    manager.delete()

    await manager.sees("Progressing", "True", "DeletionPending")
    await until(lambda: "Deployment kube-system/x is being deleted" in (manager.condition("Applied")[2] or ""))
    assert manager.live(CONFIG_MAPS, "one") is None
    assert manager.get() is not None

    manager.target.change(DEPLOYMENTS, "x", "kube-system", {"metadata": {"finalizers": None}})
    await until(lambda: manager.get() is None)


@pytest.mark.row("ManagedResource", "ours: pods of nodes that are gone hold up no deletion")
async def test_pods_on_nodes_that_are_gone_do_not_hold_up_a_deletion(manager):
    """Machines go before system components; the controller manager would end such pods a minute later."""
    await manager.start()
    manager.write(deployment())
    await manager.applied()
    manager.target.change(DEPLOYMENTS, "x", "kube-system", {"metadata": {"finalizers": ["foregroundDeletion"]}})
    manager.target.put("/api/v1/nodes", {"kind": "Node", "metadata": {"name": "alive"}})
    manager.target.put("/api/v1/nodes", {"kind": "Node", "metadata": {"name": "dying"}})

    def pod(name, node, namespace="kube-system", **metadata):
        metadata = {"name": name, "namespace": namespace, "finalizers": ["test/holds"], **metadata}
        manager.target.put("/api/v1/pods", {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}})

    ending = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    pod("lost", "gone", **ending)
    pod("last", "dying", **ending)
    pod("ending", "alive", **ending)
    pod("running", "gone")
    pod("elsewhere", "gone", "user", **ending)

    def ended():
        return {
            path.rsplit("/", 1)[1]
            for method, path in manager.target.requests
            if method == "DELETE" and "/pods/" in path
        }

    await manager.handles_another("before")
    assert ended() == set()
    manager.delete()
    await until(lambda: ended() == {"lost"})
    manager.target.remove("/api/v1/nodes", "dying")
    await until(lambda: ended() == {"lost", "last"})

    manager.target.change(DEPLOYMENTS, "x", "kube-system", {"metadata": {"finalizers": None}})
    await until(lambda: manager.get() is None)
    pod("later", "gone", **ending)
    await manager.handles_another("after")
    assert ended() == {"lost", "last"}


@pytest.mark.row("ManagedResource", "keepObjects: a deletion leaves the objects")
async def test_kept_objects_survive_their_managed_resource(manager):
    await manager.start()
    manager.write(config_map(), keepObjects=True)
    manager.write(config_map("other", {"resources.gardener.cloud/keep-object": "true"}), name="two")
    await manager.applied()
    await manager.applied("two")
    manager.delete()
    manager.delete("two")
    await until(lambda: manager.get() is None and manager.get("two") is None)

    assert manager.live(CONFIG_MAPS, "one") is not None
    assert manager.live(CONFIG_MAPS, "other") is not None


@pytest.mark.row("ManagedResource", "finalize-deletion-after: finalizers are cleared after this time")
async def test_finalizers_of_an_object_are_cleared_when_its_grace_is_over(manager):
    await manager.start()
    manager.write(config_map(annotations={"resources.gardener.cloud/finalize-deletion-after": "1h"}))
    await manager.applied()
    long_ago = (datetime.now(UTC) - timedelta(minutes=61)).isoformat()
    patch = {"metadata": {"finalizers": ["no/controller"], "deletionTimestamp": long_ago}}
    manager.target.change(CONFIG_MAPS, "one", "kube-system", patch)
    manager.delete()

    await until(lambda: manager.get() is None)
    assert manager.live(CONFIG_MAPS, "one") is None


@pytest.mark.row(
    "ManagedResource", "annotation ignore: conditions say ManagedResourceIgnored; without it, objects are applied"
)
async def test_an_ignored_managed_resource_is_left_alone_until_it_is_not(manager):
    await manager.start()
    manager.write(config_map(), annotations={IGNORE: "true"})
    await manager.sees("Applied", "True", "ManagedResourceIgnored")
    await manager.sees("Progressing", "False", "ManagedResourceIgnored")
    assert manager.live(CONFIG_MAPS, "one") is None

    manager.annotate(**{IGNORE: None})
    await manager.sees("Applied", "True", "ApplySucceeded")
    assert manager.live(CONFIG_MAPS, "one") is not None


@pytest.mark.row("ManagedResource", "annotation ignore does not stop a deletion")
async def test_being_ignored_does_not_stop_a_deletion(manager):
    await manager.start()
    manager.write(config_map())
    await manager.applied()
    manager.annotate(**{IGNORE: "true"})
    manager.delete()

    await until(lambda: manager.get() is None)
    assert manager.live(CONFIG_MAPS, "one") is None


@pytest.mark.row("ManagedResource", "ignore on an object: created, never updated, deleted with the ManagedResource")
async def test_an_ignored_object_is_created_once_and_then_belongs_to_others(manager):
    await manager.start()
    manager.write(config_map(annotations={IGNORE: "true"}, a="ours"))
    await manager.applied()
    manager.target.change(CONFIG_MAPS, "one", "kube-system", {"data": {"a": "theirs"}})
    manager.write(config_map(annotations={IGNORE: "true"}, a="ours again"))
    await manager.applied()

    assert manager.live(CONFIG_MAPS, "one")["data"] == {"a": "theirs"}
    assert "resources.gardener.cloud/description" not in manager.live(CONFIG_MAPS, "one")["metadata"]["annotations"]
    manager.delete()
    await until(lambda: manager.get() is None)
    assert manager.live(CONFIG_MAPS, "one") is None


@pytest.mark.row("ManagedResource", "mode: Ignore hands an object over to another ManagedResource")
async def test_an_object_handed_over_to_another_managed_resource_never_goes_away(manager):
    await manager.start()
    manager.write(config_map(a="1"))
    await manager.applied()
    uid = manager.live(CONFIG_MAPS, "one")["metadata"]["uid"]

    manager.write(config_map(annotations={MODE: "Ignore"}))
    await manager.applied()
    assert ORIGIN not in manager.live(CONFIG_MAPS, "one")["metadata"]["annotations"]
    assert not manager.get()["status"]["resources"]

    manager.write(config_map(a="2"), name="two")
    await manager.applied("two")
    manager.delete()
    await until(lambda: manager.get() is None)

    live = manager.live(CONFIG_MAPS, "one")
    assert (live["metadata"]["uid"], live["data"]) == (uid, {"a": "2"})
    assert live["metadata"]["annotations"][ORIGIN] == f"{NAMESPACE}/two"


@pytest.mark.row("ManagedResource", "immutable ConfigMaps and Secrets that must change are deleted and created again")
async def test_an_immutable_secret_that_must_change_is_replaced(manager):
    await manager.start()
    old = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "kube-system"},
        "immutable": True,
        "data": {"a": "b2xk"},
    }
    manager.write(old)
    await manager.applied()
    uid = manager.live(SECRETS, "s")["metadata"]["uid"]
    manager.write({**old, "data": {"a": "bmV3"}})
    await manager.applied()

    live = manager.live(SECRETS, "s")
    assert live["data"] == {"a": "bmV3"}
    assert live["metadata"]["uid"] != uid


@pytest.mark.row("ManagedResource", "gardener.cloud/operation: reconcile applies at once, and is removed")
async def test_an_operation_annotation_is_obeyed_and_removed(manager):
    await manager.start()
    manager.write(config_map(a="1"))
    await manager.applied()
    manager.target.change(CONFIG_MAPS, "one", "kube-system", {"data": {"a": "drifted"}})
    manager.annotate(**{"gardener.cloud/operation": "reconcile"})

    await until(lambda: manager.live(CONFIG_MAPS, "one")["data"] == {"a": "1"})
    await until(lambda: "gardener.cloud/operation" not in manager.get()["metadata"]["annotations"])


@pytest.mark.row("ManagedResource", "all objects are applied again after syncPeriod")
async def test_drift_is_corrected_after_the_sync_period(manager):
    await manager.start(managedResource={"syncPeriod": "300ms"})
    manager.write(config_map(a="1"))
    await manager.applied()
    manager.target.change(CONFIG_MAPS, "one", "kube-system", {"data": {"a": "drifted"}})

    await until(lambda: manager.live(CONFIG_MAPS, "one")["data"] == {"a": "1"})


@pytest.mark.row("ManagedResource", "nothing is written while nothing changes")
async def test_an_idle_managed_resource_costs_no_writes(manager):
    await manager.start(managedResource={"syncPeriod": "100ms"}, health={"syncPeriod": "50ms"})
    manager.write(config_map(a="1"))
    await manager.applied()
    await manager.sees("Progressing", "False")
    version = manager.get()["metadata"]["resourceVersion"]
    applies = len(manager.target.requests)
    await until(lambda: len(manager.target.requests) > applies + 2)

    assert manager.get()["metadata"]["resourceVersion"] == version


@pytest.mark.row("ManagedResource", "class: those of other classes are none of an instance's work")
async def test_a_managed_resource_of_another_class_is_ignored(manager):
    await manager.start()
    manager.write(config_map(), **{"class": "seed"})
    manager.write(config_map("two"), name="two")
    await manager.applied("two")

    assert manager.live(CONFIG_MAPS, "one") is None
    assert "status" not in manager.get()


@pytest.mark.row(
    "ManagedResource", "class changes: the old instance deletes its objects, the new one waits for its finalizer"
)
async def test_a_managed_resource_that_changes_class_moves_from_one_instance_to_the_other(manager):
    """The new one must wait, or both would write the objects."""
    await manager.start()
    manager.write(config_map())
    await manager.applied()
    uid = manager.live(CONFIG_MAPS, "one")["metadata"]["uid"]
    manager.target.change(CONFIG_MAPS, "one", "kube-system", {"metadata": {"finalizers": ["a/b"]}})
    await manager.start(resourceClass="seed")
    manager.source.change(MANAGED_RESOURCES, "one", NAMESPACE, {"spec": {"class": "seed"}})

    await manager.sees("Applied", "Progressing", "DeletionPending")
    await manager.handles_another("of-the-new-one", **{"class": "seed"})
    assert manager.get()["metadata"]["finalizers"] == [FINALIZER]
    manager.target.change(CONFIG_MAPS, "one", "kube-system", {"metadata": {"finalizers": None}})

    await until(lambda: manager.get()["metadata"]["finalizers"] == [f"{FINALIZER}-seed"])
    await manager.sees("Applied", "True", "ApplySucceeded")
    await until(lambda: manager.live(CONFIG_MAPS, "one"))
    assert manager.live(CONFIG_MAPS, "one")["metadata"]["uid"] != uid


async def test_a_new_instance_takes_over_where_the_last_one_was_killed(manager):
    """References are written before they are needed, so pruning works over a restart."""
    stop = await manager.start()
    manager.write(config_map("goes"), config_map("stays"))
    await manager.applied()
    await stop()
    manager.write(config_map("stays"))
    await manager.start()
    await manager.applied()

    assert manager.live(CONFIG_MAPS, "goes") is None
    assert manager.live(CONFIG_MAPS, "stays") is not None


async def test_changes_during_an_apply_are_not_lost(manager):
    await manager.start()
    changed: list[Any] = []

    def answer(request):
        if request.method == "POST" and request.path.endswith("/configmaps") and not changed:
            changed.append(True)
            manager.write(config_map(a="2"))
        return

    manager.target.answer = answer
    manager.write(config_map(a="1"))

    await until(lambda: (manager.live(CONFIG_MAPS, "one") or {}).get("data") == {"a": "2"})
    await manager.applied()


@pytest.mark.row("ManagedResource", "a target that does not answer is reported, and served again later")
async def test_a_target_that_is_down_is_reported_and_found_again(manager):
    await manager.start()
    manager.target.answer = lambda _: refuse(503, "ServiceUnavailable", "starting")
    manager.write(config_map())
    await manager.sees("Applied", "False", "ApplyFailed")
    manager.target.answer = lambda _: None

    await manager.applied()
    await manager.sees("Healthy", "True")


def test_a_conditions_times_move_only_with_what_they_tell():
    old = [
        {
            "type": "ResourcesApplied",
            "status": "True",
            "reason": "r",
            "message": "m",
            "lastTransitionTime": "1",
            "lastUpdateTime": "1",
        }
    ]

    def times(*change):
        (merged,) = set_conditions(old, [asdict(Condition("ResourcesApplied", *change))], "2")
        return merged["lastTransitionTime"], merged["lastUpdateTime"]

    assert times("True", "r", "m") == ("1", "1")
    assert times("True", "r", "other") == ("1", "2")
    assert times("False", "r", "m") == ("2", "2")


@pytest.mark.row(
    "ManagedResource", "a namespaced object without namespace is in default, a cluster-scoped one has none"
)
@pytest.mark.parametrize("kind", ["ConfigMap", "Namespace"])
async def test_scope_decides_about_the_namespace(manager, kind):
    await manager.start()
    manager.write({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "kube-system"}})
    manager.write({"apiVersion": "v1", "kind": kind, "metadata": {"name": "y"}}, name="two")
    await manager.applied()
    await manager.applied("two")

    path = CONFIG_MAPS if kind == "ConfigMap" else "/api/v1/namespaces"
    assert manager.live(path, "x", "kube-system" if kind == "ConfigMap" else None) is not None
    assert manager.live(path, "y", "default" if kind == "ConfigMap" else None) is not None


THINGS = "/apis/example.org/v1/things"
THING = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "a"}}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.org"},
    "spec": {"group": "example.org", "scope": "Cluster", "names": {"kind": "Thing", "plural": "things"}},
}
SERVED = [{"name": "things", "kind": "Thing", "namespaced": False}]


async def test_an_object_of_the_cluster_is_not_pruned_when_its_kind_gets_known(manager, target):
    """It was stored as namespaced while its kind was unknown; the API server ignores the namespace when it deletes."""
    target.kinds["example.org/v1"] = SERVED
    target.put(THINGS, THING | {"metadata": {"name": "a", "uid": "first"}})
    manager.write(THING)
    manager.source.change(
        MANAGED_RESOURCES, "one", NAMESPACE, {"status": {"resources": [THING | {"namespace": "default", "name": "a"}]}}
    )
    await manager.start()
    await manager.applied()
    assert target.find(THINGS, "a")["metadata"]["uid"] == "first"
    assert [(each["kind"], each.get("namespace")) for each in manager.get()["status"]["resources"]] == [("Thing", None)]


def test_a_definition_says_whether_its_objects_have_a_namespace():
    found = declared_scopes([DEFINITION, THING, config_map()])
    assert found == {("example.org", "Thing"): False}
