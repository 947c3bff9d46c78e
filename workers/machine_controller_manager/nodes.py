"""The node of a machine: its health, what it carries, and emptying it."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from activities.kube.client import KubeClient, Object, Objects
from activities.kube.errors import ApiError, NotFound
from api.resources import NODE, POD

_log = logging.getLogger(__name__)

_LAST_APPLIED = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
"""On a Node: what its machine's template brought last, so that it can be taken away again."""
_CARED_CONDITIONS = ("type", "status", "reason", "message", "lastTransitionTime")
DEFAULT_BAD_CONDITIONS = ("KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable")
"""A node with one of these is as bad as one that is not Ready. Source: machine-controller-manager."""


def is_ready(node: Mapping[str, Any], bad: Sequence[str] = DEFAULT_BAD_CONDITIONS) -> bool:
    """Whether pods can run there."""
    conditions = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions") or []}
    return conditions.get("Ready") == "True" and not any(conditions.get(each) == "True" for each in bad)


def conditions_of(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A node's conditions for its Machine's status, without heartbeats: those change all the time."""
    return [
        {key: each[key] for key in _CARED_CONDITIONS if key in each}
        for each in node.get("status", {}).get("conditions") or []
    ]


def template_patch(node: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any] | None:
    """Merge patch that brings a node to its machine's template; None if it is there.

    Labels, annotations and taints of others stay; those of an earlier template go.
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
    return patch or None


def _taints(live: Objects, last: Objects, wanted: Objects) -> Objects:
    def key(taint: Mapping[str, Any]) -> tuple[str, str]:
        return str(taint["key"]), str(taint["effect"])

    ours = {key(each) for each in (*last, *wanted)}
    return [each for each in live if key(each) not in ours] + list(wanted)


async def drain(shoot: KubeClient, name: str) -> int:
    """Cordon a node and ask each pod on it to go; returns how many are still there.

    A PodDisruptionBudget may refuse: that pod is asked again with the next call. Pods of DaemonSets,
    static pods and those that have ended are not waited for.
    """
    try:
        await shoot.patch(NODE, name, None, {"spec": {"unschedulable": True}})
    except NotFound:
        return 0
    pods = [each for each in await pods_on(shoot, name) if is_evictable(each)]
    await asyncio.gather(*(_evict(shoot, each) for each in pods if not each["metadata"].get("deletionTimestamp")))
    return len(pods)


async def pods_on(shoot: KubeClient, name: str) -> Objects:
    """All pods of a node."""
    return await shoot.list(POD, fields=f"spec.nodeName={name}")


async def forget_pods(shoot: KubeClient, name: str) -> None:
    """Remove the pods of a machine that no longer exists: no kubelet is left to confirm their end.

    The cluster itself would do so after most of a minute, and whoever deletes a DaemonSet waits for it.
    """

    async def forget(pod: Object) -> None:
        metadata = pod["metadata"]
        await shoot.delete(POD, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_seconds=0)

    await asyncio.gather(*(forget(each) for each in await pods_on(shoot, name)))


def is_evictable(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has to be gone before its node may go."""
    metadata = pod["metadata"]
    if "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}):
        return False
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    return all(owner["kind"] != "DaemonSet" for owner in metadata.get("ownerReferences") or [])


async def _evict(shoot: KubeClient, pod: Object) -> None:
    metadata = pod["metadata"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }
    path = POD.path(metadata["namespace"], metadata["name"], "eviction")
    try:
        await shoot.request("POST", path, body=eviction)
    except ApiError as error:
        # 429: its budget has no room now. Whatever else it is, the drain's timeout ends it.
        if error.status not in (404, 409):
            _log.info("pod %s/%s is not evicted yet: %s", metadata["namespace"], metadata["name"], error)
