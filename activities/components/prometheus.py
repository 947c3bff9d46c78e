"""The Prometheus of a Shoot: metrics of its control plane, its etcds and its nodes.

Prometheus scrapes pods of its own namespace directly, and nodes through the API server. Users reach Prometheus through
the gateway, with a password. Retention and names of jobs: as Gardener's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import (
    alertmanager,
    alerts,
    apiserver,
    base,
    cluster_autoscaler,
    connections,
    controller_manager,
    envoy,
    exporters,
    kube_state_metrics,
    machine_controller_manager,
    monitoring,
    prometheus_policy,
    resource_manager,
    scheduler,
)
from activities.components.base import Manifest
from activities.components.monitoring import Served
from api import images

NAME = "prometheus-shoot"
PORT = 9090
SELECT = base.control_plane_labels(NAME)

_CA, _PASSWORD = "/etc/prometheus/ca", "/etc/prometheus/password"
_DATA = "/prometheus"
_ETCD_METRICS_PORT = 2381
_TOKEN = f"{base.KUBECONFIG_DIR}/token"


@dataclass(frozen=True)
class Prometheus:
    served: Served
    generic_kubeconfig: str
    ca_bundle: str
    """Names of Secrets."""
    api_server: str
    """Host name under which users reach the API server. Empty: pods of the seed cannot reach it, so no probe tries."""
    workers: bool = True
    vpn_servers: Sequence[str] = ()
    """Names of the VPN servers; empty without workers."""
    alerted: str = ""
    """Name of the Secret with the password for the Shoot's Alertmanager; empty if the Shoot has no Alertmanager."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that distinguish the Shoot's alerts from those of other Shoots."""


def objects(prometheus: Prometheus) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    served, namespace = prometheus.served, prometheus.served.namespace
    files = {
        "prometheus.yaml": base.to_json(configuration(prometheus)),
        "rules.yaml": base.to_json(alerts.rules(workers=prometheus.workers, vpn_servers=prometheus.vpn_servers)),
    }
    config = base.versioned_config_map(NAME, namespace, files, labels=served.labels)
    return [
        *monitoring.objects(served, "20Gi"),
        base.role(NAME, namespace, [base.rule("core", "pods", "get list watch")]),
        base.binding(NAME, [base.account(NAME, namespace)], role=NAME, namespace=namespace),
        base.shoot_access(NAME, namespace),
        config,
        _deployment(prometheus, config),
    ]


def shoot_objects() -> list[Manifest]:
    """Rights of Prometheus' token in the shoot: find nodes and read metrics. The policy restricts `nodes/proxy`."""
    name = f"gardener.cloud:monitoring:{NAME}"
    rules = [
        base.rule("core", "nodes", "get list watch"),
        base.rule("core", "nodes/proxy", "get"),
        base.rule("core", "services/proxy", "get", [f"{exporters.BLACKBOX_EXPORTER}:probe"]),
        {"nonResourceURLs": ["/metrics", "/metrics/*"], "verbs": ["get"]},
    ]
    return [
        *prometheus_policy.objects(f"system:serviceaccount:kube-system:{NAME}"),
        base.cluster_role(name, rules),
        base.binding(name, [base.account(NAME)], cluster_role=name),
    ]


# Scrape configuration


