"""Worker: the machines of a Shoot, pool by pool."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.extensions.v1alpha1.base import REGION, STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import (
    IMMUTABLE,
    Bytes,
    Definition,
    Duration,
    IntOrString,
    KubeModel,
    KubeObject,
    Quantity,
    Raw,
    SecretReference,
    Taint,
    Timestamp,
    map_list,
)


class MachineImage(KubeModel):
    name: str
    version: str


class UserDataSecretRef(KubeModel):
    name: str
    key: str


class PoolVolume(KubeModel):
    name: str | None = None
    type: str | None = None
    size: str
    encrypted: bool | None = None


class PoolDataVolume(PoolVolume):
    name: str


class NodeTemplate(KubeModel):
    """Properties of a new node of the pool, which the cluster autoscaler needs while the pool has no node."""

    capacity: dict[str, Quantity]
    virtual_capacity: dict[str, Quantity] | None = None


class ClusterAutoscalerOptions(KubeModel):
    scale_down_utilization_threshold: str | None = None
    scale_down_gpu_utilization_threshold: str | None = None
    scale_down_unneeded_time: Duration | None = None
    scale_down_unready_time: Duration | None = None
    max_node_provision_time: Duration | None = None


class WorkerPool(KubeModel):
    name: str
    machine_type: str
    minimum: int = Field(ge=0)
    maximum: int = Field(ge=0)
    max_surge: IntOrString
    max_unavailable: IntOrString
    machine_image: MachineImage | None = None
    user_data_secret_ref: UserDataSecretRef
    node_agent_secret_name: str | None = None
    """Contains a hash of the settings of a node: another name means another machine class."""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    taints: list[Taint] | None = None
    zones: list[str] | None = None
    volume: PoolVolume | None = None
    data_volumes: list[PoolDataVolume] | None = None
    kubelet_data_volume_name: str | None = None
    provider_config: Raw | None = None
    machine_controller_manager: Raw | None = None
    """Timeouts, as in the Shoot."""
    kubernetes_version: str | None = None
    kubelet_config: Raw | None = None
    node_template: NodeTemplate | None = None
    architecture: str = "amd64"
    cluster_autoscaler: ClusterAutoscalerOptions | None = None
    priority: int | None = None
    update_strategy: str | None = None


class WorkerSpec(ExtensionSpec):
    region: Annotated[str, IMMUTABLE]
    secret_ref: SecretReference
    ssh_public_key: Bytes | None = None
    infrastructure_provider_status: Raw | None = None
    pools: Annotated[list[WorkerPool], map_list("name")]


class MachineDeploymentStatus(KubeModel):
    """A node group of the cluster autoscaler."""

    name: str
    minimum: int
    maximum: int
    priority: int | None = None
    auto_preserve_failed_machine_max: int | None = None


class WorkerInPlaceUpdatesStatus(KubeModel):
    worker_pool_to_hash_map: dict[str, str] | None = None


class WorkerStatus(ExtensionStatus):
    machine_deployments: list[MachineDeploymentStatus] | None = None
    machine_deployments_last_update_time: Timestamp | None = None
    in_place_updates: WorkerInPlaceUpdatesStatus | None = None


class Worker(KubeObject):
    definition: ClassVar[Definition] = extension_kind("workers", columns=(TYPE, REGION, STATUS))

    spec: WorkerSpec
    status: WorkerStatus | None = None
