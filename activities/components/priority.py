"""PriorityClasses of a seed, with Gardener's names and values, and the class of each component.

Control planes come before other pods of the seed: if a node is full, Kubernetes evicts pods of lower priority for them.
Among the pods of a control plane, the others need those of a higher class. Placeholder pods have a negative priority.
"""

from typing import Any

SYSTEM_CRITICAL = "gardener-system-critical"
RESERVE = "gardener-reserve-excess-capacity"

_VALUES = {
    SYSTEM_CRITICAL: 999998950,
    **{f"gardener-system-{hundred}00": 999998000 + 100 * hundred for hundred in range(1, 10)},
    RESERVE: -5,
}
_DESCRIPTIONS = {
    SYSTEM_CRITICAL: "Components of the seed that all control planes need.",
    RESERVE: "Placeholder pods: any other pod takes their place.",
}


_CONTROL_PLANE = {
    "etcd": 500,
    "kube-apiserver": 500,
    "gardener-resource-manager": 400,
    "cluster-autoscaler": 300,
    "kube-controller-manager": 300,
    "kube-scheduler": 300,
    "machine-controller-manager": 300,
    "vpn-seed-server": 300,
    "vpn-seed-server-1": 300,
    "oidc-webhook-authenticator": 200,
    "vpa-admission-controller": 200,
    "vpa-recommender": 200,
    "vpa-updater": 200,
    "alertmanager": 100,
    "blackbox-exporter": 100,
    "kube-state-metrics": 100,
    "prometheus": 100,
    "victoria-logs": 100,
}


def class_of(component: str) -> str:
    """Name of the PriorityClass of a control-plane component. Raises KeyError for an unknown component."""
    return f"gardener-system-{_CONTROL_PLANE[component]}"


def objects() -> list[dict[str, Any]]:
    """All PriorityClasses of a seed."""
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "globalDefault": False,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": _DESCRIPTIONS.get(name, "Components of control planes and of extensions."),
        }
        for name, value in _VALUES.items()
    ]
