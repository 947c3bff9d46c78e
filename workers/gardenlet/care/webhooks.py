"""Finds webhooks of a shoot's owner that can keep the cluster from working, and makes them harmless.

While the server of a webhook is down, as it always is when a cluster wakes up, the API server refuses all requests for
which it must call the webhook. So it must not have to call the webhook for resources that the cluster needs to start.
Source: spec/flows.md 10.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api import constants
from api.decisions.conditions import WEBHOOK_CONSTRAINTS, Finding
from api.resources import ObjectView

LONGEST_TIMEOUT = 15
LONGEST_TIMEOUT_OF_LEASES = 3
"""Seconds; leases are renewed every few seconds."""
EXCLUDE = "remediation.webhook.shoot.gardener.cloud/exclude"
REMEDIED = "gardener.cloud/warning"
"""Annotation on a configuration that Gardener has changed; it tells the owner why."""
_WARNING = "DO NOT EDIT: Gardener has changed webhooks that could have kept this cluster from working."
_KUBE_SYSTEM = {
    "kubernetes.io/metadata.name": "kube-system",
    "gardener.cloud/purpose": "kube-system",
    constants.SHOOT_NO_CLEANUP: "true",
}
_DEFAULT = {"kubernetes.io/metadata.name": "default"}
_NODE_LEASES = {"kubernetes.io/metadata.name": "kube-node-lease"}
_SYSTEM_OBJECTS: tuple[Mapping[str, str], ...] = (
    {},
    {
        constants.MANAGED_RESOURCE_ORIGIN: constants.ORIGIN_GARDENER,
        "resources.gardener.cloud/managed-by": constants.ORIGIN_GARDENER,
        constants.SHOOT_NO_CLEANUP: "true",
        constants.ROLE: "system-component",
    },
)
"""Labels that objects of system components may have."""


@dataclass(frozen=True)
class Critical:
    """Resources that a cluster cannot start without."""

    group: str
    resources: tuple[str, ...]
    namespaces: tuple[Mapping[str, str], ...] = ()
    """Labels of the namespaces that count; none for cluster-scoped resources."""
    objects: tuple[Mapping[str, str], ...] = ()
    """Labels of the objects that count, if they are known; none: ``_SYSTEM_OBJECTS``."""
    operations: tuple[str, ...] = ("CREATE", "UPDATE")


_IN_SYSTEM = (_KUBE_SYSTEM,)
CRITICAL = (
    Critical(
        "",
        ("pods", "pods/status", "configmaps", "endpoints", "secrets", "serviceaccounts", "services", "services/status"),
        _IN_SYSTEM,
    ),
    Critical("", ("nodes", "nodes/status")),
    Critical("", ("namespaces", "namespaces/status", "namespaces/finalize"), objects=_IN_SYSTEM),
    # The Service ``kubernetes`` and its endpoints, by which pods reach their API server.
    Critical("", ("endpoints", "services", "services/status"), (_DEFAULT,)),
    Critical("discovery.k8s.io", ("endpointslices",), (_DEFAULT,)),
    Critical(
        "apps",
        (
            "controllerrevisions",
            "daemonsets",
            "daemonsets/status",
            "deployments",
            "deployments/scale",
            "replicasets",
            "replicasets/scale",
        ),
        _IN_SYSTEM,
    ),
    Critical("coordination.k8s.io", ("leases",), (_KUBE_SYSTEM, _NODE_LEASES)),
    Critical("networking.k8s.io", ("networkpolicies",), _IN_SYSTEM),
    Critical("discovery.k8s.io", ("endpointslices",), _IN_SYSTEM),
    Critical("rbac.authorization.k8s.io", ("clusterroles", "clusterrolebindings")),
    Critical("rbac.authorization.k8s.io", ("roles", "rolebindings"), _IN_SYSTEM),
    Critical("apiextensions.k8s.io", ("customresourcedefinitions", "customresourcedefinitions/status")),
    Critical("apiregistration.k8s.io", ("apiservices", "apiservices/status")),
    Critical(
        "certificates.k8s.io",
        ("certificatesigningrequests", "certificatesigningrequests/status", "certificatesigningrequests/approval"),
    ),
    Critical("scheduling.k8s.io", ("priorityclasses",)),
    Critical("", ("nodes",), operations=("DELETE",)),
)
"""Resources that a cluster's controllers, its nodes and our resource manager write when the cluster starts, and the
nodes, without whose deletion no machine ends: a cluster would not hibernate."""


def fault(webhook: ObjectView) -> str | None:
    """Why one webhook can keep the cluster from working; None if it cannot."""
    touched = list(_touched(webhook))
    if not touched:
        return None
    policy = webhook.get("failurePolicy") or "Fail"
    timeout = webhook.get("timeoutSeconds")
    critical, resource = touched[0]
    what = "/".join(filter(None, (critical.group, resource)))
    if critical.operations == ("DELETE",):
        what = f"the deletion of {what}"
    if policy == "Fail":
        return f"it is called for {what} with failurePolicy Fail"
    longest = _longest(touched)
    if timeout is None or timeout > longest:
        shown = "no timeoutSeconds" if timeout is None else f"timeoutSeconds {timeout}"
        return f"it is called for {what} with {shown}; {longest} is allowed"
    return None


def _longest(touched: Iterable[tuple[Critical, str]]) -> int:
    leases = any(critical.group == "coordination.k8s.io" for critical, _ in touched)
    return LONGEST_TIMEOUT_OF_LEASES if leases else LONGEST_TIMEOUT


def _touched(webhook: ObjectView) -> Iterator[tuple[Critical, str]]:
    """Critical resources for which the API server calls a webhook."""
    for critical in CRITICAL:
        if critical.namespaces and not any(
            selects(webhook.get("namespaceSelector"), each) for each in critical.namespaces
        ):
            continue
        if not any(selects(webhook.get("objectSelector"), each) for each in critical.objects or _SYSTEM_OBJECTS):
            continue
        # The API server compares the namespace selector with the labels of a Namespace that is itself written.
        itself = critical.objects if "namespaces" in critical.resources else ()
        if itself and not any(selects(webhook.get("namespaceSelector"), each) for each in itself):
            continue
        for resource in critical.resources:
            if any(_covers(rule, critical, resource) for rule in webhook.get("rules") or ()):
                yield critical, resource


def _covers(rule: ObjectView, critical: Critical, resource: str) -> bool:
    if not {*critical.operations, "*"} & set(rule.get("operations") or ()):
        return False
    if not {critical.group, "*"} & set(rule.get("apiGroups") or ()):
        return False
    if rule.get("scope") == ("Cluster" if critical.namespaces else "Namespaced"):
        return False
    plural, _, sub = resource.partition("/")
    named = {resource, f"*/{sub}" if sub else "*", f"{plural}/*", "*/*"}
    return bool(named & set(rule.get("resources") or ()))


def selects(selector: ObjectView | None, labels: Mapping[str, str]) -> bool:
    """Whether a Kubernetes label selector matches these labels; an empty selector matches all."""
    if not selector:
        return True
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(each, labels) for each in selector.get("matchExpressions") or ())


def _expression(expression: ObjectView, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def outline(configuration: ObjectView) -> dict[str, Any]:
    """A configuration without long fields that are not read: CAs of the webhooks' servers, and managedFields."""
    metadata = {key: value for key, value in configuration["metadata"].items() if key != "managedFields"}
    webhooks = [
        {key: value for key, value in each.items() if key != "clientConfig"}
        for each in configuration.get("webhooks") or ()
    ]
    return {**configuration, "metadata": metadata, "webhooks": webhooks}


