"""kube-state-metrics of a Shoot: metrics about nodes, and pods and workloads in kube-system, for its Prometheus.

kube-state-metrics runs in the control plane. Names, ports and options: as Gardener's.
"""

from dataclasses import dataclass

from activities.components import base, connections, priority
from activities.components.base import Manifest
from api import images

NAME = "kube-state-metrics"
PORT = 8080
SELECT = base.control_plane_labels(NAME)

_SELF_PORT = 8081
_APPS = ("daemonsets", "deployments", "replicasets", "statefulsets")
_CORE = ("nodes", "pods")


@dataclass(frozen=True)
class KubeStateMetrics:
    namespace: str
    generic_kubeconfig: str
    """Name of a Secret."""
    replicas: int = 1


def objects(metrics: KubeStateMetrics) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    namespace = metrics.namespace
    container = base.container(
        NAME,
        images.KUBE_STATE_METRICS,
        [
            f"/{NAME}",
            f"--port={PORT}",
            f"--telemetry-port={_SELF_PORT}",
            f"--kubeconfig={base.KUBECONFIG_PATH}",
            f"--resources={','.join(sorted((*_APPS, *_CORE)))}",
            "--namespaces=kube-system",
            "--metric-labels-allowlist=nodes=[*]",
        ],
        cpu="10m",
        memory="32Mi",
        mounts={"kubeconfig": base.KUBECONFIG_DIR},
        ports={"metrics": PORT},
        **base.probes("/healthz", PORT, scheme="HTTP", every=30),
    )
    return [
        base.service_account(NAME, namespace),
        base.shoot_access(NAME, namespace),
        connections.metrics_service(NAME, namespace, SELECT, PORT),
        base.deployment(
            NAME,
            namespace,
            select=SELECT,
            labels={**SELECT, "gardener.cloud/role": "monitoring"},
            replicas=metrics.replicas,
            annotations={},
            pod_labels=connections.SHOOT_API,
            pod={
                "serviceAccountName": NAME,
                "automountServiceAccountToken": False,
                "priorityClassName": priority.class_of(NAME),
                "securityContext": base.non_root_pod(),
                "containers": [container],
                "volumes": [base.shoot_access_volume(NAME, metrics.generic_kubeconfig)],
            },
        ),
    ]


def shoot_objects() -> list[Manifest]:
    """Objects for a ManagedResource: the rights of kube-state-metrics' token in the shoot."""
    name = f"gardener.cloud:monitoring:{NAME}"
    rules = [
        base.rule("core", " ".join(_CORE), "list watch"),
        base.rule("apps", " ".join(_APPS), "list watch"),
    ]
    return [base.cluster_role(name, rules), base.binding(name, [base.account(NAME)], cluster_role=name)]
