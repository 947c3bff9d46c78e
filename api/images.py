"""Image vector: all container images by their upstream names.

The landscape builds images of the same names, so manifests are the same there and in production.
"""

OWN_VERSION = "v0.1.0"

ETCD_VERSION = "3.6.16"
COREDNS_VERSION = "1.14.7"
FLANNEL_VERSION = "0.28.4"
METRICS_SERVER_VERSION = "0.9.0"
PROMETHEUS_VERSION = "3.15.0"
ALERTMANAGER_VERSION = "0.34.2"
NODE_EXPORTER_VERSION = "1.12.1"
BLACKBOX_EXPORTER_VERSION = "0.28.0"
KUBE_STATE_METRICS_VERSION = "2.15.0"
NODE_PROBLEM_DETECTOR_VERSION = "1.36.0"
VICTORIA_LOGS_VERSION = "1.52.2"
VPA_VERSION = "1.8.1"
CLUSTER_AUTOSCALER_VERSION = "1.33.0"
ENVOY_VERSION = "1.40.0"
PAUSE_VERSION = "3.10.1"
TEMPORAL_VERSION = "1.32.1"
TEMPORAL_UI_VERSION = "2.55.0"
POSTGRESQL_VERSION = "15"

GARDENER = f"ghcr.io/gardener-on-temporal/gardener:{OWN_VERSION}"
"""Image of our own components: Debian, Python, our code, etcd and etcdutl, openvpn, iproute2, iptables, nftables."""
MACHINE = f"ghcr.io/gardener-on-temporal/machine:{OWN_VERSION}"
"""Image of a machine of provider-local: Debian with systemd, containerd, runc, CNI plugins (one of ours), our node
agent."""
COREDNS = f"registry.k8s.io/coredns/coredns:v{COREDNS_VERSION}"
FLANNEL = f"ghcr.io/flannel-io/flannel:v{FLANNEL_VERSION}"
METRICS_SERVER = f"registry.k8s.io/metrics-server/metrics-server:v{METRICS_SERVER_VERSION}"
NODE_PROBLEM_DETECTOR = f"registry.k8s.io/node-problem-detector/node-problem-detector:v{NODE_PROBLEM_DETECTOR_VERSION}"
PROMETHEUS = f"quay.io/prometheus/prometheus:v{PROMETHEUS_VERSION}"
ALERTMANAGER = f"quay.io/prometheus/alertmanager:v{ALERTMANAGER_VERSION}"
NODE_EXPORTER = f"quay.io/prometheus/node-exporter:v{NODE_EXPORTER_VERSION}"
BLACKBOX_EXPORTER = f"quay.io/prometheus/blackbox-exporter:v{BLACKBOX_EXPORTER_VERSION}"
KUBE_STATE_METRICS = f"registry.k8s.io/kube-state-metrics/kube-state-metrics:v{KUBE_STATE_METRICS_VERSION}"
CLUSTER_AUTOSCALER = f"registry.k8s.io/autoscaling/cluster-autoscaler:v{CLUSTER_AUTOSCALER_VERSION}"
VICTORIA_LOGS = f"docker.io/victoriametrics/victoria-logs:v{VICTORIA_LOGS_VERSION}"
ENVOY = f"docker.io/envoyproxy/envoy:v{ENVOY_VERSION}"
TEMPORAL = f"ghcr.io/gardener-on-temporal/temporal-server:{OWN_VERSION}"
TEMPORAL_ADMIN_TOOLS = f"docker.io/temporalio/admin-tools:{TEMPORAL_VERSION}"
POSTGRESQL = f"docker.io/library/postgres:{POSTGRESQL_VERSION}"
PAUSE = f"registry.k8s.io/pause:{PAUSE_VERSION}"


RUNTIME_GVISOR = f"ghcr.io/gardener-on-temporal/runtime-gvisor:{OWN_VERSION}"
"""Image from which node agents copy gVisor's programs: Debian's runsc, and its shim for containerd."""
CSI_DRIVER = f"ghcr.io/gardener-on-temporal/csi-driver-local:{OWN_VERSION}"
"""Image of provider-local's CSI driver on nodes: one static binary."""


def vpa(component: str) -> str:
    """Image of vpa-recommender, vpa-updater or vpa-admission-controller."""
    return f"registry.k8s.io/autoscaling/{component}:{VPA_VERSION}"


def kubernetes(component: str, version: str) -> str:
    """Image of kube-apiserver, kube-controller-manager, kube-scheduler or kube-proxy; version like ``1.37.1``."""
    return f"registry.k8s.io/{component}:v{version}"
