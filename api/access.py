"""Access to the garden: RBAC roles of our own processes, by group, and roles of people.

The roles of one Project's members are in ``api.decisions.project_access``. Source of the roles of people, and of their
names: spec/api-core.md 11.
"""

from base64 import b64encode
from datetime import datetime
from typing import Any

from api.constants import (
    ADMISSION_AUTHORITY,
    ADMISSION_WEBHOOK_AUTHORITY,
    AUTHENTICATION,
    CORE,
    GARDEN_NAMESPACE,
    GARDENER_INFO,
    ISSUER_KEYS,
    MANAGE_MEMBERS,
    MODIFY_MACHINE_TYPES,
    MODIFY_PROFILE_VERBS,
    MODIFY_TOLERATIONS_WHITELIST,
    OPERATIONS,
    RECORD,
    REPAIR_VERB,
    ROLE,
    SECURITY,
    SEED_LEASE_NAMESPACE,
    SEED_MANAGEMENT,
    SHOOT_ISSUER_NAMESPACE,
    SYSTEM_PUBLIC_NAMESPACE,
)
from api.labels import pod_security
from api.times import timestamp

Manifest = dict[str, Any]

OPERATORS = "gardener.cloud:system:operators"
"""Group of the processes that run in the garden."""
CONTROLLER_MANAGERS = "gardener.cloud:system:controller-managers"
"""Group of the controller-manager, in addition to ``OPERATORS``: it alone writes roles and Secrets of the garden,
and approves certificates."""
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

AUTHENTICATED = "system:authenticated"
"""Group of all users that the API server has authenticated."""
PROJECT_MEMBER = "gardener.cloud:system:project-member"
PROJECT_VIEWER = "gardener.cloud:system:project-viewer"
PROJECT_SERVICE_ACCOUNT_MANAGER = "gardener.cloud:system:project-serviceaccountmanager"
"""ClusterRoles that the controller-manager binds in the namespace of each Project, to the members with the role.

Each is aggregated from all ClusterRoles with a label, so that an extension can add rights for its own kinds.
"""

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", *READ, "patch", "update"]
"""Verbs of a role of people. It never holds ``*``: that includes ``bind``, ``escalate`` and the custom verbs."""

CONVERTED = ("controllerdeployments.core.gardener.cloud",)
"""CustomResourceDefinitions of the kinds with several versions."""
EXTENSIONS_API = "apiextensions.k8s.io"
_WEBHOOKS = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
RBAC = "rbac.authorization.k8s.io"


def access(*, unrestricted_gardenlets: bool = False) -> list[Manifest]:
    """Roles of our processes in the garden.

    Args:
        unrestricted_gardenlets: give gardenlets a role, too. Otherwise the seed authorizer decides what each may do.
    """
    everything = ["*"]
    read = ["get", "list", "watch"]
    common = [
        rule(["core.gardener.cloud", "security.gardener.cloud"], ["*"], everything),
        rule([""], ["configmaps", "events", "namespaces", "resourcequotas"], everything),
        # Not to write: a Secret can ask for the token of any ServiceAccount, such as that of a Kubernetes controller.
        rule([""], ["secrets"], read),
        rule(["events.k8s.io"], ["events"], everything),
        rule(["operations.gardener.cloud"], ["bastions", "bastions/status"], everything),
        rule([SEED_MANAGEMENT], ["*"], everything),
        rule(["coordination.k8s.io"], ["leases"], everything),
        rule([EXTENSIONS_API], ["customresourcedefinitions"], read),
        rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        # Admission updates the configurations of its own webhooks.
        rule(["admissionregistration.k8s.io"], _WEBHOOKS, ["create"]),
        rule(["admissionregistration.k8s.io"], _WEBHOOKS, ["get", "patch"]) | {"resourceNames": ["gardener-admission"]},
        # Admission maintains the kinds that it converts, and the controller-manager stores their objects again.
        rule([EXTENSIONS_API], ["customresourcedefinitions", "customresourcedefinitions/status"], ["create", "patch"])
        | {"resourceNames": list(CONVERTED)},
        rule(["certificates.k8s.io"], ["certificatesigningrequests"], read),
    ]
    return [
        *bound_role(OPERATORS, common, OPERATORS),
        # Admission keeps its certificates and their authority here, each in one Secret.
        *bound_role(OPERATORS, _admission_secrets(), OPERATORS, GARDEN_NAMESPACE),
        *bound_role(CONTROLLER_MANAGERS, _controller_manager(), CONTROLLER_MANAGERS),
        *bound_role(
            CODEC_SERVERS,
            [
                rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
                rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
            ],
            CODEC_SERVERS,
        ),
        *bound_role(SUBRESOURCE_SERVERS, _subresource_server(), SUBRESOURCE_SERVERS),
        *bound_role(
            SUBRESOURCE_SERVERS,
            [rule([""], ["secrets"], ["get"]) | {"resourceNames": [ISSUER_KEYS]}],
            SUBRESOURCE_SERVERS,
            GARDEN_NAMESPACE,
        ),
        *(seeds_access() if unrestricted_gardenlets else []),
        *bound_role("gardener.cloud:system:seed-bootstrapper", _seed_client(), BOOTSTRAPPERS),
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": pod_security("restricted")}}
            for name in (SHOOT_ISSUER_NAMESPACE, SEED_LEASE_NAMESPACE, SYSTEM_PUBLIC_NAMESPACE)
        ),
        *bound_role(DISCOVERY_SERVERS, [rule([""], ["secrets"], read)], DISCOVERY_SERVERS, SHOOT_ISSUER_NAMESPACE),
        *people(),
    ]


