"""Webhooks of the resource managers: the configurations by which API servers call them.

A gardenlet registers those of a Shoot by a ManagedResource, a resource manager of a seed registers its own. Paths,
objects, failure policies and timeouts: spec/resource-manager.md 6.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import high_availability
from api.constants import ROLE
from kube.objects import selector_of

PORT = 10250
"""Port of the pods; their Services have port 443."""
OF_SEED, OF_SHOOT = "gardener-resource-manager", "gardener-resource-manager-shoot"
"""Names of the configurations."""
SEED_SERVICE = "gardener-resource-manager-webhooks"
"""Service of the seed's instance. It has an address, unlike the Service of that instance's metrics."""

NODE_AGENT_AUTHORIZER_PATH = "/webhooks/auth/nodeagent"

PROJECTED_TOKEN_MOUNT = "projected-token-mount"
KUBERNETES_SERVICE_HOST = "kubernetes-service-host"
POD_TOPOLOGY_SPREAD_CONSTRAINTS = "pod-topology-spread-constraints"
SYSTEM_COMPONENTS_CONFIG = "system-components-config"
SECCOMP_PROFILE = "seccomp-profile"
ENDPOINT_SLICE_HINTS = "endpoint-slice-hints"
HIGH_AVAILABILITY_CONFIG = "high-availability-config"
POD_SCHEDULER_NAME = "pod-scheduler-name"
TOKEN_INVALIDATOR = "token-invalidator"
TOKEN_INVALIDATOR_CONSIDER = "token-invalidator.resources.gardener.cloud/consider"
"""Label of Secrets whose token is to be invalid: ``true``."""
VPA_IN_PLACE_UPDATES = "vpa-in-place-updates"

_SYSTEM_NAMESPACES = ["kube-system", "kubernetes-dashboard"]
_NO_INJECTION = {
    "key": "apiserver-proxy.networking.gardener.cloud/inject",
    "operator": "NotIn",
    "values": ["disable"],
}
_MANAGED = {"key": "resources.gardener.cloud/managed-by", "operator": "In", "values": ["gardener"]}
# Pods of the charts, the gardenlet for example, have label app=gardener. If they waited for the webhooks, a seed that
# lost its resource manager could not get one again: the gardenlet deploys it.
_NEVER_HELD = {"key": "app", "operator": "NotIn", "values": ["gardener", "gardener-resource-manager"]}


@dataclass(frozen=True)
class Webhook:
    """One webhook, for all instances that serve it."""

    path: str
    rules: tuple[Manifest, ...]
    skip: str = ""
    """Label by which an object opts out, whatever its value."""
    chosen: str = ""
    """Label that an object must have with value ``true``."""
    namespaces: str = ""
    """Label that a namespace must have with value ``true``."""
    managed_only: bool = False
    """In a Shoot, only for objects of ManagedResources."""
    chosen_by_controller: bool = False
    """A controller of the instance sets the label ``chosen``, in all namespaces."""
    everywhere: bool = False
    """In a Shoot, for all namespaces."""
    injects: bool = False
    """A namespace or pod opts out by label ``apiserver-proxy.networking.gardener.cloud/inject=disable``."""
    failure_policy: str = "Fail"
    timeout: int = 10


def _on(group: str, version: str, plurals: Collection[str], *operations: str) -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": list(plurals),
        "operations": list(operations),
        "scope": "Namespaced",
    }


_NEW_PODS = (_on("", "v1", ["pods"], "CREATE"),)

WEBHOOKS = {
    HIGH_AVAILABILITY_CONFIG: Webhook(
        "/webhooks/high-availability-config",
        (
            _on("apps", "v1", ["deployments", "statefulsets"], "CREATE", "UPDATE"),
            _on("autoscaling", "v2", ["horizontalpodautoscalers"], "CREATE", "UPDATE"),
        ),
        skip=high_availability.SKIP,
        namespaces=high_availability.CONSIDER,
        managed_only=True,
    ),
    PROJECTED_TOKEN_MOUNT: Webhook(
        "/webhooks/mount-projected-service-account-token",
        _NEW_PODS,
        skip="projected-token-mount.resources.gardener.cloud/skip",
    ),
    KUBERNETES_SERVICE_HOST: Webhook(
        "/webhooks/kubernetes-service-host",
        _NEW_PODS,
        everywhere=True,
        injects=True,
        failure_policy="Ignore",
        timeout=2,
    ),
    POD_TOPOLOGY_SPREAD_CONSTRAINTS: Webhook(
        "/webhooks/pod-topology-spread-constraints",
        _NEW_PODS,
        skip="topology-spread-constraints.resources.gardener.cloud/skip",
        managed_only=True,
    ),
    SYSTEM_COMPONENTS_CONFIG: Webhook(
        "/webhooks/system-components-config",
        _NEW_PODS,
        skip="system-components-config.resources.gardener.cloud/skip",
        managed_only=True,
    ),
    SECCOMP_PROFILE: Webhook(
        "/webhooks/seccomp-profile", _NEW_PODS, skip="seccompprofile.resources.gardener.cloud/skip"
    ),
    # Kubernetes copies labels of a Service to its EndpointSlices.
    ENDPOINT_SLICE_HINTS: Webhook(
        "/webhooks/endpoint-slice-hints",
        (_on("discovery.k8s.io", "v1", ["endpointslices"], "CREATE", "UPDATE"),),
        chosen="endpoint-slice-hints.resources.gardener.cloud/consider",
    ),
    POD_SCHEDULER_NAME: Webhook(
        "/webhooks/default-pod-scheduler-name", _NEW_PODS, everywhere=True, failure_policy="Ignore"
    ),
    VPA_IN_PLACE_UPDATES: Webhook(
        "/webhooks/vpa-in-place-updates",
        (_on("autoscaling.k8s.io", "v1", ["verticalpodautoscalers"], "CREATE", "UPDATE"),),
        skip="vpa-in-place-updates.resources.gardener.cloud/skip",
    ),
    TOKEN_INVALIDATOR: Webhook(
        "/webhooks/invalidate-service-account-token-secret",
        (_on("", "v1", ["secrets"], "CREATE", "UPDATE"),),
        chosen=TOKEN_INVALIDATOR_CONSIDER,
        chosen_by_controller=True,
    ),
}
"""All webhooks by name, in the order in which an API server calls them."""


@dataclass(frozen=True)
class Registered:
    """The webhooks that one instance serves."""

    names: tuple[str, ...]
    """Names in ``WEBHOOKS``."""
    client: Callable[[str], Manifest] = field(repr=False)
    """The field ``clientConfig`` of the webhook with this path."""
    shoot: bool = False


def by_url(host: str, bundle: str) -> Callable[[str], Manifest]:
    """Calls of a Shoot's API server, which runs beside the resource manager. ``bundle``: PEM in base64."""
    return lambda path: {"url": f"https://{host}:443{path}", "caBundle": bundle}


