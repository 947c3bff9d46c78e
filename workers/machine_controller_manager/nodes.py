"""The node of a machine: its health, its labels, annotations and taints, and its drain."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from api.constants import EXCLUDED_FROM_LOAD_BALANCERS
from api.decisions.conditions import find_condition
from api.labels import matches
from api.machine.in_place import CONDITION
from api.meta import LabelSelector
from api.resources import NODE, POD, POD_DISRUPTION_BUDGET
from api.times import timestamp
from kube.client import KubeClient, Object, Objects
from kube.errors import ApiError, NotFound
from workers.machine_controller_manager.objects import age_of

log = logging.getLogger(__name__)

_LAST_APPLIED = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
"""Annotation of a Node: labels, annotations and taints that were last applied from its machine's template, so that they
can be removed again."""
_CARED_CONDITIONS = ("type", "status", "reason", "message", "lastTransitionTime")
_CORDONED: Object = {"spec": {"unschedulable": True}}
_LEAVES: Object = {"metadata": {"labels": {EXCLUDED_FROM_LOAD_BALANCERS: "true"}}, **_CORDONED}
DEFAULT_BAD_CONDITIONS = ("KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable")
"""A node with one of these conditions counts like one that is not Ready. Source: machine-controller-manager."""


def fault(node: Mapping[str, Any], bad: Sequence[str] = DEFAULT_BAD_CONDITIONS) -> str | None:
    """Why pods cannot run on a node, None if they can. ``bad``: conditions that must not be True."""
    conditions = {each["type"]: each for each in node.get("status", {}).get("conditions") or []}
    if conditions.get("Ready", {}).get("status") != "True":
        return "its node is not Ready"
    holding = [conditions[each] for each in bad if conditions.get(each, {}).get("status") == "True"]
    told = ", ".join(f"{each['type']} ({each['reason']})" if each.get("reason") else each["type"] for each in holding)
    return f"its node has {told}" if told else None


def unready_for(node: Mapping[str, Any]) -> timedelta:
    """How long a node has not been Ready; 0 for a Ready one."""
    ready = find_condition(node, "Ready")
    return age_of(ready["lastTransitionTime"]) if ready and ready["status"] != "True" else timedelta(0)


def conditions_of(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A node's conditions for its Machine's status, without heartbeat times, because these change all the time."""
    return [
        {key: each[key] for key in _CARED_CONDITIONS if key in each}
        for each in node.get("status", {}).get("conditions") or []
    ]


