"""kube-scheduler of a shoot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, connections
from activities.components.base import Manifest
from api import images

NAME = "kube-scheduler"
PORT = 10259
SELECT = base.control_plane_labels("kubernetes", "scheduler")

BIN_PACKING_SCHEDULER = "bin-packing-scheduler"
"""Name by which pods choose the profile that fills nodes."""
_BIN_PACKING = {
    "name": "NodeResourcesFit",
    "args": {"scoringStrategy": {"type": "MostAllocated"}},
}


@dataclass(frozen=True)
class Scheduler:
    namespace: str
    version: str
    replicas: int
    generic_kubeconfig: str
    client_ca_bundle: str
    server: str
    """Names of the Secrets that the scheduler mounts."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``Shoot.spec.kubernetes.kubeScheduler``."""
    failure_tolerance: str | None = None
    """``node`` or ``zone``: the replicas are spread over nodes, or over nodes and zones."""


def objects(scheduler: Scheduler) -> list[Manifest]:
    labels = {**SELECT, "gardener.cloud/role": "controlplane"}
    configuration = base.versioned_config_map(
        NAME,
        scheduler.namespace,
        {"config.yaml": base.to_json(_configuration(scheduler.settings))},
        labels=labels,
    )
    return [
        base.shoot_access(NAME, scheduler.namespace),
        configuration,
        connections.annotated(
            base.service(NAME, scheduler.namespace, select=SELECT, ports={"metrics": PORT}), connections.scraped(PORT)
        ),
        base.pod_disruption_budget(NAME, scheduler.namespace, SELECT),
        _deployment(scheduler, configuration),
    ]


def shoot_objects() -> list[Manifest]:
    """Rights of the scheduler's token in the shoot."""
    subject = base.account(NAME)
    return [
        *(
            base.binding(f"gardener.cloud:target:{role.removeprefix('system:')}", [subject], cluster_role=role)
            for role in ("system:kube-scheduler", "system:volume-scheduler")
        ),
        base.binding(
            "gardener.cloud:target:kube-scheduler:auth-delegator",
            [subject],
            cluster_role="system:auth-delegator",
        ),
        base.binding(
            "gardener.cloud:target:kube-scheduler:auth-reader",
            [subject],
            role="extension-apiserver-authentication-reader",
            namespace="kube-system",
        ),
    ]


def name_for_pods(settings: Mapping[str, Any]) -> str:
    """Scheduler of pods that choose none, by ``Shoot.spec.kubernetes.kubeScheduler``; empty: Kubernetes' default."""
    return BIN_PACKING_SCHEDULER if settings.get("profile") == "bin-packing" else ""


def _configuration(settings: Mapping[str, Any]) -> Manifest:
    configuration: Manifest = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": base.KUBECONFIG_PATH},
        "leaderElection": {"leaderElect": True},
    }
    if name := name_for_pods(settings):
        configuration["profiles"] = [
            {"schedulerName": "default-scheduler"},
            {"schedulerName": name, "pluginConfig": [_BIN_PACKING]},
        ]
    return configuration


def _deployment(scheduler: Scheduler, configuration: Manifest) -> Manifest:
    flags = {
        "authentication-kubeconfig": base.KUBECONFIG_PATH,
        "authorization-kubeconfig": base.KUBECONFIG_PATH,
        "authorization-always-allow-paths": "/healthz,/readyz,/livez",
        "bind-address": "0.0.0.0",
        "client-ca-file": "/srv/kubernetes/ca-client/bundle.crt",
        "config": "/etc/kubernetes/config.yaml",
        "logging-format": "json",
        "secure-port": str(PORT),
        "tls-cert-file": "/srv/kubernetes/server/tls.crt",
        "tls-private-key-file": "/srv/kubernetes/server/tls.key",
        "v": "2",
    }
    if gates := scheduler.settings.get("featureGates"):
        flags["feature-gates"] = ",".join(f"{key}={str(on).lower()}" for key, on in sorted(gates.items()))
    main = base.container(
        NAME,
        images.kubernetes(NAME, scheduler.version),
        [f"/usr/local/bin/{NAME}", *sorted(f"--{flag}={value}" for flag, value in flags.items())],
        cpu="25m",
        memory="64Mi",
        mounts={
            "kubeconfig": base.KUBECONFIG_DIR,
            "config": "/etc/kubernetes",
            "ca-client": "/srv/kubernetes/ca-client",
            "server": "/srv/kubernetes/server",
        },
        ports={"metrics": PORT},
        terminationMessagePolicy="FallbackToLogsOnError",
        **base.probes("/healthz", PORT, every=10),
    )
    return base.control_plane_deployment(
        NAME,
        scheduler.namespace,
        select=SELECT,
        replicas=scheduler.replicas,
        pod_labels=connections.SHOOT_API,
        pod={
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread(SELECT, scheduler.failure_tolerance),
            "containers": [main],
            "volumes": [
                base.shoot_access_volume(NAME, scheduler.generic_kubeconfig),
                base.config_map_volume("config", configuration["metadata"]["name"]),
                base.secret_volume("ca-client", scheduler.client_ca_bundle, "bundle.crt"),
                base.secret_volume("server", scheduler.server, "tls.crt", "tls.key"),
            ],
        },
    )
