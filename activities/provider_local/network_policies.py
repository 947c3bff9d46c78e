"""The agent that enforces NetworkPolicies on the nodes of a shoot: ``gardener worker network-policy-agent``.

A node gets the agent if its machine has what the agent needs: nftables in our image, and our CNI plugin. The CNI
configuration that flannel writes there names the plugin, so a new pod waits until the agent has written its rules.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from api import images
from api.access import rule
from api.local import NETWORK_POLICIES_LABEL

NAME = "network-policy-agent"
CNI_TYPE = "gardener-network-policies"
"""``type`` of our CNI plugin in a CNI configuration. The file of the plugin has the same name."""
SOCKET_DIRECTORY = "/run/gardener-network-policies"
SOCKET = f"{SOCKET_DIRECTORY}/agent.sock"
"""Socket on a node at which the CNI plugin announces new pods to the agent."""

_NAMESPACE = "kube-system"
_RBAC = "rbac.authorization.k8s.io"
_HEALTH_PORT = 10261
_CONFIG_DIRECTORY = "/etc/gardener"
_LABELS = {
    "app": NAME,
    "gardener.cloud/role": "system-component",
    "node.gardener.cloud/critical-component": "true",
}

CNI_PLUGIN: Mapping[str, Any] = {"type": CNI_TYPE, "socket": SOCKET}
"""Entry of a CNI configuration; the last one, because a pod starts when its rules are written."""

_CONFIG: Mapping[str, Any] = {
    "socket": SOCKET,
    # Kubernetes' rule: a pod and its own node reach each other, whatever policies say.
    "limitConnectionsToOwnNode": False,
    "health": {"address": "127.0.0.1", "port": _HEALTH_PORT},
}


def manifests(api_server: str) -> list[dict[str, Any]]:
    """Objects of the agent in the shoot; ``api_server`` is the host name of the API server, which uses port 443."""
    metadata = {"name": NAME, "namespace": _NAMESPACE}
    config = json.dumps(_CONFIG, indent=2)
    watch = ["list", "watch"]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": [
                rule([""], ["pods", "namespaces", "nodes"], watch),
                rule(["networking.k8s.io"], ["networkpolicies"], watch),
                # An Event of a policy names the parts of it that the agent does not know.
                rule([""], ["events"], ["create", "patch"]),
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": config}},
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {**metadata, "labels": _LABELS},
            "spec": {
                "selector": {"matchLabels": {"app": NAME}},
                "revisionHistoryLimit": 2,
                # The rules of a node stay while its agent is replaced.
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
                "template": {
                    "metadata": {
                        "labels": _LABELS,
                        "annotations": {"checksum/configuration": hashlib.sha256(config.encode()).hexdigest()[:16]},
                    },
                    "spec": _pod(api_server),
                },
            },
        },
    ]


def _pod(api_server: str) -> dict[str, Any]:
    probe = {"host": "127.0.0.1", "port": _HEALTH_PORT}
    container = {
        "name": NAME,
        "image": images.GARDENER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["gardener", "worker", NAME, "--config", f"{_CONFIG_DIRECTORY}/config.yaml"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            # Not the Service: no pod network, no kube-proxy and no DNS of the cluster need to work before the agent.
            {"name": "KUBERNETES_SERVICE_HOST", "value": api_server},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": {"httpGet": {**probe, "path": "/readyz"}, "periodSeconds": 1},
        "livenessProbe": {
            "httpGet": {**probe, "path": "/healthz"},
            "periodSeconds": 10,
            "initialDelaySeconds": 15,
            "timeoutSeconds": 5,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": _CONFIG_DIRECTORY, "readOnly": True},
            {"name": "socket", "mountPath": SOCKET_DIRECTORY},
        ],
    }
    return {
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical",
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {NETWORK_POLICIES_LABEL: "true"},
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": NAME}},
            {"name": "socket", "hostPath": {"path": SOCKET_DIRECTORY, "type": "DirectoryOrCreate"}},
        ],
    }
