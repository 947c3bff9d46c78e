"""Network of type ``flannel``: host-gw routes between machines. All machines share one network in the cloud.

Pods have addresses of IPv4, of IPv4 and IPv6, or of IPv6. The Infrastructure reports the network of IPv6.

Flannel connects pods; an agent of our own enforces NetworkPolicies (``network_policies``).
"""

import json
from collections.abc import Mapping
from typing import Any

from activities.errors import permanent, transient
from activities.extension import Actuator, Extension, apply_managed_resource, delete_managed_resource
from activities.provider_local import network_policies
from activities.provider_local.provider import MANAGER
from api import images
from api.decisions import dual_stack
from api.errors import ErrorCode
from api.resources import DNS_RECORD, NETWORK
from kube.cache import Caches
from kube.client import KubeClient

MANAGED_RESOURCE_NAME = "extension-network-flannel"
_HEALTH_PORT = 10262
_CONFIG_PATH = "/etc/cni/net.d/10-flannel.conflist"
_PLUGIN_DIRECTORY = "/opt/cni/bin"
_MOUNTED_PLUGINS = "/host/bin"
"""Path of that directory in the containers."""
_CRITICAL_LABEL = {"node.gardener.cloud/critical-component": "true"}
"""Label of critical components: other pods are scheduled to a node only when its critical components are ready."""


class FlannelActuator(Actuator):
    """Installs flannel on the nodes by a ManagedResource."""

    resource = NETWORK
    type = "flannel"

    def __init__(self, seed: KubeClient, caches: Caches) -> None:
        super().__init__(seed)
        self._caches = caches

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        families = extension.spec.get("ipFamilies") or ["IPv4"]
        if families not in (["IPv4"], ["IPv4", "IPv6"], ["IPv6"]):
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{extension} asks for IP families {', '.join(families)}, only IPv4, both, or IPv6 are possible",
            )
        pods_ipv6 = _pods_ipv6(extension) if "IPv6" in families else ""
        if server := await self._api_server(extension):
            await apply_managed_resource(
                self._seed,
                extension.namespace,
                MANAGED_RESOURCE_NAME,
                manifests(extension.spec["podCIDR"] if "IPv4" in families else "", server, pods_ipv6),
                manager=MANAGER,
            )
        return {"ipFamilies": families}

    async def delete(self, extension: Extension) -> None:
        await self._remove(extension, keep_objects=False)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        await self._remove(extension, keep_objects=True)
        return {}

    async def _remove(self, extension: Extension, *, keep_objects: bool) -> None:
        await delete_managed_resource(
            self._seed, self._caches, extension.namespace, MANAGED_RESOURCE_NAME, keep_objects=keep_objects
        )

    async def _api_server(self, extension: Extension) -> str | None:
        """Host name under which nodes reach the API server; None while the Shoot is hibernated and has no such name.

        Flannel uses this name and not the Service ``kubernetes``: connections to the Service need kube-proxy, which
        would have to start first on every node.
        """
        name = f"{extension.shoot['metadata']['name']}-internal"
        record = await self._seed.find(DNS_RECORD, name, extension.namespace)
        if record is not None:
            return str(record["spec"]["name"])
        if extension.hibernated:
            return None
        raise transient(
            ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
            f"DNSRecord {extension.namespace}/{name}, which names the API server, does not exist yet",
        )


def _pods_ipv6(extension: Extension) -> str:
    """The network of pods of IPv6, which the status of the Shoot has from the Infrastructure."""
    known = ((extension.shoot.get("status") or {}).get("networking") or {}).get("pods") or ()
    if found := dual_stack.of_families(known, ("IPv6",)):
        return found[0]
    raise transient(
        ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
        f"{extension} has IP family IPv6, but status.networking.pods of its Shoot names no network of it: "
        "the Infrastructure must report one",
    )


def manifests(pod_cidr: str, api_server: str, pods_ipv6: str = "") -> list[dict[str, Any]]:
    """Objects of the network in the shoot.

    ``pod_cidr``: network of pods of IPv4; empty if pods have IPv6 alone. ``api_server``: host name of the API server,
    which uses port 443. ``pods_ipv6``: network of pods of IPv6; empty if pods have IPv4 alone.
    """
    first = {"Network": pod_cidr, "EnableIPv4": True} if pod_cidr else {"EnableIPv4": False}
    second = {"EnableIPv6": True, "IPv6Network": pods_ipv6} if pods_ipv6 else {}
    metadata = {"name": "kube-flannel", "namespace": "kube-system", "labels": {"app": "flannel"}}
    return [
        *network_policies.manifests(api_server),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "flannel"},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                # Flannel reads its own pod to find the name of its node.
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "flannel"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flannel"},
            "subjects": [{"kind": "ServiceAccount", "name": "kube-flannel", "namespace": "kube-system"}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "name": "kube-flannel-config"},
            "data": {
                "net-conf.json": json.dumps({**first, **second, "Backend": {"Type": "host-gw"}}),
                "cni-conf.json": json.dumps(_cni(*_PLUGINS)),
                _ENFORCING: json.dumps(_cni(*_PLUGINS, network_policies.CNI_PLUGIN)),
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {**metadata, "labels": {"app": "flannel", **_CRITICAL_LABEL}},
            "spec": {
                "selector": {"matchLabels": {"app": "flannel"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
                "template": {
                    "metadata": {"labels": {"app": "flannel", **_CRITICAL_LABEL}},
                    "spec": _pod(api_server, _interface(pod_cidr, pods_ipv6)),
                },
            },
        },
    ]


_PLUGINS: tuple[Mapping[str, Any], ...] = (
    {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}},
    {"type": "portmap", "capabilities": {"portMappings": True}},
)
_ENFORCING = "cni-conf-with-network-policies.json"
"""CNI configuration of a node that enforces NetworkPolicies."""


