"""Apply the objects of one component, and wait until its pods run."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.components import base, connections
from activities.heartbeat import heartbeating
from activities.managed_resources import secrets_checksum, unfinished
from activities.seed.zones import pinned, pinned_zones
from api import constants, resources
from api.decisions.conditions import find_condition
from api.errors import ErrorCode
from api.resources import Resource
from kube.cache import Cache, Caches
from kube.client import KubeClient
from kube.objects import label_selector

MANAGER = "gardenlet"

_LOOK_AT_PODS_AFTER = 10.0
"""Seconds of waiting until the first check of the pods for failures, and between later checks."""
_GIVE_UP_AFTER = 30.0
"""Seconds for which pods may report failures before the wait fails; source: spec/extensions.md 1.4."""

_FAILURES = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)

_QUOTED = 400
"""Maximum number of characters that an error quotes of a container's log."""
_HEADER = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ [\w.-]+:\d+\] ")
"""Head of a line in the format of klog."""
_ERROR = re.compile(r"^[EF]\d{4} |\"err(or)?\":|^Error: |^panic: ")
_COMMAND_FAILED = re.compile(r"^\"command failed\" err=\"(.*)\"$")
_REFUSALS = re.compile(
    r"unrecognized feature gate|cannot set feature gate|depends on features that are disabled|unknown api groups"
    r"|that has not been registered|plugin \"[^\"]*\" is unknown|couldn't init admission plugin"
    r"|loading audit policy file|error while parsing file|strict decoding error|invalid configuration"
    r"|unknown flag|invalid argument",
)
"""Last errors of components that end because of their configuration, which the owner of the Shoot can change."""


async def apply(client: KubeClient, objects: Sequence[Mapping[str, Any]]) -> None:
    """Apply objects in parallel: workloads and ManagedResources last, when the objects that they refer to exist."""
    last = ("Deployment", "StatefulSet", "DaemonSet", "ManagedResource")
    workloads = [item for item in objects if item["kind"] in last]
    rest = [item for item in objects if item["kind"] not in last]
    await asyncio.gather(*(client.apply(item, manager=MANAGER) for item in rest))
    await asyncio.gather(*(client.apply(item, manager=MANAGER) for item in workloads))


async def deploy(client: KubeClient, objects: Sequence[Mapping[str, Any]]) -> None:
    """Apply a component, the Deployment last, and delete the files that only its older revisions used.

    Its pods run in the zones of their namespace.
    """
    deployment = next(item for item in objects if item["kind"] == "Deployment")
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    before, place = await asyncio.gather(
        client.find(resources.DEPLOYMENT, name, namespace), client.find(resources.NAMESPACE, namespace)
    )
    deployment = pinned(deployment, pinned_zones(place))
    if before is not None and (before["metadata"].get("annotations") or {}).get(constants.SCALED_DOWN):
        # The watchdog has scaled the Deployment down and will scale it up again: keep its number of replicas.
        deployment = {**deployment, "spec": {**deployment["spec"], "replicas": before["spec"].get("replicas", 0)}}
    await apply(client, [item for item in objects if item["kind"] != "Deployment"])
    if before is None:
        await client.apply_blindly(deployment, manager=MANAGER)
        return
    await client.apply(deployment, manager=MANAGER, live=before)
    if _references(before) == _references(deployment):
        return
    # Keep the files of the previous revision: its pods may start once more before they are replaced.
    kept = _references(before) | _references(deployment)
    select = deployment["spec"]["selector"]["matchLabels"]
    for kind in (resources.CONFIG_MAP, resources.SECRET):
        for item in await client.list(kind, namespace, labels=_versioned_of(select)):
            if item["metadata"]["name"] not in kept:
                await client.delete(kind, item["metadata"]["name"], namespace, uid=item["metadata"]["uid"])


def _versioned_of(select: Mapping[str, str]) -> str:
    return f"{label_selector(select)},{base.VERSIONED_LABEL}=true"


