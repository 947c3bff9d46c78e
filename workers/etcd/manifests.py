"""Manifests of an ``Etcd`` resource: ConfigMap, Secret, Services, PodDisruptionBudget, claims and StatefulSet. Pure."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from activities.components import base, connections
from activities.components.base import Manifest
from activities.components.etcd import BACKUP_PORT, CLIENT_PORT, PEER_PORT
from activities.components.etcd_member import (
    BACKUP_CREDENTIALS,
    BUNDLE,
    CONFIG,
    DATA,
    EXISTING,
    METRICS_PORT,
    RESTORE_SECONDS,
    RUN,
    TLS,
    WRAPPER_PORT,
    client_files,
    sidecar_files,
    transport_security,
)
from api import constants, high_availability, images
from api.durations import parse_duration
from api.quantities import parse_quantity
from kube.objects import controller_reference
from workers.etcd.wrapper import INITIALIZATION_FILE

Etcd = Mapping[str, Any]
TLSFiles = Mapping[str, str]
"""Content of each file that ``tls_sources`` names, in base64, by the file's path."""

INSTANCE = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
CONTROLLER = "etcd-druid"
TLS_ORDERED = "druid.gardener.cloud/tls-ordered"
TLS_IN_USE = "druid.gardener.cloud/tls-in-use"
"""Annotations of a member's pod: checksums of the TLS files that the member is to use, and was seen to use."""

REVISION = "druid.gardener.cloud/revision"
"""Label of a member's pod: checksum of the pod's template."""

TAKEOVER_TOLERANCE = timedelta(minutes=2)
"""How long an etcd serves while it cannot read in its bucket whether another seed has taken over. Source: GEP-17, which
has the same time for its DNS record."""
_SOURCE_CREDENTIALS = "/var/etcd/source-backup"
"""Contains files only while a control plane moves. It is always mounted, so that etcd does not restart after a move."""
_DEFAULT_QUOTA = "8Gi"


def objects(
    etcd: Etcd, tls: TLSFiles, takeover_tolerance: timedelta = TAKEOVER_TOLERANCE, *, pods: int | None = None
) -> list[Manifest]:
    """All manifests of an Etcd. The StatefulSet comes last, because it needs the others, which may have any order.

    Its claims are among the others, so that they are bound when the pods are to be scheduled. ``pods``: number of pods
    if there are to be fewer than members for now.

    The client Service of a single pod selects the pod's revision, so a rollout takes the earlier pod out of the Service
    before that pod ends. Otherwise the API server would connect to the address of a pod that is gone, and wait 20 s
    for an answer; a refused connection is tried again within seconds.
    """
    pods = etcd["spec"]["replicas"] if pods is None else pods
    config = _config_map(etcd, takeover_tolerance)
    read_at_start = {name: text for name, text in config["data"].items() if name != EXISTING}
    stateful_set = _stateful_set(etcd, base.checksum(read_at_start), pods)
    template = stateful_set["spec"]["template"]
    revision = {REVISION: base.checksum(template)[:16]}
    template["metadata"]["labels"] |= revision
    client = _client_service(etcd)
    if pods < 2:
        client["spec"]["selector"] |= revision
    made = [config, client, _peer_service(etcd), _disruption_budget(etcd), _tls_secret(etcd, tls), stateful_set]
    for manifest in made:
        manifest["metadata"]["ownerReferences"] = [controller_reference(etcd)]
    # No owner for claims: they belong to the StatefulSet, which adopts them by name.
    return [*_claims(etcd), *made]


def seconds(text: str) -> int:
    """A Go duration in seconds, rounded up. Raises ValueError, also if it is negative."""
    duration = parse_duration(text)
    if duration < timedelta():
        raise ValueError(f"duration {text!r} is negative")
    return math.ceil(duration.total_seconds())


def client_service_name(etcd: Etcd) -> str:
    return f"{etcd['metadata']['name']}-client"


def peer_service_name(etcd: Etcd) -> str:
    """Name of the headless Service of the members; it differs between seeds if the names of members do."""
    return f"{member_prefix(etcd)}{etcd['metadata']['name']}-peer"


def member_prefix(etcd: Etcd) -> str:
    """Part of a member's name before the name of its pod: members of two seeds may be in one cluster."""
    return str(etcd["spec"].get("memberNamePrefix") or "")


def config_map_name(etcd: Etcd) -> str:
    return f"{etcd['metadata']['name']}-config"


def local_name(etcd: Etcd) -> str:
    """The name in the server certificate that is valid for each member."""
    return f"{etcd['metadata']['name']}-local"


