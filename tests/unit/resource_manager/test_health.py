"""The tables of spec/resource-manager.md 4, row by row."""

import pytest

from workers.lib.health import progressing, terminating_pods, unhealthy


def obj(kind, status=None, spec=None, generation=2, api_version="apps/v1"):
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "x", "generation": generation},
        "spec": spec or {},
        "status": status or {},
    }


def conditions(**values):
    return {"conditions": [{"type": kind, "status": value} for kind, value in values.items()]}


SEEN = {"observedGeneration": 2}
CRD = "apiextensions.k8s.io/v1"


@pytest.mark.row("health", "each kind of the table is healthy or not by its own rule")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        (obj("Deployment", {**SEEN, **conditions(Available="True", Progressing="True")}), None),
        (obj("Deployment", {"observedGeneration": 1, **conditions(Available="True")}), "outdated (1/2)"),
        (obj("Deployment", SEEN), "condition Available is missing"),
        (obj("Deployment", {**SEEN, **conditions(Available="False")}), "Available is False"),
        (obj("Deployment", {**SEEN, **conditions(Available="True", Progressing="False")}), "Progressing is False"),
        (
            obj("Deployment", {**SEEN, **conditions(Available="True", ReplicaFailure="True")}),
            "ReplicaFailure is True",
        ),
        (obj("StatefulSet", {**SEEN, "readyReplicas": 2}, {"replicas": 2}), None),
        (obj("StatefulSet", {**SEEN, "readyReplicas": 1}, {"replicas": 2}), "ready replicas (1/2)"),
        (obj("StatefulSet", SEEN), "ready replicas (0/1)"),
        (obj("StatefulSet", SEEN, {"replicas": 0}), None),
        (obj("ReplicaSet", SEEN), "ready replicas (0/1)"),
        (obj("ReplicationController", SEEN, api_version="v1"), "ready replicas (0/1)"),
        (obj("DaemonSet", {**SEEN, "desiredNumberScheduled": 0}), None),
        (
            obj("DaemonSet", {**SEEN, "desiredNumberScheduled": 3, "currentNumberScheduled": 2}),
            "scheduled pods (2/3)",
        ),
        (obj("DaemonSet", {**SEEN, "numberMisscheduled": 1}), "misscheduled pods found (1)"),
        (obj("Pod", {"phase": "Running"}, api_version="v1"), None),
        (obj("Pod", {"phase": "Succeeded"}, api_version="v1"), None),
        (obj("Pod", {"phase": "Pending"}, api_version="v1"), "phase Pending"),
        (obj("Job", conditions(Failed="True"), api_version="batch/v1"), "Failed is True"),
        (obj("Job", api_version="batch/v1"), None),
        (obj("Service", api_version="v1"), None),
        (obj("Service", spec={"type": "LoadBalancer"}, api_version="v1"), "missing ingress"),
        (
            obj("Service", {"loadBalancer": {"ingress": [{"ip": "::1"}]}}, {"type": "LoadBalancer"}, api_version="v1"),
            None,
        ),
        (obj("CustomResourceDefinition", conditions(NamesAccepted="True", Established="True"), api_version=CRD), None),
        (obj("CustomResourceDefinition", conditions(NamesAccepted="True"), api_version=CRD), "Established is missing"),
        (
            obj(
                "CustomResourceDefinition",
                conditions(NamesAccepted="True", Established="True", Terminating="True"),
                api_version=CRD,
            ),
            "Terminating is True",
        ),
        (obj("VerticalPodAutoscaler", conditions(ConfigUnsupported="True"), api_version="autoscaling.k8s.io/v1"), "x"),
        (obj("ConfigMap", api_version="v1"), None),
        (obj("Deployment", api_version="example.org/v1"), None),
    ],
)
def test_health(what, why):
    found = unhealthy(what)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert why in found or why == "x"


@pytest.mark.row("health", "DaemonSet: up to maxUnavailable pods may be missing during a rollout")
@pytest.mark.parametrize(
    ("maximum", "unavailable", "updated", "healthy"),
    [
        (1, 1, 1, True),  # rolling out: one may be away
        (1, 2, 1, False),
        ("50%", 5, 1, True),
        ("25%", 3, 1, True),  # of 10, rounded up
        ("25%", 4, 1, False),
        (5, 1, 10, False),  # not rolling out: none may
    ],
)
def test_a_daemon_set_may_lack_pods_only_while_it_rolls_out(maximum, unavailable, updated, healthy):
    status = {
        **SEEN,
        "desiredNumberScheduled": 10,
        "currentNumberScheduled": 10,
        "updatedNumberScheduled": updated,
        "numberUnavailable": unavailable,
    }
    what = obj("DaemonSet", status, {"updateStrategy": {"rollingUpdate": {"maxUnavailable": maximum}}})

    assert (unhealthy(what) is None) is healthy


@pytest.mark.row("health", "each kind of the table progresses or not by its own rule")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        (obj("Deployment", {"observedGeneration": 1}), "outdated"),
        (obj("Deployment", {**SEEN, **conditions(Progressing="True")}), "Progressing is True"),
        (
            obj("Deployment", {**SEEN, "conditions": [{"type": "Progressing", "reason": "NewReplicaSetAvailable"}]}),
            None,
        ),
        (obj("StatefulSet", {**SEEN, "updatedReplicas": 1}, {"replicas": 3}), "1 of 3"),
        (obj("StatefulSet", {**SEEN, "updatedReplicas": 3}, {"replicas": 3}), None),
        (obj("DaemonSet", {**SEEN, "updatedNumberScheduled": 1, "desiredNumberScheduled": 2}), "1 of 2"),
        (obj("DaemonSet", {**SEEN, "updatedNumberScheduled": 2, "desiredNumberScheduled": 2}), None),
        (obj("ConfigMap", api_version="v1"), None),
    ],
)
def test_progress(what, why):
    found = progressing(what)

    assert found is None if why is None else found is not None and why in found


def test_a_deployment_tells_of_pods_beyond_those_it_wants():
    status = {"replicas": 3, "terminatingReplicas": 2}

    assert terminating_pods(obj("Deployment", status, {"replicas": 3})) == 2
    assert terminating_pods(obj("Deployment", {"replicas": 3}, {"replicas": 3})) is None