def _references(deployment: Mapping[str, Any]) -> frozenset[str]:
    annotations = deployment["spec"]["template"]["metadata"].get("annotations") or {}
    return frozenset(value for key, value in annotations.items() if key.startswith(base.REFERENCE_PREFIX))


async def wait_deployment(caches: Caches, name: str, namespace: str, timeout: float) -> None:
    """Wait until all replicas of the newest revision are available, and those of older revisions are gone.

    Raises:
        ApplicationError: ``ComponentUnhealthy``, with the names of the pods and what they said last, if pods have
            reported failures for 30 s; ``ERR_RETRYABLE_CONFIGURATION_PROBLEM`` if they refuse their configuration.
        TimeoutError: after ``timeout`` seconds.
    """
    watch = _DeploymentWatch(caches, name, namespace, timeout)
    await heartbeating(watch.run(), details=lambda: watch.state)


async def wait_replaced(client: KubeClient, caches: Caches, name: str, namespace: str, timeout: float) -> None:
    """Wait like ``wait_deployment``, and then until the pods of older revisions have ended.

    A Deployment does not count pods that are ending, but these pods still serve their clients. Raises TimeoutError,
    with the names of these pods.
    """
    await wait_deployment(caches, name, namespace, timeout)
    deployment = await client.get(resources.DEPLOYMENT, name, namespace)
    # A cache of its own starts with the pods as they are now; a shared cache may lag behind.
    cache = Cache(client, resources.POD, namespace, label_selector(deployment["spec"]["selector"]["matchLabels"]))
    ending: list[str] = []

    def ended(_: object) -> bool:
        ending[:] = [each["metadata"]["name"] for each in cache.list() if "deletionTimestamp" in each["metadata"]]
        return not ending

    def state() -> str:
        return f"pods of {namespace}/{name} have not ended: {', '.join(sorted(ending))}"

    try:
        async with cache:
            await heartbeating(cache.wait_until(ended, timeout), details=state)
    except TimeoutError:
        raise TimeoutError(state()) from None


class _DeploymentWatch:
    def __init__(self, caches: Caches, name: str, namespace: str, timeout: float) -> None:
        self._caches = caches
        self._name = name
        self._namespace = namespace
        self._deadline = time.monotonic() + timeout
        self._failures_since: float | None = None
        self._generation = 0
        self.state = f"waiting for Deployment {namespace}/{name}"

    async def run(self) -> None:
        cache = self._caches.of(resources.DEPLOYMENT)
        live = await self._caches.client.find(resources.DEPLOYMENT, self._name, self._namespace)
        # If the cache lags behind, it shows the previous revision as rolled out.
        self._generation = live["metadata"]["generation"] if live else 0
        while True:
            left = self._deadline - time.monotonic()
            try:
                await cache.wait_for(
                    self._name, self._namespace, self._rolled_out, max(0.1, min(left, _LOOK_AT_PODS_AFTER))
                )
                return
            except TimeoutError:
                deployment = cache.get(self._name, self._namespace)
                failures = await pod_failures(self._caches.client, deployment)
                self._judge(failures, left <= _LOOK_AT_PODS_AFTER)

    def _rolled_out(self, deployment: dict[str, Any] | None) -> bool:
        fault = rollout_fault(deployment, self._generation)
        self.state = f"Deployment {self._namespace}/{self._name} {fault}"
        return fault is None

    def _judge(self, failures: str | None, last: bool) -> None:
        now = time.monotonic()
        self._failures_since = (self._failures_since or now) if failures else None
        if failures:
            self.state += f": {failures}"
        if self._failures_since is not None and now - self._failures_since >= _GIVE_UP_AFTER - _LOOK_AT_PODS_AFTER:
            refused = _REFUSALS.search(failures or "")
            raise ApplicationError(
                self.state, type=str(ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM) if refused else "ComponentUnhealthy"
            )
        if last:
            raise TimeoutError(self.state)