def tls_secret_name(etcd: Etcd) -> str:
    return f"{etcd['metadata']['name']}-tls"


def tls_sources(etcd: Etcd) -> dict[str, tuple[str, str]]:
    """Secret and key of each TLS file, by the path of the file in the members' pods."""
    found: dict[str, tuple[str, str]] = {}
    for side in ("client", "peer"):
        tls = etcd["spec"]["etcd"].get(f"{side}UrlTls")
        if not tls:
            continue
        authority = tls["tlsCASecretRef"]
        key = _ca_key(tls)
        found[f"{side}-ca/{key}"] = (authority["name"], key)
        for role in ("server", "client"):
            if pair := tls.get(f"{role}TLSSecretRef"):
                found |= {f"{side}-{role}/{file}": (pair["name"], file) for file in ("tls.crt", "tls.key")}
    return found


def tls_checksum(etcd: Etcd) -> str:
    """Checksum of the TLS files, from the names of their Secrets: a Secret of one name never changes its content."""
    return base.checksum(tls_sources(etcd))[:16]


def is_alone(etcd: Etcd) -> bool:
    """Whether there is a single member. It must not go away, so it takes over new TLS files without a new pod."""
    return len(pod_names(etcd)) == 1


def has_backup(etcd: Etcd) -> bool:
    return bool(etcd["spec"].get("backup", {}).get("store"))


def pod_names(etcd: Etcd) -> list[str]:
    """Names of the members' pods. With 0 replicas one member keeps its name."""
    return [f"{etcd['metadata']['name']}-{number}" for number in range(max(etcd["spec"]["replicas"], 1))]


def own_labels(etcd: Etcd) -> dict[str, str]:
    return {INSTANCE: etcd["metadata"]["name"], MANAGED_BY: CONTROLLER}


def _labels(etcd: Etcd) -> dict[str, str]:
    return {**(etcd["spec"].get("labels") or {}), **own_labels(etcd)}


def _selector(etcd: Etcd) -> dict[str, str]:
    return {**(etcd["spec"]["selector"].get("matchLabels") or {}), **own_labels(etcd)}


def _metadata(etcd: Etcd, name: str, **rest: Any) -> Manifest:
    return base.metadata(name, etcd["metadata"]["namespace"], labels=_labels(etcd), **rest)


def _config_map(etcd: Etcd, takeover_tolerance: timedelta) -> Manifest:
    data = {"wrapper.json": base.to_json(_wrapper_config(etcd, takeover_tolerance))}
    if existing := etcd["spec"]["etcd"].get("bootstrapWithExistingCluster"):
        data[EXISTING] = base.to_json(_existing(existing))
    if has_backup(etcd):
        data["backup-restore.yaml"] = base.to_json(_backup_restore_config(etcd))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(etcd, config_map_name(etcd)),
        "data": data,
    }


def _existing(cluster: Mapping[str, Any]) -> dict[str, Any]:
    members = {each["name"]: each["peerURLs"][0] for each in cluster["members"]}
    return {"members": members, "clients": cluster["clientEndpoints"]}