def configuration(prometheus: Prometheus) -> Manifest:
    """Content of ``prometheus.yaml``."""
    components = {
        apiserver.NAME: (apiserver.SELECT, apiserver.PORT),
        controller_manager.NAME: (controller_manager.SELECT, controller_manager.PORT),
        **({scheduler.NAME: (scheduler.SELECT, scheduler.PORT)} if prometheus.workers else {}),
    }
    jobs = [_secure_job(name, select, port) for name, (select, port) in components.items()]
    for role in ("main", "events"):
        jobs.append(_pod_job(f"etcd-{role}", {"app": "etcd-statefulset", "role": role}, _ETCD_METRICS_PORT))
    if prometheus.api_server:
        jobs.append(_reachable(prometheus.api_server))
    own = [resource_manager, *([machine_controller_manager] if prometheus.workers else [])]
    jobs += [_pod_job(each.NAME, base.control_plane_labels(each.NAME), each.HEALTH_PORT) for each in own]
    if prometheus.workers:
        # Not every cluster has a cluster autoscaler.
        jobs.append(_pod_job(cluster_autoscaler.NAME, cluster_autoscaler.SELECT, cluster_autoscaler.METRICS_PORT))
        # honor_labels: kube-state-metrics reports about other pods, so keep their `pod` and `namespace` labels.
        jobs.append(
            _pod_job(kube_state_metrics.NAME, kube_state_metrics.SELECT, kube_state_metrics.PORT, honor_labels=True)
        )
        jobs += [
            _node_job(name, path)
            for name, path in zip(("kubelet", "cadvisor"), prometheus_policy.KUBELET_PATHS, strict=True)
        ]
        jobs += [_vpn_server(name) for name in prometheus.vpn_servers]
        of_exporter = prometheus_policy.NODE_EXPORTER_PATH, exporters.NODE_EXPORTER_PORT
        jobs += [_node_job(exporters.NODE_EXPORTER, *of_exporter), _service_check()]
    made = {
        "global": {
            "scrape_interval": "30s",
            "scrape_timeout": "10s",
            "evaluation_interval": "30s",
            "external_labels": dict(prometheus.labels),
        },
        "rule_files": [f"{monitoring.CONFIG}/rules.yaml"],
        "scrape_configs": jobs,
    }
    return {**made, "alerting": {"alertmanagers": [_alertmanager(prometheus)]}} if prometheus.alerted else made


def _alertmanager(prometheus: Prometheus) -> Manifest:
    (user,) = prometheus.served.users
    return {
        "scheme": "https",
        "tls_config": {"ca_file": f"{_CA}/bundle.crt", "server_name": alertmanager.NAME},
        "basic_auth": {"username": user, "password_file": f"{_PASSWORD}/password"},
        "static_configs": [{"targets": [f"{alertmanager.NAME}:{alertmanager.PORT}"]}],
    }


def _pod_job(name: str, select: base.Labels, port: int, **rest: Any) -> Manifest:
    """A job for one port of all pods with these labels."""
    labels = ",".join(f"{key}={value}" for key, value in sorted(select.items()))
    return {
        "job_name": name,
        "kubernetes_sd_configs": [
            {"role": "pod", "namespaces": {"own_namespace": True}, "selectors": [{"role": "pod", "label": labels}]}
        ],
        "relabel_configs": [
            # Pods that have ended are still listed.
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"},
            _relabel("__meta_kubernetes_pod_ip", "__address__", f"${{1}}:{port}"),
            _relabel("__meta_kubernetes_pod_name", "instance", "${1}"),
            _relabel("__meta_kubernetes_pod_name", "pod", "${1}"),
        ],
        **rest,
    }


def _vpn_server(name: str) -> Manifest:
    """A job for the proxy beside a VPN server. Of its hundreds of metrics, alerts need one."""
    kept = [{"source_labels": ["__name__"], "regex": "envoy_cluster_membership_healthy", "action": "keep"}]
    select = base.control_plane_labels(name)
    return _pod_job(name, select, envoy.METRICS_PORT, metrics_path="/stats/prometheus", metric_relabel_configs=kept)


def _reachable(host: str) -> Manifest:
    """A job that checks whether the API server is reachable from outside of its namespace: by DNS and gateway."""
    return {
        "job_name": "blackbox-apiserver",
        "metrics_path": "/probe",
        "params": {"module": [exporters.API_SERVER], "target": [f"https://{host}/healthz"]},
        "static_configs": [{"targets": [f"{exporters.BLACKBOX_EXPORTER}:{exporters.BLACKBOX_EXPORTER_PORT}"]}],
        "relabel_configs": [_relabel("__param_target", "instance", "${1}")],
    }