def rollout_fault(deployment: Mapping[str, Any] | None, generation: int = 0) -> str | None:
    """Reason why a Deployment is not rolled out and available, in this generation or a later one; None if it is."""
    if deployment is None:
        return "does not exist"
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < max(deployment["metadata"]["generation"], generation):
        return "is not observed yet"
    failure = find_condition(deployment, "ReplicaFailure")
    if failure.get("status") == "True":
        return f"cannot create pods: {failure.get('message', '')}"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if updated < wanted:
        return f"has {updated} of {wanted} new pods"
    if status.get("replicas", 0) > updated:
        return f"has {status['replicas'] - updated} old pods left"
    if available < wanted:
        return f"has {available} of {wanted} pods available"
    return None


async def pod_failures(client: KubeClient, deployment: Mapping[str, Any] | None) -> str | None:
    """Failures of the pods of a Deployment, with the pods' names; None if pods are merely not ready yet."""
    if deployment is None:
        return None
    labels = label_selector(deployment["spec"]["selector"]["matchLabels"])
    pods = await client.list(resources.POD, deployment["metadata"]["namespace"], labels=labels)
    return "; ".join(fault for pod in pods for fault in _pod_faults(pod)) or None


def _pod_faults(pod: Mapping[str, Any]) -> Iterable[str]:
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    if status.get("phase") == "Pending":
        scheduled = find_condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            yield f"pod {name} cannot be scheduled: {scheduled.get('message', '')}"
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _FAILURES:
            continue
        ended = (container.get("lastState") or {}).get("terminated") or {}
        exit_code = f", last exit code {ended['exitCode']}" if "exitCode" in ended else ""
        said = f': "{words}"' if (words := last_words(ended.get("message") or "")) else ""
        yield f"pod {name}, container {container['name']}: {waiting['reason']}{exit_code}{said}"


