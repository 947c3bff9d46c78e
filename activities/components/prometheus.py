"""The Prometheus of a Shoot: what its control plane, its etcds and its nodes say of themselves.

It asks pods of its own namespace, and nodes through the API server; its users come by the gateway, with a password. How
much it keeps, and the names of its jobs: as Gardener's.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import (
    apiserver,
    base,
    cluster_autoscaler,
    controller_manager,
    gateway,
    machine_controller_manager,
    resource_manager,
    scheduler,
)
from activities.components.base import Manifest
from api import images

NAME = "prometheus-shoot"
PORT = 9090
SELECT = base.control_plane_labels(NAME)
EXPOSURE = NAME
"""ConfigMap that tells its name to the gateway."""

_LABELS = {**SELECT, "gardener.cloud/role": "monitoring"}
_CONFIG, _TLS, _CA = "/etc/prometheus/config", "/etc/prometheus/tls", "/etc/prometheus/ca"
_WEB = "/etc/prometheus/web"
_DATA = "/prometheus"
_ETCD_METRICS_PORT = 2381
_TOKEN = f"{base.KUBECONFIG_DIR}/token"


@dataclass(frozen=True)
class Prometheus:
    namespace: str
    generic_kubeconfig: str
    ca_bundle: str
    server: str
    """Names of Secrets."""
    users: Mapping[str, str] = field(repr=False)
    """Hashes of passwords by bcrypt, by user."""
    hosts: tuple[str, ...]
    """Names under which the gateway leads to it."""
    replicas: int = 1
    workers: bool = True


def objects(prometheus: Prometheus) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    namespace = prometheus.namespace
    config = base.versioned_config_map(
        NAME, namespace, {"prometheus.yaml": base.to_json(configuration(prometheus))}, labels=_LABELS
    )
    web = {
        "tls_server_config": {"cert_file": f"{_TLS}/tls.crt", "key_file": f"{_TLS}/tls.key"},
        "basic_auth_users": dict(prometheus.users),
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": base.metadata(NAME, namespace, labels=_LABELS),
        "type": "Opaque",
        "data": {"web.yaml": base64.b64encode(base.to_json(web).encode()).decode()},
    }
    exposure = gateway.ServiceExposure(hosts=prometheus.hosts, upstream=gateway.Upstream(service=NAME, port=PORT))
    return [
        base.service_account(NAME, namespace),
        base.role(NAME, namespace, [base.rule("core", "pods", "get list watch")]),
        base.binding(NAME, [base.account(NAME, namespace)], role=NAME, namespace=namespace),
        base.shoot_access(NAME, namespace),
        config,
        secret,
        _volume_claim(namespace),
        base.service(NAME, namespace, select=SELECT, ports={"https": PORT}, labels={**_LABELS, **gateway.LABELS}),
        gateway.service_exposure(EXPOSURE, namespace, exposure),
        _deployment(prometheus, config, base.checksum(web)),
    ]


def shoot_objects() -> list[Manifest]:
    """What its token may do in the shoot: find nodes, and read metrics."""
    name = f"gardener.cloud:monitoring:{NAME}"
    rules = [
        base.rule("core", "nodes", "get list watch"),
        base.rule("core", "nodes/metrics nodes/proxy", "get"),
        {"nonResourceURLs": ["/metrics", "/metrics/*"], "verbs": ["get"]},
    ]
    return [base.cluster_role(name, rules), base.binding(name, [base.account(NAME)], cluster_role=name)]


def _volume_claim(namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": base.metadata(NAME, namespace, labels=_LABELS),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}},
    }


# What it asks


def configuration(prometheus: Prometheus) -> Manifest:
    """``prometheus.yaml``."""
    components = {
        apiserver.NAME: (apiserver.SELECT, apiserver.PORT),
        controller_manager.NAME: (controller_manager.SELECT, controller_manager.PORT),
        **({scheduler.NAME: (scheduler.SELECT, scheduler.PORT)} if prometheus.workers else {}),
    }
    jobs = [_secure_job(name, select, port) for name, (select, port) in components.items()]
    for role in ("main", "events"):
        jobs.append(_pod_job(f"etcd-{role}", {"app": "etcd-statefulset", "role": role}, _ETCD_METRICS_PORT))
    own = [resource_manager, *([machine_controller_manager] if prometheus.workers else [])]
    jobs += [_pod_job(each.NAME, base.control_plane_labels(each.NAME), each.HEALTH_PORT) for each in own]
    if prometheus.workers:
        # Not every cluster has one.
        jobs.append(_pod_job(cluster_autoscaler.NAME, cluster_autoscaler.SELECT, cluster_autoscaler.METRICS_PORT))
        jobs += [_node_job("kubelet", "metrics"), _node_job("cadvisor", "metrics/cadvisor")]
    return {"global": {"scrape_interval": "30s", "scrape_timeout": "10s"}, "scrape_configs": jobs}


def _pod_job(name: str, select: base.Labels, port: int, **rest: Any) -> Manifest:
    """A job for one port of all pods with these labels."""
    labels = ",".join(f"{key}={value}" for key, value in sorted(select.items()))
    return {
        "job_name": name,
        "kubernetes_sd_configs": [
            {"role": "pod", "namespaces": {"own_namespace": True}, "selectors": [{"role": "pod", "label": labels}]}
        ],
        "relabel_configs": [
            # One that has ended is still listed.
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"},
            _relabel("__meta_kubernetes_pod_ip", "__address__", f"${{1}}:{port}"),
            _relabel("__meta_kubernetes_pod_name", "instance", "${1}"),
            _relabel("__meta_kubernetes_pod_name", "pod", "${1}"),
        ],
        **rest,
    }


def _secure_job(name: str, select: base.Labels, port: int) -> Manifest:
    tls = {"ca_file": f"{_CA}/bundle.crt", "server_name": name}
    return _pod_job(name, select, port, scheme="https", authorization={"credentials_file": _TOKEN}, tls_config=tls)


def _node_job(name: str, path: str) -> Manifest:
    """A job for what each kubelet serves, through the API server: nobody else reaches the nodes."""
    return {
        "job_name": name,
        "scheme": "https",
        "authorization": {"credentials_file": _TOKEN},
        "tls_config": {"ca_file": f"{_CA}/bundle.crt", "server_name": apiserver.NAME},
        "kubernetes_sd_configs": [{"role": "node", "kubeconfig_file": base.KUBECONFIG_PATH}],
        "relabel_configs": [
            _relabel("__meta_kubernetes_node_name", "__metrics_path__", f"/api/v1/nodes/${{1}}/proxy/{path}"),
            _relabel("__meta_kubernetes_node_name", "instance", "${1}"),
            _relabel("__meta_kubernetes_node_name", "node", "${1}"),
            {"target_label": "__address__", "replacement": f"{apiserver.NAME}:{apiserver.PORT}"},
        ],
    }


def _relabel(source: str, target: str, replacement: str) -> Manifest:
    return {"source_labels": [source], "target_label": target, "replacement": replacement}


def _deployment(prometheus: Prometheus, config: Mapping[str, Any], web_checksum: str) -> Manifest:
    main = base.container(
        "prometheus",
        images.PROMETHEUS,
        [
            "/bin/prometheus",
            f"--config.file={_CONFIG}/prometheus.yaml",
            f"--web.config.file={_WEB}/web.yaml",
            f"--web.listen-address=:{PORT}",
            f"--storage.tsdb.path={_DATA}",
            "--storage.tsdb.retention.time=30d",
            "--storage.tsdb.retention.size=15GB",
            "--log.format=json",
        ],
        cpu="100m",
        memory="350Mi",
        mounts={
            "config": _CONFIG,
            "web": _WEB,
            "tls": _TLS,
            "ca": _CA,
            "kubeconfig": base.KUBECONFIG_DIR,
        },
        writable={"data": _DATA},
        ports={"https": PORT},
        # Whoever asks for a page needs the password, which is nothing for a probe; each that only connects is an error
        # in its log.
        startupProbe={"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 120},
        livenessProbe={"tcpSocket": {"port": PORT}, "periodSeconds": 60},
    )
    secrets: Sequence[tuple[str, str]] = (("web", NAME), ("tls", prometheus.server), ("ca", prometheus.ca_bundle))
    return base.deployment(
        NAME,
        prometheus.namespace,
        select=SELECT,
        labels=_LABELS,
        replicas=prometheus.replicas,
        # Its database is one process's.
        recreate=True,
        annotations={**base.references([config]), "checksum/web-config": web_checksum},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "securityContext": base.non_root_pod(),
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", config["metadata"]["name"]),
                *(base.secret_volume(name, secret) for name, secret in secrets),
                base.shoot_access_volume(NAME, prometheus.generic_kubeconfig),
                {"name": "data", "persistentVolumeClaim": {"claimName": NAME}},
            ],
        },
    )
