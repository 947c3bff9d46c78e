"""Who may do what in the garden: roles of our own processes, by group."""

from typing import Any

Manifest = dict[str, Any]

OPERATORS = "gardener.cloud:system:operators"
"""Group of our processes of the garden itself."""
SEEDS = "gardener.cloud:system:seeds"
"""Group of gardenlets."""

_RBAC = "rbac.authorization.k8s.io"


def access() -> list[Manifest]:
    """Roles of our processes in the garden."""
    everything = ["*"]
    read = ["get", "list", "watch"]
    common = [
        rule(["core.gardener.cloud", "security.gardener.cloud"], ["*"], everything),
        rule([""], ["secrets", "configmaps", "events", "namespaces"], everything),
        rule(["events.k8s.io"], ["events"], everything),
        rule(["operations.gardener.cloud"], ["bastions"], read),
        rule(["coordination.k8s.io"], ["leases"], everything),
        rule(["rbac.authorization.k8s.io"], ["roles", "rolebindings"], everything),
        rule(["apiextensions.k8s.io"], ["customresourcedefinitions"], read),
        rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
    ]
    seeds = [
        rule(["core.gardener.cloud"], ["*"], [*read, "create", "update", "patch", "delete"]),
        rule(["security.gardener.cloud"], ["*"], read),
        rule([""], ["secrets", "configmaps"], [*read, "create", "update", "patch", "delete"]),
        rule([""], ["namespaces"], [*read, "create", "patch"]),
        rule(["", "events.k8s.io"], ["events"], ["create", "patch", "update"]),
        rule(["coordination.k8s.io"], ["leases"], [*read, "create", "update", "patch"]),
        rule(["certificates.k8s.io"], ["certificatesigningrequests"], ["get", "create"]),
    ]
    return [
        *bound_role(OPERATORS, common, OPERATORS),
        *bound_role(SEEDS, seeds, SEEDS),
    ]


def bound_role(name: str, rules: list[Manifest], group: str) -> list[Manifest]:
    version = f"{_RBAC}/v1"
    return [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
        },
    ]


def rule(groups: list[str], resources: list[str], verbs: list[str]) -> Manifest:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}
