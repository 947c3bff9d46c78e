"""What of a shoot's nodes and network its Prometheus asks beside kubelets: node-exporter and blackbox-exporter.

Names, ports and options as Gardener's. Both are reached through the API server alone.
"""

from activities.components import base
from activities.components.base import Manifest
from api import images

NAMESPACE = "kube-system"
NODE_EXPORTER = "node-exporter"
NODE_EXPORTER_PORT = 16909
BLACKBOX_EXPORTER = "blackbox-exporter"
BLACKBOX_EXPORTER_PORT = 9115
KUBERNETES_SERVICE = "http_kubernetes_service"
"""Module of blackbox-exporter: whether pods reach the API server as they all do."""

_NOBODY = 65534
_HOST = "/host"
_CONFIG = "/etc/blackbox_exporter"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_COLLECTORS = ("conntrack", "cpu", "diskstats", "filefd", "filesystem", "loadavg", "meminfo", "netdev", "pressure",
               "stat", "uname")  # fmt: skip


def node_exporter() -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource: one pod on each node."""
    select = {"component": NODE_EXPORTER}
    container = base.container(
        NODE_EXPORTER,
        images.NODE_EXPORTER,
        [
            "/bin/node_exporter",
            f"--web.listen-address=:{NODE_EXPORTER_PORT}",
            f"--path.procfs={_HOST}/proc",
            f"--path.sysfs={_HOST}/sys",
            f"--path.rootfs={_HOST}",
            "--log.level=error",
            "--collector.disable-defaults",
            *(f"--collector.{each}" for each in _COLLECTORS),
            "--collector.filesystem.fs-types-exclude=^(tmpfs|cgroup|nsfs|fuse\\.lxcfs|rpc_pipefs)$",
            "--collector.filesystem.mount-points-exclude=^/(run|var)/.+$|^/(boot|sys|dev|proc)($|/.+$)",
        ],
        cpu="20m",
        memory="50Mi",
        mounts={"host": _HOST},
        ports={"metrics": NODE_EXPORTER_PORT},
        readinessProbe=base.http_probe("/", NODE_EXPORTER_PORT, scheme="HTTP", period=10),
        livenessProbe=base.http_probe("/", NODE_EXPORTER_PORT, scheme="HTTP", delay=5, period=30),
    )
    return [
        base.service_account(NODE_EXPORTER, NAMESPACE),
        base.daemon_set(
            NODE_EXPORTER,
            NAMESPACE,
            select=select,
            labels={**select, "gardener.cloud/role": "monitoring"},
            annotations={},
            max_unavailable="100%",
            pod={
                "serviceAccountName": NODE_EXPORTER,
                "automountServiceAccountToken": False,
                "hostPID": True,
                "securityContext": base.non_root_pod(runAsUser=_NOBODY, runAsGroup=_NOBODY, fsGroup=_NOBODY),
                "containers": [container],
                "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
            },
        ),
    ]


def blackbox_exporter() -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    select = {"component": BLACKBOX_EXPORTER}
    labels = {**select, "gardener.cloud/role": "monitoring"}
    module = {
        "prober": "http",
        "timeout": "10s",
        "http": {
            "headers": {"Accept": "*/*", "Accept-Language": "en-US"},
            "tls_config": {"ca_file": f"{_ACCOUNT}/ca.crt"},
            "bearer_token_file": f"{_ACCOUNT}/token",
            "preferred_ip_protocol": "ipv4",
        },
    }
    files = {"blackbox.yaml": base.to_json({"modules": {KUBERNETES_SERVICE: module}})}
    config = base.versioned_config_map(BLACKBOX_EXPORTER, NAMESPACE, files, labels=labels)
    container = base.container(
        BLACKBOX_EXPORTER,
        images.BLACKBOX_EXPORTER,
        ["/bin/blackbox_exporter", f"--config.file={_CONFIG}/blackbox.yaml", "--log.level=error"],
        cpu="10m",
        memory="25Mi",
        mounts={"config": _CONFIG},
        ports={"probe": BLACKBOX_EXPORTER_PORT},
        readinessProbe=base.http_probe("/health", BLACKBOX_EXPORTER_PORT, scheme="HTTP"),
        livenessProbe=base.http_probe("/health", BLACKBOX_EXPORTER_PORT, scheme="HTTP", delay=10, period=30),
    )
    return [
        base.service_account(BLACKBOX_EXPORTER, NAMESPACE),
        config,
        base.service(
            BLACKBOX_EXPORTER, NAMESPACE, select=select, ports={"probe": BLACKBOX_EXPORTER_PORT}, labels=labels
        ),
        base.deployment(
            BLACKBOX_EXPORTER,
            NAMESPACE,
            select=select,
            labels=labels,
            replicas=1,
            annotations=base.references([config]),
            pod={
                "serviceAccountName": BLACKBOX_EXPORTER,
                "automountServiceAccountToken": True,
                "priorityClassName": "system-cluster-critical",
                "securityContext": base.non_root_pod(),
                "nodeSelector": {"worker.gardener.cloud/system-components": "true"},
                "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
                "containers": [container],
                "volumes": [base.config_map_volume("config", config["metadata"]["name"])],
            },
        ),
    ]
