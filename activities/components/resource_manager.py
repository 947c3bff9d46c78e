"""The resource manager of a shoot: it applies ManagedResources, requests tokens, approves kubelets' certificates."""

from dataclasses import dataclass

from activities.components import base, own
from activities.components.base import Manifest

NAME = "gardener-resource-manager"
HEALTH_PORT = 8081

_ALL = "get list watch create update patch delete"


@dataclass(frozen=True)
class ResourceManager:
    namespace: str
    generic_kubeconfig: str
    """Name of a Secret."""
    replicas: int = 1
    workers: bool = True
    longest_update_delay: int = 300
    """Seconds within which all nodes begin to apply a new configuration."""


def objects(manager: ResourceManager) -> list[Manifest]:
    seed_rules = [
        base.rule("resources.gardener.cloud", "managedresources managedresources/status", _ALL),
        base.rule("core", "secrets", _ALL),
        base.rule("core", "configmaps", "get list watch"),
        base.rule("core", "events", "create patch update"),
        base.rule("events.k8s.io", "events", "create patch update"),
        base.rule("coordination.k8s.io", "leases", "get list watch create update patch"),
        base.rule("machine.sapcloud.io", "machines", "get list watch"),
    ]
    return own.workload(
        NAME,
        manager.namespace,
        config=_config(manager),
        generic_kubeconfig=manager.generic_kubeconfig,
        seed_rules=seed_rules,
        health_port=HEALTH_PORT,
        cpu="30m",
        memory="80Mi",
        replicas=manager.replicas,
    )


def shoot_objects() -> list[Manifest]:
    """The resource manager's account in the shoot. It has all rights, since ManagedResources may hold any object."""
    return [
        base.service_account(NAME, "kube-system"),
        base.binding(f"gardener.cloud:target:{NAME}", [base.account(NAME)], cluster_role="cluster-admin"),
    ]


def _config(manager: ResourceManager) -> Manifest:
    return {
        "sourceClientConnection": {"namespaces": [manager.namespace]},
        "targetClientConnection": {"kubeconfig": base.KUBECONFIG_PATH},
        "server": {"health": {"address": "0.0.0.0", "port": HEALTH_PORT}},
        "controllers": {
            "managedResource": {"syncPeriod": "1h"},
            "garbageCollector": {"enabled": True, "syncPeriod": "12h"},
            "csrApprover": {"enabled": manager.workers, "machineNamespace": manager.namespace},
            "nodeAgentReconciliationDelay": {
                "enabled": manager.workers,
                "maxDelay": f"{manager.longest_update_delay}s",
            },
            "nodeAgentAccess": {"enabled": manager.workers, "machineNamespace": manager.namespace},
            "tokenRequestor": {"enabled": True, "class": "shoot"},
        },
    }
