"""metrics-server: it serves metrics to ``kubectl top`` and to horizontal pod autoscalers."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from activities.components import base
from activities.components.base import Manifest
from api import images

NAME = "metrics-server"
NAMESPACE = "kube-system"
SELECT = {"k8s-app": NAME}
_PORT = 8443


@dataclass(frozen=True)
class MetricsServer:
    api_server: str
    """Name of the API server. metrics-server connects to it directly, not through apiserver-proxy."""
    certificate: Mapping[str, bytes] = field(repr=False)
    ca_bundle: bytes = field(repr=False)
    """Bundle of ``ca-metrics-server``, with which the API server verifies this server."""
    kubelet_ca_bundle: bytes = field(repr=False)


def objects(server: MetricsServer) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    files = {
        "tls.crt": server.certificate["tls.crt"],
        "tls.key": server.certificate["tls.key"],
        "kubelet-ca.crt": server.kubelet_ca_bundle,
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": base.metadata(NAME, NAMESPACE, labels=SELECT),
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }
    subject = base.account(NAME)
    return [
        base.service_account(NAME, NAMESPACE),
        base.cluster_role(
            f"system:{NAME}",
            [
                base.rule("core", "nodes/metrics", "get"),
                base.rule("core", "pods nodes", "get list watch"),
            ],
        ),
        base.cluster_role(
            f"system:aggregated-{NAME}-reader",
            [base.rule("metrics.k8s.io", "pods nodes", "get list watch")],
            labels={f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("view", "edit", "admin")},
        ),
        base.binding(f"system:{NAME}", [subject], cluster_role=f"system:{NAME}"),
        base.binding(f"{NAME}:system:auth-delegator", [subject], cluster_role="system:auth-delegator"),
        base.binding(
            f"{NAME}-auth-reader",
            [subject],
            role="extension-apiserver-authentication-reader",
            namespace=NAMESPACE,
        ),
        secret,
        base.service(NAME, NAMESPACE, select=SELECT, ports={NAME: (443, _PORT)}),
        base.pod_disruption_budget(NAME, NAMESPACE, SELECT),
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": base.metadata("v1beta1.metrics.k8s.io"),
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": {"name": NAME, "namespace": NAMESPACE},
                "caBundle": base64.b64encode(server.ca_bundle).decode(),
            },
        },
        _deployment(server, base.checksum(secret["data"])),
    ]


def _deployment(server: MetricsServer, checksum: str) -> Manifest:
    main = base.container(
        NAME,
        images.METRICS_SERVER,
        [
            "/metrics-server",
            f"--secure-port={_PORT}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--kubelet-certificate-authority=/srv/metrics-server/kubelet-ca.crt",
            "--metric-resolution=15s",
            "--tls-cert-file=/srv/metrics-server/tls.crt",
            "--tls-private-key-file=/srv/metrics-server/tls.key",
            "--logging-format=json",
            "--v=2",
        ],
        cpu="50m",
        memory="60Mi",
        mounts={"secrets": "/srv/metrics-server"},
        writable={"tmp": "/tmp"},
        ports={"https": _PORT},
        env=[
            {"name": "KUBERNETES_SERVICE_HOST", "value": server.api_server},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
        ],
        **base.probes("/readyz", _PORT, alive="/livez"),
    )
    return base.deployment(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels={"gardener.cloud/role": "system-component"},
        replicas=1,
        annotations={"checksum/secret": checksum},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "priorityClassName": "system-cluster-critical",
            # Use the node's resolver: the API server's name is not a name of the cluster's DNS.
            "dnsPolicy": "Default",
            "securityContext": base.non_root_pod(),
            "nodeSelector": {"worker.gardener.cloud/system-components": "true"},
            "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
            "containers": [main],
            "volumes": [base.secret_volume("secrets", NAME), base.empty_dir("tmp")],
        },
    )
