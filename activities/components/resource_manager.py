"""The resource managers: one in each control plane, for its shoot, and one in namespace ``garden`` of each seed.

A resource manager applies ManagedResources. That of a shoot also requests tokens and approves kubelets' certificates.
API servers call both by webhooks, which change new pods.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, connections, network_policies, own, priority
from activities.components import resource_manager_webhooks as webhooks
from activities.components.base import Manifest
from api.constants import GARDEN_NAMESPACE, SEED_CLASS

NAME = "gardener-resource-manager"
HEALTH_PORT = 8081

SELECT = base.control_plane_labels(NAME)
SEED_ROLE = f"gardener.cloud:system:{NAME}"
"""ClusterRole of a seed's resource manager."""

WEBHOOKS = f"shoot-core-{NAME}"
"""ManagedResource with the registration of the webhooks in the shoot."""

_ALL = "get list watch create update patch delete"
_TLS = "/etc/gardener-resource-manager/tls"
_TOLERATION_SECONDS = 60
"""Seconds after which pods of a seed leave a node that does not answer, as in Gardener's chart of the gardenlet."""
_SYSTEM_COMPONENTS = {"worker.gardener.cloud/system-components": "true"}


@dataclass(frozen=True)
class ResourceManager:
    namespace: str
    generic_kubeconfig: str
    """Name of a Secret."""
    replicas: int = 1
    workers: bool = True
    longest_update_delay: int = 300
    """Seconds within which all nodes begin to apply a new configuration."""
    server: str = ""
    """Name of the Secret with the certificate of the webhooks; needed if there are workers."""
    api_server: str = ""
    """Host name by which pods of the shoot reach its API server; needed if there are workers."""
    taints: Sequence[Mapping[str, Any]] = ()
    """Taints of the pools on which system components run."""
    scheduler_name: str = ""
    """Scheduler of pods in the shoot that choose none; empty: Kubernetes' default."""
    tolerations: Mapping[str, int] = field(default_factory=dict)
    """``defaultNotReadyTolerationSeconds`` and ``defaultUnreachableTolerationSeconds``, if the Shoot has them."""
    vertical_autoscaling: bool = False
    """Whether the shoot has Gardener's vertical pod autoscaler, which can change running pods."""

    @property
    def webhooks(self) -> tuple[str, ...]:
        """Names of its webhooks; none without workers."""
        if not self.workers:
            return ()
        return (
            webhooks.HIGH_AVAILABILITY_CONFIG,
            webhooks.PROJECTED_TOKEN_MOUNT,
            webhooks.KUBERNETES_SERVICE_HOST,
            webhooks.POD_TOPOLOGY_SPREAD_CONSTRAINTS,
            webhooks.SYSTEM_COMPONENTS_CONFIG,
            *([webhooks.POD_SCHEDULER_NAME] if self.scheduler_name else []),
            *([webhooks.VPA_IN_PLACE_UPDATES] if self.vertical_autoscaling else []),
        )


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
    service = base.service(NAME, manager.namespace, select=SELECT, ports={"https": (443, webhooks.PORT)})
    served = [connections.annotated(service, connections.called_as_webhook(webhooks.PORT))] if manager.workers else []
    return served + own.workload(
        NAME,
        manager.namespace,
        config=_config(manager),
        generic_kubeconfig=manager.generic_kubeconfig,
        seed_rules=seed_rules,
        health_port=HEALTH_PORT,
        cpu="30m",
        memory="80Mi",
        replicas=manager.replicas,
        ports={"webhooks": webhooks.PORT} if manager.workers else {},
        files={_TLS: base.secret_volume("tls", manager.server, "tls.crt", "tls.key")} if manager.workers else {},
    )


def webhook_objects(manager: ResourceManager, ca_bundle: bytes) -> list[Manifest]:
    """Objects for ManagedResource ``WEBHOOKS``. The API server of the shoot verifies the webhooks with the bundle."""
    client = webhooks.by_url(webhook_host(manager.namespace), base64.b64encode(ca_bundle).decode())
    return [webhooks.configuration(webhooks.Registered(manager.webhooks, client, shoot=True))]


def webhook_host(namespace: str) -> str:
    """Host name by which the API server of a shoot calls the webhooks."""
    return f"{NAME}.{namespace}"


def shoot_objects() -> list[Manifest]:
    """The resource manager's account in the shoot. It has all rights, since ManagedResources may hold any object."""
    return [
        base.service_account(NAME, "kube-system"),
        base.binding(f"gardener.cloud:target:{NAME}", [base.account(NAME)], cluster_role="cluster-admin"),
    ]


