"""Etcd: an etcd cluster with backups, ``etcd-main`` and ``etcd-events`` per Shoot."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import DRUID
from api.meta import (
    AGE,
    EMPTY,
    IMMUTABLE,
    LABELS_ALONE,
    Column,
    Conditions,
    CrossVersionObjectReference,
    Definition,
    Duration,
    KubeModel,
    KubeObject,
    LabelSelector,
    Quantity,
    Raw,
    SecretReference,
    Timestamp,
    map_list,
    not_offered,
    rules,
)

_GATEWAY = not_offered("the sidecar and the etcd controller use etcd's JSON gateway: set it to true", unless="self")
_GZIP = not_offered("snapshots are compressed with gzip: set it to true", unless="self")
_ONE_GARBAGE_POLICY = not_offered("set garbageCollectionPolicy to Exponential, which needs no number")
_NO_COMPACTION = "no job compacts snapshots: the sidecar writes full ones"
_NO_ELECTION = not_offered("the sidecar of the member that leads etcd writes the snapshots")
_OF_MEMBER = not_offered("the sidecar serves with the certificates of clientUrlTls")


class OwnSecretReference(SecretReference):
    """Reference to a Secret in the namespace of the object that has it: pods can mount no other."""

    namespace: Annotated[str | None, not_offered("only Secrets of this object's namespace can be used", EMPTY)] = None


class TLSSecretReference(OwnSecretReference):
    data_key: str | None = None


class TLSConfig(KubeModel):
    tls_ca_secret_ref: Annotated[TLSSecretReference, Field(alias="tlsCASecretRef")]
    server_tls_secret_ref: OwnSecretReference
    client_tls_secret_ref: OwnSecretReference | None = None


class ClientService(KubeModel):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    traffic_distribution: str | None = None


class MemberPeerURLs(KubeModel):
    member_name: str
    urls: list[str]


_URL = Annotated[str, Field(max_length=300)]


class ExistingMember(KubeModel):
    name: Annotated[str, Field(max_length=253)]
    peer_urls: Annotated[list[_URL], Field(alias="peerURLs", min_length=1, max_length=1)]


class ExistingCluster(KubeModel):
    """The cluster of another seed, which the members of this etcd join."""

    members: Annotated[list[ExistingMember], map_list("name"), Field(max_length=9)]
    client_endpoints: Annotated[list[_URL], Field(min_length=1, max_length=9)]
    """Client URLs of these members."""


class ResourceRequirements(KubeModel):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class EtcdConfig(KubeModel):
    model_config = rules(
        (
            "!has(self.bootstrapWithExistingCluster) || (has(oldSelf.bootstrapWithExistingCluster)"
            " && self.bootstrapWithExistingCluster == oldSelf.bootstrapWithExistingCluster)",
            "bootstrapWithExistingCluster can only be set at the creation, and removed later",
        )
    )
    image: str | None = None
    quota: Quantity | None = None
    resources: ResourceRequirements | None = None
    metrics: Literal["basic", "extensive"] | None = None
    defragmentation_schedule: str | None = None
    heartbeat_duration: Duration | None = None
    snapshot_count: int | None = None
    etcd_defrag_timeout: Annotated[Duration | None, not_offered("a defragmentation has no time limit")] = None
    client_port: int | None = None
    server_port: int | None = None
    wrapper_port: int | None = None
    enable_grpc_gateway: Annotated[bool | None, _GATEWAY] = None
    client_url_tls: Annotated[TLSConfig | None, Field(alias="clientUrlTls")] = None
    peer_url_tls: Annotated[TLSConfig | None, Field(alias="peerUrlTls")] = None
    auth_secret_ref: Annotated[SecretReference | None, not_offered("clients log in with certificates")] = None
    client_service: ClientService | None = None
    additional_advertise_peer_urls: Annotated[
        list[MemberPeerURLs] | None, not_offered("members reach each other by the names of their Service", unless=EMPTY)
    ] = None
    bootstrap_with_existing_cluster: ExistingCluster | None = None
    """While it is set, members without data join this cluster, and never begin one of their own."""


class Store(KubeModel):
    provider: str | None = None
    container: str | None = None
    prefix: str
    secret_ref: OwnSecretReference | None = None
    endpoint_override: Annotated[
        str | None, not_offered("the Secret of secretRef has the endpoint, if the provider needs one")
    ] = None


class Compression(KubeModel):
    enabled: Annotated[bool | None, _GZIP] = None
    policy: Annotated[
        Literal["gzip", "lzw", "zlib"] | None,
        not_offered("snapshots are compressed with gzip", unless="self == 'gzip'"),
    ] = None


class SnapshotCompaction(KubeModel):
    events_threshold: Annotated[int | None, not_offered(_NO_COMPACTION)] = None
    trigger_full_snapshot_threshold: int | None = None
    resources: Annotated[
        ResourceRequirements | None, not_offered(_NO_COMPACTION, unless="!has(self.requests) && !has(self.limits)")
    ] = None


class LeaderElection(KubeModel):
    reelection_period: Annotated[Duration | None, _NO_ELECTION] = None
    etcd_connection_timeout: Annotated[Duration | None, _NO_ELECTION] = None


class Backup(KubeModel):
    image: str | None = None
    port: int | None = None
    resources: ResourceRequirements | None = None
    store: Store | None = None
    full_snapshot_schedule: str | None = None
    delta_snapshot_period: Duration | None = None
    delta_snapshot_memory_limit: Quantity | None = None
    delta_snapshot_retention_period: Annotated[
        Duration | None, not_offered("delta snapshots stay while one of the newest two full ones needs them")
    ] = None
    garbage_collection_policy: Annotated[
        Literal["Exponential", "LimitBased"] | None,
        not_offered("only Exponential is supported", unless="self == 'Exponential'"),
    ] = None
    garbage_collection_period: Duration | None = None
    max_backups_limit_based_gc: Annotated[int | None, _ONE_GARBAGE_POLICY] = None
    compression: Compression | None = None
    snapshot_compaction: SnapshotCompaction | None = None
    leader_election: LeaderElection | None = None
    tls: Annotated[TLSConfig | None, _OF_MEMBER] = None
    enable_profiling: Annotated[bool | None, not_offered("the sidecar has no profiles", unless="!self")] = None
    etcd_snapshot_timeout: Annotated[Duration | None, not_offered("a snapshot has no time limit")] = None


class SharedConfig(KubeModel):
    auto_compaction_mode: Literal["periodic", "revision"] | None = None
    auto_compaction_retention: str | None = None


class SchedulingConstraints(KubeModel):
    affinity: Raw | None = None
    topology_spread_constraints: list[Raw] | None = None


class EtcdSpec(KubeModel):
    model_config = rules(
        (
            "!has(self.etcd.bootstrapWithExistingCluster) || has(self.memberNamePrefix)",
            "members that join an existing cluster need names of their own: set memberNamePrefix",
        )
    )
    replicas: int = Field(ge=0)
    selector: Annotated[LabelSelector, LABELS_ALONE]
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    priority_class_name: str | None = None
    storage_capacity: Quantity | None = None
    storage_class: Annotated[str | None, IMMUTABLE] = None
    volume_claim_template: Annotated[str | None, IMMUTABLE] = None
    member_name_prefix: Annotated[str | None, IMMUTABLE] = None
    run_as_root: bool | None = None
    scheduling_constraints: SchedulingConstraints | None = None
    shared_config: SharedConfig | None = None
    externally_managed_member_addresses: Annotated[
        list[str] | None, not_offered("etcds of self-hosted Shoots are static pods without an Etcd", unless=EMPTY)
    ] = None
    etcd: EtcdConfig
    backup: Backup


class Member(KubeModel):
    name: str
    id: str | None = None
    role: Literal["Leader", "Member"] | None = None
    status: Literal["Ready", "NotReady", "Unknown"]
    reason: str = ""
    last_transition_time: Timestamp | None = None


class EtcdLastOperation(KubeModel):
    type: Literal["Create", "Reconcile", "Delete"]
    state: str
    description: str = ""
    run_id: str = ""
    last_update_time: Timestamp | None = None


class EtcdLastError(KubeModel):
    code: str
    description: str
    observed_at: Timestamp | None = None


class EtcdStatus(KubeModel):
    observed_generation: int | None = None
    etcd: CrossVersionObjectReference | None = None
    """Reference to the StatefulSet."""
    replicas: int | None = None
    current_replicas: int | None = None
    ready_replicas: int | None = None
    ready: bool | None = None
    members: Annotated[list[Member], map_list("name")] | None = None
    peer_url_tls_enabled: Annotated[bool | None, Field(alias="peerUrlTLSEnabled")] = None
    label_selector: LabelSelector | None = None
    selector: str | None = None
    last_operation: EtcdLastOperation | None = None
    last_errors: list[EtcdLastError] | None = None
    conditions: Conditions | None = None


def _condition(name: str, kind: str) -> Column:
    return Column(name, f'.status.conditions[?(@.type=="{kind}")].status')


class Etcd(KubeObject):
    definition: ClassVar[Definition] = Definition(
        DRUID,
        "v1alpha1",
        "etcds",
        columns=(
            Column("Ready", ".status.ready", "boolean"),
            _condition("Quorate", "Ready"),
            _condition("All Members Ready", "AllMembersReady"),
            _condition("Backup Ready", "BackupReady"),
            _condition("Cluster ID Mismatch", "ClusterIDMismatch"),
            AGE,
            Column("Cluster Size", ".spec.replicas", "integer", wide=True),
            Column("Current Replicas", ".status.currentReplicas", "integer", wide=True),
            Column("Ready Replicas", ".status.readyReplicas", "integer", wide=True),
        ),
        scale=(".spec.replicas", ".status.replicas", ".status.selector"),
    )

    spec: EtcdSpec
    status: EtcdStatus | None = None
