"""Fields of a live object that survive our writes, beyond those that server-side apply keeps."""

import pytest

from workers.resource_manager.apply import adapt, needs_live

PRESERVE_REPLICAS = {"resources.gardener.cloud/preserve-replicas": "true"}
PRESERVE_RESOURCES = {"resources.gardener.cloud/preserve-resources": "true"}


def workload(kind="Deployment", annotations=None, containers=None, **spec):
    template = {"spec": {"containers": containers or [{"name": "c"}], "initContainers": [{"name": "c"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "x", "annotations": annotations or {}},
        "spec": {"template": template, **spec},
    }


@pytest.mark.parametrize(
    ("desired", "annotations", "autoscaled", "written"),
    [(1, None, False, 1), (1, PRESERVE_REPLICAS, False, 5), (1, None, True, 5), (None, None, False, 5)],
)
def test_replicas_are_applied_unless_an_autoscaler_sets_them(desired, annotations, autoscaled, written):
    """Copied rather than left out: a field that we owned and drop would be reset to 1."""
    spec = {} if desired is None else {"replicas": desired}
    done = adapt(workload(annotations=annotations, **spec), workload(replicas=5), autoscaled=autoscaled)

    assert done["spec"]["replicas"] == written


def test_a_volume_claim_template_is_never_changed():
    """It is immutable: a new size in the manifest would be refused for good."""
    old = [{"metadata": {"name": "data"}, "spec": {"size": "old"}, "status": {"phase": "Pending"}}]
    new = [{"metadata": {"name": "data"}, "spec": {"size": "new"}}]

    done = adapt(workload("StatefulSet", volumeClaimTemplates=new), workload("StatefulSet", volumeClaimTemplates=old))

    assert done["spec"]["volumeClaimTemplates"] == [{"metadata": {"name": "data"}, "spec": {"size": "old"}}]


def test_cpu_and_memory_that_an_autoscaler_set_stay_by_container_and_nothing_else():
    live = workload(
        containers=[
            {"name": "b", "resources": {"requests": {"cpu": "2", "storage": "9"}, "limits": {"memory": "1Gi"}}},
            {"name": "c", "resources": {"requests": {"memory": "7Gi"}}},
        ]
    )
    desired = workload(
        annotations=PRESERVE_RESOURCES,
        containers=[
            {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "b", "image": "new"},
            {"name": "a"},
        ],
    )

    containers = adapt(desired, live)["spec"]["template"]["spec"]["containers"]

    assert containers == [
        {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "7Gi"}}},
        {"name": "b", "image": "new", "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}},
        {"name": "a"},
    ]


def test_resources_are_applied_unless_they_are_to_be_preserved():
    live = workload(containers=[{"name": "c", "resources": {"requests": {"cpu": "2"}}}])

    assert adapt(workload(), live)["spec"]["template"]["spec"]["containers"] == [{"name": "c"}]


@pytest.mark.parametrize(
    ("obj", "needed"),
    [
        (workload("StatefulSet"), True),
        (workload(replicas=1), True),
        (workload(), False),
        (workload("DaemonSet"), False),
        (workload("DaemonSet", PRESERVE_RESOURCES), True),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, False),
    ],
)
def test_the_live_object_is_read_only_where_it_has_a_say(obj, needed):
    """A request per object and run is what a shoot's control plane would pay otherwise."""
    assert needs_live(obj) is needed
