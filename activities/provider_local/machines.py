"""Objects of machine.sapcloud.io for a Worker: names, classes, deployments. Pure functions.

Source: spec/extensions.md 3 (Worker), spec/api-extensions.md 2.2 and 6.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activities.errors import permanent
from activities.provider_local.provider import PROVIDER_TYPE
from api.constants import FINALIZER_MACHINE_CONTROLLER_MANAGER, WORKER_POOL
from api.errors import ErrorCode
from api.local import CloudProfileConfig, InfrastructureStatus, MachineProviderSpec
from api.machine.names import NAME_LABEL, USER_DATA_KEY
from api.names import in_place_hash, is_updated_in_place, rotations_of_pool
from api.quantities import parse_quantity
from api.resources import MACHINE_CLASS, MACHINE_DEPLOYMENT, Resource
from kube.objects import controller_reference

CLASS_SECRET_LABEL = {"gardener.cloud/purpose": "machineclass"}
RESTORING = "local.provider.extensions.gardener.cloud/restoring"
"""Annotation of a MachineDeployment whose MachineSets and Machines are not all restored yet."""

OVERCOMMIT = 20
"""Machines request their type's CPU and memory divided by this number: the landscape's cloud is one small computer."""


@dataclass(frozen=True)
class WantedDeployment:
    """The MachineDeployment of one pool in one zone."""

    name: str
    class_name: str
    pool: Mapping[str, Any]
    zone: str
    minimum: int
    maximum: int
    max_surge: int
    max_unavailable: int
    provider: MachineProviderSpec
    update: str = ""
    """Hash of the in-place update that the machines are to have; empty for a pool whose machines are replaced."""

    @property
    def status(self) -> dict[str, Any]:
        """Entry of ``Worker.status.machineDeployments``."""
        entry = {"name": self.name, "minimum": self.minimum, "maximum": self.maximum}
        if self.pool.get("priority") is not None:
            entry["priority"] = self.pool["priority"]
        return entry

    @property
    def is_manual(self) -> bool:
        """Whether users decide when each machine is updated."""
        return self.pool.get("updateStrategy") == "ManualInPlaceUpdate"

    @property
    def strategy(self) -> dict[str, Any]:
        """``MachineDeployment.spec.strategy``."""
        bounds = {"maxSurge": self.max_surge, "maxUnavailable": self.max_unavailable}
        if self.is_manual:
            return {"type": "InPlaceUpdate", "inPlaceUpdate": {"orchestrationType": "Manual"}}
        if self.update:
            return {"type": "InPlaceUpdate", "inPlaceUpdate": {**bounds, "orchestrationType": "Auto"}}
        return {"type": "RollingUpdate", "rollingUpdate": bounds}

    def replicas(self, live: int | None, *, hibernated: bool) -> int:
        """Number of machines: 0 if hibernated, else the number that the cluster autoscaler decided, within bounds."""
        if hibernated:
            return 0
        if live is None:
            return self.minimum
        return max(self.minimum, min(live, self.maximum))


def wanted_deployments(
    technical_id: str,
    worker: Mapping[str, Any],
    shoot: Mapping[str, Any],
    cloud_profile: Mapping[str, Any],
    facts: CloudProfileConfig,
    infrastructure: InfrastructureStatus,
    image: str,
) -> list[WantedDeployment]:
    """All deployments of a Worker's spec, pool by pool and zone by zone.

    Raises ApplicationError for a pool that the cloud does not support.
    """
    wanted = []
    for pool in worker["pools"]:
        machine_type = _machine_type(cloud_profile, pool)
        provider = MachineProviderSpec(
            namespace=infrastructure.namespace,
            image=image,
            images_directory=facts.images_directory,
            disks_directory=facts.disks_directory,
            cpu_millis=max(1, int(parse_quantity(machine_type["cpu"]) * 1000 / OVERCOMMIT)),
            memory_bytes=int(parse_quantity(machine_type["memory"]) / OVERCOMMIT),
        )
        zones, update = pool.get("zones") or ["0"], update_hash(shoot, pool)
        for index, zone in enumerate(zones):
            name = f"{technical_id}-{pool['name']}-z{index + 1}"
            wanted.append(
                WantedDeployment(
                    name=name,
                    class_name=f"{name}-{class_hash(pool, provider, update)}",
                    pool=pool,
                    zone=zone,
                    minimum=_share(pool["minimum"], len(zones), index),
                    maximum=_share(pool["maximum"], len(zones), index),
                    max_surge=_bound(pool["maxSurge"], pool["maximum"], len(zones), index),
                    max_unavailable=_bound(pool["maxUnavailable"], pool["maximum"], len(zones), index),
                    provider=provider,
                    update=update,
                )
            )
    return wanted


def update_hash(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> str:
    """Hash of a pool's in-place update; empty for a pool whose machines are replaced."""
    if not is_updated_in_place(pool):
        return ""
    image = str(pool["machineImage"]["version"])
    rotations = rotations_of_pool(shoot, pool["name"])
    return in_place_hash(pool["kubernetesVersion"], pool.get("kubeletConfig") or {}, image, rotations)


def class_hash(pool: Mapping[str, Any], provider: MachineProviderSpec, update: str = "") -> str:
    """Five characters that change when machines of the pool must be replaced, or be updated in place.

    The name of the node agent Secret already depends on image, machine type, volumes, Kubernetes minor,
    kubelet configuration and rotations. For a pool with in-place updates, ``update`` depends on them.
    """
    # A new directory of disks replaces no machine: the cloud refuses to attach disks to a machine without it.
    properties = provider.model_dump(mode="json", exclude={"disks_directory"})
    facts = [pool.get("nodeAgentSecretName", ""), properties, *([update] if update else [])]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:5]