def _cni(*plugins: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": "cbr0", "cniVersion": "0.3.1", "plugins": plugins}


def _interface(pod_cidr: str, pods_ipv6: str) -> str:
    """Option that tells flannel the interface of the machine; empty if flannel finds it by itself.

    With both families, flannel itself would take the interface that the default routes of both have in common. With
    IPv6 alone, an address in ``--iface`` counts as one of IPv4 that is behind NAT, which backend host-gw refuses.
    """
    if not pods_ipv6:
        return ""
    return "--iface=$(HOST_ADDRESS)" if pod_cidr else "--iface-regex=^$(HOST_ADDRESS)$"


def _pod(api_server: str, interface: str) -> dict[str, Any]:
    address = {"name": "HOST_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    # A node is Ready once it has a CNI configuration, so the configuration is written last. A pod that starts before
    # flannel knows the node's network, or before the agent for NetworkPolicies runs, would fail, and wait for its next
    # try. A machine of an earlier version has no CNI plugin of ours, and gets no agent.
    configure = (
        "until [ -s /run/flannel/subnet.env ]; do sleep 0.05; done; chosen=cni-conf.json;"
        f" if [ -e {_MOUNTED_PLUGINS}/{network_policies.CNI_TYPE} ]; then chosen={_ENFORCING};"
        f" until [ -S {network_policies.SOCKET} ]; do sleep 0.05; done; fi;"
        f" cp /etc/kube-flannel/$chosen {_CONFIG_PATH}.new && mv {_CONFIG_PATH}.new {_CONFIG_PATH}"
    )
    return {
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical",
        "serviceAccountName": "kube-flannel",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "initContainers": [
            {
                "name": "install-cni",
                "image": images.FLANNEL,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-ec", f"cp /opt/cni/bin/flannel {_MOUNTED_PLUGINS}/flannel"],
                "volumeMounts": [{"name": "plugins", "mountPath": _MOUNTED_PLUGINS}],
            }
        ],
        "containers": [
            {
                "name": "kube-flannel",
                "image": images.FLANNEL,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/opt/bin/flanneld"],
                "args": [
                    "--ip-masq",
                    "--kube-subnet-mgr",
                    "--healthz-ip=127.0.0.1",
                    f"--healthz-port={_HEALTH_PORT}",
                    *([interface] if interface else []),
                ],
                "env": [
                    *([address] if interface else []),
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                    {"name": "KUBERNETES_SERVICE_HOST", "value": api_server},
                    {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
                ],
                "lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-ec", configure]}}},
                "readinessProbe": {
                    "httpGet": {"host": "127.0.0.1", "port": _HEALTH_PORT, "path": "/healthz"},
                    "periodSeconds": 1,
                },
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                "securityContext": {
                    "privileged": False,
                    "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]},
                },
                "volumeMounts": [
                    {"name": "run", "mountPath": "/run/flannel"},
                    {"name": "agent", "mountPath": network_policies.SOCKET_DIRECTORY, "readOnly": True},
                    {"name": "plugins", "mountPath": _MOUNTED_PLUGINS, "readOnly": True},
                    {"name": "cni", "mountPath": "/etc/cni/net.d"},
                    {"name": "config", "mountPath": "/etc/kube-flannel"},
                    {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
                ],
            }
        ],
        "volumes": [
            {"name": "run", "hostPath": {"path": "/run/flannel", "type": "DirectoryOrCreate"}},
            {
                "name": "agent",
                "hostPath": {"path": network_policies.SOCKET_DIRECTORY, "type": "DirectoryOrCreate"},
            },
            {"name": "plugins", "hostPath": {"path": _PLUGIN_DIRECTORY, "type": "DirectoryOrCreate"}},
            {"name": "cni", "hostPath": {"path": "/etc/cni/net.d", "type": "DirectoryOrCreate"}},
            {"name": "config", "configMap": {"name": "kube-flannel-config"}},
            {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
        ],
    }
