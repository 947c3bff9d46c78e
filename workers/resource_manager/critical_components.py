"""Removes the taint of a new node once the node's critical components are ready, so that other pods may start there.

Kubelets register their Node with the taint. The kubelet itself reports a node ready before, for example, kube-proxy
runs there: a pod would then start on a node without Service addresses.
Source: spec/resource-manager.md 5 (Node critical components).
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from api.constants import NODE_CRITICAL_COMPONENT, TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.resources import CSI_NODE, DAEMON_SET, NODE, POD
from kube.cache import Cache, Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.errors import NotFound
from kube.events import emit
from kube.objects import has_taint

_log = logging.getLogger(__name__)

_NAMESPACE = "kube-system"
_COMPONENT = "gardener-resource-manager"
_LABEL = f"{NODE_CRITICAL_COMPONENT}=true"
_WAIT_FOR_DRIVER = "node.gardener.cloud/wait-for-csi-node-"
"""Begin of a pod's annotation whose value names a CSI driver. The driver must be registered at the node, too."""
_TOLERATED_BY_DAEMONS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/network-unavailable",
    }
)
"""Taints for which the DaemonSet controller adds tolerations to its pods."""


class CriticalComponents:
    """Watches Nodes with the taint, and in kube-system the DaemonSets and pods with the label."""

    def __init__(self, target: KubeClient, caches: Caches, *, workers: int = 5, backoff: float = 10.0) -> None:
        """``caches``: made with ``keep=slim``. ``backoff``: seconds after which an unready node is checked again."""
        self._target = target
        self._backoff = backoff
        self._nodes = caches.of(NODE)
        self._pods = caches.of(POD, _NAMESPACE, labels=_LABEL)
        self._daemon_sets = caches.of(DAEMON_SET, _NAMESPACE, labels=_LABEL)
        self._controller = Controller(
            "node-critical-components", self._reconcile, workers=workers, first_delay=0.2, longest_delay=15.0
        )

    async def run(self) -> None:
        """Run until cancelled."""
        for cache in self._caches():
            await cache.synced()
        self._controller.watch(self._nodes, when=_is_new)
        # A pod that gets ready may be the last one that its node waits for.
        self._controller.watch(self._pods, keys=lambda event: _node_of(event.object), when=_is_news)
        await self._controller.run()

    def _caches(self) -> tuple[Cache, ...]:
        return self._nodes, self._pods, self._daemon_sets

    async def _reconcile(self, key: Key) -> Requeue | None:
        """Remove the taint, or write an Event that says why it stays. A second run finds the Node without the taint."""
        if (known := self._nodes.get(key.name)) is None or not _has_taint(known):
            return None
        for cache in self._caches():
            cache.touch()
        try:
            node = await self._target.get(NODE, key.name)
        except NotFound:
            return None
        if not _has_taint(node):
            return None
        pods = [pod for pod in self._pods.list() if (pod.get("spec") or {}).get("nodeName") == key.name]
        found = (
            _missing(node, self._daemon_sets.list(), pods) or _unready(pods) or await self._without_driver(node, pods)
        )
        if found is not None:
            reason, message = found
            await emit(self._target, node, _COMPONENT, reason, message, "Warning")
            return Requeue(self._backoff)
        taints = [each for each in node["spec"]["taints"] if each["key"] != TAINT_CRITICAL_COMPONENTS_NOT_READY]
        # Raises Conflict, and is retried, if another component has changed the list since it was read.
        await patch_as_read(self._target, NODE, node, {"spec": {"taints": taints or None}})
        message = "All node-critical components are ready: the taint is removed"
        await emit(self._target, node, _COMPONENT, "NodeCriticalComponentsReady", message)
        _log.info("the critical components of node %s are ready", key.name)
        return None

    async def _without_driver(self, node: Object, pods: Iterable[Object]) -> tuple[str, str] | None:
        wanted = {
            value
            for pod in pods
            for name, value in (pod["metadata"].get("annotations") or {}).items()
            if name.startswith(_WAIT_FOR_DRIVER)
        }
        if not wanted:
            return None
        csi_node = await self._target.find(CSI_NODE, node["metadata"]["name"]) or {}
        present = {driver["name"] for driver in (csi_node.get("spec") or {}).get("drivers") or ()}
        if missing := sorted(wanted - present):
            return "UnreadyRequiredCSIDrivers", f"CSI drivers are not registered at the node: {', '.join(missing)}"
        return None


