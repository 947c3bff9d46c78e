"""Node groups of the cluster autoscaler, out of objects of machine.sapcloud.io. Pure.

A node group is a MachineDeployment and has its name; an instance is a Machine. Source: spec/api-extensions.md 2.2.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from activities.provider_local.machines import NAME_LABEL, TRIGGER_DELETION, chosen_machines
from api.durations import parse_duration
from kube.client import Object, Objects
from workers.autoscaler_provider import externalgrpc_pb2 as pb
from workers.machine_controller_manager.machine_set import NODE_LABEL
from workers.machine_controller_manager.objects import is_alive, is_deleting, phase_of

GPU_LABEL = "gpu"
"""On nodes that have one."""
_GPU_RESOURCE = "nvidia.com/gpu"
_OPTIONS = "autoscaler.gardener.cloud/"
"""Prefix of the annotations by which a MachineDeployment has settings of its own."""
_MAX_PODS = "110"
_NEVER = timedelta(days=365)

_OUT_OF_RESOURCES, _OTHER = 1, 99
"""Classes of errors, as the autoscaler knows them: of the first kind it tries another node group at once."""


class Refused(Exception):
    """A size that may not be; the text says of what, and why not."""


def replicas(deployment: Mapping[str, Any]) -> int:
    return int(deployment["spec"].get("replicas") or 0)


def is_rolling(deployment: Mapping[str, Any]) -> bool:
    """Whether machines of an older class are left."""
    status = deployment.get("status") or {}
    return int(status.get("replicas") or 0) > int(status.get("updatedReplicas") or 0)


# Instances


def instance_id(machine: Mapping[str, Any]) -> str:
    """Its node's provider id; before the cloud has given one, a name that no node has."""
    return str(machine["spec"].get("providerID") or f"requested://{machine['metadata']['name']}")


def is_of(machine: Mapping[str, Any], node: pb.ExternalGrpcNode) -> bool:
    """Whether a node, or the autoscaler's stand-in for one that has not joined, is this machine's."""
    return node.providerID == instance_id(machine) or node.name == machine["metadata"]["labels"].get(NODE_LABEL)


def by_deployment(machines: Iterable[Object]) -> dict[str, Objects]:
    found: dict[str, Objects] = {}
    for machine in machines:
        found.setdefault(machine["metadata"]["labels"].get(NAME_LABEL, ""), []).append(machine)
    return found


def instance(machine: Mapping[str, Any]) -> pb.Instance:
    """One that is refused by the cloud says why: the autoscaler gives it up, and waits before it asks again."""
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
                instanceErrorClass=_OUT_OF_RESOURCES if code == "ResourceExhausted" else _OTHER,
            )
    return pb.Instance(id=instance_id(machine), status=pb.InstanceStatus(instanceState=state, errorInfo=error))


# Sizes


def resized(deployment: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Patch to a size; refused by the API server if the deployment has changed since it was read."""
    metadata = {"resourceVersion": deployment["metadata"]["resourceVersion"]}
    return {"metadata": metadata, "spec": {"replicas": size}}


def grown(deployment: Mapping[str, Any], delta: int, maximum: int) -> dict[str, Any]:
    """Patch for ``delta`` machines more. Raises Refused."""
    size = replicas(deployment) + delta
    if delta <= 0:
        raise Refused(f"{_named(deployment)} cannot grow by {delta}")
    if size > maximum:
        raise Refused(f"{_named(deployment)} would have {size} machines, more than its maximum {maximum}")
    return resized(deployment, size)


def without_unmade(deployment: Mapping[str, Any], delta: int, machines: Objects) -> dict[str, Any]:
    """Patch for ``-delta`` machines less, of those that were not made yet. Raises Refused."""
    size, made = replicas(deployment) + delta, sum(not is_deleting(each) for each in machines)
    if delta >= 0:
        raise Refused(f"{_named(deployment)} cannot shrink by {-delta}")
    if size < made:
        raise Refused(f"{_named(deployment)} has {made} machines: for {size} some would have to be named")
    return resized(deployment, size)


def without(
    deployment: Mapping[str, Any], doomed: Iterable[Object], machines: Iterable[Object], minimum: int
) -> dict[str, Any] | None:
    """Patch by which the machine controller manager takes some of its machines away; None where it does already.

    The names and the size that they leave are one write: whoever asks again finds both or none. Raises Refused.
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
    """The pool's own settings, else the cluster's. No node goes while the deployment is rolled."""
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


# The node that would come


def template_node(deployment: Mapping[str, Any], class_: Mapping[str, Any]) -> pb.Node:
    """What a machine of the deployment would be as a node: all that is known of a pool that has none."""
    name = f"template-of-{deployment['metadata']['name']}"
    of_class = class_.get("nodeTemplate") or {}
    template = deployment["spec"]["template"]["spec"].get("nodeTemplate") or {}
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    capacity = {**(of_class.get("capacity") or {}), **(of_class.get("virtualCapacity") or {}), "pods": _MAX_PODS}
    gpus = str(capacity.pop("gpu", "0"))
    if gpus != "0":
        capacity[_GPU_RESOURCE] = gpus
    quantities = {resource: pb.Quantity(string=str(amount)) for resource, amount in capacity.items()}
    labels = {
        "kubernetes.io/arch": of_class.get("architecture") or "amd64",
        "kubernetes.io/os": "linux",
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
            capacity=quantities,
            allocatable=quantities,
            conditions=[pb.NodeCondition(type="Ready", status="True")],
        ),
    )
