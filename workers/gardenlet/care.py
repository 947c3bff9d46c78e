"""Say how the shoots of this seed are: conditions in their status.

Not a workflow: it looks at objects and writes what it saw. Source: spec/flows.md 10.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from activities.kube.cache import Key, key_of
from activities.kube.client import WatchEvent
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller, Requeue
from activities.kube.errors import ApiError
from api import resources
from workers.gardenlet.seed import timestamp

log = logging.getLogger(__name__)

CONDITION_TYPE = "care.gardener.cloud/condition-type"
_DEPLOYMENTS = ("gardener-resource-manager", "kube-apiserver", "kube-controller-manager")
_DEPLOYMENTS_WITH_WORKERS = ("kube-scheduler", "machine-controller-manager")
_CHECK_SECONDS = 10.0


@dataclass(frozen=True)
class Finding:
    """What one check saw."""

    type: str
    status: str
    reason: str
    message: str


class CareController:
    """Checks each Shoot every ``period``, and at once when its operation or its control plane changes."""

    def __init__(self, clusters: Clusters, period: timedelta) -> None:
        self._clusters = clusters
        self._period = period.total_seconds()
        self._shoots = clusters.garden_caches.of(resources.SHOOT)
        self._operations: dict[Key, object] = {}
        self._controller = Controller("care", self._check, workers=5)
        self._controller.watch(self._shoots, when=self._new_operation)
        for kind in (resources.DEPLOYMENT, resources.ETCD, resources.MANAGED_RESOURCE, resources.WORKER):
            self._controller.watch(clusters.seed_caches.of(kind), keys=self._shoots_in_namespace)

    async def run(self) -> None:
        """Until cancelled."""
        await self._controller.run()

    def _new_operation(self, event: WatchEvent) -> bool:
        """A new state of the operation is a reason to look; a change of conditions, our own, is not."""
        key, status = key_of(event.object), event.object.get("status", {})
        if event.type == "DELETED":
            self._operations.pop(key, None)
            return False
        operation = status.get("lastOperation") or {}
        seen = (operation.get("type"), operation.get("state"), status.get("seedName"))
        if self._operations.get(key) == seen:
            return False
        self._operations[key] = seen
        return True

    def _shoots_in_namespace(self, event: WatchEvent) -> list[Key]:
        namespace = event.object["metadata"].get("namespace")
        return [key_of(each) for each in self._shoots.list() if each.get("status", {}).get("technicalID") == namespace]

    async def _check(self, key: Key) -> Requeue | None:
        namespace, name = key
        shoot = self._shoots.get(name, namespace)
        if shoot is None or shoot.get("status", {}).get("seedName") != self._clusters.seed_name:
            return None
        status = shoot["status"]
        technical_id = status.get("technicalID")
        if not technical_id or shoot["metadata"].get("deletionTimestamp"):
            return None
        findings = findings_asleep(shoot) or await self._findings(shoot, technical_id)
        conditions = merge_conditions(status.get("conditions") or [], findings, status, timestamp())
        if conditions != status.get("conditions"):
            patch: dict[str, Any] = {"status": {"conditions": conditions}}
            await self._clusters.garden.patch(resources.SHOOT, name, namespace, patch, subresource="status")
        label = status_label({**status, "conditions": conditions})
        if shoot["metadata"].get("labels", {}).get("shoot.gardener.cloud/status") != label:
            labels = {"metadata": {"labels": {"shoot.gardener.cloud/status": label}}}
            await self._clusters.garden.patch(resources.SHOOT, name, namespace, labels)
        return Requeue(self._period)

    async def _findings(self, shoot: Mapping[str, Any], technical_id: str) -> list[Finding]:
        has_workers = bool(shoot["spec"]["provider"].get("workers"))
        checks = [self._api_server(technical_id), self._control_plane(technical_id, has_workers)]
        if has_workers:
            checks.append(self._nodes(shoot, technical_id))
        checks.append(self._system_components(technical_id))
        return list(await asyncio.gather(*checks))

    async def _api_server(self, technical_id: str) -> Finding:
        type_ = "APIServerAvailable"
        try:
            shoot = await self._clusters.shoot(technical_id)
            async with asyncio.timeout(_CHECK_SECONDS):
                await shoot.request("GET", "/healthz")
        except TimeoutError:
            return Finding(
                type_, "False", "HealthzRequestFailed", f"no answer to /healthz within {_CHECK_SECONDS:.0f} s"
            )
        except ApiError as error:
            return Finding(type_, "False", "APIServerDown", str(error))
        return Finding(type_, "True", "HealthzRequestSucceeded", "API server /healthz endpoint responded with 200.")

    async def _control_plane(self, technical_id: str, has_workers: bool) -> Finding:
        type_ = "ControlPlaneHealthy"
        caches = self._clusters.seed_caches
        for name in _DEPLOYMENTS + (_DEPLOYMENTS_WITH_WORKERS if has_workers else ()):
            deployment = caches.of(resources.DEPLOYMENT).get(name, technical_id)
            if deployment is None:
                return Finding(type_, "False", "DeploymentMissing", f"Deployment {technical_id}/{name} does not exist")
            if fault := _deployment_fault(deployment):
                return Finding(type_, "False", "DeploymentUnhealthy", f"Deployment {technical_id}/{name}: {fault}")
        for name in ("etcd-main", "etcd-events"):
            etcd = caches.of(resources.ETCD).get(name, technical_id)
            if etcd is None:
                return Finding(type_, "False", "EtcdMissing", f"Etcd {technical_id}/{name} does not exist")
            if not etcd.get("status", {}).get("ready"):
                return Finding(type_, "False", "EtcdUnhealthy", f"Etcd {technical_id}/{name} is not ready")
        return self._managed_resources(technical_id, type_) or Finding(
            type_, "True", "ControlPlaneRunning", "All control plane components are healthy."
        )

    async def _system_components(self, technical_id: str) -> Finding:
        type_ = "SystemComponentsHealthy"
        fault = self._managed_resources(technical_id, type_)
        return fault or Finding(type_, "True", "SystemComponentsRunning", "All system components are healthy.")

    def _managed_resources(self, technical_id: str, type_: str) -> Finding | None:
        """The first ManagedResource that counts for this condition and is not applied and healthy."""
        for each in self._clusters.seed_caches.of(resources.MANAGED_RESOURCE).list(technical_id):
            default = "ControlPlaneHealthy" if each["spec"].get("class") else "SystemComponentsHealthy"
            if (each["metadata"].get("labels") or {}).get(CONDITION_TYPE, default) != type_:
                continue
            conditions = {one["type"]: one for one in each.get("status", {}).get("conditions") or []}
            for wanted in ("ResourcesApplied", "ResourcesHealthy"):
                found = conditions.get(wanted)
                if found is None or found["status"] != "True":
                    name = each["metadata"]["name"]
                    message = found["message"] if found else "it was not looked at yet"
                    reason = found["reason"] if found else "ManagedResourceMissingCondition"
                    return Finding(type_, "False", reason, f"ManagedResource {technical_id}/{name}: {message}")
        return None

    async def _nodes(self, shoot: Mapping[str, Any], technical_id: str) -> Finding:
        type_ = "EveryNodeReady"
        try:
            client = await self._clusters.shoot(technical_id)
            async with asyncio.timeout(_CHECK_SECONDS):
                nodes = await client.list(resources.NODE)
        except (ApiError, TimeoutError):
            return Finding(type_, "Unknown", "ConditionCheckError", "the nodes cannot be listed")
        for node in nodes:
            ready = next((each for each in node["status"].get("conditions", []) if each["type"] == "Ready"), None)
            if ready is None or ready["status"] != "True":
                message = ready["message"] if ready else "it reports nothing"
                return Finding(type_, "False", "NodeUnhealthy", f"node {node['metadata']['name']}: {message}")
        wanted = sum(int(pool["minimum"]) for pool in shoot["spec"]["provider"]["workers"])
        if len(nodes) < wanted:
            return Finding(type_, "False", "MissingNodes", f"{len(nodes)} of at least {wanted} nodes have joined")
        return Finding(type_, "True", "EveryNodeReady", "All nodes are ready.")


def findings_asleep(shoot: Mapping[str, Any]) -> list[Finding] | None:
    """Of a Shoot that sleeps, falls asleep or wakes up: what is missing then is missing on purpose."""
    wanted = (shoot["spec"].get("hibernation") or {}).get("enabled")
    if not (wanted or shoot["status"].get("hibernated")):
        return None
    types = ["APIServerAvailable", "ControlPlaneHealthy", "SystemComponentsHealthy"]
    if shoot["spec"]["provider"].get("workers"):
        types.append("EveryNodeReady")
    return [Finding(each, "True", "ConditionNotChecked", "Shoot cluster has been hibernated.") for each in types]


def merge_conditions(
    known: Iterable[Mapping[str, Any]], findings: Iterable[Finding], status: Mapping[str, Any], now: str
) -> list[dict[str, Any]]:
    """Conditions with what was seen; an unchanged one keeps its times.

    What fails is Progressing while a first creation is not done. Source: spec/flows.md 10.
    """
    operation = status.get("lastOperation") or {}
    growing = operation.get("type") in ("Create", "Restore") and operation.get("state") != "Succeeded"
    merged = {each["type"]: dict(each) for each in known}
    for finding in findings:
        shown = "Progressing" if finding.status == "False" and growing else finding.status
        old = merged.get(finding.type)
        new = {"type": finding.type, "status": shown, "reason": finding.reason, "message": finding.message}
        if old is not None and all(old.get(key) == value for key, value in new.items()):
            continue
        changed = old is None or old.get("status") != shown
        transition = now if changed or old is None else old.get("lastTransitionTime", now)
        merged[finding.type] = {**new, "lastTransitionTime": transition, "lastUpdateTime": now}
    return list(merged.values())


_RANK: Mapping[str, int] = {"True": 0, "Progressing": 1, "Unknown": 2, "False": 3}
_LABELS = ("healthy", "progressing", "unknown", "unhealthy")


def status_label(status: Mapping[str, Any]) -> str:
    """``shoot.gardener.cloud/status``: the worst of conditions and operation. Source: spec/flows.md 9."""
    operation = status.get("lastOperation") or {}
    failing = bool(status.get("lastErrors"))
    if not operation:
        return "healthy"
    if operation.get("type") == "Delete" or (
        operation.get("type") == "Create" and operation.get("state") != "Succeeded"
    ):
        return "unhealthy" if failing else "healthy"
    if operation.get("state") in ("Error", "Failed", "Pending", "Aborted") or failing:
        return "unhealthy"
    worst: Callable[[Mapping[str, Any]], int] = lambda each: _RANK.get(each.get("status", ""), 2)  # noqa: E731
    return _LABELS[max(map(worst, status.get("conditions") or []), default=0)]


def _deployment_fault(deployment: Mapping[str, Any]) -> str | None:
    status = deployment.get("status", {})
    if status.get("observedGeneration") != deployment["metadata"].get("generation"):
        return "its newest version was not seen yet"
    available = next((each for each in status.get("conditions") or [] if each["type"] == "Available"), None)
    if available is None or available["status"] != "True":
        return available["message"] if available else "it reports nothing"
    return None
