"""Objects that every shoot has from the start: namespaces and rights."""

from activities.components import base
from activities.components.base import Manifest

NAMESPACE = "kube-system"

_READ = "get list watch"


def namespaces() -> list[Manifest]:
    """``kube-system`` with our labels. It stays when its ManagedResource is deleted."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": base.metadata(
                NAMESPACE,
                labels={"gardener.cloud/purpose": NAMESPACE},
                annotations={"resources.gardener.cloud/keep-object": "true"},
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


def objects(*, workers: bool) -> list[Manifest]:
    """Rights of the shoot's owners and of the control plane itself.

    Admins and viewers use client certificates (AdminKubeconfigRequest, ViewerKubeconfigRequest). Source of their
    groups: spec/credentials.md 8.
    """
    viewers = [base.group(f"gardener.cloud:{scope}:viewers") for scope in ("system", "project")]
    read_only = "gardener.cloud:system:read-only"
    made = [
        owners(),
        _read_only(read_only),
        base.binding("gardener.cloud:system:viewers", viewers, cluster_role=read_only),
    ]
    if workers:
        made.append(
            base.binding(
                "system:apiserver:kubelet",
                [base.user("system:kube-apiserver:kubelet")],
                cluster_role="system:kubelet-api-admin",
            )
        )
    return made


def _read_only(name: str) -> Manifest:
    """Right to read everything but Secrets, whether a kind is stored encrypted or not."""
    core = (
        "bindings componentstatuses configmaps endpoints events limitranges namespaces namespaces/status nodes "
        "nodes/status persistentvolumeclaims persistentvolumeclaims/status persistentvolumes "
        "persistentvolumes/status pods pods/log pods/status podtemplates replicationcontrollers "
        "replicationcontrollers/scale replicationcontrollers/status resourcequotas resourcequotas/status "
        "serviceaccounts services services/status"
    )
    groups = (
        "admissionregistration.k8s.io apiextensions.k8s.io apiregistration.k8s.io apps autoscaling batch "
        "certificates.k8s.io coordination.k8s.io discovery.k8s.io events.k8s.io flowcontrol.apiserver.k8s.io "
        "metrics.k8s.io networking.k8s.io node.k8s.io policy rbac.authorization.k8s.io scheduling.k8s.io "
        "storage.k8s.io"
    )
    return base.cluster_role(name, [base.rule("core", core, _READ), base.rule(groups, "*", _READ)])
