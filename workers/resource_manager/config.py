"""Configuration of the resource manager: the fields of Gardener's ``ResourceManagerConfiguration``.

Durations are written as in Go: ``1m``, ``12h``.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from api.durations import parse_duration
from api.model import ApiModel
from workers.lib.leader import LeaderElectionConfig
from workers.lib.runtime import HealthConfig

DEFAULT_CLASS = "resources"
"""The class of a ManagedResource that names none."""
ANY_CLASS = "*"

Duration = Annotated[
    timedelta,
    BeforeValidator(lambda value: parse_duration(value) if isinstance(value, str) else value),
    Field(ge=timedelta()),
]


class ClientConnection(ApiModel):
    """How to reach one cluster, and which namespaces of it to serve."""

    kubeconfig: Path | None = None
    """Kubeconfig file. It is read again when it or its token file has changed. None: the pod's service account."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose objects are served; none: all namespaces."""


class Server(ApiModel):
    health: HealthConfig = HealthConfig(address="0.0.0.0", port=8081)


class ManagedResourceController(ApiModel):
    concurrent_syncs: int = Field(default=5, ge=1)
    sync_period: Duration = timedelta(minutes=1)
    """Period in which all objects are applied again, also if nothing has changed."""
    always_update: bool = False
    """Whether to write each object in each period, also if it is as it is to be."""
    managed_by_label_value: str = "gardener"
    """Value of label ``resources.gardener.cloud/managed-by`` on all objects; health watches select by it."""


class HealthController(ApiModel):
    sync_period: Duration = timedelta(minutes=1)
    """Period in which health is checked, also without an event."""


class GarbageCollectorController(ApiModel):
    enabled: bool = False
    sync_period: Duration = timedelta(hours=1)


class CSRApproverController(ApiModel):
    enabled: bool = False
    machine_namespace: str | None = None
    """Namespace of the Machines in the source cluster. None: nodes need no Machine."""


class NodeAgentAccessController(ApiModel):
    enabled: bool = False
    """Whether to let the node agent of each Machine read its pool's Secret."""
    machine_namespace: str = ""
    """Namespace of the Machines in the source cluster."""

    @model_validator(mode="after")
    def _has_namespace(self) -> Self:
        if self.enabled and not self.machine_namespace:
            raise ValueError("machineNamespace must be set where nodeAgentAccess is enabled")
        return self


class TokenRequestorController(ApiModel):
    enabled: bool = False
    concurrent_syncs: int = Field(default=5, ge=1)
    class_: str = Field(default="shoot", alias="class")
    """Value of label ``resources.gardener.cloud/class`` on the Secrets to serve. Secrets without the label are served,
    too."""


class NodeAgentReconciliationDelayController(ApiModel):
    enabled: bool = False
    min_delay: Duration = timedelta()
    max_delay: Duration = timedelta(minutes=5)
    """Time within which all nodes of the target cluster start to apply a new configuration."""


class Controllers(ApiModel):
    cluster_id: str = Field(default="", alias="clusterID")
    """Prefix of the origin annotation. ``<cluster>`` and ``<default>`` stand for the value in ConfigMap
    kube-system/cluster-identity."""
    resource_class: str = DEFAULT_CLASS
    managed_resource: ManagedResourceController = ManagedResourceController()
    health: HealthController = HealthController()
    garbage_collector: GarbageCollectorController = GarbageCollectorController()
    csr_approver: CSRApproverController = CSRApproverController()
    node_agent_reconciliation_delay: NodeAgentReconciliationDelayController = NodeAgentReconciliationDelayController()
    node_agent_access: NodeAgentAccessController = NodeAgentAccessController()
    token_requestor: TokenRequestorController = TokenRequestorController()


class ResourceManagerConfig(ApiModel):
    source_client_connection: ClientConnection = ClientConnection()
    """Cluster with the ManagedResources."""
    target_client_connection: ClientConnection | None = None
    """Cluster with the objects; None: the source cluster."""
    server: Server = Server()
    controllers: Controllers = Controllers()
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
