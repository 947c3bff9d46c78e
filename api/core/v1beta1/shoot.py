"""Shoot: desired and present state of a Kubernetes cluster. Source: spec/api-core.md 1."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import CORE
from api.meta import (
    AGE,
    IMMUTABLE,
    IMMUTABLE_ONCE_SET,
    AccessRestrictionWithOptions,
    Column,
    Conditions,
    CrossVersionObjectReference,
    Definition,
    Duration,
    Extension,
    GardenerInfo,
    IntOrString,
    KubeModel,
    KubeObject,
    LastError,
    LastOperation,
    NamedResourceReference,
    ObjectReference,
    Quantity,
    Raw,
    SeedSelector,
    Taint,
    Timestamp,
    Toleration,
    map_list,
)

IPFamily = Literal["IPv4", "IPv6"]
FeatureGates = dict[str, bool]
Percentile = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=1, le=65535)]

# spec.provider


class MachineImage(KubeModel):
    name: str | None = None
    version: str | None = None
    provider_config: Raw | None = None


class Machine(KubeModel):
    type: str
    image: MachineImage | None = None
    architecture: Literal["amd64", "arm64"] | None = None


class ContainerRuntime(KubeModel):
    type: str
    provider_config: Raw | None = None


class CRI(KubeModel):
    name: str = "containerd"
    container_runtimes: Annotated[list[ContainerRuntime] | None, map_list("type")] = None


class Volume(KubeModel):
    name: str | None = None
    type: str | None = None
    size: Annotated[str, Field(pattern=r"^[0-9]+(Gi|Ti|G|T)$")]
    encrypted: bool | None = None


class DataVolume(Volume):
    name: Annotated[str, Field(max_length=15)]


class MachineControllerManagerSettings(KubeModel):
    machine_drain_timeout: Duration | None = None
    machine_health_timeout: Duration | None = None
    machine_creation_timeout: Duration | None = None
    in_place_update_timeout: Duration | None = None
    machine_preserve_timeout: Duration | None = None
    max_evict_retries: int | None = Field(default=None, ge=0)
    node_conditions: list[str] | None = None
    disable_health_timeout: bool | None = None
    auto_preserve_failed_machine_max: int | None = Field(default=None, ge=0)


class PoolClusterAutoscaler(KubeModel):
    scale_down_utilization_threshold: Percentile | None = None
    scale_down_gpu_utilization_threshold: Percentile | None = None
    scale_down_unneeded_time: Duration | None = None
    scale_down_unready_time: Duration | None = None
    max_node_provision_time: Duration | None = None


class PoolSystemComponents(KubeModel):
    allow: bool = True


class EvictionThresholds(KubeModel):
    """Quantities or percentages; in ``evictionSoftGracePeriod`` durations."""

    memory_available: str | None = None
    image_fs_available: str | None = None
    image_fs_inodes_free: str | None = None
    node_fs_available: str | None = None
    node_fs_inodes_free: str | None = None


class EvictionMinimumReclaim(KubeModel):
    memory_available: Quantity | None = None
    image_fs_available: Quantity | None = None
    image_fs_inodes_free: Quantity | None = None
    node_fs_available: Quantity | None = None
    node_fs_inodes_free: Quantity | None = None


class KubeReserved(KubeModel):
    cpu: Quantity | None = None
    memory: Quantity | None = None
    ephemeral_storage: Quantity | None = None
    pid: Quantity | None = None


class MemorySwap(KubeModel):
    swap_behavior: Literal["NoSwap", "LimitedSwap"] | None = None


class KubeletConfig(KubeModel):
    feature_gates: FeatureGates | None = None
    max_pods: int | None = Field(default=None, ge=1)
    pod_pids_limit: int | None = Field(default=None, ge=100)
    cpu_manager_policy: Literal["none", "static"] | None = None
    cpu_cfs_quota: bool | None = None
    eviction_hard: EvictionThresholds | None = None
    eviction_soft: EvictionThresholds | None = None
    eviction_soft_grace_period: EvictionThresholds | None = None
    eviction_minimum_reclaim: EvictionMinimumReclaim | None = None
    eviction_max_pod_grace_period: int | None = Field(default=None, ge=0)
    eviction_pressure_transition_period: Duration | None = None
    kube_reserved: KubeReserved | None = None
    fail_swap_on: bool | None = True
    memory_swap: MemorySwap | None = None
    image_gc_high_threshold_percent: int | None = Field(default=50, ge=0, le=100)
    image_gc_low_threshold_percent: int | None = Field(default=40, ge=0, le=100)
    image_minimum_gc_age: Duration | None = None
    image_maximum_gc_age: Duration | None = None
    serialize_image_pulls: bool | None = None
    max_parallel_image_pulls: int | None = Field(default=None, ge=1)
    registry_pull_qps: int | None = Field(default=None, ge=0)
    registry_burst: int | None = Field(default=None, ge=0)
    seccomp_default: bool | None = None
    container_log_max_size: Quantity | None = None
    container_log_max_files: int | None = Field(default=None, ge=2)
    protect_kernel_defaults: bool | None = None
    streaming_connection_idle_timeout: Duration | None = None
    single_process_oom_kill: bool | None = None
    image_pull_credentials_verification_policy: str | None = None
    preloaded_images_verification_allowlist: list[str] | None = None


class PoolKubernetes(KubeModel):
    version: str | None = None
    kubelet: KubeletConfig | None = None


class BackupOfSelfHosted(KubeModel):
    provider: str
    region: str | None = None
    credentials_ref: ObjectReference | None = None
    provider_config: Raw | None = None


class ExposureExtension(KubeModel):
    type: str | None = None
    provider_config: Raw | None = None


class Exposure(KubeModel):
    extension: ExposureExtension | None = None
    dns: Raw | None = None


class PoolControlPlane(KubeModel):
    """Marks a self-hosted Shoot: its control plane runs on this pool."""

    backup: BackupOfSelfHosted | None = None
    exposure: Exposure | None = None


class Worker(KubeModel):
    """A worker pool."""

    name: Annotated[str, Field(max_length=15, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    machine: Machine
    minimum: int = Field(ge=0)
    maximum: int = Field(ge=0)
    max_surge: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    update_strategy: Literal["AutoRollingUpdate", "AutoInPlaceUpdate", "ManualInPlaceUpdate"] = "AutoRollingUpdate"
    zones: list[str] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    taints: list[Taint] | None = None
    ca_bundle: str | None = None
    sysctls: dict[str, str] | None = None
    cri: CRI | None = None
    kubernetes: PoolKubernetes | None = None
    volume: Volume | None = None
    data_volumes: Annotated[list[DataVolume] | None, map_list("name")] = None
    kubelet_data_volume_name: str | None = None
    machine_controller_manager: MachineControllerManagerSettings | None = None
    cluster_autoscaler: PoolClusterAutoscaler | None = None
    priority: int | None = Field(default=None, ge=-1)
    system_components: PoolSystemComponents | None = None
    provider_config: Raw | None = None
    control_plane: PoolControlPlane | None = None


class SSHAccess(KubeModel):
    enabled: bool = True


class WorkersSettings(KubeModel):
    ssh_access: SSHAccess | None = None


class Provider(KubeModel):
    type: Annotated[str, IMMUTABLE]
    infrastructure_config: Raw | None = None
    control_plane_config: Raw | None = None
    workers: Annotated[list[Worker] | None, map_list("name")] = None
    workers_settings: WorkersSettings | None = None


# spec.kubernetes


class MinAllowed(KubeModel):
    min_allowed: dict[str, Quantity] | None = None


class AdmissionPlugin(KubeModel):
    name: str
    config: Raw | None = None
    disabled: bool | None = None
    kubeconfig_secret_name: str | None = None


class AuditPolicy(KubeModel):
    config_map_ref: ObjectReference | None = None


class AuditConfig(KubeModel):
    audit_policy: AuditPolicy | None = None


class ServiceAccountConfig(KubeModel):
    issuer: str | None = None
    accepted_issuers: list[str] | None = None
    extend_token_expiration: bool | None = None
    max_token_expiration: Duration | None = None


class ResourceWatchCacheSize(KubeModel):
    api_group: str | None = None
    resource: str
    size: int = Field(ge=0)


class WatchCacheSizes(KubeModel):
    default: int | None = Field(default=None, ge=0)
    resources: list[ResourceWatchCacheSize] | None = None


class APIServerRequests(KubeModel):
    max_non_mutating_inflight: int | None = Field(default=400, ge=0, le=5000)
    max_mutating_inflight: int | None = Field(default=200, ge=0, le=2500)


class APIServerLogging(KubeModel):
    verbosity: int | None = Field(default=2, ge=0)
    http_access_verbosity: int | None = Field(default=None, ge=0)


class EncryptionProvider(KubeModel):
    type: Literal["aescbc", "aesgcm", "secretbox"] = "aescbc"


class EncryptionConfig(KubeModel):
    resources: list[str] | None = None
    provider: EncryptionProvider | None = None


class StructuredAuthentication(KubeModel):
    config_map_name: str


class AuthorizerKubeconfig(KubeModel):
    authorizer_name: str
    secret_name: str


class StructuredAuthorization(KubeModel):
    config_map_name: str
    kubeconfigs: list[AuthorizerKubeconfig] | None = None


class KubeAPIServer(KubeModel):
    feature_gates: FeatureGates | None = None
    admission_plugins: Annotated[list[AdmissionPlugin] | None, map_list("name")] = None
    api_audiences: list[str] | None = None
    audit_config: AuditConfig | None = None
    runtime_config: dict[str, bool] | None = None
    service_account_config: ServiceAccountConfig | None = None
    watch_cache_sizes: WatchCacheSizes | None = None
    requests: APIServerRequests | None = None
    event_ttl: Duration | None = "1h"
    logging: APIServerLogging | None = None
    default_not_ready_toleration_seconds: int | None = Field(default=None, ge=0)
    default_unreachable_toleration_seconds: int | None = Field(default=None, ge=0)
    encryption_config: EncryptionConfig | None = None
    structured_authentication: StructuredAuthentication | None = None
    structured_authorization: StructuredAuthorization | None = None
    autoscaling: MinAllowed | None = None
    tls_min_version: Literal["VersionTLS12", "VersionTLS13"] | None = None
    enable_anonymous_authentication: bool | None = None


class HorizontalPodAutoscaler(KubeModel):
    cpu_initialization_period: Duration | None = None
    downscale_stabilization: Duration | None = None
    initial_readiness_delay: Duration | None = None
    sync_period: Duration | None = None
    tolerance: float | None = None


class KubeControllerManager(KubeModel):
    feature_gates: FeatureGates | None = None
    horizontal_pod_autoscaler: HorizontalPodAutoscaler | None = None
    node_cidr_mask_size: Annotated[int | None, IMMUTABLE_ONCE_SET, Field(ge=16, le=28)] = None
    node_cidr_mask_size_ipv6: Annotated[int | None, IMMUTABLE_ONCE_SET, Field(ge=64, le=124)] = None
    node_monitor_grace_period: Duration | None = None
    pod_eviction_timeout: Duration | None = None


class KubeScheduler(KubeModel):
    feature_gates: FeatureGates | None = None
    profile: Literal["balanced", "bin-packing"] | None = "balanced"
    kube_max_pd_vols: str | None = None


class KubeProxy(KubeModel):
    feature_gates: FeatureGates | None = None
    mode: Literal["IPTables", "IPVS", "NFTables"] | None = "IPTables"
    enabled: bool | None = True


class ClusterAutoscaler(KubeModel):
    scale_down_delay_after_add: Duration | None = "1h"
    scale_down_delay_after_delete: Duration | None = "0s"
    scale_down_delay_after_failure: Duration | None = "3m"
    scale_down_unneeded_time: Duration | None = "30m"
    scale_down_utilization_threshold: Percentile | None = 0.5
    scan_interval: Duration | None = "10s"
    expander: str | None = "least-waste"
    max_node_provision_time: Duration | None = "20m"
    max_graceful_termination_seconds: int | None = 600
    ignore_taints: list[str] | None = None
    new_pod_scale_up_delay: Duration | None = "0s"
    max_empty_bulk_delete: int | None = None
    max_scale_down_parallelism: int | None = 10
    max_drain_parallelism: int | None = 1
    initial_node_group_backoff_duration: Duration | None = "5m"
    max_node_group_backoff_duration: Duration | None = "30m"
    node_group_backoff_reset_timeout: Duration | None = "3h"
    ignore_daemonsets_utilization: bool | None = False
    emit_per_node_group_metrics: bool | None = False
    max_binpacking_time: Duration | None = "5m"
    verbosity: int | None = 2
    startup_taints: list[str] | None = None
    status_taints: list[str] | None = None


class VerticalPodAutoscaler(KubeModel):
    enabled: bool
    evict_after_oom_threshold: Duration | None = "10m"
    eviction_rate_burst: int | None = 1
    eviction_rate_limit: float | None = -1
    eviction_tolerance: float | None = 0.5
    recommendation_margin_fraction: float | None = 0.15
    updater_interval: Duration | None = "1m"
    recommender_interval: Duration | None = "1m"
    target_cpu_percentile: Percentile | None = 0.9
    recommendation_lower_bound_cpu_percentile: Percentile | None = 0.5
    recommendation_upper_bound_cpu_percentile: Percentile | None = 0.95
    target_memory_percentile: Percentile | None = 0.9
    recommendation_lower_bound_memory_percentile: Percentile | None = 0.5
    recommendation_upper_bound_memory_percentile: Percentile | None = 0.95
    cpu_histogram_decay_half_life: Duration | None = "24h"
    memory_histogram_decay_half_life: Duration | None = "24h"
    memory_aggregation_interval: Duration | None = "24h"
    memory_aggregation_interval_count: int | None = 8
    recommender_update_worker_count: int | None = 10
    max_allowed: dict[str, Quantity] | None = None
    feature_gates: FeatureGates | None = None


class ETCDConfig(KubeModel):
    autoscaling: MinAllowed | None = None


class ETCD(KubeModel):
    main: ETCDConfig | None = None
    events: ETCDConfig | None = None


class Kubernetes(KubeModel):
    version: str = ""
    """``1``, ``1.37`` or ``1.37.1``; missing parts are completed when the object is written."""
    kube_api_server: KubeAPIServer | None = None
    kube_controller_manager: KubeControllerManager | None = None
    kube_scheduler: KubeScheduler | None = None
    kube_proxy: KubeProxy | None = None
    kubelet: KubeletConfig | None = None
    cluster_autoscaler: ClusterAutoscaler | None = None
    vertical_pod_autoscaler: VerticalPodAutoscaler | None = None
    etcd: ETCD | None = None


# The rest of spec


class CloudProfileReference(KubeModel):
    kind: Literal["CloudProfile", "NamespacedCloudProfile"] = "CloudProfile"
    name: str


class Networking(KubeModel):
    type: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    provider_config: Raw | None = None
    pods: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    nodes: str | None = None
    services: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    ip_families: list[IPFamily] | None = None


class DNSIncludeExclude(KubeModel):
    include: list[str] | None = None
    exclude: list[str] | None = None


class DNSProvider(KubeModel):
    type: str | None = None
    credentials_ref: CrossVersionObjectReference | None = None
    primary: bool | None = None
    secret_name: str | None = None
    domains: DNSIncludeExclude | None = None
    zones: DNSIncludeExclude | None = None


class DNS(KubeModel):
    domain: Annotated[str | None, Field(max_length=253)] = None
    providers: list[DNSProvider] | None = None


class HibernationSchedule(KubeModel):
    start: str | None = None
    end: str | None = None
    location: str | None = "UTC"


class Hibernation(KubeModel):
    enabled: bool | None = None
    schedules: list[HibernationSchedule] | None = None


class MaintenanceTimeWindow(KubeModel):
    """``HHMMSS+ZZZZ``, 30 minutes to 6 hours long."""

    begin: Annotated[str, Field(pattern=r"^[0-9]{6}[+-][0-9]{4}$")]
    end: Annotated[str, Field(pattern=r"^[0-9]{6}[+-][0-9]{4}$")]


class MaintenanceAutoUpdate(KubeModel):
    kubernetes_version: bool = True
    machine_image_version: bool | None = None


class RotationPeriod(KubeModel):
    rotation_period: Duration | None = "168h"


class CredentialsAutoRotation(KubeModel):
    observability: RotationPeriod | None = None
    ssh_keypair: RotationPeriod | None = None
    etcd_encryption_key: RotationPeriod | None = None


class MaintenanceAutoRotation(KubeModel):
    credentials: CredentialsAutoRotation | None = None


class Maintenance(KubeModel):
    time_window: MaintenanceTimeWindow | None = None
    auto_update: MaintenanceAutoUpdate | None = None
    auto_rotation: MaintenanceAutoRotation | None = None
    confine_spec_update_rollout: bool | None = None


class Alerting(KubeModel):
    email_receivers: list[str] | None = None


class Monitoring(KubeModel):
    alerting: Alerting | None = None


class KubernetesDashboard(KubeModel):
    enabled: bool
    authentication_mode: Literal["token"] | None = "token"


class NginxIngress(KubeModel):
    enabled: bool
    load_balancer_source_ranges: list[str] | None = None
    config: dict[str, str] | None = None
    external_traffic_policy: Literal["Cluster", "Local"] | None = "Cluster"


class Addons(KubeModel):
    kubernetes_dashboard: KubernetesDashboard | None = None
    nginx_ingress: NginxIngress | None = None


class CoreDNSAutoscaling(KubeModel):
    mode: Literal["horizontal", "cluster-proportional"] = "horizontal"


class CoreDNSRewriting(KubeModel):
    common_suffixes: list[str] | None = None


class CoreDNS(KubeModel):
    autoscaling: CoreDNSAutoscaling | None = None
    rewriting: CoreDNSRewriting | None = None


class NodeLocalDNS(KubeModel):
    enabled: bool
    force_tcp_to_cluster_dns: bool | None = None
    force_tcp_to_upstream_dns: bool | None = None
    disable_forward_to_upstream_dns: bool | None = None


class SystemComponents(KubeModel):
    core_dns: CoreDNS | None = None
    node_local_dns: NodeLocalDNS | None = None


class FailureTolerance(KubeModel):
    type: Literal["node", "zone"]


class HighAvailability(KubeModel):
    failure_tolerance: FailureTolerance


class ControlPlane(KubeModel):
    high_availability: HighAvailability | None = None
    zones: list[str] | None = None


class ShootSpec(KubeModel):
    cloud_profile: CloudProfileReference | None = None
    cloud_profile_name: str | None = None
    """Deprecated, forbidden from Kubernetes 1.34."""
    region: Annotated[str, IMMUTABLE]
    provider: Provider
    kubernetes: Kubernetes = Field(default_factory=Kubernetes)
    networking: Networking | None = None
    dns: DNS | None = None
    secret_binding_name: str | None = None
    credentials_binding_name: str | None = None
    seed_name: str | None = None
    seed_selector: SeedSelector | None = None
    tolerations: list[Toleration] | None = None
    scheduler_name: Annotated[str | None, IMMUTABLE] = "default-scheduler"
    exposure_class_name: Annotated[str | None, IMMUTABLE] = None
    access_restrictions: Annotated[list[AccessRestrictionWithOptions] | None, map_list("name")] = None
    purpose: Literal["evaluation", "testing", "development", "production", "infrastructure"] | None = "evaluation"
    hibernation: Hibernation | None = None
    maintenance: Maintenance | None = None
    extensions: Annotated[list[Extension] | None, map_list("type")] = None
    resources: Annotated[list[NamedResourceReference] | None, map_list("name")] = None
    monitoring: Monitoring | None = None
    addons: Addons | None = None
    system_components: SystemComponents | None = None
    control_plane: ControlPlane | None = None


# status


class LastMaintenance(KubeModel):
    description: str
    triggered_time: Timestamp
    state: str
    failure_reason: str | None = None


class NetworkingStatus(KubeModel):
    pods: list[str] | None = None
    nodes: list[str] | None = None
    services: list[str] | None = None
    egress_cidrs: list[str] | None = None


class AdvertisedAddress(KubeModel):
    name: str
    """Kind of the address: external, internal, unmanaged, wildcard-tls-seed-bound or service-account-issuer."""
    url: str
    application: str | None = None


class PendingWorkersRollout(KubeModel):
    name: str
    last_initiation_time: Timestamp | None = None


class ObservedRotation(KubeModel):
    last_initiation_time: Timestamp | None = None
    last_completion_time: Timestamp | None = None


class PhasedRotation(ObservedRotation):
    phase: Literal[
        "Preparing",
        "PreparingWithoutWorkersRollout",
        "WaitingForWorkersRollout",
        "Prepared",
        "Completing",
        "Completed",
    ]
    last_initiation_finished_time: Timestamp | None = None
    last_completion_triggered_time: Timestamp | None = None


class RolloutRotation(PhasedRotation):
    pending_workers_rollouts: Annotated[list[PendingWorkersRollout] | None, map_list("name")] = None


class EncryptionKeyRotation(PhasedRotation):
    auto_complete_after_prepared: bool | None = None


class CredentialsRotation(KubeModel):
    certificate_authorities: RolloutRotation | None = None
    service_account_key: RolloutRotation | None = None
    etcd_encryption_key: EncryptionKeyRotation | None = None
    ssh_keypair: ObservedRotation | None = None
    observability: ObservedRotation | None = None


class EncryptionAtRest(KubeModel):
    resources: list[str] | None = None
    provider: EncryptionProvider | None = None


class Credentials(KubeModel):
    rotation: CredentialsRotation | None = None
    encryption_at_rest: EncryptionAtRest | None = None


class PendingWorkerUpdates(KubeModel):
    auto_in_place_update: list[str] | None = None
    manual_in_place_update: list[str] | None = None


class InPlaceUpdatesStatus(KubeModel):
    pending_worker_updates: PendingWorkerUpdates | None = None


class ManualWorkerPoolRollout(KubeModel):
    pending_workers_rollouts: Annotated[list[PendingWorkersRollout] | None, map_list("name")] = None


class LiveMigration(KubeModel):
    conditions: Conditions | None = None


class ShootStatus(KubeModel):
    gardener: GardenerInfo | None = None
    hibernated: bool | None = None
    technical_id: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    uid: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    """``metadata.uid``; set before the first object of the cluster is created."""
    cluster_identity: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    seed_name: str | None = None
    """Seed of the control plane; differs from the spec while the control plane moves."""
    observed_generation: int | None = None
    last_operation: LastOperation | None = None
    last_errors: list[LastError] | None = None
    retry_cycle_start_time: Timestamp | None = None
    migration_start_time: Timestamp | None = None
    last_hibernation_trigger_time: Timestamp | None = None
    last_maintenance: LastMaintenance | None = None
    conditions: Conditions | None = None
    constraints: Conditions | None = None
    networking: NetworkingStatus | None = None
    advertised_addresses: Annotated[list[AdvertisedAddress] | None, map_list("name")] = None
    credentials: Credentials | None = None
    in_place_updates: InPlaceUpdatesStatus | None = None
    manual_worker_pool_rollout: ManualWorkerPoolRollout | None = None
    live_migration: LiveMigration | None = None


def _condition(title: str, name: str) -> Column:
    return Column(title, f'.status.conditions[?(@.type=="{name}")].status', wide=True)


class Shoot(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "shoots",
        columns=(
            Column("CloudProfile", ".spec.cloudProfile.name"),
            Column("Provider", ".spec.provider.type"),
            Column("Region", ".spec.region"),
            Column("Seed", ".spec.seedName", wide=True),
            Column("K8S Version", ".spec.kubernetes.version"),
            Column("Hibernated", ".status.hibernated", "boolean"),
            Column("Last Operation", ".status.lastOperation.type"),
            Column("State", ".status.lastOperation.state"),
            Column("Progress", ".status.lastOperation.progress", "integer"),
            Column("Status", r".metadata.labels.shoot\.gardener\.cloud/status"),
            Column("Step", ".status.lastOperation.description", wide=True),
            Column("Last Error", ".status.lastErrors[0].description", wide=True),
            Column("Purpose", ".spec.purpose", wide=True),
            Column("Gardener Version", ".status.gardener.version", wide=True),
            _condition("APIServer", "APIServerAvailable"),
            _condition("Control", "ControlPlaneHealthy"),
            _condition("Observability", "ObservabilityComponentsHealthy"),
            _condition("Nodes", "EveryNodeReady"),
            _condition("System", "SystemComponentsHealthy"),
            AGE,
        ),
        selectable=(
            ".spec.seedName",
            ".status.seedName",
            ".spec.cloudProfileName",
            ".spec.cloudProfile.name",
            ".spec.cloudProfile.kind",
        ),
    )

    spec: ShootSpec
    status: ShootStatus | None = None