def _secure_job(name: str, select: base.Labels, port: int) -> Manifest:
    tls = {"ca_file": f"{_CA}/bundle.crt", "server_name": name}
    return _pod_job(name, select, port, scheme="https", authorization={"credentials_file": _TOKEN}, tls_config=tls)


def _through_api_server(name: str, **rest: Any) -> Manifest:
    """A job for targets in the shoot, which only the API server can reach."""
    return {
        "job_name": name,
        "scheme": "https",
        "authorization": {"credentials_file": _TOKEN},
        "tls_config": {"ca_file": f"{_CA}/bundle.crt", "server_name": apiserver.NAME},
        **rest,
    }


def _service_check() -> Manifest:
    """A job that checks whether pods reach the API server."""
    service = f"{exporters.NAMESPACE}/services/{exporters.BLACKBOX_EXPORTER}:probe"
    return _through_api_server(
        "blackbox-exporter-k8s-service-check",
        metrics_path=f"/api/v1/namespaces/{service}/proxy/probe",
        params={
            "module": [exporters.KUBERNETES_SERVICE],
            "target": ["https://kubernetes.default.svc.cluster.local/healthz"],
        },
        static_configs=[{"targets": [f"{apiserver.NAME}:{apiserver.PORT}"]}],
    )


def _node_job(name: str, path: str, port: int | None = None) -> Manifest:
    """A job for metrics of each kubelet, or of the process on another port of each node."""
    node = f"${{1}}:{port}" if port else "${1}"
    return _through_api_server(
        name,
        kubernetes_sd_configs=[{"role": "node", "kubeconfig_file": base.KUBECONFIG_PATH}],
        relabel_configs=[
            _relabel("__meta_kubernetes_node_name", "__metrics_path__", f"/api/v1/nodes/{node}/proxy/{path}"),
            _relabel("__meta_kubernetes_node_name", "instance", "${1}"),
            _relabel("__meta_kubernetes_node_name", "node", "${1}"),
            {"target_label": "__address__", "replacement": f"{apiserver.NAME}:{apiserver.PORT}"},
        ],
    )


def _relabel(source: str, target: str, replacement: str) -> Manifest:
    return {"source_labels": [source], "target_label": target, "replacement": replacement}


def _deployment(prometheus: Prometheus, config: Manifest) -> Manifest:
    mounts = {"config": monitoring.CONFIG, "ca": _CA, "kubeconfig": base.KUBECONFIG_DIR}
    volumes = [
        base.config_map_volume("config", config["metadata"]["name"]),
        base.secret_volume("ca", prometheus.ca_bundle),
        base.shoot_access_volume(NAME, prometheus.generic_kubeconfig),
    ]
    if prometheus.alerted:
        mounts["password"] = _PASSWORD
        volumes.append(base.secret_volume("password", prometheus.alerted, "password"))
    options = [
        f"--config.file={monitoring.CONFIG}/prometheus.yaml",
        f"--storage.tsdb.path={_DATA}",
        "--storage.tsdb.retention.time=30d",
        "--storage.tsdb.retention.size=15GB",
    ]
    return monitoring.deployment(
        prometheus.served,
        "prometheus",
        images.PROMETHEUS,
        options,
        data=_DATA,
        cpu="100m",
        memory="350Mi",
        annotations=monitoring.checksum(prometheus.served),
        mounts=mounts,
        volumes=volumes,
        # It discovers the pods of the control plane by the API server of the seed.
        pod_labels={
            **connections.SHOOT_API,
            **connections.SEED_API,
            **connections.METRICS,
            **connections.within(alertmanager.NAME, alertmanager.PORT),
            **connections.within(exporters.BLACKBOX_EXPORTER, exporters.BLACKBOX_EXPORTER_PORT),
        },
        automountServiceAccountToken=True,
    )
