"""Configuration of the resource manager: the fields of Gardener's ``ResourceManagerConfiguration``.

Durations are written as in Go: ``1m``, ``12h``. Older names of a field are read, too. A feature that this resource
manager lacks may be configured; if it is enabled, the process logs a warning with the reason when it starts.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, model_validator

from api.durations import parse_duration
from api.meta import LabelSelector
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
    qps: float = Field(default=100.0, gt=0)
    """Requests per second, without watches."""
    burst: int = Field(default=130, ge=1)
    """Requests that may be sent at once after a pause."""
    cache_resync_period: Duration = timedelta(hours=24)
    """Period in which tokens and delays of node agents are checked, also without an event. ManagedResources have a
    ``syncPeriod`` of their own."""
    accept_content_types: Literal["", "application/json"] = ""
    content_type: Literal["", "application/json"] = ""

    @model_validator(mode="before")
    @classmethod
    def _one_namespace(cls, given: object) -> object:
        """Read ``namespace``, the older name, which takes one namespace."""
        if not isinstance(given, dict) or "namespace" not in given:
            return given
        if given.get("namespaces"):
            raise ValueError("namespace and namespaces are both set: set namespaces alone")
        rest = {key: value for key, value in given.items() if key != "namespace"}
        return rest | ({"namespaces": (given["namespace"],)} if given["namespace"] else {})


class Address(ApiModel):
    """Address and port at which the process listens."""

    address: str = Field(default="0.0.0.0", validation_alias=AliasChoices("address", "bindAddress"))
    port: int = Field(default=0, ge=0, le=65535)

    @property
    def of_health(self) -> HealthConfig:
        return HealthConfig(address=self.address, port=self.port)


class TLS(ApiModel):
    server_cert_dir: Path
    """Folder with ``tls.crt`` and ``tls.key``."""


class Service(ApiModel):
    name: str
    namespace: str
    port: int = Field(default=443, ge=1, le=65535)


class WebhookServer(ApiModel):
    bind_address: str = "0.0.0.0"
    port: int = Field(default=9449, ge=0, le=65535)
    tls: TLS | None = None
    """Certificate in files, which are read again when they change. The webhooks are registered elsewhere."""
    service: Service | None = None
    """Service of this server, in place of ``tls``: the process makes and renews its certificate, keeps it in a Secret
    with the name of the Service, and registers its webhooks in the source cluster."""


class Server(ApiModel):
    health: Address = Field(default=Address(port=8081), validation_alias=AliasChoices("health", "healthProbes"))
    """Address of /healthz, /readyz and /metrics."""
    metrics: Address | None = None
    """One more address of /metrics."""
    webhooks: WebhookServer = WebhookServer()


class LeaderElection(LeaderElectionConfig):
    resource_lock: Literal["leases"] = "leases"


class Debugging(ApiModel):
    enable_profiling: Literal[False] = False
    enable_contention_profiling: Literal[False] = False


class Lacking(ApiModel):
    """A feature that this resource manager lacks, with fields that it does not read."""

    model_config = ConfigDict(extra="allow")

    enabled: bool = False


class ProjectedTokenMount(ApiModel):
    enabled: bool = False
    expiration_seconds: int = Field(default=43200, ge=600)
    """Validity of the tokens. A kubelet renews them when 80 % of it are over."""


class KubernetesServiceHost(ApiModel):
    enabled: bool = False
    host: str = ""
    """Host name of the API server."""

    @model_validator(mode="after")
    def _has_host(self) -> Self:
        if self.enabled and not self.host:
            raise ValueError("host must be set where kubernetesServiceHost is enabled")
        return self


class PodSchedulerName(ApiModel):
    enabled: bool = False
    scheduler_name: str = ""
    """Scheduler of pods that choose none."""

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        if self.enabled and not self.scheduler_name:
            raise ValueError("schedulerName must be set where podSchedulerName is enabled")
        return self


class Webhook(ApiModel):
    enabled: bool = False


class HighAvailabilityConfig(ApiModel):
    enabled: bool = False
    default_not_ready_toleration_seconds: int | None = Field(default=None, ge=0)
    default_unreachable_toleration_seconds: int | None = Field(default=None, ge=0)
    """Seconds after which pods leave a node that is not ready, or that does not answer; None: the API server's."""