def people() -> list[Manifest]:
    """Roles of people that do not depend on a Project, and the information that all users may read.

    No binding makes a person an administrator, a viewer of all Projects or a creator of Projects: operators bind these
    three ClusterRoles to their own users or groups.
    """
    system = "gardener.cloud:system:"
    return [
        _cluster_role("gardener.cloud:admin", _administrator(), {ROLE: "admin"}),
        _aggregated(
            f"{system}administrators",
            "administrators",
            *({ROLE: each} for each in ("admin", "project-member", "project-serviceaccountmanager")),
        ),
        _cluster_role("gardener.cloud:viewer", _viewer(), {ROLE: "viewer"}),
        _aggregated(f"{system}viewers", "viewers", *({ROLE: each} for each in ("viewer", "project-viewer"))),
        _cluster_role(f"{system}project-creation", [rule([CORE], ["projects"], ["create"])]),
        *bound_role(f"{system}read-global-resources", _global_resources(), AUTHENTICATED),
        *bound_role(f"{system}user-auth", _user_auth(), AUTHENTICATED),
        *_project_role(PROJECT_MEMBER, _project_member()),
        *_project_role(PROJECT_VIEWER, _project_viewer()),
        *_project_role(PROJECT_SERVICE_ACCOUNT_MANAGER, _service_account_manager()),
        *_readable(f"{system}read-cluster-identity-configmap", "cluster-identity", "kube-system"),
        *_readable(f"{system}read-gardener-info-configmap", GARDENER_INFO, SYSTEM_PUBLIC_NAMESPACE),
    ]


def _administrator() -> list[Manifest]:
    custom = [MANAGE_MEMBERS, MODIFY_TOLERATIONS_WHITELIST, *MODIFY_PROFILE_VERBS, MODIFY_MACHINE_TYPES, REPAIR_VERB]
    return [
        rule([CORE, OPERATIONS, SEED_MANAGEMENT], ["*"], [*WRITE, *custom]),
        # Not all resources of this group: workloadidentities/token makes a token for any cloud.
        rule([SECURITY], ["credentialsbindings", "workloadidentities"], WRITE),
        rule([""], ["events", "namespaces", "resourcequotas"], WRITE),
        rule(["events.k8s.io"], ["events"], WRITE),
        rule([RBAC], ["clusterroles", "clusterrolebindings", "roles", "rolebindings"], WRITE),
        rule(["admissionregistration.k8s.io"], _WEBHOOKS, WRITE),
        rule(["apiregistration.k8s.io"], ["apiservices"], WRITE),
        rule([EXTENSIONS_API], ["customresourcedefinitions"], WRITE),
        rule(["coordination.k8s.io"], ["leases"], WRITE),
        rule(["certificates.k8s.io"], ["certificatesigningrequests"], [*WRITE, "approve", "deny"]),
    ]