def slim(obj: Object) -> Object:
    """The parts of Nodes, pods and DaemonSets that the controller reads: a cluster may have thousands of pods."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    kept = {key: value for key, value in metadata.items() if key not in ("managedFields", "labels", "annotations")}
    annotations = metadata.get("annotations") or {}
    kept["annotations"] = {key: value for key, value in annotations.items() if key.startswith(_WAIT_FOR_DRIVER)}
    made: Object = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": kept}
    if "template" in spec:
        template = spec["template"]
        pod = {key: template["spec"].get(key) for key in ("nodeSelector", "affinity", "tolerations", "nodeName")}
        made["spec"] = {"template": {"metadata": {"labels": template["metadata"].get("labels")}, "spec": pod}}
        return made
    made["spec"] = {key: spec[key] for key in ("nodeName", "taints") if key in spec}
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    made["status"] = {"conditions": [{"type": "Ready", "status": each.get("status")} for each in ready]}
    return made


def _missing(node: Object, daemon_sets: Iterable[Object], pods: Iterable[Object]) -> tuple[str, str] | None:
    present = {
        owner["uid"]
        for pod in pods
        for owner in pod["metadata"].get("ownerReferences") or ()
        if owner.get("controller") and owner["kind"] == DAEMON_SET.kind
    }
    missing = sorted(
        str(key_of(each))
        for each in daemon_sets
        if (each["spec"]["template"]["metadata"].get("labels") or {}).get(NODE_CRITICAL_COMPONENT) == "true"
        and each["metadata"]["uid"] not in present
        and runs_on(each["spec"]["template"]["spec"], node)
    )
    if not missing:
        return None
    text = f"Node-critical DaemonSets have no pod on the node: {', '.join(missing)}"
    return "UnscheduledNodeCriticalDaemonSets", text


def _unready(pods: Iterable[Object]) -> tuple[str, str] | None:
    unready = sorted(str(key_of(pod)) for pod in pods if not _is_ready(pod))
    if not unready:
        return None
    return "UnreadyNodeCriticalPods", f"Node-critical pods on the node are not ready: {', '.join(unready)}"


def runs_on(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether the DaemonSet controller creates a pod of this specification on the node."""
    labels, name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
    if pod.get("nodeName") not in (None, "", name):
        return False
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not any(
        _matches(term, labels, name) for term in required.get("nodeSelectorTerms") or ()
    ):
        return False
    ours = {*_TOLERATED_BY_DAEMONS, TAINT_CRITICAL_COMPONENTS_NOT_READY}
    taints = [
        each
        for each in (node.get("spec") or {}).get("taints") or ()
        if each["effect"] != "PreferNoSchedule" and each["key"] not in ours
    ]
    return all(any(_tolerates(each, taint) for each in pod.get("tolerations") or ()) for taint in taints)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """Whether a node satisfies a term of a required node affinity. A term without requirements matches no node."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    return bool(expressions or fields) and all(
        [
            *(_satisfies(each, labels.get(each["key"])) for each in expressions),
            *(_satisfies(each, name if each["key"] == "metadata.name" else None) for each in fields),
        ]
    )


def _satisfies(requirement: Mapping[str, Any], value: str | None) -> bool:
    values = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and values:
            try:
                return int(value) > int(values[0]) if requirement["operator"] == "Gt" else int(value) < int(values[0])
            except ValueError:
                return False
    return False


def _has_taint(node: Mapping[str, Any]) -> bool:
    return has_taint(node, TAINT_CRITICAL_COMPONENTS_NOT_READY)


def _is_new(event: WatchEvent) -> bool:
    return event.type != "DELETED" and _has_taint(event.object) and not (event.old and _has_taint(event.old))


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _is_news(event: WatchEvent) -> bool:
    """Whether a pod has got ready. All other changes wait for the backoff."""
    return event.type != "DELETED" and _is_ready(event.object) and not (event.old and _is_ready(event.old))


def _node_of(pod: Mapping[str, Any]) -> list[Key]:
    name = (pod.get("spec") or {}).get("nodeName")
    return [Key(None, name)] if name else []
