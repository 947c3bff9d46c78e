"""Node groups of the cluster autoscaler, computed from objects of machine.sapcloud.io. Pure functions.

A node group is a MachineDeployment and has its name; an instance is a Machine. Source: spec/api-extensions.md 2.2.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from api.constants import WORKER_POOL
from api.durations import parse_duration
from api.labels import ZONE
from api.machine.codes import MachineCode
from api.machine.names import NAME_LABEL, NODE_LABEL, TRIGGER_DELETION
from api.machine.objects import chosen_machines, is_alive, is_deleting, phase_of
from api.quantities import parse_quantity
from kube.client import Object, Objects
from workers.autoscaler_provider import externalgrpc_pb2 as pb
from workers.autoscaler_provider.config import Kubelet

GPU_LABEL = "gpu"
"""Label of nodes with a GPU."""
_GPU_RESOURCE = "nvidia.com/gpu"
_OPTIONS = "autoscaler.gardener.cloud/"
"""Prefix of annotations of a MachineDeployment with its own settings."""
_EVICTION_SIGNALS = {"memory": "memory.available", "ephemeral-storage": "nodefs.available"}
"""Signals whose hard thresholds a kubelet keeps from pods, by resource."""
_NEVER = timedelta(days=365)
_LABELS = {"node.kubernetes.io/instance-type": "instanceType", "topology.kubernetes.io/region": "region", ZONE: "zone"}
"""Labels that a cloud's controller writes on Nodes, and the fields of a MachineClass with their values."""

_OUT_OF_RESOURCES, _OTHER = 1, 99
"""Error classes of the autoscaler. After an error of the first class it tries another node group at once."""


class Refused(Exception):
    """A requested size is not allowed; the text names the MachineDeployment and the reason."""


def replicas(deployment: Mapping[str, Any]) -> int:
    return int(deployment["spec"].get("replicas") or 0)


def is_rolling(deployment: Mapping[str, Any]) -> bool:
    """Whether the MachineDeployment still has machines of an older class."""
    status = deployment.get("status") or {}
    return int(status.get("replicas") or 0) > int(status.get("updatedReplicas") or 0)


# Instances


def instance_id(machine: Mapping[str, Any]) -> str:
    """Provider id of a Machine's node; until the cloud has assigned one, a name that no node has."""
    return str(machine["spec"].get("providerID") or f"requested://{machine['metadata']['name']}")


def is_of(machine: Mapping[str, Any], node: pb.ExternalGrpcNode) -> bool:
    """Whether a node belongs to this Machine; or the autoscaler's placeholder for a node that has not joined yet."""
    return node.providerID == instance_id(machine) or node.name == machine["metadata"]["labels"].get(NODE_LABEL)


def by_deployment(machines: Iterable[Object]) -> dict[str, Objects]:
    found: dict[str, Objects] = {}
    for machine in machines:
        found.setdefault(machine["metadata"]["labels"].get(NAME_LABEL, ""), []).append(machine)
    return found


def instance(machine: Mapping[str, Any]) -> pb.Instance:
    """The instance of a Machine.

    If the cloud has refused to create the Machine, the instance has an error: the autoscaler then removes it, and
    waits before it requests another one.
    """
    state = pb.InstanceStatus.instanceRunning
    error = None
    if is_deleting(machine):
        state = pb.InstanceStatus.instanceDeleting
    elif phase_of(machine) in ("", "Pending", "CrashLoopBackOff"):
        state = pb.InstanceStatus.instanceCreating
        last = (machine.get("status") or {}).get("lastOperation") or {}
        if last.get("state") == "Failed" and (code := last.get("errorCode")):
            error = pb.InstanceErrorInfo(
                errorCode=code,
                errorMessage=last.get("description") or "",
                instanceErrorClass=_OUT_OF_RESOURCES if code == MachineCode.RESOURCE_EXHAUSTED else _OTHER,
            )
    return pb.Instance(id=instance_id(machine), status=pb.InstanceStatus(instanceState=state, errorInfo=error))


# Sizes