def seed_objects(replicas: int, *, policies: bool = False) -> list[Manifest]:
    """The resource manager of a seed, in the order to apply: for ManagedResources of class ``seed`` in all namespaces.

    One replica leads. Another replica takes over if the leader's node is lost. ``policies``: whether it makes
    NetworkPolicies.
    """
    file = base.versioned_config_map(
        NAME, GARDEN_NAMESPACE, {"config.yaml": base.to_json(_seed_config(policies=policies))}, labels=SELECT
    )
    main = own.process(
        NAME,
        NAME.removeprefix("gardener-"),
        HEALTH_PORT,
        cpu="20m",
        memory="80Mi",
        mounts={"config": own.CONFIG_DIR},
        writable={"tmp": "/tmp"},
        more_ports={"webhooks": webhooks.PORT},
    )
    deployment = base.deployment(
        NAME,
        GARDEN_NAMESPACE,
        select=SELECT,
        replicas=replicas,
        labels={"gardener.cloud/role": "seed"},
        pod_labels=connections.SEED_API,
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "priorityClassName": priority.SYSTEM_CRITICAL,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread_over_hosts(SELECT),
            "containers": [main],
            "volumes": [base.config_map_volume("config", file["metadata"]["name"]), base.empty_dir("tmp", memory=True)],
        },
    )
    service = base.service(NAME, GARDEN_NAMESPACE, select=SELECT, ports={"metrics": HEALTH_PORT}, clusterIP="None")
    service["metadata"]["annotations"] = {"prometheus.io/scrape": "true", "prometheus.io/port": str(HEALTH_PORT)}
    called = base.service(webhooks.SEED_SERVICE, GARDEN_NAMESPACE, select=SELECT, ports={"https": (443, webhooks.PORT)})
    return [
        base.service_account(NAME, GARDEN_NAMESPACE),
        base.cluster_role(SEED_ROLE, _seed_rules()),
        base.binding(SEED_ROLE, [base.account(NAME, GARDEN_NAMESPACE)], cluster_role=SEED_ROLE),
        file,
        base.pod_disruption_budget(NAME, GARDEN_NAMESPACE, SELECT),
        service,
        connections.annotated(called, connections.called_from_outside(webhooks.PORT)),
        deployment,
    ]


def _seed_rules() -> list[Manifest]:
    """Rights in the seed: those of applying and deleting any object, since ManagedResources may hold any object.

    ``escalate`` and ``bind`` let it apply roles with rights that it does not have. It may act as no other identity
    (``impersonate``), and sign or approve no certificate.
    """
    return [
        base.rule("*", "*", _ALL),
        base.rule("rbac.authorization.k8s.io", "roles clusterroles", "escalate bind"),
    ]


def _seed_config(*, policies: bool) -> Manifest:
    return {
        "server": {
            "health": {"address": "0.0.0.0", "port": HEALTH_PORT},
            "webhooks": {
                "port": webhooks.PORT,
                "service": {"name": webhooks.SEED_SERVICE, "namespace": GARDEN_NAMESPACE},
            },
        },
        "webhooks": {
            "projectedTokenMount": {"enabled": True},
            "podTopologySpreadConstraints": {"enabled": True},
            "seccompProfile": {"enabled": True},
            "highAvailabilityConfig": {
                "enabled": True,
                "defaultNotReadyTolerationSeconds": _TOLERATION_SECONDS,
                "defaultUnreachableTolerationSeconds": _TOLERATION_SECONDS,
            },
            "endpointSliceHints": {"enabled": True},
        },
        "controllers": {
            "clusterID": "<default>",
            "resourceClass": SEED_CLASS,
            # Extensions write Secrets of control planes, and would otherwise have all rights of the resource manager.
            "managedResource": {"syncPeriod": "1h", "trustedNamespaces": [GARDEN_NAMESPACE]},
            "garbageCollector": {"enabled": True, "syncPeriod": "12h"},
            "networkPolicy": {"enabled": policies, "namespaceSelectors": network_policies.selectors()},
        },
        "leaderElection": {"leaderElect": True, "resourceNamespace": GARDEN_NAMESPACE},
    }


def _config(manager: ResourceManager) -> Manifest:
    server: Manifest = {"health": {"address": "0.0.0.0", "port": HEALTH_PORT}}
    if manager.workers:
        server["webhooks"] = {"port": webhooks.PORT, "tls": {"serverCertDir": _TLS}}
    return {
        "sourceClientConnection": {"namespaces": [manager.namespace]},
        "targetClientConnection": {"kubeconfig": base.KUBECONFIG_PATH},
        "server": server,
        "webhooks": {
            "projectedTokenMount": {"enabled": manager.workers},
            "kubernetesServiceHost": {"enabled": manager.workers, "host": manager.api_server},
            "podTopologySpreadConstraints": {"enabled": manager.workers},
            "systemComponentsConfig": {
                "enabled": manager.workers,
                "nodeSelector": _SYSTEM_COMPONENTS,
                "podNodeSelector": _SYSTEM_COMPONENTS,
                "podTolerations": base.tolerations_of(manager.taints),
            },
            "highAvailabilityConfig": {"enabled": manager.workers, **manager.tolerations},
            "podSchedulerName": {
                "enabled": webhooks.POD_SCHEDULER_NAME in manager.webhooks,
                "schedulerName": manager.scheduler_name,
            },
            "vpaInPlaceUpdates": {"enabled": webhooks.VPA_IN_PLACE_UPDATES in manager.webhooks},
        },
        "controllers": {
            "managedResource": {"syncPeriod": "1h"},
            "garbageCollector": {"enabled": True, "syncPeriod": "12h"},
            "csrApprover": {"enabled": manager.workers, "machineNamespace": manager.namespace},
            "nodeAgentReconciliationDelay": {
                "enabled": manager.workers,
                "maxDelay": f"{manager.longest_update_delay}s",
            },
            "nodeCriticalComponents": {"enabled": manager.workers},
            "nodeAgentAccess": {"enabled": manager.workers, "machineNamespace": manager.namespace},
            "tokenRequestor": {"enabled": True, "class": "shoot"},
        },
        # Also with one replica: while a new pod replaces it, both run for a moment.
        "leaderElection": {"leaderElect": True, "resourceNamespace": manager.namespace},
    }