def _wrapper_config(etcd: Etcd, takeover_tolerance: timedelta) -> dict[str, Any]:
    section = etcd["spec"]["etcd"]
    shared = etcd["spec"].get("sharedConfig") or {}
    name, namespace = etcd["metadata"]["name"], etcd["metadata"]["namespace"]
    client, peer = section.get("clientPort", CLIENT_PORT), section.get("serverPort", PEER_PORT)
    peer_tls = section.get("peerUrlTls")
    peer_scheme = "https" if peer_tls else "http"
    client_scheme = "https" if section.get("clientUrlTls") else "http"
    hosts = {member: f"{member}.{peer_service_name(etcd)}.{namespace}.svc" for member in pod_names(etcd)}
    prefix = member_prefix(etcd)
    config: dict[str, Any] = {
        "listen-client-urls": f"{client_scheme}://0.0.0.0:{client}",
        # A single member has no peers. Its port has no TLS, so nothing outside the pod may connect to it.
        "listen-peer-urls": f"{peer_scheme}://{'127.0.0.1' if is_alone(etcd) else '0.0.0.0'}:{peer}",
        "listen-metrics-urls": f"http://0.0.0.0:{METRICS_PORT}",
        "initial-cluster-token": f"{namespace}/{name}",
        "quota-backend-bytes": int(parse_quantity(section.get("quota", _DEFAULT_QUOTA))),
        "snapshot-count": section.get("snapshotCount", 10_000),
        "metrics": section.get("metrics", "basic"),
        "auto-compaction-mode": shared.get("autoCompactionMode", "periodic"),
        "auto-compaction-retention": shared.get("autoCompactionRetention", "30m"),
        # The sidecar and the etcd controller use etcd's JSON gateway.
        "enable-grpc-gateway": True,
        "logger": "zap",
        "log-level": "info",
    }
    if heartbeat := section.get("heartbeatDuration"):
        config["heartbeat-interval"] = parse_duration(heartbeat) // timedelta(milliseconds=1)
        config["election-timeout"] = config["heartbeat-interval"] * 10
    if is_alone(etcd):
        config["socket-options"] = {"reuse-port": True}  # for the next etcd process, which takes over from this one
    if section.get("clientUrlTls"):
        config["client-transport-security"] = transport_security("client", _ca_key(section["clientUrlTls"]))
    if peer_tls:
        config["peer-transport-security"] = {
            **transport_security("peer", _ca_key(peer_tls)),
            # DNS may not know the address of a peer yet. Only our members have a certificate of this authority.
            "skip-client-san-verification": True,
        }
    wrapped: dict[str, Any] = {
        "etcd": config,
        "dataDir": f"{DATA}/new.etcd",
        "runDirectory": RUN,
        "tlsDirectory": TLS,
        "members": {f"{prefix}{pod}": f"{peer_scheme}://{host}:{peer}" for pod, host in hosts.items()},
        "advertiseClientUrls": f"{client_scheme}://$NAME.{peer_service_name(etcd)}.{namespace}.svc:{client}",
        "store": _store(etcd),
        "takeoverTolerance": takeover_tolerance.total_seconds() if has_backup(etcd) else None,
        "source": _source(etcd),
    }
    if not is_alone(etcd):
        wrapped["membership"] = {
            "clients": {f"{prefix}{pod}": f"{client_scheme}://{host}:{client}" for pod, host in hosts.items()},
            "wrappers": {f"{prefix}{pod}": f"http://{host}:{wrapper_port(etcd)}" for pod, host in hosts.items()},
            "tls": client_files(_ca_key(section["clientUrlTls"])),
        }
        if prefix:
            wrapped |= {"memberNamePrefix": prefix}
            wrapped["membership"] |= {"existing": f"{CONFIG}/{EXISTING}"}
    return wrapped


def wrapper_port(etcd: Etcd) -> int:
    return int(etcd["spec"]["etcd"].get("wrapperPort", WRAPPER_PORT))


def readiness_port(etcd: Etcd) -> int:
    """Port of ``/readyz``. If there are several members, the wrapper serves it.

    It also checks that the member has a vote: without one, a member answers clients with errors.
    """
    return METRICS_PORT if is_alone(etcd) else wrapper_port(etcd)


def _ca_key(tls: Mapping[str, Any]) -> str:
    return str(tls["tlsCASecretRef"].get("dataKey", BUNDLE))


def _store(etcd: Etcd) -> dict[str, Any] | None:
    if not has_backup(etcd):
        return None
    store = etcd["spec"]["backup"]["store"]
    return {
        "provider": store["provider"],
        "bucket": store["container"],
        "prefix": store["prefix"],
        "credentialsDirectory": BACKUP_CREDENTIALS,
    }


def _source(etcd: Etcd) -> dict[str, Any] | None:
    """Store of the source, the seed that the control plane leaves: another bucket, with the same prefix."""
    if not has_backup(etcd):
        return None
    store = etcd["spec"]["backup"]["store"]
    return {"provider": store["provider"], "prefix": store["prefix"], "credentialsDirectory": _SOURCE_CREDENTIALS}


def _backup_restore_config(etcd: Etcd) -> dict[str, Any]:
    backup, section = etcd["spec"]["backup"], etcd["spec"]["etcd"]
    compaction = backup.get("snapshotCompaction") or {}
    wanted = {
        "port": backup.get("port", BACKUP_PORT),
        "endpoint": f"https://127.0.0.1:{section.get('clientPort', CLIENT_PORT)}",
        "tls": sidecar_files(_ca_key(section["clientUrlTls"])),
        "store": _store(etcd),
        "initializationFile": f"{RUN}/{INITIALIZATION_FILE}",
        "fullSnapshotSchedule": backup.get("fullSnapshotSchedule", "0 0 * * *"),
        "defragmentationSchedule": section.get("defragmentationSchedule", ""),
        "fullSnapshotAfterChanges": compaction.get("triggerFullSnapshotThreshold"),
    }
    if not is_alone(etcd):
        wanted["severalMembers"] = True
    if period := backup.get("deltaSnapshotPeriod"):
        wanted["deltaSnapshotPeriod"] = seconds(period)
    if period := backup.get("garbageCollectionPeriod"):
        wanted["garbageCollectionPeriod"] = seconds(period)
    if limit := backup.get("deltaSnapshotMemoryLimit"):
        wanted["deltaSnapshotMemoryLimit"] = int(parse_quantity(limit))
    return {key: value for key, value in wanted.items() if value is not None}


