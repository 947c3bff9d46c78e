"""kube-controller-manager of a shoot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, connections
from activities.components.base import Manifest
from api import images

NAME = "kube-controller-manager"
PORT = 10257
SELECT = base.control_plane_labels("kubernetes", "controller-manager")

_SECRETS = "/srv/kubernetes"
_IPV6_MASK = "64"
"""Prefix length of the IPv6 network of each node's pods: Kubernetes' default."""


@dataclass(frozen=True)
class Secrets:
    """Names of the Secrets that the controller manager mounts."""

    generic_kubeconfig: str
    ca_bundle: str
    client_ca: str
    """Current client CA: it signs kubelets' client certificates."""
    server: str
    service_account_key: str
    kubelet_ca: str = ""
    """Current kubelet CA: it signs kubelets' serving certificates."""


@dataclass(frozen=True)
class ControllerManager:
    namespace: str
    version: str
    replicas: int
    pod_cidrs: Sequence[str]
    service_cidrs: Sequence[str]
    secrets: Secrets
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``Shoot.spec.kubernetes.kubeControllerManager``."""
    workers: bool = True
    failure_tolerance: str | None = None
    """``node`` or ``zone``: the replicas are spread over nodes, or over nodes and zones."""


def objects(manager: ControllerManager) -> list[Manifest]:
    return [
        base.shoot_access(NAME, manager.namespace),
        connections.annotated(
            base.service(NAME, manager.namespace, select=SELECT, ports={"metrics": PORT}), connections.scraped(PORT)
        ),
        base.pod_disruption_budget(NAME, manager.namespace, SELECT),
        _deployment(manager),
    ]


def shoot_objects() -> list[Manifest]:
    """Rights of the controller manager's token in the shoot, which it needs to start.

    Each controller then uses its own ServiceAccount.
    """
    subject = base.account(NAME)
    return [
        base.binding(
            "gardener.cloud:target:kube-controller-manager",
            [subject],
            cluster_role="system:kube-controller-manager",
        ),
        base.binding(
            "gardener.cloud:target:kube-controller-manager:auth-delegator",
            [subject],
            cluster_role="system:auth-delegator",
        ),
        base.binding(
            "gardener.cloud:target:kube-controller-manager:auth-reader",
            [subject],
            role="extension-apiserver-authentication-reader",
            namespace="kube-system",
        ),
    ]


def _deployment(manager: ControllerManager) -> Manifest:
    secrets = manager.secrets
    volumes = [
        base.shoot_access_volume(NAME, secrets.generic_kubeconfig),
        base.secret_volume("ca", secrets.ca_bundle, "bundle.crt"),
        base.secret_volume("ca-client", secrets.client_ca, "ca.crt", "ca.key"),
        base.secret_volume("server", secrets.server, "tls.crt", "tls.key"),
        base.secret_volume("service-account-key", secrets.service_account_key, "id_rsa"),
    ]
    if manager.workers:
        volumes.append(base.secret_volume("ca-kubelet", secrets.kubelet_ca, "ca.crt", "ca.key"))
    mounts = {volume["name"]: f"{_SECRETS}/{volume['name']}" for volume in volumes}
    mounts["kubeconfig"] = base.KUBECONFIG_DIR
    main = base.container(
        NAME,
        images.kubernetes(NAME, manager.version),
        [f"/usr/local/bin/{NAME}", *_flags(manager)],
        cpu="100m",
        memory="128Mi",
        mounts=mounts,
        writable={"tmp": "/tmp"},
        ports={"metrics": PORT},
        terminationMessagePolicy="FallbackToLogsOnError",
        **base.probes("/healthz", PORT, every=10),
    )
    return base.control_plane_deployment(
        NAME,
        manager.namespace,
        select=SELECT,
        replicas=manager.replicas,
        pod_labels=connections.SHOOT_API,
        pod={
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread(SELECT, manager.failure_tolerance),
            "containers": [main],
            "volumes": [*volumes, base.empty_dir("tmp", memory=True)],
        },
    )


def _flags(manager: ControllerManager) -> list[str]:
    settings = manager.settings
    controllers = ["*", "bootstrapsigner", "tokencleaner"]
    if not manager.workers:
        controllers += [
            "-nodeipam",
            "-nodelifecycle",
            "-daemonset",
            "-deployment",
            "-replicaset",
            "-statefulset",
            "-cronjob",
            "-job",
            "-horizontalpodautoscaling",
            "-persistentvolume-binder",
            "-attachdetach",
            "-persistentvolume-expander",
        ]
    flags = {
        "authentication-kubeconfig": base.KUBECONFIG_PATH,
        "authorization-kubeconfig": base.KUBECONFIG_PATH,
        "authorization-always-allow-paths": "/healthz,/readyz,/livez",
        "bind-address": "0.0.0.0",
        "cluster-name": manager.namespace,
        "cluster-signing-duration": "720h",
        "controllers": ",".join(controllers),
        "kubeconfig": base.KUBECONFIG_PATH,
        "leader-elect": "true",
        "logging-format": "json",
        "profiling": "false",
        "root-ca-file": f"{_SECRETS}/ca/bundle.crt",
        "secure-port": str(PORT),
        "service-account-private-key-file": f"{_SECRETS}/service-account-key/id_rsa",
        "tls-cert-file": f"{_SECRETS}/server/tls.crt",
        "tls-private-key-file": f"{_SECRETS}/server/tls.key",
        "use-service-account-credentials": "true",
        "v": "2",
        **_signer("kube-apiserver-client", "ca-client"),
        **_signer("kubelet-client", "ca-client"),
        **_signer("legacy-unknown", "ca-client"),
    }
    if manager.workers:
        flags |= {
            "allocate-node-cidrs": "true",
            # The default directory is on a file system that is mounted read-only.
            "flex-volume-plugin-dir": "/tmp",
            "attach-detach-reconcile-sync-period": "1m0s",
            "cluster-cidr": ",".join(manager.pod_cidrs),
            **_node_cidr_flags(manager, str(settings.get("nodeCIDRMaskSize", 24))),
            "node-monitor-grace-period": settings.get("nodeMonitorGracePeriod", "40s"),
            "service-cluster-ip-range": ",".join(manager.service_cidrs),
            **_signer("kubelet-serving", "ca-kubelet"),
            **_autoscaler_flags(settings.get("horizontalPodAutoscaler") or {}),
        }
    if gates := settings.get("featureGates"):
        flags["feature-gates"] = ",".join(f"{key}={str(on).lower()}" for key, on in sorted(gates.items()))
    return sorted(f"--{flag}={value}" for flag, value in flags.items())


def _node_cidr_flags(manager: ControllerManager, mask: str) -> dict[str, str]:
    """Sizes of the networks that each node gets for its pods; Kubernetes has flags of their own for two IP families."""
    if len(manager.pod_cidrs) == 1:
        if ":" in manager.pod_cidrs[0]:
            return {"node-cidr-mask-size-ipv6": _IPV6_MASK}
        return {"node-cidr-mask-size": mask}
    return {"node-cidr-mask-size-ipv4": mask, "node-cidr-mask-size-ipv6": _IPV6_MASK}


def _signer(kind: str, volume: str) -> dict[str, str]:
    return {
        f"cluster-signing-{kind}-cert-file": f"{_SECRETS}/{volume}/ca.crt",
        f"cluster-signing-{kind}-key-file": f"{_SECRETS}/{volume}/ca.key",
    }


def _autoscaler_flags(settings: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "cpuInitializationPeriod": "cpu-initialization-period",
        "downscaleStabilization": "downscale-stabilization",
        "initialReadinessDelay": "initial-readiness-delay",
        "syncPeriod": "sync-period",
        "tolerance": "tolerance",
    }
    return {
        f"horizontal-pod-autoscaler-{flag}": str(settings[name]) for name, flag in names.items() if name in settings
    }
