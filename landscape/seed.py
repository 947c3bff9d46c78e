"""Components of a seed that the landscape deploys before the gardenlet starts: DNS and storage."""

from typing import Any

from api import images
from landscape import storage
from landscape.kube import apply, connected
from landscape.plan import ClusterPlan, Plan
from landscape.processes import Processes

_COREFILE = """.:53 {{
    errors
    health :8080 {{
        lameduck 5s
    }}
    ready :8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 5
    }}
    forward . {upstream}
    cache 5
    loop
    reload
}}
"""


async def deploy(plan: Plan, cluster: ClusterPlan, processes: Processes) -> None:
    """Apply DNS and the storage class, start the provisioner."""
    processes.start(storage.process(plan, cluster))
    async with connected(plan.kubeconfig(cluster.name)) as client:
        objects = coredns(cluster.dns_address, plan.central_address, replicas=2 if cluster.is_zonal else 1)
        await apply(client, *objects, storage.storage_class(zonal=cluster.is_zonal))


def coredns(address: str, upstream: str, replicas: int = 1) -> list[dict[str, Any]]:
    """CoreDNS for the cluster's domain; it forwards all other queries to ``upstream``. Its pods share no node."""
    labels = {"k8s-app": "kube-dns"}
    name, namespace = "coredns", "kube-system"
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    container = {
        "name": name,
        "image": images.COREDNS,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 5},
        "resources": {"requests": {"cpu": "5m", "memory": "20Mi"}, "limits": {"memory": "170Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": name,
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": name}}],
    }
    # An upgrade must not replace a lone pod: the pods of earlier versions end before their last queries are answered.
    if replicas > 1:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    role = "system:coredns"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["endpoints", "services", "pods", "namespaces"],
                    "verbs": ["list", "watch"],
                },
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"Corefile": _COREFILE.format(upstream=upstream)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata | {"name": "kube-dns"},
            "spec": {
                "clusterIP": address,
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                ],
            },
        },
    ]