def _tls_secret(etcd: Etcd, tls: TLSFiles) -> Manifest:
    """Secret with all TLS files of the members. Its name stays the same, so pods stay when its content changes."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(etcd, tls_secret_name(etcd)),
        "type": "Opaque",
        "data": {_key_of(path): content for path, content in tls.items()},
    }


def _key_of(path: str) -> str:
    return path.replace("/", ".")


def _client_service(etcd: Etcd) -> Manifest:
    extra = etcd["spec"]["etcd"].get("clientService") or {}
    ports = {"client": etcd["spec"]["etcd"].get("clientPort", CLIENT_PORT)}
    if has_backup(etcd):
        ports["backuprestore"] = etcd["spec"]["backup"].get("port", BACKUP_PORT)
    service = base.service(
        client_service_name(etcd), etcd["metadata"]["namespace"], select=_selector(etcd), ports=ports
    )
    if is_alone(etcd):
        # Clients of a single member need not wait until the kubelet has noticed that this member serves.
        service["spec"]["publishNotReadyAddresses"] = True
    service["metadata"]["labels"] = {**_labels(etcd), **(extra.get("labels") or {})}
    clients = connections.of_etcd(METRICS_PORT, *sorted({readiness_port(etcd), *ports.values()}))
    service["metadata"]["annotations"] = {**clients, **(extra.get("annotations") or {})}
    if distribution := extra.get("trafficDistribution"):
        service["spec"]["trafficDistribution"] = distribution
    return service


def _peer_service(etcd: Etcd) -> Manifest:
    ports = {"peer": etcd["spec"]["etcd"].get("serverPort", PEER_PORT)}
    if not is_alone(etcd):
        ports["wrapper"] = wrapper_port(etcd)
    service = base.service(
        peer_service_name(etcd),
        etcd["metadata"]["namespace"],
        select=_selector(etcd),
        ports=ports,
        clusterIP="None",
        publishNotReadyAddresses=True,
    )
    service["metadata"]["labels"] = _labels(etcd)
    return service


def _disruption_budget(etcd: Etcd) -> Manifest:
    replicas = etcd["spec"]["replicas"]
    annotations = etcd["metadata"].get("annotations") or {}
    sick_may_go = annotations.get("resources.druid.gardener.cloud/allow-unhealthy-pod-eviction") == "true"
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(etcd, etcd["metadata"]["name"]),
        "spec": {
            # A single member cannot move without an interruption; a budget would only block the node's drain.
            "minAvailable": replicas // 2 + 1 if replicas > 1 else 0,
            "selector": {"matchLabels": _selector(etcd)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow" if sick_may_go else "IfHealthyBudget",
        },
    }


def _stateful_set(etcd: Etcd, config_checksum: str, pods: int) -> Manifest:
    spec = etcd["spec"]
    name = etcd["metadata"]["name"]
    claim = claim_name(etcd)
    constraints = spec.get("schedulingConstraints") or {}
    containers = [_etcd_container(etcd, claim)]
    if has_backup(etcd):
        containers.append(_backup_container(etcd))
    security = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False} if spec.get("runAsRoot") else {}
    checksums = {"checksum/etcd-configmap": config_checksum}
    if not is_alone(etcd):
        checksums["checksum/etcd-tls"] = tls_checksum(etcd)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        # The Etcd says where its members run: no webhook changes that.
        "metadata": base.metadata(
            name, etcd["metadata"]["namespace"], labels={**_labels(etcd), high_availability.SKIP: "true"}
        ),
        "spec": {
            "replicas": pods,
            "serviceName": peer_service_name(etcd),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 2,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "selector": {"matchLabels": _selector(etcd)},
            "template": {
                "metadata": {
                    "labels": {**_labels(etcd), **_connections(etcd)},
                    "annotations": {**(spec.get("annotations") or {}), **checksums},
                },
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {**base.non_root_pod(), **security},
                    "containers": containers,
                    "volumes": _volumes(etcd),
                    **({"affinity": constraints["affinity"]} if constraints.get("affinity") else {}),
                    **(
                        {"topologySpreadConstraints": constraints["topologySpreadConstraints"]}
                        if constraints.get("topologySpreadConstraints")
                        else {}
                    ),
                    **({"priorityClassName": spec["priorityClassName"]} if spec.get("priorityClassName") else {}),
                },
            },
            "volumeClaimTemplates": [_claim(etcd, claim)],
        },
    }


def _connections(etcd: Etcd) -> dict[str, str]:
    """Labels of members for what they connect to: the store of backups, and each other."""
    outside = connections.OUTSIDE if has_backup(etcd) else connections.NAMES
    if is_alone(etcd):
        return dict(outside)
    section = etcd["spec"]["etcd"]
    peers = connections.within(peer_service_name(etcd), section.get("serverPort", PEER_PORT), wrapper_port(etcd))
    members = connections.within(client_service_name(etcd), section.get("clientPort", CLIENT_PORT))
    return {**outside, **peers, **members}


def _etcd_container(etcd: Etcd, claim: str) -> Manifest:
    section = etcd["spec"]["etcd"]
    mounts = {"config": CONFIG, "tls": TLS}
    if has_backup(etcd):
        mounts |= {"backup-credentials": BACKUP_CREDENTIALS, "source-credentials": _SOURCE_CREDENTIALS}
    ready = readiness_port(etcd)
    container = base.container(
        "etcd",
        section.get("image") or images.GARDENER,
        ["python3", "-m", "workers.etcd.wrapper", f"{CONFIG}/wrapper.json"],
        cpu="",
        memory="",
        mounts=mounts,
        writable={claim: DATA, "run": RUN},
        ports={
            "client": section.get("clientPort", CLIENT_PORT),
            "peer": section.get("serverPort", PEER_PORT),
            "metrics": METRICS_PORT,
            **({} if is_alone(etcd) else {"wrapper": ready}),
        },
        env=[{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        terminationMessagePolicy="FallbackToLogsOnError",
        # Until etcd serves for the first time, the wrapper may be restoring.
        startupProbe=base.http_probe("/readyz", ready, scheme="HTTP", period=1, failures=RESTORE_SECONDS, timeout=2),
        readinessProbe=base.http_probe("/readyz", ready, scheme="HTTP", period=5, failures=2),
        livenessProbe=base.http_probe("/livez", METRICS_PORT, scheme="HTTP", period=10, failures=6, timeout=5),
    )
    container["resources"] = dict(section.get("resources") or {})
    return container


def _backup_container(etcd: Etcd) -> Manifest:
    backup = etcd["spec"]["backup"]
    port = backup.get("port", BACKUP_PORT)
    container = base.container(
        "backup-restore",
        backup.get("image") or images.GARDENER,
        ["gardener", "worker", "backup-restore", "--config", f"{CONFIG}/backup-restore.yaml"],
        cpu="",
        memory="",
        mounts={
            "config": CONFIG,
            "run": RUN,
            "tls": TLS,
            "backup-credentials": BACKUP_CREDENTIALS,
        },
        ports={"backuprestore": port},
        terminationMessagePolicy="FallbackToLogsOnError",
        # No readiness probe: a store that is down must not take etcd out of its Service.
        livenessProbe={"tcpSocket": {"port": port}, "initialDelaySeconds": 30, "periodSeconds": 10},
    )
    container["resources"] = dict(backup.get("resources") or {})
    return container


def _volumes(etcd: Etcd) -> list[Manifest]:
    tls = base.secret_volume("tls", tls_secret_name(etcd))
    tls["secret"]["items"] = [{"key": _key_of(path), "path": path} for path in tls_sources(etcd)]
    volumes = [
        base.config_map_volume("config", config_map_name(etcd)),
        base.empty_dir("run", memory=True),
        tls,
    ]
    if has_backup(etcd):
        volumes += [
            base.secret_volume("backup-credentials", etcd["spec"]["backup"]["store"]["secretRef"]["name"]),
            base.secret_volume("source-credentials", constants.SOURCE_BACKUP_SECRET, optional=True),
        ]
    return volumes


def _claims(etcd: Etcd) -> list[Manifest]:
    name = claim_name(etcd)
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": base.metadata(f"{name}-{member}", etcd["metadata"]["namespace"], labels=_selector(etcd)),
            "spec": _claim(etcd, name)["spec"],
        }
        for member in pod_names(etcd)
        if etcd["spec"]["replicas"]
    ]


def claim_name(etcd: Etcd) -> str:
    """Name of the claim template; a member's claim is called ``<this>-<member>``."""
    return etcd["spec"].get("volumeClaimTemplate") or str(etcd["metadata"]["name"])


def _claim(etcd: Etcd, name: str) -> Manifest:
    spec = etcd["spec"]
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": spec.get("storageCapacity") or "10Gi"}},
            **({"storageClassName": spec["storageClass"]} if spec.get("storageClass") else {}),
        },
    }
