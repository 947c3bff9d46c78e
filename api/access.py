"""Access to the garden: RBAC roles of our own processes, by group."""

from base64 import b64encode
from datetime import datetime
from typing import Any

from api.constants import SEED_LEASE_NAMESPACE, SHOOT_ISSUER_NAMESPACE
from api.labels import pod_security
from api.times import timestamp

Manifest = dict[str, Any]

OPERATORS = "gardener.cloud:system:operators"
"""Group of the processes that run in the garden."""
SEEDS = "gardener.cloud:system:seeds"
"""Group of gardenlets."""

DISCOVERY_SERVERS = "gardener.cloud:system:discovery-servers"
"""Group of the discovery servers, which publish the keys of shoots; they read nothing else."""

CODEC_SERVERS = "gardener.cloud:system:codec-servers"
"""Group of the codec endpoint. It creates TokenReviews and SubjectAccessReviews, and reads no object."""

SUBRESOURCE_SERVERS = "gardener.cloud:system:subresource-servers"
"""Group of the subresource servers, which sign client certificates with the client CAs of Shoots."""

BOOTSTRAPPERS = "system:bootstrappers"
"""Group of all bootstrap tokens, in the garden and in a Shoot; another group says for which seed or Machine one is."""

_WEBHOOKS = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
_RBAC = "rbac.authorization.k8s.io"


def access(*, unrestricted_gardenlets: bool = False) -> list[Manifest]:
    """Roles of our processes in the garden.

    Args:
        unrestricted_gardenlets: give gardenlets a role, too. Otherwise the seed authorizer decides what each may do.
    """
    everything = ["*"]
    read = ["get", "list", "watch"]
    common = [
        rule(["core.gardener.cloud", "security.gardener.cloud"], ["*"], everything),
        rule([""], ["secrets", "configmaps", "events", "namespaces"], everything),
        rule(["events.k8s.io"], ["events"], everything),
        rule(["operations.gardener.cloud"], ["bastions", "bastions/status"], everything),
        rule(["coordination.k8s.io"], ["leases"], everything),
        rule(["rbac.authorization.k8s.io"], ["roles", "rolebindings"], everything),
        rule(["apiextensions.k8s.io"], ["customresourcedefinitions"], read),
        rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        # Admission updates the configurations of its own webhooks.
        rule(["admissionregistration.k8s.io"], _WEBHOOKS, ["create"]),
        rule(["admissionregistration.k8s.io"], _WEBHOOKS, ["get", "patch"]) | {"resourceNames": ["gardener-admission"]},
        rule(["certificates.k8s.io"], ["certificatesigningrequests"], read),
        rule(["certificates.k8s.io"], ["certificatesigningrequests/approval"], ["update", "patch"]),
        rule(["certificates.k8s.io"], ["signers"], ["approve"])
        | {"resourceNames": ["kubernetes.io/kube-apiserver-client"]},
    ]
    return [
        *bound_role(OPERATORS, common, OPERATORS),
        *bound_role(
            CODEC_SERVERS,
            [
                rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
                rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
            ],
            CODEC_SERVERS,
        ),
        *bound_role(SUBRESOURCE_SERVERS, _subresource_server(), SUBRESOURCE_SERVERS),
        *(seeds_access() if unrestricted_gardenlets else []),
        *bound_role("gardener.cloud:system:seed-bootstrapper", _seed_client(), BOOTSTRAPPERS),
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": pod_security("restricted")}}
            for name in (SHOOT_ISSUER_NAMESPACE, SEED_LEASE_NAMESPACE)
        ),
        *bound_role(DISCOVERY_SERVERS, [rule([""], ["secrets"], read)], DISCOVERY_SERVERS, SHOOT_ISSUER_NAMESPACE),
    ]


def seeds_access() -> list[Manifest]:
    """Role of unrestricted gardenlets: each has all rights that any gardenlet needs, in the whole garden."""
    read = ["get", "list", "watch"]
    rules = [
        rule(["core.gardener.cloud"], ["*"], [*read, "create", "update", "patch", "delete"]),
        rule(["security.gardener.cloud"], ["*"], read),
        rule(["operations.gardener.cloud"], ["bastions", "bastions/status"], [*read, "patch"]),
        rule([""], ["secrets", "configmaps"], [*read, "create", "update", "patch", "delete"]),
        rule([""], ["namespaces"], [*read, "create", "patch"]),
        rule([""], ["events"], ["create", "patch"]),
        rule(["coordination.k8s.io"], ["leases"], [*read, "create", "update", "patch"]),
        *_seed_client(),
    ]
    return bound_role(SEEDS, rules, SEEDS)


def bootstrap_group(seed: str) -> str:
    """Group of the bootstrap tokens for one seed: ``auth-extra-groups`` of a token's Secret.

    Kubernetes allows no dots in these groups, and no seed's name holds a colon.
    """
    return f"{BOOTSTRAPPERS}:gardener-seed:{seed.replace('.', ':')}"


def machine_bootstrap_group(machine: str) -> str:
    """Group of the bootstrap token that is for one Machine of a Shoot: ``auth-extra-groups`` of the token's Secret.

    Kubernetes allows no dots in these groups, and no Machine's name holds a colon.
    """
    return f"{BOOTSTRAPPERS}:machine:{machine.replace('.', ':')}"


def bootstrap_secret(seed: str, token_id: str, secret: str, until: datetime) -> Manifest:
    """Secret of the garden that defines a bootstrap token for one seed."""
    content = {
        "description": f"bootstraps the gardenlet of {seed}",
        "token-id": token_id,
        "token-secret": secret,
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": bootstrap_group(seed),
        "expiration": timestamp(until),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"bootstrap-token-{token_id}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: b64encode(value.encode()).decode() for key, value in content.items()},
    }


def _subresource_server() -> list[Manifest]:
    """Rights of the subresource server: to ask about users, to read the authorities of Shoots, and to bind Shoots.

    A role cannot say that a name must end in ``.ca-client``, so the server may get each InternalSecret. It cannot list
    them.
    """
    return [
        rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        rule(["core.gardener.cloud"], ["internalsecrets"], ["get"]),
        rule(["core.gardener.cloud"], ["shoots"], ["get", "patch"]),
        # Admission asks for it when spec.seedName changes.
        rule(["core.gardener.cloud"], ["shoots/binding"], ["update"]),
        rule([""], ["configmaps"], ["get", "create", "patch"]),
    ]


def _seed_client() -> list[Manifest]:
    """Rights to request a gardenlet's certificate. The approver approves it for the requester's own seed only."""
    return [
        rule(["certificates.k8s.io"], ["certificatesigningrequests"], ["get", "create"]),
        rule(["certificates.k8s.io"], ["certificatesigningrequests/seedclient"], ["create"]),
    ]


def bound_role(name: str, rules: list[Manifest], group: str, namespace: str = "") -> list[Manifest]:
    """Manifests of a role and its binding, for the whole cluster or for one namespace."""
    version = f"{_RBAC}/v1"
    kind, metadata = ("Role", {"namespace": namespace}) if namespace else ("ClusterRole", {})
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "rules": rules},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": {"name": name, **metadata},
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
        },
    ]


def rule(groups: list[str], resources: list[str], verbs: list[str]) -> Manifest:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}
