"""The cluster autoscaler of a Shoot: it adds machines for pods that find no room, and removes machines with few pods.

The autoscaler runs in the control plane. A process of our own in the same pod answers its requests to the cloud,
through a socket that only these two containers have. Flags, names and rights: as Gardener's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from activities.components import base, connections, own
from activities.components.base import Manifest
from api import images
from api.constants import TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.core.v1beta1.shoot import ClusterAutoscaler
from api.extensions.v1alpha1.worker import MachineDeploymentStatus

NAME = "cluster-autoscaler"
SELECT = base.control_plane_labels(NAME)
METRICS_PORT = 8085

_PROVIDER = "autoscaler-provider"
_PROVIDER_PORT = 8086
_SOCKET_DIR = "/var/run/cluster-autoscaler"
_SOCKET = f"{_SOCKET_DIR}/provider.sock"
_PRIORITY = "priority"
# The flag of a setting has the setting's name with dashes, unless ``_OTHER_NAMES`` has another one.
_SETTINGS = (
    "scale_down_delay_after_add",
    "scale_down_delay_after_delete",
    "scale_down_delay_after_failure",
    "scale_down_unneeded_time",
    "scale_down_utilization_threshold",
    "scan_interval",
    "max_node_provision_time",
    "max_graceful_termination_seconds",
    "new_pod_scale_up_delay",
    "max_scale_down_parallelism",
    "max_drain_parallelism",
    "initial_node_group_backoff_duration",
    "max_node_group_backoff_duration",
    "node_group_backoff_reset_timeout",
    "ignore_daemonsets_utilization",
    "emit_per_node_group_metrics",
    "max_binpacking_time",
    "verbosity",
)
_OTHER_NAMES = {
    "max_graceful_termination_seconds": "max-graceful-termination-sec",
    "emit_per_node_group_metrics": "emit-per-nodegroup-metrics",
    "verbosity": "v",
}
_READ = "get list watch"


@dataclass(frozen=True)
class Autoscaler:
    namespace: str
    generic_kubeconfig: str
    """Name of a Secret."""
    settings: ClusterAutoscaler
    node_groups: Sequence[MachineDeploymentStatus]
    kubelets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Part of the kubelets' configuration, by pool: how much of a node's capacity pods may use."""
    max_nodes: int = 0
    """Maximum number of nodes of all node groups together; 0: as many as the bounds of the node groups allow."""
    replicas: int = 1
    failure_tolerance: str | None = None
    """``node`` or ``zone``: the replicas are spread over nodes, or over nodes and zones."""


def objects(autoscaler: Autoscaler) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    namespace = autoscaler.namespace
    config = {
        "namespace": namespace,
        "socket": _SOCKET,
        "nodeGroups": [each.to_wire() for each in autoscaler.node_groups],
        "kubelets": autoscaler.kubelets,
        "health": {"address": "0.0.0.0", "port": _PROVIDER_PORT},
    }
    files = {
        "config.yaml": base.to_json(config),
        # Without certificates, because no other process can open the socket.
        "cloud-config.yaml": base.to_json({"address": f"unix:{_SOCKET}"}),
    }
    file = base.versioned_config_map(NAME, namespace, files, labels={**SELECT, "gardener.cloud/role": "controlplane"})
    rules = [
        base.rule("machine.sapcloud.io", "machinedeployments", "get list patch"),
        base.rule("machine.sapcloud.io", "machines", "list"),
        base.rule("machine.sapcloud.io", "machineclasses", "get"),
    ]
    return [
        *own.identity(NAME, namespace, rules),
        base.shoot_access(NAME, namespace),
        file,
        base.pod_disruption_budget(NAME, namespace, SELECT),
        connections.metrics_service(NAME, namespace, SELECT, METRICS_PORT),
        _deployment(autoscaler, file),
    ]


def _deployment(autoscaler: Autoscaler, file: Manifest) -> Manifest:
    provider = own.process(
        _PROVIDER,
        _PROVIDER,
        _PROVIDER_PORT,
        cpu="5m",
        memory="60Mi",
        mounts={"config": own.CONFIG_DIR},
        writable={"socket": _SOCKET_DIR},
        # A sidecar: the provider starts before the autoscaler and ends after it.
        restartPolicy="Always",
    )
    main = base.container(
        NAME,
        images.CLUSTER_AUTOSCALER,
        ["/cluster-autoscaler", *sorted(f"--{flag}={value}" for flag, value in _flags(autoscaler))],
        cpu="10m",
        memory="60Mi",
        mounts={"config": own.CONFIG_DIR, "kubeconfig": base.KUBECONFIG_DIR, "socket": _SOCKET_DIR},
        ports={"metrics": METRICS_PORT},
        terminationMessagePolicy="FallbackToLogsOnError",
        **base.probes("/health-check", METRICS_PORT, scheme="HTTP", every=10),
    )
    return base.control_plane_deployment(
        NAME,
        autoscaler.namespace,
        select=SELECT,
        replicas=autoscaler.replicas,
        pod_labels={**connections.SHOOT_API, **connections.SEED_API},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "securityContext": base.non_root_pod(),
            "terminationGracePeriodSeconds": 5,
            "topologySpreadConstraints": base.spread(SELECT, autoscaler.failure_tolerance),
            "initContainers": [provider],
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", file["metadata"]["name"]),
                base.shoot_access_volume(NAME, autoscaler.generic_kubeconfig),
                base.empty_dir("socket", memory=True),
            ],
        },
    )


