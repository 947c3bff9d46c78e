"""kube-proxy of a shoot: one DaemonSet for each worker pool and Kubernetes version."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import images
from api.names import in_url

NAME = "kube-proxy"
NAMESPACE = "kube-system"
_HEALTH_PORT = 10256
_METRICS_PORT = 10249

_MODES = {"IPTables": "iptables", "IPVS": "ipvs", "NFTables": "nftables"}


@dataclass(frozen=True)
class KubeProxy:
    api_server: str
    """Name of the API server. kube-proxy makes Services work, so it cannot use one itself."""
    ca_bundle: bytes
    pod_cidrs: Sequence[str]
    pools: Sequence[tuple[str, str]]
    """Name and Kubernetes version of each worker pool."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``Shoot.spec.kubernetes.kubeProxy``."""


def uses_ipvs(shoot_spec: Mapping[str, Any]) -> bool:
    """Whether kube-proxy uses IPVS, with which each node has the addresses of all Services as its own."""
    return (shoot_spec["kubernetes"].get("kubeProxy") or {}).get("mode") == "IPVS"


def objects(proxy: KubeProxy) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    config_map = _config_map(proxy)
    checksum = base.checksum(config_map["data"])
    return [
        base.service_account(NAME, NAMESPACE),
        base.binding("gardener.cloud:target:node-proxier", [base.account(NAME)], cluster_role="system:node-proxier"),
        config_map,
        *(_daemon_set(pool, version, checksum) for pool, version in proxy.pools),
    ]


def _config_map(proxy: KubeProxy) -> Manifest:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "shoot",
                "cluster": {
                    "server": f"https://{proxy.api_server}",
                    "certificate-authority-data": base64.b64encode(proxy.ca_bundle).decode(),
                },
            }
        ],
        "users": [
            {
                "name": NAME,
                "user": {"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
            }
        ],
        "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": NAME}}],
        "current-context": "shoot",
    }
    everywhere = "::" if ":" in proxy.pod_cidrs[0] else "0.0.0.0"
    configuration: Manifest = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kube-proxy/kubeconfig"},
        "bindAddress": everywhere,
        "healthzBindAddress": f"{in_url(everywhere)}:{_HEALTH_PORT}",
        "metricsBindAddress": f"{in_url(everywhere)}:{_METRICS_PORT}",
        "mode": _MODES[proxy.settings.get("mode", "IPTables")],
        "clusterCIDR": ",".join(proxy.pod_cidrs),
        # Keep the node's limits: its operating system config sets them.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "logging": {"format": "json"},
        # The first sync runs at once, then at most one in 500 ms.
        "iptables": {"minSyncPeriod": "500ms", "syncPeriod": "30s"},
    }
    if gates := proxy.settings.get("featureGates"):
        configuration["featureGates"] = dict(gates)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(NAME, NAMESPACE, labels={"app": "kubernetes", "role": "proxy"}),
        "data": {"kubeconfig": base.to_json(kubeconfig), "config.yaml": base.to_json(configuration)},
    }


def _daemon_set(pool: str, version: str, checksum: str) -> Manifest:
    name = f"{NAME}-{pool}-v{version}"
    select = {"app": "kubernetes", "role": "proxy", "pool": pool, "version": version}
    labels = {
        **select,
        "gardener.cloud/role": "system-component",
        "node.gardener.cloud/critical-component": "true",
    }
    main = base.container(
        NAME,
        images.kubernetes(NAME, version),
        [
            f"/usr/local/bin/{NAME}",
            "--config=/etc/kube-proxy/config.yaml",
            "--hostname-override=$(NODE_NAME)",
            "--v=2",
        ],
        cpu="20m",
        memory="64Mi",
        mounts={"config": "/etc/kube-proxy", "modules": "/lib/modules"},
        writable={"lock": "/run/xtables.lock"},
        ports={"metrics": _METRICS_PORT},
        env=[{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        # kube-proxy writes the node's packet filter and sysctls.
        security={"privileged": True, "runAsUser": 0},
        **base.probes("/healthz", _HEALTH_PORT, alive="/livez", scheme="HTTP", every=10),
    )
    return base.daemon_set(
        name,
        NAMESPACE,
        select=select,
        labels=labels,
        annotations={"checksum/configuration": checksum},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "nodeSelector": {
                "worker.gardener.cloud/pool": pool,
                "worker.gardener.cloud/kubernetes-version": version,
            },
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", NAME),
                {"name": "modules", "hostPath": {"path": "/lib/modules"}},
                {"name": "lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
            ],
        },
    )
