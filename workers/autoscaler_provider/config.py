"""Configuration of the autoscaler's provider. Each cluster autoscaler has one such process beside it."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from api.extensions.v1alpha1.worker import MachineDeploymentStatus
from api.model import ApiModel
from workers.lib.runtime import HealthConfig


class Kubelet(ApiModel):
    """Part of a KubeletConfiguration: how much of a node's capacity pods may use."""

    kube_reserved: Mapping[str, str | int | float] = {}
    """Amounts that pods cannot use, by resource."""
    eviction_hard: Mapping[str, str | int | float] = {}
    """By signal, the amount or the percentage of the capacity that pods cannot use."""
    max_pods: int = 110


class AutoscalerProviderConfig(ApiModel):
    """Content of ``config.yaml``.

    The process uses the pod's ServiceAccount in the seed. It needs these rights in its own namespace, in group
    ``machine.sapcloud.io``: machinedeployments (get, list, patch), machines (list) and machineclasses (get).
    """

    namespace: str
    """Control-plane namespace whose machines are scaled."""
    socket: Path
    """Unix socket that the autoscaler connects to. Each process that may open it may scale."""
    seed_kubeconfig: Path | None = None
    """Kubeconfig of the seed; unset: in-cluster."""
    node_groups: tuple[MachineDeploymentStatus, ...] = ()
    """``Worker.status.machineDeployments``: the MachineDeployments that may be scaled, and their bounds."""
    kubelets: Mapping[str, Kubelet] = {}
    """By pool. The autoscaler needs them for pools without nodes."""
    health: HealthConfig = Field(default=HealthConfig(address="0.0.0.0", port=8086))