def _flags(autoscaler: Autoscaler) -> list[tuple[str, str]]:
    settings = autoscaler.settings
    flags: list[tuple[str, Any]] = [
        ("address", f":{METRICS_PORT}"),
        ("kubeconfig", base.KUBECONFIG_PATH),
        ("cloud-provider", "externalgrpc"),
        ("cloud-config", f"{own.CONFIG_DIR}/cloud-config.yaml"),
        ("stderrthreshold", "info"),
        ("skip-nodes-with-system-pods", False),
        ("skip-nodes-with-local-storage", False),
        ("expendable-pods-priority-cutoff", -10),
        ("balance-similar-node-groups", True),
        ("expander", _expander(autoscaler)),
        ("max-nodes-total", autoscaler.max_nodes),
        *((_OTHER_NAMES.get(name, name.replace("_", "-")), getattr(settings, name)) for name in _SETTINGS),
        # A new node has this taint until its critical components run. The taint must not cause another new node.
        ("startup-taint", TAINT_CRITICAL_COMPONENTS_NOT_READY),
        *(("startup-taint", taint) for taint in [*(settings.startup_taints or []), *(settings.ignore_taints or [])]),
        *(("status-taint", taint) for taint in settings.status_taints or []),
    ]
    return [(flag, _text(value)) for flag, value in flags if value is not None]


def _expander(autoscaler: Autoscaler) -> str | None:
    """Value of the flag ``expander``. If pools have priorities, ``priority`` precedes the owner's other expanders."""
    wanted = autoscaler.settings.expander
    if _has_priorities(autoscaler.node_groups) and _PRIORITY not in (wanted or "").split(","):
        return ",".join(filter(None, (_PRIORITY, wanted)))
    return wanted


def _has_priorities(node_groups: Sequence[MachineDeploymentStatus]) -> bool:
    return any(each.priority is not None for each in node_groups)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def shoot_objects(node_groups: Sequence[MachineDeploymentStatus]) -> list[Manifest]:
    """Objects for a ManagedResource: rights of the autoscaler's token, and the priorities of node groups, if any."""
    name, space, subjects = f"gardener.cloud:target:{NAME}", "kube-system", [base.account(NAME)]
    rules = [
        base.rule("core", "events", "create patch"),
        base.rule("core", "pods/eviction", "create"),
        base.rule("core", "pods/status", "update"),
        base.rule("core", "nodes", f"{_READ} update"),
        base.rule(
            "core",
            "namespaces pods services replicationcontrollers persistentvolumeclaims persistentvolumes",
            _READ,
        ),
        base.rule("apps", "daemonsets replicasets statefulsets", _READ),
        base.rule("batch", "jobs cronjobs", _READ),
        base.rule("policy", "poddisruptionbudgets", "list watch"),
        base.rule("storage.k8s.io", "storageclasses csinodes csidrivers csistoragecapacities volumeattachments", _READ),
    ]
    own_rules = [
        base.rule("core", "configmaps", f"{_READ} create"),
        base.rule("core", "configmaps", "delete update", ["cluster-autoscaler-status"]),
        base.rule("coordination.k8s.io", "leases", "create"),
        base.rule("coordination.k8s.io", "leases", "get update", [NAME]),
    ]
    made = [
        base.service_account(NAME, space),
        base.cluster_role(name, rules),
        base.binding(name, subjects, cluster_role=name),
        base.role(name, space, own_rules),
        base.binding(name, subjects, role=name, namespace=space),
    ]
    if _has_priorities(node_groups):
        made.append(_priorities(node_groups))
    return made


def _priorities(node_groups: Sequence[MachineDeploymentStatus]) -> Manifest:
    """ConfigMap of priorities: the autoscaler tries pools with higher ones first. A pool without a priority has 0."""
    names: dict[int, list[str]] = {}
    for each in node_groups:
        names.setdefault(each.priority or 0, []).append(f"^{each.name}$")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata("cluster-autoscaler-priority-expander", "kube-system"),
        # The keys are numbers: the autoscaler accepts no other keys.
        "data": {"priorities": yaml.safe_dump(names)},
    }