def machine_class(
    wanted: WantedDeployment, namespace: str, credentials: Mapping[str, str], worker_region: str
) -> dict[str, Any]:
    """The MachineClass; ``credentials`` refers to the Secret with the cloud's kubeconfig."""
    return {
        "apiVersion": MACHINE_CLASS.api_version,
        "kind": MACHINE_CLASS.kind,
        "metadata": {
            "name": wanted.class_name,
            "namespace": namespace,
            "labels": {NAME_LABEL: wanted.name, WORKER_POOL: wanted.pool["name"]},
        },
        "provider": PROVIDER_TYPE,
        "providerSpec": wanted.provider.model_dump(mode="json"),
        "secretRef": {"name": wanted.class_name, "namespace": namespace},
        "credentialsSecretRef": dict(credentials),
        "nodeTemplate": {
            "capacity": (wanted.pool.get("nodeTemplate") or {}).get("capacity", {}),
            "instanceType": wanted.pool["machineType"],
            "region": worker_region,
            "zone": wanted.zone,
            "architecture": wanted.pool.get("architecture", "amd64"),
        },
    }


def machine_class_secret(wanted: WantedDeployment, namespace: str, user_data: str) -> dict[str, Any]:
    """The Secret from which a MachineClass reads its user data (base64)."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": wanted.class_name,
            "namespace": namespace,
            "labels": {**CLASS_SECRET_LABEL, NAME_LABEL: wanted.name},
        },
        "type": "Opaque",
        "data": {USER_DATA_KEY: user_data},
    }


def machine_deployment(wanted: WantedDeployment, namespace: str, region: str, replicas: int) -> dict[str, Any]:
    """The MachineDeployment. Nodes of its machines get the pool's labels, annotations and taints."""
    pool = wanted.pool
    labels = {NAME_LABEL: wanted.name}
    controller = pool.get("machineControllerManager") or {}
    renamed = {
        "drainTimeout": controller.get("machineDrainTimeout"),
        "healthTimeout": controller.get("machineHealthTimeout"),
        "creationTimeout": controller.get("machineCreationTimeout"),
        "inPlaceUpdateTimeout": controller.get("inPlaceUpdateTimeout"),
        "disableHealthTimeout": controller.get("disableHealthTimeout"),
        "maxEvictRetries": controller.get("maxEvictRetries"),
        "nodeConditions": ",".join(controller["nodeConditions"]) if controller.get("nodeConditions") else None,
    }
    return {
        "apiVersion": MACHINE_DEPLOYMENT.api_version,
        "kind": MACHINE_DEPLOYMENT.kind,
        "metadata": {
            "name": wanted.name,
            "namespace": namespace,
            "labels": {"worker.gardener.cloud/name": pool["name"], **labels},
            "annotations": _autoscaler_annotations(pool.get("clusterAutoscaler") or {}),
        },
        "spec": {
            "replicas": replicas,
            "strategy": wanted.strategy,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "class": {"kind": MACHINE_CLASS.kind, "name": wanted.class_name},
                    "nodeTemplate": {
                        "metadata": {
                            "labels": {
                                **(pool.get("labels") or {}),
                                WORKER_POOL: pool["name"],
                                "topology.kubernetes.io/region": region,
                                "topology.kubernetes.io/zone": wanted.zone,
                                "node.kubernetes.io/instance-type": pool["machineType"],
                            },
                            "annotations": dict(pool.get("annotations") or {}),
                        },
                        "spec": {"taints": list(pool.get("taints") or [])},
                    },
                    **{name: value for name, value in renamed.items() if value is not None},
                },
            },
        },
    }


def restored(saved: Mapping[str, Any], resource: Resource, namespace: str, owner: Mapping[str, Any]) -> dict[str, Any]:
    """A MachineSet or Machine as saved in a machine state, with its present owner."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            **saved["metadata"],
            "namespace": namespace,
            "ownerReferences": [controller_reference(owner)],
            "finalizers": [FINALIZER_MACHINE_CONTROLLER_MANAGER],
        },
        "spec": saved["spec"],
    }


def _autoscaler_annotations(options: Mapping[str, Any]) -> dict[str, str]:
    """Settings of the cluster autoscaler for one deployment."""
    names = {
        "scaleDownUtilizationThreshold": "scale-down-utilization-threshold",
        "scaleDownGpuUtilizationThreshold": "scale-down-gpu-utilization-threshold",
        "scaleDownUnneededTime": "scale-down-unneeded-time",
        "scaleDownUnreadyTime": "scale-down-unready-time",
        "maxNodeProvisionTime": "max-node-provision-time",
    }
    return {
        f"autoscaler.gardener.cloud/{annotation}": str(options[field])
        for field, annotation in names.items()
        if options.get(field) is not None
    }


def _machine_type(cloud_profile: Mapping[str, Any], pool: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any]
    for found in cloud_profile["spec"].get("machineTypes") or []:
        if found["name"] == pool["machineType"]:
            return found
    raise permanent(
        ErrorCode.CONFIGURATION_PROBLEM,
        f"CloudProfile {cloud_profile['metadata']['name']} has no machine type {pool['machineType']},"
        f" which pool {pool['name']} asks for",
    )


def _share(size: int, zones: int, index: int) -> int:
    """One zone's part of a pool's size. Parts are equal; the first zones get one more of the remainder each."""
    return size // zones + (1 if index < size % zones else 0)


def _bound(value: int | str, maximum: int, zones: int, index: int) -> int:
    """maxSurge or maxUnavailable of one zone. A percentage refers to the zone's size and is rounded up."""
    if isinstance(value, str) and value.endswith("%"):
        return -(-_share(maximum, zones, index) * int(value[:-1]) // 100)
    return _share(int(value), zones, index)
