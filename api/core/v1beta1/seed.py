"""Seed: a cluster that hosts control planes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import CORE
from api.meta import (
    AGE,
    IMMUTABLE,
    IMMUTABLE_ONCE_SET,
    AccessRestriction,
    Column,
    Conditions,
    Definition,
    Extension,
    GardenerInfo,
    KubeModel,
    KubeObject,
    LastOperation,
    NamedResourceReference,
    ObjectReference,
    Quantity,
    Raw,
    Timestamp,
    map_list,
)


class SeedProvider(KubeModel):
    type: str
    region: str
    zones: list[str] | None = None
    provider_config: Raw | None = None


class ShootNetworks(KubeModel):
    """Defaults for Shoots on this seed."""

    pods: str | None = None
    services: str | None = None


class SeedNetworks(KubeModel):
    nodes: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    pods: Annotated[str, IMMUTABLE]
    services: Annotated[str, IMMUTABLE]
    shoot_defaults: ShootNetworks | None = None
    block_cidrs: list[str] | None = None
    ip_families: Annotated[list[Literal["IPv4", "IPv6"]], IMMUTABLE] = Field(default=["IPv4"])


class SeedDNSDomain(KubeModel):
    type: str
    domain: str
    zone: str | None = None
    credentials_ref: ObjectReference


class SeedDNSProvider(KubeModel):
    type: str
    credentials_ref: ObjectReference


class SeedDNS(KubeModel):
    internal: SeedDNSDomain
    """Domain of the API servers' names for components."""
    defaults: list[SeedDNSDomain] | None = None
    """Domains of the API servers' names for users; the first one is the default."""
    provider: SeedDNSProvider | None = None


class IngressController(KubeModel):
    kind: Literal["nginx"]
    provider_config: Raw | None = None


class SeedIngress(KubeModel):
    domain: Annotated[str, IMMUTABLE]
    controller: IngressController


class SeedBackup(KubeModel):
    provider: Annotated[str, IMMUTABLE]
    region: Annotated[str | None, IMMUTABLE] = None
    provider_config: Raw | None = None
    credentials_ref: ObjectReference


class SeedTaint(KubeModel):
    key: str
    value: str | None = None


class VolumeProvider(KubeModel):
    purpose: str
    name: str


class SeedVolume(KubeModel):
    minimum_size: Quantity | None = None
    providers: list[VolumeProvider] | None = None


class PodToleration(KubeModel):
    """A toleration of placeholder pods, as in a Pod."""

    key: str | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class ExcessCapacityConfig(KubeModel):
    resources: dict[str, Quantity]
    node_selector: dict[str, str] | None = None
    tolerations: list[PodToleration] | None = None


class ExcessCapacityReservation(KubeModel):
    enabled: bool = True
    configs: list[ExcessCapacityConfig] | None = None


class Scheduling(KubeModel):
    visible: bool = True


class ProxyProtocol(KubeModel):
    allowed: bool


class ZonalIngress(KubeModel):
    enabled: bool = True


class LoadBalancerZone(KubeModel):
    name: str
    annotations: dict[str, str] | None = None
    external_traffic_policy: str | None = None
    proxy_protocol: ProxyProtocol | None = None


class LoadBalancerServices(KubeModel):
    annotations: dict[str, str] | None = None
    class_: str | None = None
    external_traffic_policy: str | None = None
    proxy_protocol: ProxyProtocol | None = None
    zonal_ingress: ZonalIngress | None = None
    zones: list[LoadBalancerZone] | None = None


class SeedVerticalPodAutoscaler(KubeModel):
    enabled: bool = True
    feature_gates: dict[str, bool] | None = None
    max_allowed: dict[str, Quantity] | None = None


class Enabled(KubeModel):
    enabled: bool


class DependencyWatchdog(KubeModel):
    weeder: Enabled | None = None
    prober: Enabled | None = None


class ZoneSelection(KubeModel):
    mode: Literal["Prefer", "Enforce"]


class SeedSettings(KubeModel):
    excess_capacity_reservation: ExcessCapacityReservation | None = None
    scheduling: Scheduling = Field(default_factory=Scheduling)
    load_balancer_services: LoadBalancerServices | None = None
    vertical_pod_autoscaler: SeedVerticalPodAutoscaler | None = None
    persistent_volume_claim_autoscaler: Enabled | None = None
    dependency_watchdog: DependencyWatchdog | None = None
    topology_aware_routing: Enabled | None = None
    zone_selection: ZoneSelection | None = None


class SeedSpec(KubeModel):
    provider: SeedProvider
    networks: SeedNetworks
    dns: SeedDNS
    ingress: SeedIngress | None = None
    backup: SeedBackup | None = None
    taints: Annotated[list[SeedTaint] | None, map_list("key")] = None
    access_restrictions: list[AccessRestriction] | None = None
    extensions: Annotated[list[Extension] | None, map_list("type")] = None
    resources: Annotated[list[NamedResourceReference] | None, map_list("name")] = None
    volume: SeedVolume | None = None
    settings: SeedSettings = Field(default_factory=SeedSettings)


class SeedStatus(KubeModel):
    gardener: GardenerInfo | None = None
    kubernetes_version: str | None = None
    cluster_identity: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    observed_generation: int | None = None
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    client_certificate_expiration_timestamp: Timestamp | None = None
    last_operation: LastOperation | None = None
    conditions: Conditions | None = None


class Seed(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "seeds",
        namespaced=False,
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="GardenletReady")].status'),
            Column("Last Operation", ".status.lastOperation.state"),
            Column("Provider", ".spec.provider.type"),
            Column("Region", ".spec.provider.region"),
            AGE,
            Column("Version", ".status.gardener.version"),
            Column("K8S Version", ".status.kubernetesVersion"),
        ),
    )

    spec: SeedSpec
    status: SeedStatus | None = None