def resized(deployment: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Patch that sets the size. The API server refuses it if the deployment has changed since it was read."""
    metadata = {"resourceVersion": deployment["metadata"]["resourceVersion"]}
    return {"metadata": metadata, "spec": {"replicas": size}}


def grown(deployment: Mapping[str, Any], delta: int, maximum: int) -> dict[str, Any]:
    """Patch that adds ``delta`` machines. Raises Refused."""
    size = replicas(deployment) + delta
    if delta <= 0:
        raise Refused(f"{_named(deployment)} cannot grow by {delta}")
    if size > maximum:
        raise Refused(f"{_named(deployment)} would have {size} machines, more than its maximum {maximum}")
    return resized(deployment, size)


def without_unmade(deployment: Mapping[str, Any], delta: int, machines: Objects) -> dict[str, Any]:
    """Patch that removes ``-delta`` machines that do not exist yet. Raises Refused if machines would be deleted."""
    size, made = replicas(deployment) + delta, sum(not is_deleting(each) for each in machines)
    if delta >= 0:
        raise Refused(f"{_named(deployment)} cannot shrink by {-delta}")
    if size < made:
        raise Refused(f"{_named(deployment)} has {made} machines: a decrease to {size} must name those to delete")
    return resized(deployment, size)


def without(
    deployment: Mapping[str, Any], doomed: Iterable[Object], machines: Iterable[Object], minimum: int
) -> dict[str, Any] | None:
    """Patch that makes the machine-controller-manager delete these machines; None if it does so already.

    One write sets the names of the machines and the new size, so a repeated request finds both or neither. Raises
    Refused.
    """
    alive = {each["metadata"]["name"] for each in machines if is_alive(each, deployment["metadata"]["name"])}
    before = chosen_machines(deployment, alive)
    names = [each["metadata"]["name"] for each in doomed]
    new = [name for name in dict.fromkeys(names) if name in alive and name not in before]
    if not new:
        return None
    size = replicas(deployment) - len(new)
    if size < minimum:
        raise Refused(f"{_named(deployment)} would have {size} machines, fewer than its minimum {minimum}")
    if is_rolling(deployment):
        raise Refused(f"{_named(deployment)} is being rolled: its old machines go first")
    patch = resized(deployment, size)
    patch["metadata"]["annotations"] = {TRIGGER_DELETION: ",".join([*before, *new])}
    return patch


def _named(deployment: Mapping[str, Any]) -> str:
    return f"MachineDeployment {deployment['metadata']['namespace']}/{deployment['metadata']['name']}"


# Settings


def options(deployment: Mapping[str, Any], defaults: pb.NodeGroupAutoscalingOptions) -> pb.NodeGroupAutoscalingOptions:
    """Settings of the pool; the cluster's are the defaults. While the deployment is rolled, no node is scaled down."""
    own = {
        name.removeprefix(_OPTIONS): value
        for name, value in (deployment["metadata"].get("annotations") or {}).items()
        if name.startswith(_OPTIONS)
    }
    wanted = pb.NodeGroupAutoscalingOptions()
    wanted.CopyFrom(defaults)
    if threshold := own.get("scale-down-utilization-threshold"):
        wanted.scaleDownUtilizationThreshold = float(threshold)
    if threshold := own.get("scale-down-gpu-utilization-threshold"):
        wanted.scaleDownGpuUtilizationThreshold = float(threshold)
    for field, name in (
        (wanted.scaleDownUnneededTime, "scale-down-unneeded-time"),
        (wanted.scaleDownUnreadyTime, "scale-down-unready-time"),
        (wanted.MaxNodeProvisionTime, "max-node-provision-time"),
    ):
        if name in own:
            field.duration = _nanoseconds(parse_duration(own[name]))
    if is_rolling(deployment):
        for field in (wanted.scaleDownUnneededTime, wanted.scaleDownUnreadyTime):
            field.duration = _nanoseconds(_NEVER)
    return wanted


def _nanoseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000


# Template of a new node


def template_node(deployment: Mapping[str, Any], class_: Mapping[str, Any], kubelets: Mapping[str, Kubelet]) -> pb.Node:
    """The node that a new machine of the deployment would become; the autoscaler needs it for pools without nodes.

    ``kubelets``: settings of the kubelets, by pool. The pool is a label of the deployment's nodes.
    """
    name = f"template-of-{deployment['metadata']['name']}"
    of_class = class_.get("nodeTemplate") or {}
    template = deployment["spec"]["template"]["spec"].get("nodeTemplate") or {}
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    kubelet = kubelets.get((metadata.get("labels") or {}).get(WORKER_POOL, ""), Kubelet())
    capacity = {**(of_class.get("capacity") or {}), **(of_class.get("virtualCapacity") or {}), "pods": kubelet.max_pods}
    gpus = str(capacity.pop("gpu", "0"))
    if gpus != "0":
        capacity[_GPU_RESOURCE] = gpus
    labels = {
        "kubernetes.io/arch": of_class.get("architecture") or "amd64",
        "kubernetes.io/os": "linux",
        **{label: of_class[field] for label, field in _LABELS.items() if of_class.get(field)},
        **(metadata.get("labels") or {}),
        "kubernetes.io/hostname": name,
    }
    return pb.Node(
        metadata=pb.ObjectMeta(name=name, labels=labels, annotations=metadata.get("annotations") or {}),
        spec=pb.NodeSpec(
            taints=[
                pb.Taint(key=each["key"], value=each.get("value") or "", effect=each["effect"])
                for each in spec.get("taints") or []
            ]
        ),
        status=pb.NodeStatus(
            capacity=_quantities(capacity),
            allocatable=_quantities({name: _allocatable(name, amount, kubelet) for name, amount in capacity.items()}),
            conditions=[pb.NodeCondition(type="Ready", status="True")],
        ),
    )


def _allocatable(resource: str, capacity: str | int | float, kubelet: Kubelet) -> str | int | float:
    """Amount of a resource that pods may use, as the kubelet computes it. Source: Kubernetes, Node Allocatable."""
    kept = parse_quantity(kubelet.kube_reserved.get(resource, 0))
    threshold = str(kubelet.eviction_hard.get(_EVICTION_SIGNALS.get(resource, ""), 0))
    total = parse_quantity(capacity)
    if threshold.endswith("%"):
        kept += total * Decimal(threshold.removesuffix("%")) / 100
    else:
        kept += parse_quantity(threshold)
    if not kept:
        return capacity
    left = max(total - kept, Decimal(0))
    return f"{int(left * 1000)}m" if resource == "cpu" else int(left)


def _quantities(amounts: Mapping[str, str | int | float]) -> dict[str, pb.Quantity]:
    return {resource: pb.Quantity(string=str(amount)) for resource, amount in amounts.items()}