async def write_reason(shoot: KubeClient, node: Object, reason: str | None, message: str = "") -> Object:
    """Write the condition about a Node's in-place update, or remove it. Raises Conflict if the Node has changed."""
    now = timestamp()
    conditions = [each for each in (node.get("status") or {}).get("conditions") or [] if each["type"] != CONDITION]
    if reason is not None:
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        conditions.append({"type": CONDITION, "status": "True", "reason": reason, "message": message, **times})
    metadata = node["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"conditions": conditions}}
    return await shoot.patch(NODE, metadata["name"], None, patch, subresource="status")


def template_patch(
    node: Mapping[str, Any], template: Mapping[str, Any], provider_id: str | None = None
) -> dict[str, Any] | None:
    """Merge patch that applies its machine's template to a node; None if the node has all of it.

    Labels, annotations and taints of other components stay; those of an earlier template are removed. The provider id,
    by which the cluster autoscaler finds a node's machine, is set once and never changed.
    """
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    wanted: dict[str, Any] = {
        "annotations": dict(metadata.get("annotations") or {}),
        "labels": dict(metadata.get("labels") or {}),
        "taints": list(spec.get("taints") or []),
    }
    live = node["metadata"]
    annotations = live.get("annotations") or {}
    last = json.loads(annotations.get(_LAST_APPLIED) or "{}")
    encoded = json.dumps(wanted, sort_keys=True)
    patch: dict[str, Any] = {}
    for field in ("annotations", "labels"):
        have = live.get(field) or {}
        changes: dict[str, Any] = {key: value for key, value in wanted[field].items() if have.get(key) != value}
        changes |= {key: None for key in last.get(field) or {} if key not in wanted[field] and key in have}
        if changes:
            patch.setdefault("metadata", {})[field] = changes
    if annotations.get(_LAST_APPLIED) != encoded:
        patch.setdefault("metadata", {}).setdefault("annotations", {})[_LAST_APPLIED] = encoded
        taints = _taints(node["spec"].get("taints") or [], last.get("taints") or [], wanted["taints"])
        if taints != (node["spec"].get("taints") or []):
            patch["spec"] = {"taints": taints}
    if provider_id and not node["spec"].get("providerID"):
        patch.setdefault("spec", {})["providerID"] = provider_id
    return patch or None


def _taints(live: Objects, last: Objects, wanted: Objects) -> Objects:
    def key(taint: Mapping[str, Any]) -> tuple[str, str]:
        return str(taint["key"]), str(taint["effect"])

    ours = {key(each) for each in (*last, *wanted)}
    return [each for each in live if key(each) not in ours] + list(wanted)


@dataclass(frozen=True)
class StayingPod:
    """A pod that a node's drain still waits for."""

    name: str
    """Namespace and name of the pod."""
    why: str
    hopeless: bool = False
    """The pod stays until a user changes something."""

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


DRAIN_SECONDS = 2.0
"""Seconds between two checks of a node that is being drained."""
_EVICTION_SECONDS = 20
"""Seconds that one of a machine's ``maxEvictRetries`` stands for. Source: pause between retries in
machine-controller-manager."""
_LISTED_PODS = 5
UNREADY_DRAIN = timedelta(minutes=5)
"""A node that has not been Ready for longer than this is not drained: nothing on it would answer. The same time as in
Gardener."""


async def drain(shoot: KubeClient, name: str, *, evict: bool = True, leaves: bool = False) -> list[StayingPod]:
    """Cordon a node and evict the pods on it; returns the pods that are still there.

    A node that ``leaves`` gets no new connections of load balancers any more: their checks would notice its end late.
    A PodDisruptionBudget may refuse an eviction: the next call tries again. Pods of DaemonSets, static pods and pods
    that have ended are not waited for. Without ``evict`` the pods are deleted, whatever their budgets permit.
    """
    try:
        await shoot.patch(NODE, name, None, _LEAVES if leaves else _CORDONED)
    except NotFound:
        return []
    pods = sorted(filter(is_evictable, await pods_on(shoot, name)), key=_named)
    refusals = await asyncio.gather(*(_dismiss(shoot, each, evict=evict) for each in pods))
    spaces = {each["metadata"]["namespace"] for each, refusal in zip(pods, refusals, strict=True) if refusal}
    budgets = [each for space in sorted(spaces) for each in await shoot.list(POD_DISRUPTION_BUDGET, space)]
    return [_staying(each, refusal, budgets) for each, refusal in zip(pods, refusals, strict=True)]


def may_evict(machine: Mapping[str, Any], since: timedelta) -> bool:
    """Whether a drain that began so long ago evicts pods; after that it deletes them."""
    retries = machine["spec"].get("maxEvictRetries")
    return retries is None or since < timedelta(seconds=retries * _EVICTION_SECONDS)


def listed(pods: Sequence[StayingPod]) -> str:
    """The first pods that a drain waits for, and how many there are besides."""
    more = f"; and {len(pods) - _LISTED_PODS} more" if len(pods) > _LISTED_PODS else ""
    return "; ".join(map(str, pods[:_LISTED_PODS])) + more


async def pods_on(shoot: KubeClient, name: str) -> Objects:
    """All pods of a node."""
    return await shoot.list(POD, fields=f"spec.nodeName={name}")


async def forget_pods(shoot: KubeClient, name: str) -> None:
    """Delete the pods of a machine that no longer exists: there is no kubelet to confirm their end.

    The cluster itself would delete them only after most of a minute, and the deletion of a DaemonSet waits for that.
    So a webhook of the cluster's owner that refuses a deletion, or does not answer, must not hold the machine.
    """

    async def forget(pod: Object) -> None:
        metadata = pod["metadata"]
        try:
            await shoot.delete(POD, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_seconds=0)
        except ApiError as error:
            if not 400 <= error.status <= 500:
                raise  # the API server does not answer, or is overloaded: it may answer the next request
            log.info("pod %s of machine %s is left to the cluster: %s", _named(pod), name, error)

    await asyncio.gather(*(forget(each) for each in await pods_on(shoot, name)))


def is_evictable(pod: Mapping[str, Any]) -> bool:
    """Whether a pod must be gone before its node may be deleted."""
    metadata = pod["metadata"]
    if "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}):
        return False
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    return all(owner["kind"] != "DaemonSet" for owner in metadata.get("ownerReferences") or [])


async def _dismiss(shoot: KubeClient, pod: Object, *, evict: bool) -> ApiError | None:
    """Evict or delete a pod, unless it is being deleted already. Returns the API server's refusal, None without one."""
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp"):
        return None
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    try:
        if not evict:
            await shoot.delete(POD, name, namespace, uid=uid)
            return None
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await shoot.request("POST", POD.path(namespace, name, "eviction"), body=eviction)
    except ApiError as error:
        # 404: the pod is gone; 409: another pod has its name by now. Any other refusal lasts at most until the drain's
        # timeout.
        return None if error.status in (404, 409) else error
    return None


def _staying(pod: Object, refusal: ApiError | None, budgets: Objects) -> StayingPod:
    if refusal is None:
        return StayingPod(_named(pod), "it is ending")
    labels = pod["metadata"].get("labels") or {}
    own = [
        each
        for each in budgets
        if each["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and matches(LabelSelector.model_validate(each["spec"].get("selector") or {}), labels)
    ]
    names = " and ".join(f"PodDisruptionBudget {_named(each)}" for each in own)
    if len(own) > 1:
        return StayingPod(_named(pod), f"{names} select it, evictions obey only one", hopeless=True)
    if refusal.status != 429 or not own:
        return StayingPod(_named(pod), f"its eviction was refused: {refusal.status} {refusal.reason}")
    if _never_permits(own[0]):
        # The words of Gardener's machine-controller-manager: other components search messages for them.
        return StayingPod(_named(pod), f"{names} is misconfigured and requires zero voluntary evictions", hopeless=True)
    return StayingPod(_named(pod), f"{names} permits no eviction now")


def _never_permits(budget: Mapping[str, Any]) -> bool:
    """Whether all pods of a budget are healthy, and it still permits no eviction."""
    status = budget.get("status") or {}
    expected = status.get("expectedPods", 0)
    return bool(
        status.get("observedGeneration") == budget["metadata"].get("generation")
        and expected > 0
        and status.get("currentHealthy", 0) >= expected
        and status.get("disruptionsAllowed", 0) == 0
        # The budget requires as many healthy pods as there are: maxUnavailable is 0, or minAvailable is all of them.
        and status.get("desiredHealthy", 0) >= expected
    )


def _named(item: Mapping[str, Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"
