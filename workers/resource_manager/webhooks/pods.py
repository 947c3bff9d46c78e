"""Changes that the webhooks make to a new pod. Source: spec/resource-manager.md 7."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from api.constants import TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.resources import NODE, SERVICE_ACCOUNT
from kube.cache import Cache, Caches
from kube.client import KubeClient, Object
from workers.lib.reviews import Refusal, Review, change
from workers.resource_manager.config import (
    KubernetesServiceHost,
    PodSchedulerName,
    ProjectedTokenMount,
    SystemComponentsConfig,
)

Answer = Callable[[Review], Awaitable[dict[str, Any]]]

_MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the object with which a kubelet shows a static pod. The pod runs as it is in the kubelet's file."""
_SYNC_SECONDS = 5.0
_DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler that the API server enters into pods that choose none."""
_HASH = "pod-template-hash"
_HOST = "KUBERNETES_SERVICE_HOST"
_EXPIRATION = "projected-token-mount.resources.gardener.cloud/expiration-seconds"
_TOKEN_VOLUME = "kube-api-access-gardener"
_TOKEN_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
_TEMPORARY_TAINTS = ("ToBeDeletedByClusterAutoscaler", TAINT_CRITICAL_COMPONENTS_NOT_READY)
"""Taints that system components respect, too: a node that ends, and a node whose critical components start."""


def on_new_pods(mutate: Callable[[Object, Review], Awaitable[None]]) -> Answer:
    """Webhook that changes a copy of each new pod. Static pods stay as they are."""

    async def answer(review: Review) -> dict[str, Any]:
        pod = review.object
        if pod is None or _MIRROR in (pod["metadata"].get("annotations") or {}):
            return {}
        changed = deepcopy(pod)
        await mutate(changed, review)
        return change(pod, changed)

    return answer


def mount_token(target: KubeClient, config: ProjectedTokenMount) -> Answer:
    """Mount a token into pods whose ServiceAccount says that the API server mounts none."""

    async def mutate(pod: Object, review: Review) -> None:
        spec = pod["spec"]
        account = spec.get("serviceAccountName") or "default"
        volumes: list[Object] = spec.setdefault("volumes", [])
        if account == "default" or spec.get("automountServiceAccountToken") is False:
            return
        if any(each["name"].startswith("kube-api-access-") for each in volumes):
            return
        found = await target.find(SERVICE_ACCOUNT, account, review.namespace)
        if found is None or found.get("automountServiceAccountToken") is not False:
            return
        volumes.append(_token_volume(_expiration(pod, config)))
        for each in _containers(spec):
            mounts = each.setdefault("volumeMounts", [])
            if all(mount["mountPath"] != _TOKEN_DIRECTORY for mount in mounts):
                mounts.append({"name": _TOKEN_VOLUME, "mountPath": _TOKEN_DIRECTORY, "readOnly": True})

    return on_new_pods(mutate)


def _expiration(pod: Object, config: ProjectedTokenMount) -> int:
    given = (pod["metadata"].get("annotations") or {}).get(_EXPIRATION)
    if given is None:
        return config.expiration_seconds
    try:
        return int(given)
    except ValueError:
        fault = f"annotation {_EXPIRATION} is {given!r}: it must be a number of seconds"
        raise Refusal(422, "Invalid", fault) from None


def _token_volume(seconds: int) -> Object:
    namespace = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "name": _TOKEN_VOLUME,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": seconds, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
            ],
        },
    }


def service_host(config: KubernetesServiceHost) -> Answer:
    """Give containers the host name of the API server, so that their requests need no proxy on the node."""

    async def mutate(pod: Object, _: Review) -> None:
        for each in _containers(pod["spec"]):
            variables = each.setdefault("env", [])
            if all(variable["name"] != _HOST for variable in variables):
                variables.append({"name": _HOST, "value": config.host})

    return on_new_pods(mutate)


def default_scheduler(config: PodSchedulerName) -> Answer:
    """Let the configured scheduler place pods that choose none. Pods that choose another scheduler keep it."""

    async def mutate(pod: Object, _: Review) -> None:
        if pod["spec"].get("schedulerName", _DEFAULT_SCHEDULER) in ("", _DEFAULT_SCHEDULER):
            pod["spec"]["schedulerName"] = config.scheduler_name

    return on_new_pods(mutate)


def _containers(spec: Object) -> Iterator[Object]:
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


async def _spread(pod: Object, _: Review) -> None:
    revision = (pod["metadata"].get("labels") or {}).get(_HASH)
    for each in pod["spec"].get("topologySpreadConstraints") or ():
        # A constraint without a selector counts no pods at all.
        if revision is None or each.get("labelSelector") is None:
            continue
        each["labelSelector"].setdefault("matchLabels", {})[_HASH] = revision
        # An API server refuses a label that both fields name.
        if _HASH in (keys := each.pop("matchLabelKeys", [])):
            keys = [key for key in keys if key != _HASH]
        if keys:
            each["matchLabelKeys"] = keys


spread_each_revision = on_new_pods(_spread)
"""Spread the pods of each revision of a Deployment by themselves: pods of the old revision are about to end."""


async def _confine(pod: Object, _: Review) -> None:
    context: Object = pod["spec"].get("securityContext") or {}
    if not context.get("seccompProfile"):
        pod["spec"]["securityContext"] = {**context, "seccompProfile": {"type": "RuntimeDefault"}}


default_seccomp_profile = on_new_pods(_confine)
"""Confine pods that choose no profile to the system calls that the container runtime allows by default."""


def place_system_components(target_caches: Caches, config: SystemComponentsConfig) -> Answer:
    """Run pods on nodes for system components, and tolerate the taints of these nodes."""
    nodes = target_caches.of(NODE)

    async def mutate(pod: Object, _: Review) -> None:
        owners = pod["metadata"].get("ownerReferences") or ()
        if any(each["kind"] == "DaemonSet" for each in owners):
            return
        spec = pod["spec"]
        if config.pod_node_selector:
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **config.pod_node_selector}
        tolerations: list[Object] = spec.setdefault("tolerations", [])
        for each in (*config.pod_tolerations, *await _tolerations_of(nodes, config.node_selector)):
            if each not in tolerations:
                tolerations.append(dict(each))

    return on_new_pods(mutate)


async def _tolerations_of(nodes: Cache, selector: Mapping[str, str]) -> Sequence[Object]:
    """Tolerations of the taints of all nodes with these labels."""
    if not nodes.is_synced:
        await nodes.synced(_SYNC_SECONDS)
    matching = (each for each in nodes.list() if selector.items() <= (each["metadata"].get("labels") or {}).items())
    taints = (taint for each in matching for taint in each["spec"].get("taints") or ())
    return [_toleration(each) for each in taints if _is_lasting(each["key"])]


def _is_lasting(key: str) -> bool:
    return "kubernetes.io/" not in key and key not in _TEMPORARY_TAINTS


def _toleration(taint: Object) -> Object:
    operator: Object = {"operator": "Equal", "value": taint["value"]} if taint.get("value") else {"operator": "Exists"}
    return {"key": taint["key"], **operator, "effect": taint["effect"]}