def last_words(log: str) -> str:
    """The last error in the last lines of a container's log, or else the last line; without its time and place.

    Kubernetes' components log their reason to end, as text or as JSON. They log no credentials.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    if not lines:
        return ""
    last = (errors or lines)[-1]
    try:
        entry = json.loads(last)
        told = entry.get("err") or entry.get("error") or entry.get("msg")
    except (ValueError, AttributeError):
        told = _HEADER.sub("", last)
        if failed := _COMMAND_FAILED.search(told):
            told = failed[1]
    words = str(told)
    return words if len(words) <= _QUOTED else f"{words[:_QUOTED]}…"


async def delete(client: KubeClient, objects: Iterable[tuple[Resource, str]], namespace: str | None) -> None:
    """Delete objects by name, each with its present uid, so that a later object of this name stays."""

    async def one(resource: Resource, name: str) -> None:
        live = await client.find(resource, name, namespace)
        if live is not None and "deletionTimestamp" not in live["metadata"]:
            await client.delete(resource, name, namespace, uid=live["metadata"]["uid"], propagation="Background")

    await asyncio.gather(*(one(resource, name) for resource, name in objects))


async def delete_component(
    client: KubeClient, name: str, namespace: str, select: Mapping[str, str], *, own: bool = False
) -> None:
    """Delete a component's objects by its name, except the Service of that name.

    ``own``: the component also has rights in the seed and a token for the shoot, which are deleted, too.
    """
    doomed = [(resources.DEPLOYMENT, name), (resources.POD_DISRUPTION_BUDGET, name)]
    doomed.append((resources.SERVICE, connections.metrics_name(name)))
    if own:
        doomed += [
            (resources.SERVICE_ACCOUNT, name),
            (resources.ROLE, name),
            (resources.ROLE_BINDING, name),
            (resources.SECRET, base.shoot_access_name(name)),
        ]
    await delete(client, doomed, namespace)
    await delete_versioned(client, select, namespace)


async def delete_versioned(client: KubeClient, select: Mapping[str, str], namespace: str) -> None:
    """Delete all versioned ConfigMaps and Secrets of a component."""
    for kind in (resources.CONFIG_MAP, resources.SECRET):
        stored = await client.list(kind, namespace, labels=_versioned_of(select))
        await delete(client, [(kind, item["metadata"]["name"]) for item in stored], namespace)


async def wait_pods_gone(caches: Caches, namespace: str, labels: Mapping[str, str], timeout: float) -> None:
    """Wait until the namespace has no Deployment with these labels, and no pod with them runs. Raises TimeoutError.

    A pod in phase Failed or Succeeded has no running container; the kubelet takes another second to clean it up.
    """
    for resource in (resources.DEPLOYMENT, resources.POD):
        await _wait_gone(caches, resource, namespace, labels, timeout)


async def _wait_gone(
    caches: Caches, resource: Resource, namespace: str, labels: Mapping[str, str], timeout: float
) -> None:
    def gone(cache: Cache) -> bool:
        return all((each.get("status") or {}).get("phase") in ("Failed", "Succeeded") for each in cache.list())

    cache = caches.of(resource, namespace, labels=label_selector(labels))
    await heartbeating(cache.wait_until(gone, timeout))


async def end(client: KubeClient, caches: Caches, namespace: str, labels: Mapping[str, str], timeout: float) -> None:
    """Delete a Deployment by its labels, and give its pods a second to end: their clients need no longer grace period.

    A kubelet that has begun to end a pod does not shorten the pod's grace period later. So the pods must not be deleted
    through their owners, which gives them the full grace period: the owners are deleted first and orphan their pods,
    then the pods are deleted. A second run deletes what is left. Raises TimeoutError.
    """
    for owner in (resources.DEPLOYMENT, resources.REPLICA_SET):
        await _delete_all(client, owner, namespace, labels, propagation="Orphan")
        await _wait_gone(caches, owner, namespace, labels, timeout)
    await _delete_all(client, resources.POD, namespace, labels, grace_seconds=1)


async def _delete_all(
    client: KubeClient, resource: Resource, namespace: str, labels: Mapping[str, str], **options: Any
) -> None:
    for live in await client.list(resource, namespace, labels=label_selector(labels)):
        await client.delete(resource, live["metadata"]["name"], namespace, uid=live["metadata"]["uid"], **options)


async def wait_none_left(
    caches: Caches,
    resource: Resource,
    namespace: str | None,
    timeout: float,
    *,
    what: str,
    concerns: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> None:
    """Wait until a namespace, or the cluster, has none of these objects any more.

    Raises TimeoutError, with the names of those left.
    """
    cache = caches.of(resource)
    left: list[str] = []

    def gone(_: object) -> bool:
        left[:] = [item["metadata"]["name"] for item in cache.list(namespace) if concerns(item)]
        return not left

    def state() -> str:
        return f"{what} left in {namespace or 'the cluster'}: {', '.join(sorted(left))}"

    try:
        await heartbeating(cache.wait_until(gone, timeout, namespace), details=state)
    except TimeoutError:
        raise TimeoutError(state()) from None


async def wait_managed_resource(caches: Caches, name: str, namespace: str, timeout: float) -> None:
    """Wait until a ManagedResource is applied with its present Secrets, healthy and rolled out.

    Raises TimeoutError with the reason why it is not.
    """
    secret = await caches.client.get(resources.SECRET, f"managedresource-{name}", namespace)
    checksum = secrets_checksum([secret])
    fault: str | None = "was not checked yet"

    def finished(managed_resource: dict[str, Any] | None) -> bool:
        nonlocal fault
        fault = unfinished(managed_resource, checksum)
        return fault is None

    def state() -> str:
        return f"ManagedResource {namespace}/{name} {fault}"

    cache = caches.of(resources.MANAGED_RESOURCE)
    try:
        await heartbeating(cache.wait_for(name, namespace, finished, timeout), details=state)
    except TimeoutError:
        raise TimeoutError(state()) from None
