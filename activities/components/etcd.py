"""The etcds of a control plane, as the ``Etcd`` resources that the seed's etcd controller reconciles.

``etcd-main`` holds everything but Kubernetes' events and is backed up; ``etcd-events`` holds the events.
Values: spec/extensions.md 5.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.components import base, priority
from activities.components.base import Manifest
from activities.secrets.configs import Certificate, SignedBy, Usage

MAIN, EVENTS = "main", "events"
ROLES = (MAIN, EVENTS)
MEMBERS = 3
"""Number of members of an etcd that survives the loss of one member."""

CA = "ca-etcd"
PEER_CA = "ca-etcd-peer"
BACKUP_SECRET = "etcd-backup"
BACKUP_PORT = 8080
CLIENTS_HOST = "clients"
"""Host by which members of another seed reach the clients' port of any member, in the domain of the peers. The server
certificate is valid for it."""
CLIENT_PORT = 2379
PEER_PORT = 2380
DELTA_SNAPSHOT_PERIOD = timedelta(minutes=5)
"""Default period of delta snapshots."""

_STORAGE = {MAIN: "25Gi", EVENTS: "10Gi"}
_REQUESTS = {MAIN: {"cpu": "60m", "memory": "150Mi"}, EVENTS: {"cpu": "30m", "memory": "60Mi"}}
_DEFAULT_WINDOW = "220000+0000"


@dataclass(frozen=True)
class Backup:
    """Destination of an etcd's snapshots."""

    provider: str
    bucket: str
    entry: str
    """Name of the BackupEntry, the first part of all names in the bucket."""


@dataclass(frozen=True)
class EtcdValues:
    """Values of an etcd that differ between shoots."""

    role: str
    namespace: str
    replicas: int
    ca_bundle: str
    server_certificate: str
    client_certificate: str
    """Names of Secrets."""
    window_begin: str = _DEFAULT_WINDOW
    """Begin of the Shoot's maintenance time window: ``HHMMSS+ZZZZ``."""
    uid: str = ""
    """Uid of the Shoot; spreads the times of backups over the window."""
    backup: Backup | None = None
    delta_snapshot_period: timedelta = DELTA_SNAPSHOT_PERIOD
    peer_ca_bundle: str = ""
    peer_certificate: str = ""
    """Names of Secrets; empty if there is only one member."""
    failure_tolerance: str | None = None
    """``node`` or ``zone``: several members are spread over nodes, or over nodes and zones."""
    affinity: Mapping[str, Any] = field(default_factory=dict)
    """Affinity of the pods."""
    autoscaling: Mapping[str, Any] = field(default_factory=dict)
    """``Shoot.spec.kubernetes.etcd.<role>.autoscaling``: its ``minAllowed`` raises the requests."""
    member_prefix: str = ""
    """Part of the members' names before the names of their pods."""
    existing: Mapping[str, Any] = field(default_factory=dict)
    """Cluster in another seed that the members join: see ``existing_cluster``."""
    image_digest: str = ""
    """Digest of the content of our image, if the image has the same tag in all versions."""


def name_of(role: str) -> str:
    return f"etcd-{role}"


def peer_service(role: str, prefix: str = "") -> str:
    """Name of the headless Service by which members find each other."""
    return f"{prefix}{name_of(role)}-peer"


def existing_cluster(role: str, namespace: str, prefix: str, replicas: int) -> Manifest:
    """``bootstrapWithExistingCluster`` for the members of another seed, whose names have this prefix."""
    domain = f"{peer_service(role, prefix)}.{namespace}.svc"
    pods = [f"{name_of(role)}-{number}" for number in range(replicas)]
    return {
        "members": [{"name": f"{prefix}{pod}", "peerURLs": [f"https://{pod}.{domain}:{PEER_PORT}"]} for pod in pods],
        "clientEndpoints": [f"https://{CLIENTS_HOST}.{domain}:{CLIENT_PORT}"],
    }


def etcd(values: EtcdValues) -> Manifest:
    """The ``Etcd`` resource, without the trigger of its controller."""
    important = values.role == MAIN
    labels = {"role": values.role, "app": "etcd-statefulset", "gardener.cloud/role": "controlplane"}
    annotations = {} if important else {"resources.druid.gardener.cloud/allow-unhealthy-pod-eviction": "true"}
    pod_annotations = {}
    if important and values.failure_tolerance is None:
        pod_annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
    if values.image_digest:
        pod_annotations["checksum/image"] = values.image_digest
    return {
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {
            "name": name_of(values.role),
            "namespace": values.namespace,
            "labels": {"gardener.cloud/role": "controlplane", "role": values.role},
            "annotations": annotations,
        },
        "spec": {
            "replicas": values.replicas,
            "labels": labels,
            # Left out if empty: the API server refuses an empty map, as null, in place of a map with entries.
            **({"annotations": pod_annotations} if pod_annotations else {}),
            "selector": {"matchLabels": {"role": values.role, "app": "etcd-statefulset"}},
            "priorityClassName": priority.class_of("etcd"),
            "storageCapacity": _STORAGE[values.role],
            "storageClass": "default",
            "volumeClaimTemplate": f"{values.role}-etcd",
            **({"memberNamePrefix": values.member_prefix} if values.member_prefix else {}),
            "sharedConfig": {"autoCompactionMode": "periodic", "autoCompactionRetention": "30m"},
            "etcd": _etcd_section(values),
            "backup": _backup_section(values),
            **_scheduling(values, labels),
        },
    }


