"""Our own processes as pods of a control plane: one image, one command, one configuration file."""

from collections.abc import Mapping, Sequence
from typing import Any

from activities.components import base, connections
from activities.components.base import Manifest
from api import images

CONFIG_DIR = "/etc/gardener"
"""Directory of a container's configuration file."""


def workload(
    name: str,
    namespace: str,
    *,
    config: Mapping[str, Any],
    generic_kubeconfig: str,
    seed_rules: Sequence[Manifest],
    health_port: int,
    cpu: str,
    memory: str,
    replicas: int,
    pod_labels: base.Labels | None = None,
    ports: Mapping[str, int] | None = None,
    files: Mapping[str, Manifest] | None = None,
) -> list[Manifest]:
    """Everything in the seed for ``gardener worker <name>``, in the order to apply.

    In the seed the process uses its own ServiceAccount, in the shoot a token from ``shoot-access-<name>``.
    ``pod_labels``: more labels of its pods. ``ports``: ports beside that of health. ``files``: more volumes, by the
    directory at which they are mounted.
    """
    files = files or {}
    select = base.control_plane_labels(name)
    labels = {**select, "gardener.cloud/role": "controlplane"}
    file = base.versioned_config_map(name, namespace, {"config.yaml": base.to_json(dict(config))}, labels=labels)
    main = process(
        name,
        name.removeprefix("gardener-"),
        health_port,
        cpu=cpu,
        memory=memory,
        mounts={
            "config": CONFIG_DIR,
            "kubeconfig": base.KUBECONFIG_DIR,
            **{volume["name"]: directory for directory, volume in files.items()},
        },
        writable={"tmp": "/tmp"},
        more_ports=ports,
    )
    deployment = base.control_plane_deployment(
        name,
        namespace,
        select=select,
        replicas=replicas,
        pod_labels={**connections.SHOOT_API, **connections.SEED_API, **(pod_labels or {})},
        pod={
            "serviceAccountName": name,
            "automountServiceAccountToken": True,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread_over_hosts(select),
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", file["metadata"]["name"]),
                base.shoot_access_volume(name, generic_kubeconfig),
                *files.values(),
                base.empty_dir("tmp", memory=True),
            ],
        },
    )
    return [
        *identity(name, namespace, seed_rules),
        base.shoot_access(name, namespace),
        file,
        base.pod_disruption_budget(name, namespace, select),
        connections.metrics_service(name, namespace, select, health_port),
        deployment,
    ]


def process(
    name: str,
    worker: str,
    health_port: int,
    *,
    host: str = "",
    more_ports: Mapping[str, int] | None = None,
    **rest: Any,
) -> Manifest:
    """The container of ``gardener worker <worker>``; its ``config.yaml`` is in the volume at ``CONFIG_DIR``.

    ``host``: address for health probes, if it is not the pod's address. ``more_ports``: ports beside that of health.
    """
    return base.container(
        name,
        images.GARDENER,
        ["gardener", "worker", worker, "--config", f"{CONFIG_DIR}/config.yaml"],
        ports={"health": health_port, **(more_ports or {})},
        terminationMessagePolicy="FallbackToLogsOnError",
        **base.probes("/readyz", health_port, alive="/healthz", scheme="HTTP", host=host),
        **rest,
    )


def identity(name: str, namespace: str, rules: Sequence[Manifest]) -> list[Manifest]:
    """Identity and rights of a pod in the seed: its ServiceAccount, its own Role and their binding."""
    return [
        base.service_account(name, namespace),
        base.role(name, namespace, rules),
        base.binding(name, [base.account(name, namespace)], role=name, namespace=namespace),
    ]
