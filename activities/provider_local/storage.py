"""Objects of provider-local in a shoot: its CSI driver on nodes, the StorageClass, and rights of its controllers.

The controllers of volumes and load balancers run in provider-local's own process: ``workers.provider_local.shoots``.
"""

from collections.abc import Collection
from typing import Any

from api import images
from api.access import rule

Manifest = dict[str, Any]

CSI_DRIVER = "disks.local.provider.extensions.gardener.cloud"
"""Name of the CSI driver. The program of the driver has the same one: landscape/tools/csi-driver/main.go."""
DISKS_PATH = "/var/lib/volumes"
"""Directory of a machine in which the cloud attaches disks, each in a directory with the name of the disk."""
STORAGE_CLASS = "default"
ACCOUNT = "extension-provider-local"
"""ServiceAccount of provider-local in namespace kube-system of a shoot."""
ACCESS_SECRET = f"shoot-access-{ACCOUNT}"
MANAGED_RESOURCE_NAME = "extension-controlplane-shoot"

_NAMESPACE = "kube-system"
_RBAC = "rbac.authorization.k8s.io"
_PODS = "/var/lib/kubelet/pods"

_NODE_PLUGIN = "csi-driver-node"
_PLUGIN = f"/var/lib/kubelet/plugins/{CSI_DRIVER}"
_REGISTRY = "/var/lib/kubelet/plugins_registry"
_ROLE = "extensions.gardener.cloud:provider-local:controllers"


def manifests(machines_without_disks: Collection[str] = ()) -> list[Manifest]:
    """All objects, for a ManagedResource of the shoot.

    ``machines_without_disks``: names of machines of an earlier version. They have neither the image of the CSI driver
    nor a directory for disks, so the driver does not run there.
    """
    return [
        _account(ACCOUNT),
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": _ROLE}, "rules": _rules()},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _ROLE},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": _NAMESPACE}],
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": CSI_DRIVER},
            "spec": {
                "attachRequired": True,
                "podInfoOnMount": False,
                # The kubelet gives a volume to the group of a pod's ``fsGroup``.
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent"],
            },
        },
        storage_class(),
        _account(_NODE_PLUGIN),
        _node_plugin(machines_without_disks),
    ]


def access_secret(namespace: str) -> Manifest:
    """Secret of the control plane in which the resource manager keeps a token of provider-local for the shoot."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": ACCESS_SECRET,
            "namespace": namespace,
            "labels": {
                "resources.gardener.cloud/purpose": "token-requestor",
                "resources.gardener.cloud/class": "shoot",
            },
            "annotations": {
                "serviceaccount.resources.gardener.cloud/name": ACCOUNT,
                "serviceaccount.resources.gardener.cloud/namespace": _NAMESPACE,
            },
        },
        "type": "Opaque",
    }


def storage_class() -> Manifest:
    """The default class: a volume is in the zone of the first pod that uses it."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": CSI_DRIVER,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": True,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _rules() -> list[dict[str, Any]]:
    read = ["get", "list", "watch"]
    return [
        rule([""], ["persistentvolumes"], [*read, "create", "patch", "delete"]),
        rule([""], ["persistentvolumeclaims", "services"], [*read, "patch"]),
        rule([""], ["persistentvolumeclaims/status", "services/status"], ["patch"]),
        rule([""], ["nodes"], read),
        rule([""], ["events"], ["create", "patch"]),
        rule(["storage.k8s.io"], ["storageclasses"], ["get"]),
        rule(["storage.k8s.io"], ["volumeattachments"], [*read, "patch"]),
        rule(["storage.k8s.io"], ["volumeattachments/status"], ["patch"]),
    ]


def _account(name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "automountServiceAccountToken": False,
    }


def _node_plugin(without: Collection[str]) -> Manifest:
    """The driver on each node. It mounts where the kubelet and pods must see it, which needs a privileged container."""
    labels = {
        "app": _NODE_PLUGIN,
        "gardener.cloud/role": "system-component",
        "node.gardener.cloud/critical-component": "true",
    }
    container = {
        "name": _NODE_PLUGIN,
        "image": images.CSI_DRIVER,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": {"cpu": "5m", "memory": "12Mi"}},
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "plugin", "mountPath": _PLUGIN},
            {"name": "registry", "mountPath": _REGISTRY},
            {"name": "pods", "mountPath": _PODS, "mountPropagation": "Bidirectional"},
            {"name": "disks", "mountPath": DISKS_PATH, "mountPropagation": "HostToContainer"},
        ],
    }
    paths = {"plugin": _PLUGIN, "registry": _REGISTRY, "pods": _PODS, "disks": DISKS_PATH}
    volumes = [{"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in paths.items()]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": _NODE_PLUGIN, "namespace": _NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": _NODE_PLUGIN}},
            "revisionHistoryLimit": 2,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {
                "metadata": {
                    "labels": labels,
                    # A node gets pods only when its kubelet knows the driver. Source: spec/resource-manager.md.
                    "annotations": {"node.gardener.cloud/wait-for-csi-node-local": CSI_DRIVER},
                },
                "spec": {
                    "hostNetwork": True,
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-node-critical",
                    "serviceAccountName": _NODE_PLUGIN,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 5,
                    "tolerations": [{"operator": "Exists"}],
                    **_elsewhere(without),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _elsewhere(names: Collection[str]) -> Manifest:
    """Part of a pod that keeps it from the nodes with these names."""
    if not names:
        return {}
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in sorted(names)]
    required = {"nodeSelectorTerms": [{"matchFields": others}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