def _scheduling(values: EtcdValues, labels: dict[str, str]) -> dict[str, Any]:
    constraints: dict[str, Any] = {"affinity": dict(values.affinity)} if values.affinity else {}
    if values.replicas > 1 and values.failure_tolerance is not None:
        selected = {name: labels[name] for name in ("role", "app")}
        constraints |= {"topologySpreadConstraints": base.spread(selected, values.failure_tolerance)}
    return {"schedulingConstraints": constraints} if constraints else {}


def _etcd_section(values: EtcdValues) -> dict[str, Any]:
    section: dict[str, Any] = {
        "clientPort": CLIENT_PORT,
        "serverPort": PEER_PORT,
        "metrics": "basic",
        "quota": "8Gi",
        "enableGRPCGateway": True,
        "defragmentationSchedule": _daily(values, first_hour=False),
        "resources": {"requests": base.at_least(_REQUESTS[values.role], values.autoscaling)},
        "clientUrlTls": _tls(values.ca_bundle, values.server_certificate, values.client_certificate),
    }
    if values.existing:
        section["bootstrapWithExistingCluster"] = dict(values.existing)
    if values.peer_certificate:
        section["peerUrlTls"] = _tls(values.peer_ca_bundle, values.peer_certificate)
    return section


def _backup_section(values: EtcdValues) -> dict[str, Any]:
    if values.backup is None:
        return {}
    return {
        "port": BACKUP_PORT,
        "store": {
            "provider": values.backup.provider,
            "container": values.backup.bucket,
            "prefix": f"{values.backup.entry}/{name_of(values.role)}",
            "secretRef": {"name": BACKUP_SECRET},
        },
        "fullSnapshotSchedule": _daily(values, first_hour=True),
        "deltaSnapshotPeriod": f"{values.delta_snapshot_period.total_seconds():.0f}s",
        "deltaSnapshotMemoryLimit": "100Mi",
        "garbageCollectionPolicy": "Exponential",
        "garbageCollectionPeriod": "12h",
        "compression": {"enabled": True, "policy": "gzip"},
        "resources": {"requests": {"cpu": "10m", "memory": "80Mi"}},
    }


def _tls(ca_bundle: str, server: str, client: str = "") -> dict[str, Any]:
    return {
        "tlsCASecretRef": {"name": ca_bundle, "dataKey": "bundle.crt"},
        "serverTLSSecretRef": {"name": server},
        **({"clientTLSSecretRef": {"name": client}} if client else {}),
    }


def _daily(values: EtcdValues, *, first_hour: bool) -> str:
    """A minute of the maintenance window's first or second hour, as a cron expression in UTC.

    The minute is computed from the Shoot's uid: it is the same in all runs, and differs between shoots of a seed.
    """
    begin = _begin_in_utc(values.window_begin)
    digest = hashlib.sha256(f"{values.uid}/{values.role}/{first_hour}".encode()).digest()
    time = begin + timedelta(minutes=int.from_bytes(digest[:4], "big") % 60 + (0 if first_hour else 60))
    return f"{time.minute} {time.hour} * * *"


def _begin_in_utc(begin: str) -> datetime:
    """``220000+0100`` as a time in UTC on an arbitrary day. Source of the format: Shoot.spec.maintenance.timeWindow."""
    return datetime.strptime(f"20000102{begin}", "%Y%m%d%H%M%S%z").astimezone(UTC)


def server_certificate(role: str, namespace: str, prefix: str = "") -> Certificate:
    """Certificate that a member presents to clients, and to itself: the JSON gateway is a client of its own member."""
    client, peer = f"{name_of(role)}-client", peer_service(role, prefix)
    return Certificate(
        name=f"etcd-server-{role}",
        common_name="etcd-server",
        usage=Usage.SERVER_AND_CLIENT,
        signer=CA,
        dns_names=(
            f"{name_of(role)}-local",
            *_service_names(client, namespace),
            *_service_names(f"*.{peer}", namespace),
        ),
        ip_addresses=("127.0.0.1", "::1"),
    )


def peer_certificate(role: str, namespace: str, prefix: str = "") -> Certificate:
    """Certificate that members present to each other."""
    peer = peer_service(role, prefix)
    return Certificate(
        name=f"etcd-peer-server-{role}",
        common_name="etcd-server",
        usage=Usage.SERVER_AND_CLIENT,
        signer=PEER_CA,
        signed_by=SignedBy.CURRENT,
        dns_names=(*_service_names(peer, namespace), *_service_names(f"*.{peer}", namespace)),
        ip_addresses=("127.0.0.1", "::1"),
    )


def client_certificate() -> Certificate:
    """Client certificate of the API server, the sidecar and the etcd controller."""
    return Certificate(name="etcd-client", common_name="etcd-client", usage=Usage.CLIENT, signer=CA)


def _service_names(service: str, namespace: str) -> tuple[str, ...]:
    return (
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    )
