"""Objects that every shoot has from the start: namespaces and rights."""

from collections.abc import Collection

from activities.components import base
from activities.components.base import Manifest
from api import high_availability

NAMESPACE = "kube-system"

_READ = "get list watch"

_CORE = (
    "bindings componentstatuses configmaps endpoints events limitranges namespaces namespaces/status nodes "
    "nodes/status persistentvolumeclaims persistentvolumeclaims/status persistentvolumes "
    "persistentvolumes/status pods pods/log pods/status podtemplates replicationcontrollers "
    "replicationcontrollers/scale replicationcontrollers/status resourcequotas resourcequotas/status "
    "serviceaccounts services services/status"
)
_GROUPS = (
    "admissionregistration.k8s.io apiextensions.k8s.io apiregistration.k8s.io apps autoscaling batch "
    "certificates.k8s.io coordination.k8s.io discovery.k8s.io events.k8s.io flowcontrol.apiserver.k8s.io "
    "metrics.k8s.io networking.k8s.io node.k8s.io policy rbac.authorization.k8s.io scheduling.k8s.io "
    "storage.k8s.io"
)
_IN_GROUP = {
    "apps": "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status "
    "replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
    "autoscaling": "horizontalpodautoscalers horizontalpodautoscalers/status",
    "batch": "cronjobs cronjobs/status jobs jobs/status",
    "networking.k8s.io": "ingresses ingresses/status ingressclasses ipaddresses networkpolicies servicecidrs",
    "policy": "poddisruptionbudgets poddisruptionbudgets/status",
}
"""Resources of some groups: if one of them is encrypted, viewers still read the others. Of another group with an
encrypted resource they read nothing."""


def namespaces(zones: Collection[str] | None) -> list[Manifest]:
    """``kube-system`` with our labels. It stays when its ManagedResource is deleted.

    ``zones``: those of the pools on which system components run; None if the Shoot has no workers.
    """
    available = {} if zones is None else {high_availability.CONSIDER: "true"}
    annotations = {high_availability.ZONES: ",".join(sorted(set(zones)))} if zones else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": base.metadata(
                NAMESPACE,
                labels={"gardener.cloud/purpose": NAMESPACE, **available},
                annotations={"resources.gardener.cloud/keep-object": "true", **annotations},
            ),
        }
    ]


def cluster_identity(identity: str) -> Manifest:
    """ConfigMap by which pods identify their cluster. Each cluster has its own identity, which never changes."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata("cluster-identity", NAMESPACE),
        "immutable": True,
        "data": {"cluster-identity": identity, "origin": "shoot"},
    }


def owners() -> Manifest:
    """Binding that gives all rights to operators and to the project's admins."""
    groups = [base.group(f"gardener.cloud:{scope}:admins") for scope in ("system", "project")]
    return base.binding("gardener.cloud:system:admins", groups, cluster_role="cluster-admin")


def objects(*, workers: bool, encrypted: Collection[str] = ()) -> list[Manifest]:
    """Rights of the shoot's owners and of the control plane itself.

    ``encrypted``: resources that are stored encrypted beside Secrets, such as ``deployments.apps``. Viewers cannot read
    them.

    Admins and viewers use client certificates (AdminKubeconfigRequest, ViewerKubeconfigRequest). Source of their
    groups: spec/credentials.md 8.
    """
    viewers = [base.group(f"gardener.cloud:{scope}:viewers") for scope in ("system", "project")]
    read_only = "gardener.cloud:system:read-only"
    made = [
        owners(),
        _read_only(read_only, encrypted),
        base.binding("gardener.cloud:system:viewers", viewers, cluster_role=read_only),
    ]
    if workers:
        made.append(of_api_server())
    return made


def of_api_server() -> Manifest:
    """Right of the API server to ask kubelets, for example for logs."""
    user = base.user("system:kube-apiserver:kubelet")
    return base.binding("system:apiserver:kubelet", [user], cluster_role="system:kubelet-api-admin")


def _read_only(name: str, encrypted: Collection[str]) -> Manifest:
    """Right to read everything but Secrets and encrypted resources. Source: spec/credentials.md 8."""
    hidden: dict[str, set[str]] = {}
    for each in encrypted:
        resource, _, group = each.partition(".")
        hidden.setdefault(group, set()).add(resource)

    def shown(group: str, names: str) -> str:
        return " ".join(each for each in names.split() if each.partition("/")[0] not in hidden[group])

    hidden.setdefault("", set())
    whole = [each for each in _GROUPS.split() if each not in hidden]
    rules = [("core", shown("", _CORE)), (" ".join(whole), "*")]
    rules += [(each, shown(each, _IN_GROUP.get(each, ""))) for each in _GROUPS.split() if each in hidden]
    return base.cluster_role(name, [base.rule(groups, names, _READ) for groups, names in rules if names])
