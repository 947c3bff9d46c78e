"""The Machine controller: creates a machine for each object, follows the health of its node, and deletes it."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.provider_local.machines import DRAIN_BLOCKED, FORCE_DELETION_LABEL
from api.errors import ErrorCode
from api.resources import MACHINE, MACHINE_CLASS, NODE
from api.times import timestamp
from kube.cache import Cache, Caches, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.errors import ApiError, Conflict, NotFound
from workers.machine_controller_manager import nodes
from workers.machine_controller_manager.bootstrap import delete_token, ensure_token
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.driver import MACHINE_LABEL, Driver
from workers.machine_controller_manager.machine_set import NODE_LABEL
from workers.machine_controller_manager.nodes import StayingPod
from workers.machine_controller_manager.objects import (
    age_of,
    duration,
    hold,
    is_deleting,
    phase_of,
    release,
    write_status,
)

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
"""Seconds between retries of an operation that a user must make possible first. Short, because the user may be waiting
for the result."""
_DRAIN_SECONDS = 2.0
"""Seconds between two checks of a node that is being drained."""
_EVICTION_SECONDS = 20
"""Seconds that one of a machine's ``maxEvictRetries`` stands for. Source: pause between retries in
machine-controller-manager."""
_PATIENCE = timedelta(minutes=5)
"""A drain that takes longer than this, or than half of its timeout, is reported as a fault, although it may still
succeed."""
_LISTED_PODS = 5
_UNREADY_DRAIN = timedelta(minutes=5)
"""A node that has not been Ready for longer than this is not drained: nothing on it would answer. The same time as in
Gardener."""

_ERROR_CODES: Mapping[str, str] = {
    ErrorCode.INFRA_UNAUTHENTICATED: "Unauthenticated",
    ErrorCode.INFRA_UNAUTHORIZED: "PermissionDenied",
    ErrorCode.CONFIGURATION_PROBLEM: "InvalidArgument",
    ErrorCode.RETRYABLE_INFRA_DEPENDENCIES: "Unavailable",
}
"""``status.lastOperation.errorCode``: the status codes of machine drivers."""


class MachineController:
    """Creates machines in the cloud, reports their health from their nodes, drains and deletes them."""

    def __init__(
        self,
        seed: KubeClient,
        seed_caches: Caches,
        shoot: KubeClient,
        shoot_caches: Caches,
        driver: Driver,
        config: MachineControllerManagerConfig,
    ) -> None:
        self._seed = seed
        self._shoot = shoot
        self._driver = driver
        self._config = config
        self._namespace = config.namespace
        self._machines = seed_caches.of(MACHINE, config.namespace)
        self._nodes = shoot_caches.of(NODE)
        self._watched: set[Cache] = set()
        self._controller = Controller("machines", self._reconcile, workers=20, longest_delay=15.0)
        self._controller.watch(self._machines)
        self._controller.watch(self._nodes, keys=self._machine_of_node, when=_matters)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _machine_of_node(self, event: WatchEvent) -> list[Key]:
        # A machine, its pod, its host and its node have the same name.
        return [Key(self._namespace, event.object["metadata"]["name"])]

    def _machine_of_pod(self, event: WatchEvent) -> list[Key]:
        return [Key(self._namespace, event.object["metadata"]["labels"][MACHINE_LABEL])]

    async def _reconcile(self, key: Key) -> Requeue | None:
        machine = await self._seed.find(MACHINE, key.name, self._namespace)
        if machine is None:
            return None
        try:
            if is_deleting(machine):
                return await self._delete(machine)
            return await self._converge(await hold(self._seed, MACHINE, machine))
        except (Conflict, NotFound) as error:
            _log.debug("machine %s has changed since it was read: %s", key.name, error)
            return Requeue(0.2)
        except ApplicationError as error:
            await self._refused(machine, error)
            if error.non_retryable:
                return Requeue(_RETRY_SECONDS)
            raise

    async def _converge(self, machine: Object) -> Requeue | None:
        if phase_of(machine) == "Failed":
            return None  # its set replaces it
        class_ = await self._class(machine)
        pods = await self._watch_pods(class_)
        if not machine["spec"].get("providerID"):
            machine = await self._create(machine, class_)
        elif self._seems_lost(machine, pods) and not await self._driver.exists(machine, class_):
            await self._fail(machine, "it no longer exists in the cloud")
            return None
        node = self._nodes.get(machine["metadata"]["name"])
        if node is None:
            return await self._without_node(machine)
        spec = machine["spec"]
        if patch := nodes.template_patch(node, spec.get("nodeTemplate") or {}, spec.get("providerID")):
            await self._shoot.patch(NODE, node["metadata"]["name"], None, patch)
        return await self._with_node(machine, node)

    def _seems_lost(self, machine: Object, pods: Cache) -> bool:
        return pods.is_synced and pods.get(machine["metadata"]["name"]) is None

    async def _create(self, machine: Object, class_: Object) -> Object:
        lifetime = self._creation_timeout(machine)
        token = await ensure_token(self._shoot, machine, lifetime)
        provider_id = await self._driver.create(machine, class_, token)
        name = machine["metadata"]["name"]
        _log.info("machine %s was created in the cloud", name)
        patch: dict[str, Any] = {"spec": {"providerID": provider_id}}
        if (machine["metadata"].get("labels") or {}).get(NODE_LABEL) != name:
            patch["metadata"] = {"labels": {NODE_LABEL: name}}
        written = await self._seed.patch(MACHINE, name, self._namespace, patch)
        await self._write_phase(written, "Pending", "Create", "Processing", "Waiting for the node to join")
        return written

    async def _without_node(self, machine: Object) -> Requeue | None:
        phase = phase_of(machine)
        if phase in ("", "Pending", "CrashLoopBackOff"):
            waited = age_of(machine["metadata"]["creationTimestamp"])
            allowed = self._creation_timeout(machine)
            if waited >= allowed:
                await self._fail(machine, f"its node did not join within {allowed}")
                return None
            if phase != "Pending":
                await self._write_phase(machine, "Pending", "Create", "Processing", "Waiting for the node to join")
            return Requeue((allowed - waited).total_seconds() + 1)
        return await self._unhealthy(machine, "its node object is gone")

    async def _with_node(self, machine: Object, node: Object) -> Requeue | None:
        listed = machine["spec"].get("nodeConditions")
        bad = listed.split(",") if listed else nodes.DEFAULT_BAD_CONDITIONS
        fault = nodes.fault(node, bad)
        if fault is None:
            joined = phase_of(machine) in ("", "Pending", "CrashLoopBackOff", "Available")
            await self._write_phase(
                machine,
                "Running",
                "Create" if joined else "HealthCheck",
                "Successful",
                "The node has joined" if joined else "The node is healthy",
                node,
            )
            return None
        if phase_of(machine) in ("", "Pending", "CrashLoopBackOff"):
            return await self._without_node(machine)
        return await self._unhealthy(machine, fault, node)

    async def _unhealthy(self, machine: Object, why: str, node: Object | None = None) -> Requeue | None:
        """Set the phase to Unknown at first, and to Failed if the fault lasts. A Failed machine is replaced."""
        allowed = duration(machine["spec"].get("healthTimeout"), self._config.health_timeout)
        if phase_of(machine) != "Unknown":
            await self._write_phase(
                machine, "Unknown", "HealthCheck", "Processing", f"Machine is unhealthy: {why}", node
            )
            return Requeue(allowed.total_seconds() + 1)
        since = age_of(machine["status"]["currentStatus"]["lastUpdateTime"])
        if machine["spec"].get("disableHealthTimeout"):
            return None
        if since >= allowed:
            await self._fail(machine, f"{why} for more than {allowed}")
            return None
        return Requeue((allowed - since).total_seconds() + 1)

    async def _delete(self, machine: Object) -> Requeue | None:
        forced = (machine["metadata"].get("labels") or {}).get(FORCE_DELETION_LABEL) == "True"
        if phase_of(machine) != "Terminating":
            description = "Deleting without a drain" if forced else "Draining the node"
            await self._write_phase(machine, "Terminating", "Delete", "Processing", description)
        name = machine["metadata"]["name"]
        if not forced and (staying := await self._drain(machine)):
            return await self._report_drain(machine, staying)
        class_ = await self._seed.find(MACHINE_CLASS, machine["spec"]["class"]["name"], self._namespace)
        if class_ is not None:
            await self._watch_pods(class_)
            if not await self._driver.delete(machine, class_):
                return Requeue(_DRAIN_SECONDS)  # the pod's own event usually comes first
        await self._clean_shoot(machine, forced=forced)
        live = await self._seed.find(MACHINE, name, self._namespace)
        if live is not None:
            await release(self._seed, MACHINE, live)
            _log.info("machine %s was deleted", name)
        return None

    async def _drain(self, machine: Object) -> list[StayingPod]:
        """Drain the node. Returns the pods to wait for: none once the node is empty, or the drain's timeout is over."""
        name = machine["metadata"]["name"]
        node = self._nodes.get(name)
        if node is None or _unready_for(node) > _UNREADY_DRAIN:
            return []
        since, allowed = age_of(machine["metadata"]["deletionTimestamp"]), self._drain_timeout(machine)
        if since >= allowed:
            _log.warning("machine %s is deleted though its node is not empty after %s", name, allowed)
            return []
        retries = machine["spec"].get("maxEvictRetries")
        evict = retries is None or since < timedelta(seconds=retries * _EVICTION_SECONDS)
        return await nodes.drain(self._shoot, name, evict=evict)

    async def _report_drain(self, machine: Object, staying: list[StayingPod]) -> Requeue:
        """Write into the status which pods the drain waits for; as a fault if that takes long or would never end."""
        since, allowed = age_of(machine["metadata"]["deletionTimestamp"]), self._drain_timeout(machine)
        stuck = [each for each in staying if each.hopeless]
        if not stuck and since < min(_PATIENCE, allowed / 2):
            description = f"Draining the node, {len(staying)} pods are left"
            await self._write_phase(machine, "Terminating", "Delete", "Processing", description)
            return Requeue(_DRAIN_SECONDS)
        shown = stuck or staying
        more = f"; and {len(shown) - _LISTED_PODS} more" if len(shown) > _LISTED_PODS else ""
        until = datetime.fromisoformat(machine["metadata"]["deletionTimestamp"]) + allowed
        description = (
            f"node {machine['metadata']['name']} cannot be drained: {'; '.join(map(str, shown[:_LISTED_PODS]))}{more};"
            f" allow their eviction, or they are deleted with their machine at {until:%Y-%m-%dT%H:%M:%SZ}"
        )
        await self._write_phase(machine, "Terminating", "Delete", "Failed", description, code=DRAIN_BLOCKED)
        return Requeue(_RETRY_SECONDS)

    async def _clean_shoot(self, machine: Object, *, forced: bool) -> None:
        try:
            await delete_token(self._shoot, machine)
            # The node is deleted first: while it exists, DaemonSets replace the pods that are deleted from it.
            await self._shoot.delete(NODE, machine["metadata"]["name"])
            await nodes.forget_pods(self._shoot, machine["metadata"]["name"])
        except ApiError as error:
            if not forced:
                raise
            _log.info(
                "node and token of machine %s cannot be deleted in its cluster: %s", machine["metadata"]["name"], error
            )

    async def _class(self, machine: Object) -> Object:
        name = machine["spec"]["class"]["name"]
        class_ = await self._seed.find(MACHINE_CLASS, name, self._namespace)
        if class_ is None:
            raise ApplicationError(
                f"machine {machine['metadata']['name']}: MachineClass {self._namespace}/{name} does not exist",
                type=ErrorCode.CONFIGURATION_PROBLEM,
                non_retryable=True,
            )
        return class_

    async def _watch_pods(self, class_: Object) -> Cache:
        pods = await self._driver.pods(class_)
        if pods not in self._watched:
            self._watched.add(pods)
            self._controller.watch(pods, keys=self._machine_of_pod, when=lambda event: event.type == "DELETED")
        return pods

    def _drain_timeout(self, machine: Object) -> timedelta:
        return duration(machine["spec"].get("drainTimeout"), self._config.drain_timeout)

    def _creation_timeout(self, machine: Object) -> timedelta:
        return duration(machine["spec"].get("creationTimeout"), self._config.creation_timeout)

    async def _refused(self, machine: Object, error: ApplicationError) -> None:
        """Write into the status why the cloud refused an operation. The error code tells what kind of fault it is."""
        deleting = is_deleting(machine)
        phase = "Terminating" if deleting else "CrashLoopBackOff"
        if not deleting and machine["spec"].get("providerID"):
            phase = phase_of(machine) or "Pending"
        code = _ERROR_CODES.get(error.type or "", "Internal")
        verb = "Delete" if deleting else "Create"
        _log.warning("machine %s: %s", machine["metadata"]["name"], error.message)
        await self._write_phase(machine, phase, verb, "Failed", error.message, code=code)

    async def _fail(self, machine: Object, why: str) -> None:
        _log.warning("machine %s has failed: %s", machine["metadata"]["name"], why)
        await self._write_phase(machine, "Failed", "HealthCheck", "Failed", f"Machine has failed: {why}")

    async def _write_phase(
        self,
        machine: Object,
        phase: str,
        type_: str,
        state: str,
        description: str,
        node: Object | None = None,
        *,
        code: str | None = None,
    ) -> None:
        status = machine.get("status") or {}
        current, last = status.get("currentStatus") or {}, status.get("lastOperation") or {}
        wanted: dict[str, Any] = {"node": machine["metadata"]["name"]}
        if node is not None:
            wanted["conditions"] = nodes.conditions_of(node)
            wanted["addresses"] = node.get("status", {}).get("addresses") or []
        if current.get("phase") != phase:
            wanted["currentStatus"] = {"phase": phase, "lastUpdateTime": timestamp()}
        operation = {"type": type_, "state": state, "description": description}
        shown = {key: last.get(key) for key in operation}
        # While a machine keeps running, its last operation stays the one that made it run.
        quiet = current.get("phase") == phase == "Running"
        # A refusal is written each time, so that its time shows that it still holds.
        if not quiet and (shown != operation or last.get("errorCode") != code or code is not None):
            wanted["lastOperation"] = {**operation, "lastUpdateTime": timestamp(), "errorCode": code}
        await write_status(self._seed, MACHINE, machine, wanted)


def _matters(event: WatchEvent) -> bool:
    """Whether an event of a node matters here. Its heartbeats do not."""
    if event.type != "MODIFIED" or event.old is None:
        return True
    before, after = event.old, event.object
    return (
        nodes.conditions_of(before) != nodes.conditions_of(after)
        or before["metadata"].get("labels") != after["metadata"].get("labels")
        or before["spec"] != after["spec"]
    )


def _unready_for(node: Mapping[str, Any]) -> timedelta:
    for condition in node.get("status", {}).get("conditions") or []:
        if condition["type"] == "Ready" and condition["status"] != "True":
            return age_of(condition["lastTransitionTime"])
    return timedelta(0)