def by_service(name: str, namespace: str, bundle: str, *, port: int = 443) -> Callable[[str], Manifest]:
    """Calls of a seed's API server. ``bundle``: PEM in base64."""
    return lambda path: {
        "service": {"name": name, "namespace": namespace, "path": path, "port": port},
        "caBundle": bundle,
    }


def configuration(registered: Registered) -> Manifest:
    """The configuration of an instance's webhooks."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": base.metadata(
            OF_SHOOT if registered.shoot else OF_SEED,
            labels={"remediation.webhook.shoot.gardener.cloud/exclude": "true"},
        ),
        "webhooks": [
            {
                "name": f"{name}.resources.gardener.cloud",
                "admissionReviewVersions": ["v1"],
                "clientConfig": registered.client(each.path),
                "failurePolicy": each.failure_policy,
                "matchPolicy": "Equivalent",
                "namespaceSelector": {"matchExpressions": _namespaces(each, shoot=registered.shoot)},
                "objectSelector": {"matchExpressions": _objects(each, shoot=registered.shoot)},
                "reinvocationPolicy": "Never",
                "rules": list(each.rules),
                "sideEffects": "None",
                "timeoutSeconds": each.timeout,
            }
            for name, each in WEBHOOKS.items()
            if name in registered.names
        ],
    }


def selectors(name: str, *, shoot: bool) -> tuple[str, str]:
    """Label selectors of the namespaces and of the objects for which an API server calls a webhook."""
    webhook = WEBHOOKS[name]
    namespaces, objects = _namespaces(webhook, shoot=shoot), _objects(webhook, shoot=shoot)
    return selector_of({"matchExpressions": namespaces}), selector_of({"matchExpressions": objects})


def _namespaces(webhook: Webhook, *, shoot: bool) -> list[dict[str, Any]]:
    name = "kubernetes.io/metadata.name"
    if webhook.chosen_by_controller:
        return []
    if shoot and webhook.everywhere:
        return [_NO_INJECTION] if webhook.injects else []
    chosen = [{"key": webhook.namespaces, "operator": "In", "values": ["true"]}] if webhook.namespaces else []
    if shoot:
        return [*chosen, {"key": name, "operator": "In", "values": _SYSTEM_NAMESPACES}]
    return [
        *chosen,
        {"key": ROLE, "operator": "Exists"},
        {"key": name, "operator": "NotIn", "values": _SYSTEM_NAMESPACES},
    ]


def _objects(webhook: Webhook, *, shoot: bool) -> list[dict[str, Any]]:
    return [
        *([_NO_INJECTION] if webhook.injects else []),
        *([{"key": webhook.skip, "operator": "DoesNotExist"}] if webhook.skip else []),
        *([{"key": webhook.chosen, "operator": "In", "values": ["true"]}] if webhook.chosen else []),
        *([_MANAGED] if webhook.managed_only and shoot else []),
        *([] if shoot else [_NEVER_HELD]),
    ]
