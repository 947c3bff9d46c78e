"""Node groups out of machines: tables."""

from collections.abc import Mapping
from typing import Any

import pytest

from activities.components.operating_system_config import reservations
from api.machine.names import TRIGGER_DELETION
from workers.autoscaler_provider import externalgrpc_pb2 as pb
from workers.autoscaler_provider import node_groups
from workers.autoscaler_provider.config import Kubelet
from workers.autoscaler_provider.node_groups import Refused

MINUTE = 60 * 10**9
STATE = pb.InstanceStatus


def machine(name: str = "m", phase: str = "Running", **rest: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"node": name, "name": "pool-z1"}, **rest.pop("metadata", {})}
    spec = {"providerID": f"local:///infra/{name}"}
    return {"metadata": metadata, "spec": spec, "status": {"currentStatus": {"phase": phase}, **rest}}


def deployment(
    replicas: int = 2, *, rolling: bool = False, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    metadata = {"name": "pool-z1", "namespace": "ns", "resourceVersion": "7", "annotations": dict(annotations or {})}
    status = {"replicas": replicas, "updatedReplicas": replicas - rolling}
    return {"metadata": metadata, "spec": {"replicas": replicas}, "status": status}


def failed(code: str) -> dict[str, Any]:
    return {"lastOperation": {"state": "Failed", "errorCode": code, "description": "why"}}


@pytest.mark.parametrize(
    ("found", "state", "error"),
    [
        (machine(phase=""), STATE.instanceCreating, 0),
        (machine(phase="Pending"), STATE.instanceCreating, 0),
        (machine(phase="CrashLoopBackOff", **failed("ResourceExhausted")), STATE.instanceCreating, 1),
        (machine(phase="CrashLoopBackOff", **failed("Unauthenticated")), STATE.instanceCreating, 99),
        (machine(phase="Running"), STATE.instanceRunning, 0),
        (machine(phase="Running", **failed("FailedPrecondition")), STATE.instanceRunning, 0),
        (machine(phase="Unknown"), STATE.instanceRunning, 0),
        (machine(metadata={"deletionTimestamp": "2026-11-23T00:00:00Z"}), STATE.instanceDeleting, 0),
    ],
)
def test_a_machine_is_reported_to_the_autoscaler_with_its_state(found: dict[str, Any], state: int, error: int) -> None:
    told = node_groups.instance(found)

    assert told.id == "local:///infra/m"
    assert told.status.instanceState == state
    assert told.status.errorInfo.instanceErrorClass == error
    assert (told.status.errorInfo.errorMessage == "why") == bool(error)


def test_a_machine_that_the_cloud_has_not_made_has_an_id_of_no_node() -> None:
    found = machine()
    del found["spec"]["providerID"]

    assert node_groups.instance(found).id == "requested://m"
    assert node_groups.is_of(found, pb.ExternalGrpcNode(name="requested://m", providerID="requested://m"))
    assert not node_groups.is_of(found, pb.ExternalGrpcNode(name="other"))


def test_names_and_size_are_one_write_and_only_new_names_count() -> None:
    going = machine("d", metadata={"deletionTimestamp": "2026-11-23T00:00:00Z"})
    machines = [machine("a"), machine("b"), machine("c"), going]
    found = deployment(2, annotations={TRIGGER_DELETION: "a"})

    assert node_groups.without(found, [machines[0], machines[1], going], machines, 1) == {
        "metadata": {"resourceVersion": "7", "annotations": {TRIGGER_DELETION: "a,b"}},
        "spec": {"replicas": 1},
    }
    assert node_groups.without(found, [machines[0]], machines, 1) is None


def test_a_name_without_effect_can_be_named_again() -> None:
    """The size was raised before a controller had read it."""
    machines = [machine("a"), machine("b")]

    assert node_groups.without(deployment(2, annotations={TRIGGER_DELETION: "a"}), [machines[0]], machines, 1) == {
        "metadata": {"resourceVersion": "7", "annotations": {TRIGGER_DELETION: "a"}},
        "spec": {"replicas": 1},
    }


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            lambda: node_groups.without(deployment(1), [machine()], [machine()], 1),
            "ns/pool-z1 would have 0 machines, fewer than",
        ),
        (lambda: node_groups.without(deployment(2, rolling=True), [machine()], [machine()], 1), "is being rolled"),
        (lambda: node_groups.grown(deployment(2), 2, 3), "would have 4 machines, more than its maximum 3"),
        (lambda: node_groups.grown(deployment(2), 0, 3), "cannot grow by 0"),
        (
            lambda: node_groups.without_unmade(deployment(2), -1, [machine("a"), machine("b")]),
            "has 2 machines: a decrease to 1",
        ),
        (lambda: node_groups.without_unmade(deployment(2), 1, []), "cannot shrink by -1"),
    ],
)
def test_impossible_sizes_are_refused(call: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        call()


def test_only_machines_that_do_not_exist_yet_are_removed() -> None:
    assert node_groups.without_unmade(deployment(3), -1, [machine("a"), machine("b")])["spec"] == {"replicas": 2}


DEFAULTS = pb.NodeGroupAutoscalingOptions(
    scaleDownUtilizationThreshold=0.5,
    scaleDownGpuUtilizationThreshold=0.4,
    scaleDownUnneededTime=pb.Duration(duration=30 * MINUTE),
    scaleDownUnreadyTime=pb.Duration(duration=20 * MINUTE),
    MaxNodeProvisionTime=pb.Duration(duration=15 * MINUTE),
    ignoreDaemonSetsUtilization=True,
)


def test_settings_of_a_pool_override_those_of_the_cluster() -> None:
    own = {
        "scale-down-utilization-threshold": "0.7",
        "scale-down-gpu-utilization-threshold": "0.6",
        "scale-down-unneeded-time": "1h30m",
        "scale-down-unready-time": "5m",
        "max-node-provision-time": "10m",
    }
    annotations = {f"autoscaler.gardener.cloud/{name}": value for name, value in own.items()}

    assert node_groups.options(deployment(), DEFAULTS) == DEFAULTS
    assert node_groups.options(deployment(annotations=annotations), DEFAULTS) == pb.NodeGroupAutoscalingOptions(
        scaleDownUtilizationThreshold=0.7,
        scaleDownGpuUtilizationThreshold=0.6,
        scaleDownUnneededTime=pb.Duration(duration=90 * MINUTE),
        scaleDownUnreadyTime=pb.Duration(duration=5 * MINUTE),
        MaxNodeProvisionTime=pb.Duration(duration=10 * MINUTE),
        ignoreDaemonSetsUtilization=True,
    )


def test_no_node_of_a_pool_that_is_rolled_is_idle_for_long_enough() -> None:
    rolled = node_groups.options(deployment(rolling=True), DEFAULTS)

    assert min(rolled.scaleDownUnneededTime.duration, rolled.scaleDownUnreadyTime.duration) > 24 * 60 * MINUTE
    assert rolled.MaxNodeProvisionTime == DEFAULTS.MaxNodeProvisionTime


def test_a_pool_without_machines_offers_a_template_node() -> None:
    found = deployment(0)
    template = {
        "metadata": {"labels": {"worker.gardener.cloud/pool": "gpus"}, "annotations": {"a": "b"}},
        "spec": {"taints": [{"key": "for", "value": "batch", "effect": "NoSchedule"}]},
    }
    found["spec"]["template"] = {"spec": {"class": {"name": "c"}, "nodeTemplate": template}}
    capacity = {"cpu": "4", "memory": "8Gi", "gpu": "2"}
    place = {"instanceType": "large", "region": "north", "zone": "north-1", "architecture": "arm64"}
    class_ = {"nodeTemplate": {"capacity": capacity, "virtualCapacity": {"memory": "7Gi"}, **place}}

    node = node_groups.template_node(found, class_, {})

    assert dict(node.metadata.annotations) == {"a": "b"}
    assert dict(node.metadata.labels) == {
        "worker.gardener.cloud/pool": "gpus",
        "kubernetes.io/arch": "arm64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "large",
        "topology.kubernetes.io/region": "north",
        "topology.kubernetes.io/zone": "north-1",
        "kubernetes.io/hostname": node.metadata.name,
    }
    assert [(each.key, each.value, each.effect) for each in node.spec.taints] == [("for", "batch", "NoSchedule")]
    amounts = {name: each.string for name, each in node.status.allocatable.items()}
    assert amounts == {"cpu": "4", "memory": "7Gi", "nvidia.com/gpu": "2", "pods": "110"}
    assert amounts == {name: each.string for name, each in node.status.capacity.items()}
    assert [(each.type, each.status) for each in node.status.conditions] == [("Ready", "True")]


def test_pods_of_a_template_node_may_use_what_its_kubelet_leaves_them() -> None:
    """With the whole capacity the autoscaler would add a machine for a pod that does not fit on it, again and again."""
    found = deployment(0)
    labels = {"worker.gardener.cloud/pool": "large"}
    found["spec"]["template"] = {"spec": {"class": {"name": "c"}, "nodeTemplate": {"metadata": {"labels": labels}}}}
    class_ = {"nodeTemplate": {"capacity": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "50Gi", "gpu": "1"}}}
    shoot = {"spec": {"kubernetes": {"kubelet": {"kubeReserved": {"memory": "900Mi", "cpu": "80m"}, "maxPods": 60}}}}
    kubelets = {
        "large": Kubelet.model_validate(reservations(shoot, {"name": "large"})),
        "greedy": Kubelet(kube_reserved={"cpu": "3"}),
    }

    status = node_groups.template_node(found, class_, kubelets).status

    amounts = {name: each.string for name, each in status.allocatable.items()}
    memory, disk = (4096 - 900 - 100) * 2**20, 50 * 2**30 * 95 // 100
    expected = {"cpu": "1920m", "memory": str(memory), "ephemeral-storage": str(disk), "nvidia.com/gpu": "1"}
    assert amounts == {**expected, "pods": "60"}
    assert status.capacity["cpu"].string == "2"
    assert status.capacity["memory"].string == "4Gi"
    labels["worker.gardener.cloud/pool"] = "greedy"
    assert node_groups.template_node(found, class_, kubelets).status.allocatable["cpu"].string == "0m"
