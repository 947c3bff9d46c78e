"""The machine-controller-manager of a shoot: it creates machines, drains and replaces them."""

from dataclasses import dataclass

from activities.components import base, connections, own
from activities.components.base import Manifest

NAME = "machine-controller-manager"
HEALTH_PORT = 10258


@dataclass(frozen=True)
class MachineControllerManager:
    namespace: str
    generic_kubeconfig: str
    """Name of a Secret."""
    replicas: int = 1


def objects(manager: MachineControllerManager) -> list[Manifest]:
    kinds = "machinedeployments machinesets machines machineclasses"
    statuses = " ".join(f"{kind}/status" for kind in kinds.split())
    seed_rules = [
        base.rule("machine.sapcloud.io", f"{kinds} {statuses}", "*"),
        base.rule("core", "secrets", "get list watch"),
        base.rule("core", "events", "create patch update"),
        base.rule("coordination.k8s.io", "leases", "get list watch create update patch"),
    ]
    return own.workload(
        NAME,
        manager.namespace,
        config={"namespace": manager.namespace, "health": {"address": "0.0.0.0", "port": HEALTH_PORT}},
        generic_kubeconfig=manager.generic_kubeconfig,
        seed_rules=seed_rules,
        health_port=HEALTH_PORT,
        cpu="30m",
        memory="80Mi",
        replicas=manager.replicas,
        # The API of the cloud.
        pod_labels=connections.OUTSIDE,
    )


def shoot_objects() -> list[Manifest]:
    """Rights of the controller's token in the shoot: manage nodes, drain them, and create bootstrap tokens."""
    name = f"gardener.cloud:target:{NAME}"
    return [
        base.cluster_role(
            name,
            [
                base.rule("core", "nodes nodes/status", "get list watch update patch delete"),
                base.rule("core", "pods", "get list watch delete"),
                base.rule("core", "pods/eviction", "create"),
                base.rule("core", "persistentvolumes persistentvolumeclaims", "get list watch"),
                base.rule("apps", "daemonsets replicasets statefulsets", "get list watch"),
                base.rule("policy", "poddisruptionbudgets", "get list watch"),
                base.rule("storage.k8s.io", "volumeattachments", "get list watch delete"),
            ],
        ),
        base.binding(name, [base.account(NAME)], cluster_role=name),
        base.role(
            name,
            "kube-system",
            [
                base.rule("core", "secrets", "get list watch create update patch delete"),
                # Of node agents: a machine that has not joined says there why.
                base.rule("coordination.k8s.io", "leases", "get delete"),
            ],
        ),
        base.binding(name, [base.account(NAME)], role=name, namespace="kube-system"),
    ]