def _viewer() -> list[Manifest]:
    kinds = (
        "backupbuckets backupentries cloudprofiles controllerdeployments controllerinstallations "
        "controllerregistrations exposureclasses namespacedcloudprofiles plants projects quotas secretbindings seeds "
        "shoots"
    )
    return [
        rule([CORE], kinds.split(), READ),
        rule([SECURITY], ["credentialsbindings"], READ),
        rule([OPERATIONS], ["bastions"], READ),
        rule([SEED_MANAGEMENT], ["gardenlets", "managedseeds", "managedseedsets", "seedautoscalers"], READ),
        rule([""], ["events", "namespaces", "resourcequotas"], READ),
        rule(["events.k8s.io"], ["events"], READ),
        rule([RBAC], ["clusterroles", "clusterrolebindings", "roles", "rolebindings"], READ),
        rule(["admissionregistration.k8s.io"], _WEBHOOKS, READ),
        rule(["apiregistration.k8s.io"], ["apiservices"], READ),
        rule([EXTENSIONS_API], ["customresourcedefinitions"], READ),
        rule(["coordination.k8s.io"], ["leases"], READ),
    ]


def _global_resources() -> list[Manifest]:
    return [
        rule([CORE], ["cloudprofiles", "controllerregistrations", "exposureclasses", "seeds"], READ),
        rule([EXTENSIONS_API], ["customresourcedefinitions"], READ),
    ]


def _user_auth() -> list[Manifest]:
    return [
        rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        rule(["authorization.k8s.io"], ["selfsubjectaccessreviews"], ["create"]),
    ]


def _project_member() -> list[Manifest]:
    return [
        rule([""], ["configmaps", "secrets"], WRITE),
        rule([""], ["events", "resourcequotas", "serviceaccounts"], READ),
        rule(["events.k8s.io"], ["events"], READ),
        rule([CORE], ["namespacedcloudprofiles", "plants", "quotas", "secretbindings", "shoots"], WRITE),
        rule([CORE], ["shoots/adminkubeconfig", "shoots/viewerkubeconfig"], ["create"]),
        rule([CORE], ["shoots/finalizers"], ["update"]),
        rule([SECURITY], ["credentialsbindings", "workloadidentities"], WRITE),
        rule([OPERATIONS], ["bastions"], WRITE),
        rule([RBAC], ["roles", "rolebindings"], WRITE),
    ]


def _project_viewer() -> list[Manifest]:
    return [
        rule([""], ["configmaps", "events", "resourcequotas", "serviceaccounts"], READ),
        rule(["events.k8s.io"], ["events"], READ),
        rule([CORE], ["namespacedcloudprofiles", "plants", "quotas", "secretbindings", "shoots"], READ),
        rule([CORE], ["shoots/viewerkubeconfig"], ["create"]),
        rule([SECURITY], ["credentialsbindings"], READ),
        rule([OPERATIONS], ["bastions"], READ),
        rule([RBAC], ["roles", "rolebindings"], READ),
    ]


def _service_account_manager() -> list[Manifest]:
    return [
        rule([""], ["serviceaccounts"], WRITE),
        rule([""], ["serviceaccounts/token"], ["create"]),
    ]


def _project_role(name: str, rules: list[Manifest]) -> list[Manifest]:
    """Manifests of a ClusterRole for members of Projects that extensions can extend, and of its own rights."""
    role = name.rpartition(":")[2]
    label = {f"rbac.gardener.cloud/aggregate-to-{role}": "true"}
    return [_cluster_role(f"{name}-aggregation", rules, label), _aggregated(name, role, label)]


def _aggregated(name: str, role: str, *selectors: dict[str, str]) -> Manifest:
    """ClusterRole that a controller of Kubernetes fills with the rules of all ClusterRoles that have the labels."""
    manifest = _cluster_role(name, [], {ROLE: role})
    del manifest["rules"]  # that controller owns this field
    return manifest | aggregation_rule(*selectors)


def aggregation_rule(*selectors: dict[str, str]) -> Manifest:
    """The field of a ClusterRole that selects other ClusterRoles by their labels."""
    return {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": each} for each in selectors]}}


def _cluster_role(name: str, rules: list[Manifest], labels: dict[str, str] | None = None) -> Manifest:
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}


def _readable(role: str, name: str, namespace: str) -> list[Manifest]:
    """Manifests with which all authenticated users may read one ConfigMap."""
    return bound_role(role, [rule([""], ["configmaps"], READ) | {"resourceNames": [name]}], AUTHENTICATED, namespace)