class SystemComponentsConfig(ApiModel):
    enabled: bool = False
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes whose taints the pods tolerate."""
    pod_node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a pod's node must have."""
    pod_tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations of all pods."""


class NodeAgentAuthorizer(ApiModel):
    enabled: bool = False
    machine_namespace: str = ""
    """Namespace of the Machines in the source cluster."""
    authorize_with_selectors: bool = False
    """Whether the API server sends selectors of lists and watches (feature gate AuthorizeWithSelectors). Without them,
    node agents list and watch no pods."""

    @model_validator(mode="after")
    def _has_namespace(self) -> Self:
        if self.enabled and not self.machine_namespace:
            raise ValueError(
                "machineNamespace must be set where nodeAgentAuthorizer is enabled: without Machines only labels of a "
                "Node name its pool, and root on the node writes these"
            )
        return self


class Webhooks(ApiModel):
    crd_deletion_protection: Lacking = Field(default=Lacking(), alias="crdDeletionProtection")
    endpoint_slice_hints: Webhook = Webhook()
    extension_validation: Lacking = Lacking()
    high_availability_config: HighAvailabilityConfig = HighAvailabilityConfig()
    kubernetes_service_host: KubernetesServiceHost = KubernetesServiceHost()
    node_agent_authorizer: NodeAgentAuthorizer = NodeAgentAuthorizer()
    pod_kube_api_server_load_balancing: Lacking = Field(default=Lacking(), alias="podKubeAPIServerLoadBalancing")
    pod_scheduler_name: PodSchedulerName = PodSchedulerName()
    pod_topology_spread_constraints: Webhook = Webhook()
    projected_token_mount: ProjectedTokenMount = ProjectedTokenMount()
    seccomp_profile: Webhook = Webhook()
    system_components_config: SystemComponentsConfig = SystemComponentsConfig()
    token_invalidator: Webhook = Field(
        default=Webhook(), validation_alias=AliasChoices("tokenInvalidator", "tokenValidator")
    )
    vpa_in_place_updates: Webhook = Field(default=Webhook(), alias="vpaInPlaceUpdates")


class ManagedResourceController(ApiModel):
    concurrent_syncs: int = Field(default=5, ge=1)
    sync_period: Duration = timedelta(minutes=1)
    """Period in which all objects are applied again, also if nothing has changed."""
    always_update: bool = False
    """Whether to write each object in each period, also if it is as it is to be."""
    managed_by_label_value: str = "gardener"
    """Value of label ``resources.gardener.cloud/managed-by`` on all objects; health watches select by it."""
    trusted_namespaces: tuple[str, ...] | None = None
    """Namespaces whose ManagedResources may hold all objects of the target cluster. A ManagedResource of another
    namespace may hold objects of this namespace alone. None: all namespaces are trusted."""


class HealthController(ApiModel):
    concurrent_syncs: int = Field(default=0, ge=0)
    """Workers in addition to those of ``managedResource``: health and applying share one queue, so that one of them
    writes the status at a time."""
    sync_period: Duration = timedelta(minutes=1)
    """Period in which health is checked, also without an event."""


class GarbageCollectorController(ApiModel):
    enabled: bool = False
    sync_period: Duration = timedelta(hours=1)


class CSRApproverController(ApiModel):
    enabled: bool = False
    concurrent_syncs: int = Field(default=1, ge=1)
    machine_namespace: str | None = None
    """Namespace of the Machines in the source cluster. None: nodes need no Machine."""


class TokenInvalidatorController(ApiModel):
    enabled: bool = False
    """Whether to label Secrets with static tokens. The webhook of the same name makes the tokens invalid."""
    concurrent_syncs: int = Field(default=5, ge=1)


class TokenRequestorController(ApiModel):
    enabled: bool = False
    concurrent_syncs: int = Field(default=5, ge=1)
    class_: str = Field(default="shoot", alias="class")
    """Value of label ``resources.gardener.cloud/class`` on the Secrets to serve. Empty: Secrets of all classes."""


class NodeAgentReconciliationDelayController(ApiModel):
    enabled: bool = False
    min_delay: Duration = timedelta()
    max_delay: Duration = timedelta(minutes=5)
    """Time within which all nodes of the target cluster start to apply a new configuration."""


class IngressControllerSelector(ApiModel):
    """The pods that serve Ingresses."""

    namespace: str
    pod_selector: LabelSelector


class NetworkPolicyController(ApiModel):
    enabled: bool = False
    concurrent_syncs: int = Field(default=5, ge=1)
    namespace_selectors: tuple[LabelSelector, ...] = ()
    """Namespaces whose Services get NetworkPolicies; none: all namespaces."""
    ingress_controller_selector: IngressControllerSelector | None = None
    """None: Ingresses open no ports."""


class NodeCriticalComponentsController(ApiModel):
    enabled: bool = False
    concurrent_syncs: int = Field(default=5, ge=1)
    backoff: Duration = timedelta(seconds=10)
    """Time after which a node whose critical components are not ready is checked again; events come sooner."""


class Controllers(ApiModel):
    cluster_id: str = Field(default="", alias="clusterID")
    """Prefix of the origin annotation. ``<cluster>`` and ``<default>`` stand for the value in ConfigMap
    kube-system/cluster-identity."""
    resource_class: str = DEFAULT_CLASS
    managed_resource: ManagedResourceController = Field(
        default=ManagedResourceController(), validation_alias=AliasChoices("managedResource", "managedResources")
    )
    health: HealthController = HealthController()
    garbage_collector: GarbageCollectorController = GarbageCollectorController()
    csr_approver: CSRApproverController = Field(
        default=CSRApproverController(), validation_alias=AliasChoices("csrApprover", "kubeletCSRApprover")
    )
    node_critical_components: NodeCriticalComponentsController = Field(
        default=NodeCriticalComponentsController(), validation_alias=AliasChoices("nodeCriticalComponents", "node")
    )
    token_invalidator: TokenInvalidatorController = Field(
        default=TokenInvalidatorController(), validation_alias=AliasChoices("tokenInvalidator", "tokenValidator")
    )
    node_agent_reconciliation_delay: NodeAgentReconciliationDelayController = NodeAgentReconciliationDelayController()
    token_requestor: TokenRequestorController = TokenRequestorController()
    network_policy: NetworkPolicyController = NetworkPolicyController()


_SERVED = (
    "endpoint_slice_hints",
    "high_availability_config",
    "kubernetes_service_host",
    "pod_scheduler_name",
    "node_agent_authorizer",
    "pod_topology_spread_constraints",
    "projected_token_mount",
    "seccomp_profile",
    "system_components_config",
    "token_invalidator",
    "vpa_in_place_updates",
)
_INSTEAD = {
    "webhooks.crdDeletionProtection": "admission policies of the seed do it",
    "webhooks.podKubeAPIServerLoadBalancing": "there is no Istio, clients use the Service",
    "webhooks.extensionValidation": "schemas of the definitions and admission policies of the seed do it",
}


class ResourceManagerConfig(ApiModel):
    api_version: Literal["resourcemanager.config.gardener.cloud/v1alpha1"] | None = None
    kind: Literal["ResourceManagerConfiguration"] | None = None
    source_client_connection: ClientConnection = ClientConnection()
    """Cluster with the ManagedResources."""
    target_client_connection: ClientConnection | None = None
    """Cluster with the objects; None: the source cluster."""
    log_level: Literal["debug", "info", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    server: Server = Server()
    debugging: Debugging = Debugging()
    controllers: Controllers = Controllers()
    webhooks: Webhooks = Webhooks()
    leader_election: LeaderElection = LeaderElection()

    @model_validator(mode="after")
    def _webhooks_have_a_certificate(self) -> Self:
        server = self.server.webhooks
        enabled = any(getattr(self.webhooks, name).enabled for name in _SERVED)
        if enabled and (server.tls is None) == (server.service is None):
            raise ValueError("server.webhooks needs either tls or service where a webhook is enabled")
        if enabled and server.service is not None and self.target_client_connection is not None:
            raise ValueError("server.webhooks.service needs a target cluster that is the source cluster")
        return self

    @model_validator(mode="after")
    def _tokens_are_labelled_and_invalidated(self) -> Self:
        if self.controllers.token_invalidator.enabled != self.webhooks.token_invalidator.enabled:
            raise ValueError("enable tokenInvalidator in both controllers and webhooks, or in neither")
        return self

    def lacking(self) -> list[str]:
        """A text on each feature that is enabled and that this resource manager lacks."""
        found = [
            f"{group}.{model.model_fields[name].alias}"
            for group, part in (("controllers", self.controllers), ("webhooks", self.webhooks))
            for model in (type(part),)
            for name in model.model_fields
            if isinstance(feature := getattr(part, name), Lacking) and feature.enabled
        ]
        return [f"{path} is enabled and not served: {_INSTEAD.get(path, 'set enabled to false')}" for path in found]
