"""node-exporter and blackbox-exporter: they give Prometheus metrics of a shoot's nodes and network, besides kubelets.

Names, ports and options: as Gardener's. Prometheus reaches the exporters in the shoot only through the API server. A
second blackbox-exporter runs in the control plane, and probes the API server by its name, as users connect to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from activities.components import base, connections, gateway, priority
from activities.components.base import Manifest
from api import images

NAMESPACE = "kube-system"
NODE_EXPORTER = "node-exporter"
NODE_EXPORTER_PORT = 16909
BLACKBOX_EXPORTER = "blackbox-exporter"
BLACKBOX_EXPORTER_PORT = 9115
BLACKBOX_SELECT = {"component": BLACKBOX_EXPORTER}
API_SERVER = "http_apiserver"
"""Module of the control plane's blackbox-exporter."""
KUBERNETES_SERVICE = "http_kubernetes_service"
"""Module of the shoot's blackbox-exporter: it probes the API server at the address that all pods use."""

_NOBODY = 65534
_HOST = "/host"
_CONFIG, _CA = "/etc/blackbox_exporter", "/etc/blackbox_exporter_ca"
_PUBLISHED_CA = "kube-root-ca.crt"
"""ConfigMap that kube-controller-manager writes in each namespace: ``ca.crt`` holds the API server's CA."""
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
        **base.probes("/", NODE_EXPORTER_PORT, scheme="HTTP", every=30),
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
    """Objects of the shoot, for a ManagedResource.

    The exporter probes any URL for any client, so it has no token that a probe would send there. The API server
    answers `/healthz` without credentials.
    """
    http = {
        "headers": {"Accept": "*/*", "Accept-Language": "en-US"},
        "tls_config": {"ca_file": f"{_CA}/ca.crt"},
    }
    return _blackbox_exporter(
        NAMESPACE,
        {KUBERNETES_SERVICE: http},
        mounts={"ca": _CA},
        volumes=[base.config_map_volume("ca", _PUBLISHED_CA)],
        automountServiceAccountToken=False,
        priorityClassName="system-cluster-critical",
        nodeSelector={"worker.gardener.cloud/system-components": "true"},
        tolerations=[{"key": "CriticalAddonsOnly", "operator": "Exists"}],
    )


def control_plane_blackbox_exporter(namespace: str, ca_bundle: str, replicas: int = 1) -> list[Manifest]:
    """Objects of the seed. ``ca_bundle``: name of the Secret with the CAs that verify the API server's certificate."""
    return _blackbox_exporter(
        namespace,
        {API_SERVER: {"tls_config": {"ca_file": f"{_CA}/bundle.crt"}}},
        replicas,
        # The name of the API server leads to a gateway, of this seed or of another one.
        pod_labels={**connections.OUTSIDE, **connections.to_gateway(gateway.NAME, gateway.SNI_TARGET_PORT)},
        mounts={"ca": _CA},
        volumes=[base.secret_volume("ca", ca_bundle)],
        automountServiceAccountToken=False,
        priorityClassName=priority.class_of(BLACKBOX_EXPORTER),
    )


def _blackbox_exporter(
    namespace: str,
    modules: Mapping[str, Manifest],
    replicas: int = 1,
    *,
    pod_labels: base.Labels | None = None,
    mounts: Mapping[str, str] | None = None,
    volumes: Sequence[Manifest] = (),
    **pod: Any,
) -> list[Manifest]:
    """Objects of a blackbox-exporter. ``modules``: HTTP settings of each module."""
    labels = {**BLACKBOX_SELECT, "gardener.cloud/role": "monitoring"}
    made = {
        name: {"prober": "http", "timeout": "10s", "http": {**http, "preferred_ip_protocol": "ipv4"}}
        for name, http in modules.items()
    }
    files = {"blackbox.yaml": base.to_json({"modules": made})}
    config = base.versioned_config_map(BLACKBOX_EXPORTER, namespace, files, labels=labels)
    container = base.container(
        BLACKBOX_EXPORTER,
        images.BLACKBOX_EXPORTER,
        ["/bin/blackbox_exporter", f"--config.file={_CONFIG}/blackbox.yaml", "--log.level=error"],
        cpu="10m",
        memory="25Mi",
        mounts={"config": _CONFIG, **(mounts or {})},
        ports={"probe": BLACKBOX_EXPORTER_PORT},
        **base.probes("/health", BLACKBOX_EXPORTER_PORT, scheme="HTTP", every=30),
    )
    ports = {"probe": BLACKBOX_EXPORTER_PORT}
    return [
        base.service_account(BLACKBOX_EXPORTER, namespace),
        config,
        base.service(BLACKBOX_EXPORTER, namespace, select=BLACKBOX_SELECT, ports=ports, labels=labels),
        base.deployment(
            BLACKBOX_EXPORTER,
            namespace,
            select=BLACKBOX_SELECT,
            labels=labels,
            replicas=replicas,
            pod_labels=pod_labels,
            pod={
                "serviceAccountName": BLACKBOX_EXPORTER,
                "securityContext": base.non_root_pod(),
                "containers": [container],
                "volumes": [base.config_map_volume("config", config["metadata"]["name"]), *volumes],
                **pod,
            },
        ),
    ]
