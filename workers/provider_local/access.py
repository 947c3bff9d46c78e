"""Rights of provider-local in a seed, as ``charts/provider-local`` grants them and the landscape applies them.

In the whole seed, provider-local has rights on its own kinds only. The gardenlet binds the role of provider-local in
each control-plane namespace, and gives it access to single Secrets of namespace garden by name
(``activities.seed.extension_access``).
"""

from typing import Any

from activities.provider_local.computers import PRIORITY_CLASS
from api.access import rule
from api.constants import EXTENSION_ROLE, EXTENSION_SERVICE_ACCOUNT, EXTENSIONS, MACHINE, RESOURCES

Manifest = dict[str, Any]

NAME = "gardener-extension-provider-local"
"""Name of provider-local's ServiceAccount, and of the Lease for its leader election."""
GATEWAY_SERVICE = "istio-ingressgateway"
"""Name of the Services of a seed's gateways."""
GATEWAY_NAMESPACE = "istio-ingress"
"""Namespace of the seed's own gateway, whose Service gets the address of the seed's node."""

_RBAC = "rbac.authorization.k8s.io"
_ROLE = "gardener.cloud:extensions:provider-local"
_CONTROL_PLANE_ROLE = f"{_ROLE}:control-planes"
_REGISTRATION = "provider-local"
_READ = ["get", "list", "watch"]
_WRITE = [*_READ, "create", "patch", "delete"]
_KINDS = [
    "backupbuckets",
    "backupentries",
    "bastions",
    "controlplanes",
    "dnsrecords",
    "infrastructures",
    "networks",
    "operatingsystemconfigs",
    "workers",
]
_MACHINE_KINDS = ["machineclasses", "machinedeployments", "machinesets", "machines"]


def priority_class() -> Manifest:
    """The PriorityClass of computers, as the chart brings it."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS},
        "value": 999998950,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Computers of the local cloud.",
    }


def access(namespace: str) -> list[Manifest]:
    """Roles and bindings of the ServiceAccount in ``namespace``. The Leases are in the same namespace."""
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    gateway = {"resourceNames": [GATEWAY_SERVICE]}
    in_seed = [
        rule([EXTENSIONS], [*_KINDS, *(f"{kind}/status" for kind in _KINDS)], [*_READ, "patch"]),
        rule([EXTENSIONS], ["clusters"], _READ),
        rule([""], ["namespaces"], ["get"]),
        rule([""], ["services"], _READ) | gateway,
        rule([""], ["services/status"], ["patch"]) | gateway,
    ]
    in_control_planes = [
        rule([""], ["secrets"], ["get", "list", "create", "patch", "delete"]),
        rule(["apps"], ["deployments"], ["get"]) | {"resourceNames": ["machine-controller-manager"]},
        rule([MACHINE], _MACHINE_KINDS, _WRITE),
        rule([RESOURCES], ["managedresources"], _WRITE),
    ]
    leases = [
        rule(["coordination.k8s.io"], ["leases"], ["create"]),
        rule(["coordination.k8s.io"], ["leases"], ["get", "update", "patch"])
        | {"resourceNames": [NAME, "gardener-extension-heartbeat"]},
    ]
    bound = _role("ClusterRole", _CONTROL_PLANE_ROLE, in_control_planes)
    bound["metadata"]["labels"] = {EXTENSION_ROLE: _REGISTRATION}
    bound["metadata"]["annotations"] = {EXTENSION_SERVICE_ACCOUNT: f"{namespace}/{NAME}"}
    return [
        _role("ClusterRole", _ROLE, in_seed),
        _binding("ClusterRole", _ROLE, account),
        bound,
        _role("Role", NAME, leases, namespace),
        _binding("Role", NAME, account, namespace),
    ]


def _role(kind: str, name: str, rules: list[Manifest], namespace: str = "") -> Manifest:
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": _metadata(name, namespace), "rules": rules}


def _binding(kind: str, name: str, account: Manifest, namespace: str = "") -> Manifest:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [account],
    }


def _metadata(name: str, namespace: str) -> Manifest:
    return {"name": name, **({"namespace": namespace} if namespace else {})}
