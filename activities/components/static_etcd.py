"""The etcd of a self-hosted Shoot: a static pod of each node of the control plane, with the data on the node.

It has the same wrapper and the same sidecar as an etcd in a seed. There is no controller that makes members: each one
knows itself, and a file of its node names the members whose cluster it joins.
"""

import json
from collections.abc import Mapping
from typing import Any

from activities.components import base, etcd
from activities.components import etcd_member as member
from activities.components.static_pod import Content, StaticPod, static_pod
from api import images

NAME = etcd.name_of(etcd.MAIN)
DATA = "/var/lib/etcd-main"
BACKUP = "etcd-backup"
"""Secret with the key of the bucket."""
_DELTA_SECONDS = 60
"""Period of delta snapshots: an eighth of that in seeds, because the disk of the node may be lost with the node."""


def pod(
    node: str,
    address: str,
    secrets: Content,
    token: str,
    store: Mapping[str, str] | None = None,
    existing: bytes | None = None,
) -> StaticPod:
    """The member of a node.

    Args:
        node: name of the node, and of its member.
        secrets: ca-etcd, etcd-server, etcd-client, ca-etcd-peer and etcd-peer-server; with ``store`` also ``BACKUP``.
        token: name of the cluster.
        store: provider, bucket and prefix of the backups; None if there are none.
        existing: file that names the members whose cluster this one joins; None for the first member.
    """
    config = {"wrapper.json": _json(_wrapper(node, address, token, store))}
    if store:
        config["backup-restore.yaml"] = _json(_sidecar(store))
    if existing:
        config[member.EXISTING] = existing
    data = {**secrets, "config": config}
    files = {
        "client-ca": (f"{etcd.CA}-bundle", "bundle.crt"),
        "client-server": (f"etcd-server-{etcd.MAIN}", "tls.crt", "tls.key"),
        "client-client": ("etcd-client", "tls.crt", "tls.key"),
        "peer-ca": (f"{etcd.PEER_CA}-bundle", "bundle.crt"),
        "peer-server": (f"etcd-peer-server-{etcd.MAIN}", "tls.crt", "tls.key"),
    }
    tls = [
        {"secret": {"name": secret, "items": [{"key": key, "path": f"{directory}/{key}"} for key in keys]}}
        for directory, (secret, *keys) in files.items()
    ]
    volumes = [
        base.projected_volume("tls", *tls),
        base.config_map_volume("config", "config"),
        base.empty_dir("run", memory=True),
        {"name": "data", "hostPath": {"path": DATA, "type": "DirectoryOrCreate"}},
    ]
    containers = [_etcd(node, backed_up=store is not None)]
    if store:
        volumes.append(base.secret_volume("backup", BACKUP))
        containers.append(_backup_restore())
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "containers": containers,
        "volumes": volumes,
    }
    labels = {"app": "etcd-statefulset", "role": etcd.MAIN, "gardener.cloud/role": "controlplane"}
    # Its certificates end with their authorities.
    return static_pod(NAME, labels, spec, data, restarts=False)


def _wrapper(node: str, address: str, token: str, store: Mapping[str, str] | None) -> dict[str, Any]:
    """Configuration of etcd's wrapper."""
    client, peer = f"https://{address}:{etcd.CLIENT_PORT}", f"https://{address}:{etcd.PEER_PORT}"
    return {
        "etcd": {
            "listen-client-urls": f"https://127.0.0.1:{etcd.CLIENT_PORT},{client}",
            "listen-peer-urls": peer,
            "listen-metrics-urls": f"http://127.0.0.1:{member.METRICS_PORT}",
            "initial-cluster-token": token,
            "quota-backend-bytes": 8 * 1024**3,
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "30m",
            "enable-grpc-gateway": True,
            "logger": "zap",
            "log-level": "info",
            "client-transport-security": member.transport_security("client"),
            "peer-transport-security": {**member.transport_security("peer"), "skip-client-san-verification": True},
        },
        "dataDir": f"{member.DATA}/new.etcd",
        "runDirectory": member.RUN,
        "tlsDirectory": member.TLS,
        "members": {node: peer},
        "advertiseClientUrls": client,
        "store": {**store, "credentialsDirectory": member.BACKUP_CREDENTIALS} if store else None,
        "membership": {
            "clients": {node: client},
            "wrappers": {node: f"https://{address}:{member.WRAPPER_PORT}"},
            "existing": f"{member.CONFIG}/{member.EXISTING}",
            "tls": member.client_files(),
        },
    }


def existing(clients: list[str]) -> bytes:
    """File that names the cluster to join, by the client URLs of its members."""
    return _json({"members": {}, "clients": clients})


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _sidecar(store: Mapping[str, str]) -> dict[str, Any]:
    """Configuration of the sidecar, as JSON, which is YAML."""
    return {
        "port": etcd.BACKUP_PORT,
        "endpoint": f"https://127.0.0.1:{etcd.CLIENT_PORT}",
        "tls": member.sidecar_files(),
        "store": {**store, "credentialsDirectory": member.BACKUP_CREDENTIALS},
        "initializationFile": f"{member.RUN}/initialization.json",
        "fullSnapshotSchedule": "0 0 * * *",
        "deltaSnapshotPeriod": _DELTA_SECONDS,
        "severalMembers": True,
    }


def _etcd(node: str, *, backed_up: bool) -> dict[str, Any]:
    def probe(path: str, port: int, **rest: Any) -> dict[str, Any]:
        return base.http_probe(path, port, scheme="HTTP", host="127.0.0.1", **rest)

    return base.container(
        "etcd",
        images.GARDENER,
        ["python3", "-m", "workers.etcd.wrapper", f"{member.CONFIG}/wrapper.json"],
        cpu="60m",
        memory="150Mi",
        mounts={
            "tls": member.TLS,
            "config": member.CONFIG,
            **({"backup": member.BACKUP_CREDENTIALS} if backed_up else {}),
        },
        writable={"data": member.DATA, "run": member.RUN},
        env=[{"name": "POD_NAME", "value": node}],
        startupProbe=probe("/readyz", member.METRICS_PORT, period=1, failures=member.RESTORE_SECONDS, timeout=2),
        readinessProbe=probe("/readyz", member.WRAPPER_PORT, period=5, failures=2),
        livenessProbe=probe("/livez", member.METRICS_PORT, period=10, failures=6, timeout=5),
        terminationMessagePolicy="FallbackToLogsOnError",
    )


def _backup_restore() -> dict[str, Any]:
    return base.container(
        "backup-restore",
        images.GARDENER,
        ["gardener", "worker", "backup-restore", "--config", f"{member.CONFIG}/backup-restore.yaml"],
        cpu="10m",
        memory="80Mi",
        mounts={"tls": member.TLS, "config": member.CONFIG, "backup": member.BACKUP_CREDENTIALS},
        writable={"run": member.RUN},
        livenessProbe={
            "tcpSocket": {"port": etcd.BACKUP_PORT, "host": "127.0.0.1"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
        },
        terminationMessagePolicy="FallbackToLogsOnError",
    )
