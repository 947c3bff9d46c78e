"""Admission policies, which the API server evaluates itself, without a webhook server.

Some refuse deletions without the annotation ``confirmation.gardener.cloud/deletion`` (source: spec/api-extensions.md
1), and one refuses changes of extension objects during their deletion. One refuses pods of control planes that could
access their host, and one ManagedResources by which an extension would use the rights of a seed's resource manager.
"""

from __future__ import annotations

from typing import Any, Literal

from api.constants import CONFIRMATION_DELETION, DELETION_PROTECTED, DRUID, EXTENSIONS
from api.crds import kinds
from api.labels import TRUE

_COPIES = {"clusters", "etcdcopybackupstasks"}
"""Kinds of copies and requests, whose deletion loses no data."""
_UNCONFIRMED = {*_COPIES, "bastions"}
"""Kinds whose deletion needs no confirmation."""
_API = "admissionregistration.k8s.io/v1"
_CAPABILITIES = ("NET_ADMIN", "MKNOD", "NET_BIND_SERVICE")
"""Capabilities that containers may add. The first two create the VPN's tunnel device, in the network namespace of its
pod."""


def seed_policies() -> list[dict[str, Any]]:
    """All policies of a seed with their bindings, in the order to apply."""
    return [*deletion_protection("seed"), *frozen_extensions(), *control_plane_pods(), *managed_resource_classes()]


def deletion_protection(side: Literal["garden", "seed"]) -> list[dict[str, Any]]:
    """Policies and bindings against unconfirmed deletions, to apply in the garden or in a seed."""
    protected: dict[str, list[str]] = {}
    for served in (model.definition for model in kinds(side)):
        if served.group in (EXTENSIONS, DRUID) and served.plural not in _UNCONFIRMED:
            protected.setdefault(served.group, []).append(served.plural)
    ours = {"matchLabels": {DELETION_PROTECTED: "true"}}
    policies = _policy("kinds", {"apiextensions.k8s.io": ["customresourcedefinitions"]}, ours)
    return policies + (_policy("objects", protected, {}) if protected else [])


def _policy(suffix: str, protected: dict[str, list[str]], selector: dict[str, Any]) -> list[dict[str, Any]]:
    name = f"deletion-confirmation-{suffix}.gardener.cloud"
    annotations = "oldObject.metadata.annotations"
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["DELETE"], "resources": plurals}
        for group, plurals in protected.items()
    ]
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules, "objectSelector": selector},
        "validations": [
            {
                "expression": f"has({annotations}) && '{CONFIRMATION_DELETION}' in {annotations}"
                f" && {annotations}['{CONFIRMATION_DELETION}'] in {list(TRUE)}",
                "message": f"annotate the object with {CONFIRMATION_DELETION}=true before you delete it",
                "reason": "Forbidden",
            }
        ],
    }
    return _with_binding(name, spec)


def frozen_extensions() -> list[dict[str, Any]]:
    """Policy of a seed, and its binding: the spec of an extension object or an etcd does not change during deletion.

    A controller that deletes an infrastructure must delete the one that it has created.
    """
    extensions: dict[str, list[str]] = {}
    for served in (model.definition for model in kinds("seed")):
        if served.group in (EXTENSIONS, DRUID) and served.plural not in _COPIES:
            extensions.setdefault(served.group, []).append(served.plural)
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": plurals}
        for group, plurals in extensions.items()
    ]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "is-deleted", "expression": "has(oldObject.metadata.deletionTimestamp)"}],
        "validations": [
            {
                "expression": "has(object.spec) == has(oldObject.spec)"
                " && (!has(object.spec) || object.spec == oldObject.spec)",
                "message": "the object is being deleted: its spec cannot change any more",
                "reason": "Invalid",
            }
        ],
    }
    return _with_binding("frozen-extensions.gardener.cloud", spec)


def control_plane_pods() -> list[dict[str, Any]]:
    """Policy of a seed, and its binding: no pod in a control-plane namespace can access its host.

    Pod security admission cannot do that: the VPN server needs NET_ADMIN, which only the level ``privileged`` allows.
    """
    kinds_of_containers = ("containers", "initContainers", "ephemeralContainers")
    containers = [(f"has(object.spec.{kind})", f"object.spec.{kind}") for kind in kinds_of_containers]

    def every(condition: str) -> str:
        return " && ".join(f"(!{there} || {path}.all(c, {condition}))" for there, path in containers)

    context = "!has(c.securityContext)"
    added = f"{context} || !has(c.securityContext.capabilities) || !has(c.securityContext.capabilities.add)"
    rules = {
        "it must not use the host's network, processes or IPC": " && ".join(
            f"(!has(object.spec.{field}) || !object.spec.{field})" for field in ("hostNetwork", "hostPID", "hostIPC")
        ),
        "it must not mount a path of the host": (
            "!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))"
        ),
        "its containers must not be privileged": every(
            f"{context} || !has(c.securityContext.privileged) || !c.securityContext.privileged"
        ),
        f"its containers may add the capabilities {', '.join(_CAPABILITIES)} alone": every(
            f"{added} || c.securityContext.capabilities.add.all(each, each in {list(_CAPABILITIES)})"
        ),
        "its containers must not take a port of the host": every(
            "!has(c.ports) || c.ports.all(p, !has(p.hostPort) || p.hostPort == 0)"
        ),
    }
    resources = ["pods", "pods/ephemeralcontainers"]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"gardener.cloud/role": "shoot"}},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": resources}
            ],
        },
        "validations": [
            {"expression": expression, "message": f"pod of a control plane: {message}", "reason": "Forbidden"}
            for message, expression in rules.items()
        ],
    }
    return _with_binding("control-plane-pods.gardener.cloud", spec)


def managed_resource_classes() -> list[dict[str, Any]]:
    """Policy of a seed, and its binding: ManagedResources of a class need rights in all namespaces.

    A seed's resource manager applies the ManagedResources of its class in all namespaces, with all rights on the seed.
    An extension writes ManagedResources in control planes to bring objects into the shoot, and these have no class.
    The writer must be able to create Secrets in the namespace, too: otherwise an extension that has a single Secret of
    namespace ``garden`` could bring objects into the whole seed by a ManagedResource that names this Secret.
    """
    everywhere = "authorizer.group('resources.gardener.cloud').resource('managedresources').check('create').allowed()"
    secrets = "authorizer.group('').resource('secrets').namespace(request.namespace).check('create').allowed()"
    rule = {
        "apiGroups": ["resources.gardener.cloud"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["managedresources"],
    }
    classes = " || ".join(
        f"({each} != null && has({each}.spec.class) && {each}.spec.class != '')" for each in ("object", "oldObject")
    )
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        # The class of the old object counts, too: the resource manager deletes the objects of a class that is removed.
        "matchConditions": [{"name": "has-a-class", "expression": classes}],
        "validations": [
            {
                "expression": everywhere,
                "message": "ManagedResource of a class: only an identity that may create ManagedResources in all"
                " namespaces may write it",
                "reason": "Forbidden",
            },
            {
                "expression": secrets,
                "message": "ManagedResource of a class: only an identity that may create Secrets in its namespace may"
                " write it",
                "reason": "Forbidden",
            },
        ],
    }
    return _with_binding("managed-resource-classes.gardener.cloud", spec)


def _with_binding(name: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