def seeds_access() -> list[Manifest]:
    """Role of unrestricted gardenlets: each has all rights that any gardenlet needs, in the whole garden."""
    read = ["get", "list", "watch"]
    rules = [
        rule(["core.gardener.cloud"], ["*"], [*read, "create", "update", "patch", "delete"]),
        rule(["security.gardener.cloud"], ["*"], read),
        rule(["security.gardener.cloud"], ["workloadidentities/token"], ["create"]),
        rule(["operations.gardener.cloud"], ["bastions", "bastions/status"], [*read, "patch"]),
        rule(
            [SEED_MANAGEMENT],
            ["gardenlets", "gardenlets/status", "managedseeds", "managedseeds/status"],
            [*read, "patch"],
        ),
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
    return bootstrap_token(f"bootstraps the gardenlet of {seed}", token_id, secret, until, bootstrap_group(seed))


def bootstrap_token(description: str, token_id: str, secret: str, until: datetime, groups: str) -> Manifest:
    """Secret that defines a bootstrap token. ``groups``: those of the token's holder, separated by commas."""
    content = {
        "description": description,
        "token-id": token_id,
        "token-secret": secret,
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": groups,
        "expiration": timestamp(until),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"bootstrap-token-{token_id}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: b64encode(value.encode()).decode() for key, value in content.items()},
    }


def _controller_manager() -> list[Manifest]:
    """Rights of the controller-manager beyond those of all operators' processes: it makes the roles of Projects.

    It binds roles of Projects and of extensions, whose rights it does not have itself, and makes aggregated ones, so
    the API server asks for the verbs bind and escalate. RBAC cannot limit these verbs to names that begin with
    ``gardener.cloud:``.
    """
    change = [*READ, "create", "patch", "delete"]
    return [
        rule([""], ["secrets"], ["*"]),
        # It approves the certificates of gardenlets. A certificate may name any group.
        rule(["certificates.k8s.io"], ["certificatesigningrequests/approval"], ["update", "patch"]),
        rule(["certificates.k8s.io"], ["signers"], ["approve"])
        | {"resourceNames": ["kubernetes.io/kube-apiserver-client"]},
        rule([RBAC], ["clusterroles"], [*change, "bind", "escalate"]),
        rule([RBAC], ["clusterrolebindings", "rolebindings"], change),
        # The templates of ManagedSeedSets as they were.
        rule(["apps"], ["controllerrevisions"], change),
    ]


def _admission_secrets() -> list[Manifest]:
    names = {"resourceNames": [ADMISSION_AUTHORITY, ADMISSION_WEBHOOK_AUTHORITY]}
    return [rule([""], ["secrets"], ["create"]), rule([""], ["secrets"], ["update", "patch", "delete"]) | names]


def _subresource_server() -> list[Manifest]:
    """Rights of the subresource server: to ask about users, to read the authorities of Shoots, to bind Shoots, and to
    read the objects that tokens of WorkloadIdentities name.

    A role cannot say that a name must end in ``.ca-client``, so the server may get each InternalSecret. It cannot list
    them.
    """
    return [
        rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        rule(["core.gardener.cloud"], ["internalsecrets"], ["get"]),
        rule(["core.gardener.cloud"], ["shoots"], ["get", "patch"]),
        # The server names the user who asked for a binding, and admission records that name as the author's.
        rule([AUTHENTICATION], ["authors"], [RECORD]),
        # Admission asks for it when spec.seedName changes.
        rule(["core.gardener.cloud"], ["shoots/binding"], ["update"]),
        rule([""], ["configmaps"], ["get", "create", "patch"]),
        rule(
            ["core.gardener.cloud"], ["backupbuckets", "backupentries", "projects", "secretbindings", "seeds"], ["get"]
        ),
        rule(["security.gardener.cloud"], ["credentialsbindings", "workloadidentities"], ["get"]),
        rule([""], ["namespaces"], ["get"]),
    ]


def _seed_client() -> list[Manifest]:
    """Rights to request a gardenlet's certificate. The approver approves it for the requester's own seed only."""
    return [
        rule(["certificates.k8s.io"], ["certificatesigningrequests"], ["get", "create"]),
        rule(["certificates.k8s.io"], ["certificatesigningrequests/seedclient"], ["create"]),
    ]


def bound_role(name: str, rules: list[Manifest], group: str, namespace: str = "") -> list[Manifest]:
    """Manifests of a role and its binding, for the whole cluster or for one namespace."""
    version = f"{RBAC}/v1"
    kind, metadata = ("Role", {"namespace": namespace}) if namespace else ("ClusterRole", {})
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "rules": rules},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": {"name": name, **metadata},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
        },
    ]


def rule(groups: list[str], resources: list[str], verbs: list[str]) -> Manifest:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}
