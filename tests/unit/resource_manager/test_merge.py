"""Values of a live object that survive a write; the table itself is in test_merge_at_an_api_server.py."""

from typing import Any

from kube.client import Object
from workers.resource_manager.merge import Applied, merge

PRESERVE_RESOURCES = {"resources.gardener.cloud/preserve-resources": "true"}


def merged(desired: Object, live: Object) -> Object:
    return merge(desired, live, Applied())


def workload(annotations: Object | None = None, containers: list[Object] | None = None) -> Object:
    template = {"spec": {"containers": containers or [{"name": "c"}], "initContainers": [{"name": "c"}]}}
    metadata = {"name": "x", "annotations": annotations or {}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}


def core(kind: str, labels: Object | None = None, **content: Any) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "labels": labels or {}}, **content}


def test_cpu_and_memory_that_an_autoscaler_set_stay_by_container_and_nothing_else() -> None:
    live = workload(
        containers=[
            {"name": "b", "resources": {"requests": {"cpu": "2", "storage": "9"}, "limits": {"memory": "1Gi"}}},
            {"name": "c", "resources": {"requests": {"memory": "7Gi"}}},
        ]
    )
    desired = workload(
        PRESERVE_RESOURCES,
        containers=[
            {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "b", "image": "new"},
            {"name": "a"},
        ],
    )

    assert merged(desired, live)["spec"]["template"]["spec"]["containers"] == [
        {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "7Gi"}}},
        {"name": "b", "image": "new", "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}},
        {"name": "a"},
    ]


def test_the_manifest_is_not_changed() -> None:
    """The same manifest is merged again in the next run, with another live object."""
    desired = workload(PRESERVE_RESOURCES)
    merged(desired, workload(containers=[{"name": "c", "resources": {"requests": {"cpu": "2"}}}]))

    assert desired == workload(PRESERVE_RESOURCES)


def test_a_volume_keeps_the_names_that_the_cluster_gave() -> None:
    live = core("PersistentVolumeClaim", spec={"volumeName": "pv-1", "resources": {"requests": {"storage": "1Gi"}}})
    desired = core("PersistentVolumeClaim", spec={"resources": {"requests": {"storage": "2Gi"}}})

    assert merged(desired, live)["spec"] == {"volumeName": "pv-1", "resources": {"requests": {"storage": "2Gi"}}}


def test_a_pod_keeps_what_admission_added_and_gets_the_image_of_the_manifest() -> None:
    live = core("Pod", spec={"nodeName": "n", "containers": [{"name": "c", "image": "old", "volumeMounts": [1]}]})
    desired = core("Pod", spec={"containers": [{"name": "c", "image": "new"}]})

    assert merged(desired, live)["spec"] == {
        "nodeName": "n",
        "containers": [{"name": "c", "image": "new", "volumeMounts": [1]}],
    }


def test_tokens_stay_in_secrets_that_a_controller_fills_and_in_no_other() -> None:
    data = {"token": "dA==", "more": "eA=="}
    requested = {"resources.gardener.cloud/purpose": "token-requestor"}
    of_account = core("Secret", type="kubernetes.io/service-account-token")

    assert merged(core("Secret", requested), core("Secret", requested, data=data))["data"] == {"token": "dA=="}
    assert merged(of_account, {**of_account, "data": data})["data"] == data
    assert "data" not in merged(core("Secret"), core("Secret", data=data))


def test_rules_stay_in_a_role_that_aggregates_others() -> None:
    role: Object = {**core("ClusterRole"), "apiVersion": "rbac.authorization.k8s.io/v1", "aggregationRule": {"a": 1}}
    rules = [{"verbs": ["get"]}]

    assert merged({**role, "rules": []}, {**role, "rules": rules})["rules"] == rules
