"""How our own processes run as pods of a control plane: one image, one command, one configuration file."""

from collections.abc import Mapping, Sequence
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import images

_CONFIG_DIR = "/etc/gardener"


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
) -> list[Manifest]:
    """Everything in the seed for ``gardener worker <name>``, in the order to apply.

    In the seed it acts as its own ServiceAccount, in the shoot with a token from ``shoot-access-<name>``.
    """
    select = base.control_plane_labels(name)
    labels = {**select, "gardener.cloud/role": "controlplane"}
    file = base.versioned_config_map(name, namespace, {"config.yaml": base.to_json(dict(config))}, labels=labels)
    main = base.container(
        name,
        images.GARDENER,
        ["gardener", "worker", name.removeprefix("gardener-"), "--config", f"{_CONFIG_DIR}/config.yaml"],
        cpu=cpu,
        memory=memory,
        mounts={"config": _CONFIG_DIR, "kubeconfig": base.KUBECONFIG_DIR},
        writable={"tmp": "/tmp"},
        ports={"health": health_port},
        terminationMessagePolicy="FallbackToLogsOnError",
        readinessProbe=base.http_probe("/readyz", health_port, scheme="HTTP", period=1),
        livenessProbe=base.http_probe("/healthz", health_port, scheme="HTTP", delay=15),
    )
    deployment = base.control_plane_deployment(
        name,
        namespace,
        select=select,
        replicas=replicas,
        annotations=base.references([file]),
        pod={
            "serviceAccountName": name,
            "automountServiceAccountToken": True,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread_over_hosts(select),
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", file["metadata"]["name"]),
                base.shoot_access_volume(name, generic_kubeconfig),
                base.empty_dir("tmp", memory=True),
            ],
        },
    )
    return [
        base.service_account(name, namespace),
        base.role(name, namespace, seed_rules),
        base.binding(name, [base.account(name, namespace)], role=name, namespace=namespace),
        base.shoot_access(name, namespace),
        file,
        base.pod_disruption_budget(name, namespace, select),
        deployment,
    ]
