"""Configuration of the autoscaler's provider, one beside each cluster autoscaler."""

from pathlib import Path

from pydantic import Field

from api.extensions.v1alpha1.worker import MachineDeploymentStatus
from api.model import ApiModel
from workers.runtime import HealthConfig


class AutoscalerProviderConfig(ApiModel):
    """Content of ``config.yaml``.

    The seed is reached with the pod's ServiceAccount, which needs in its own namespace: ``machine.sapcloud.io``
    machinedeployments (get, list, patch), machines (list) and machineclasses (get).
    """

    namespace: str
    """Control-plane namespace whose machines are scaled."""
    socket: Path
    """Where the autoscaler asks; whoever may open it may scale."""
    seed_kubeconfig: Path | None = None
    """Unset: in-cluster."""
    node_groups: tuple[MachineDeploymentStatus, ...] = ()
    """``Worker.status.machineDeployments``: what may be scaled, and within which bounds."""
    health: HealthConfig = Field(default=HealthConfig(address="0.0.0.0", port=8086))