def theirs(configurations: Iterable[ObjectView]) -> list[ObjectView]:
    """Configurations that Gardener does not manage. Its own need no check."""
    return [
        each
        for each in configurations
        if (each["metadata"].get("labels") or {}).get("resources.gardener.cloud/managed-by") != "gardener"
    ]


def constraints(configurations: Sequence[ObjectView]) -> list[Finding]:
    """HibernationPossible and MaintenancePreconditionsSatisfied, from all webhook configurations of the shoot."""
    types = WEBHOOK_CONSTRAINTS
    for each in sorted(theirs(configurations), key=lambda one: one["metadata"]["name"]):
        name = f"{each['kind']} {each['metadata']['name']}"
        if (each["metadata"].get("annotations") or {}).get(REMEDIED) == _WARNING:
            text = f"Gardener changed {name} to keep the cluster working: correct it, then remove annotation {REMEDIED}"
            return [
                Finding(type_, "False", "RemediatedWebhooks", text, ("ERR_PROBLEMATIC_WEBHOOK",)) for type_ in types
            ]
        for webhook in each.get("webhooks") or ():
            if why := fault(webhook):
                text = f"webhook {webhook['name']} of {name} can keep the cluster from working: {why}"
                return [
                    Finding(type_, "False", "ProblematicWebhooks", text, ("ERR_PROBLEMATIC_WEBHOOK",))
                    for type_ in types
                ]
    text = "No webhook can keep the cluster from working."
    return [Finding(type_, "True", "NoProblematicWebhooks", text) for type_ in types]


def remedy(configuration: ObjectView) -> list[dict[str, Any]] | None:
    """A JSON patch that makes a configuration harmless.

    None if the configuration is harmless, or Gardener manages it, or its owner has excluded it by a label.
    """
    metadata = configuration["metadata"]
    if (metadata.get("labels") or {}).get(EXCLUDE) == "true" or not theirs([configuration]):
        return None
    patch: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        if fault(webhook) is None:
            continue
        if (webhook.get("failurePolicy") or "Fail") == "Fail":
            patch.append({"op": "add", "path": f"/webhooks/{index}/failurePolicy", "value": "Ignore"})
        longest, timeout = _longest(_touched(webhook)), webhook.get("timeoutSeconds")
        if timeout is None or timeout > longest:
            patch.append({"op": "add", "path": f"/webhooks/{index}/timeoutSeconds", "value": longest})
    if not patch:
        return None
    annotations = {**(metadata.get("annotations") or {}), REMEDIED: _WARNING}
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    return [test, {"op": "add", "path": "/metadata/annotations", "value": annotations}, *patch]
