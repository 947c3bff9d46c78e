"""Configuration of the machine controller manager, one per shoot."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from api.model import ApiModel
from workers.lib.runtime import HealthConfig

SHOOT_KUBECONFIG = Path("/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig/kubeconfig")
"""Path of the generic token kubeconfig in a control-plane pod."""


class MachineControllerManagerConfig(ApiModel):
    """Content of ``config.yaml``.

    In its pod only ``namespace`` must be set. The process uses the seed with the pod's ServiceAccount. That needs these
    rights in its own namespace: ``machine.sapcloud.io`` machinedeployments, machinesets, machines, machineclasses and
    their ``/status`` (all verbs), and secrets (get, list, watch). In the shoot, the user of ``shoot_kubeconfig`` needs
    these rights: nodes (get, list, watch, patch, delete), nodes/status (patch), pods (list, delete),
    pods/eviction (create), poddisruptionbudgets (list), and in kube-system secrets (create, get, delete).
    """

    namespace: str
    """Control-plane namespace whose machines this process manages."""
    seed_kubeconfig: Path | None = None
    """Kubeconfig of the seed. Unset: the pod's ServiceAccount."""
    shoot_kubeconfig: Path = SHOOT_KUBECONFIG
    health: HealthConfig = Field(default=HealthConfig(address="0.0.0.0", port=10258))

    creation_timeout: timedelta = timedelta(minutes=20)
    """A machine whose node has not become Ready within this time is Failed and replaced. Gardener's default."""
    health_timeout: timedelta = timedelta(minutes=10)
    """A machine whose node has not been Ready for this long is Failed and replaced. Gardener's default."""
    in_place_update_timeout: timedelta = timedelta(minutes=20)
    """If the node agent has not updated its machine within this time, the update has failed. Gardener's default."""
    drain_timeout: timedelta = timedelta(hours=2)
    """After this time, pods that could not be evicted are deleted with their machine. Gardener's default."""
