"""The in-place update of one machine, by the Machine controller.

The MachineDeployment controller has selected the machine -> drain its node -> release the node to its node agent ->
wait for the agent's result. The MachineDeployment controller moves the machine to the newest set -> make the node
usable.

Each step finds what an earlier run has done in the Machine and its Node. Only the Machine decides: what a Node says
counts as the result of its own update, while this controller waits for the result.
"""

import logging
from collections.abc import Mapping
from typing import Any

from api.constants import TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.machine import in_place
from api.machine.objects import phase_of
from api.resources import MACHINE, NODE
from api.times import timestamp
from kube.client import KubeClient, Object
from kube.controller import Requeue
from workers.machine_controller_manager import nodes
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.nodes import StayingPod
from workers.machine_controller_manager.objects import age_of, duration, write_status

_log = logging.getLogger(__name__)

_OPERATION = "InPlaceUpdate"
_QUOTED = 300
"""Maximum number of characters of a node agent's reason in a Machine's status: a machine writes it."""
_NOT_READY = {"key": TAINT_CRITICAL_COMPONENTS_NOT_READY, "effect": "NoSchedule"}
"""Taint that the resource manager removes once the critical components of the node run in their new version."""


class MachineUpdate:
    """Updates machines in place, one call for each step."""

    def __init__(self, seed: KubeClient, shoot: KubeClient, config: MachineControllerManagerConfig) -> None:
        self._seed = seed
        self._shoot = shoot
        self._config = config

    async def advance(self, machine: Object, node: Object | None) -> Requeue | None:
        """Take a selected machine one step further. Raises Conflict or NotFound if the Node has changed or is gone."""
        if phase_of(machine) == in_place.UPDATED and in_place.is_released(machine):
            return None  # the MachineDeployment controller moves it
        if node is None:
            return await self._await(machine)
        if not in_place.is_released(machine):
            if staying := await self._drain(machine, node):
                description = f"Draining the node for its in-place update: {nodes.listed(staying)}"
                await self._write(machine, phase_of(machine), "Processing", description)
                return Requeue(nodes.DRAIN_SECONDS)
            await self._release(machine, node)
            return Requeue(0)
        # Not from the cache: its Node may be older than the release, and show the result of an earlier update.
        node = await self._shoot.get(NODE, node["metadata"]["name"])
        if in_place.reason_of(node) not in (in_place.IS_READY, in_place.HAS_FAILED):
            await self._release(machine, node)  # the Node is another one, or lost its condition
            return Requeue(0)
        match in_place.result_of(node):
            case in_place.SUCCESSFUL:
                _log.info("machine %s was updated in place", machine["metadata"]["name"])
                await self._write(machine, in_place.UPDATED, "Successful", "The machine was updated in place", node)
                return None
            case in_place.FAILED:
                annotations = node["metadata"].get("annotations") or {}
                why = str(annotations.get(in_place.FAILED_REASON) or "the node agent names no reason")[:_QUOTED]
                await self._fail(machine, node, why)
                return None
        return await self._await(machine, node)

    async def finish(self, machine: Object, node: Object) -> None:
        """Make the Node usable again: the machine is updated, or its update was cancelled. Raises Conflict."""
        name = machine["metadata"]["name"]
        node = await self._shoot.get(NODE, name)
        was_released = bool(in_place.annotation(machine, in_place.DRAINED_FOR))
        if was_released and in_place.reason_of(node) != in_place.HAS_SUCCEEDED:
            # Before the label of the result is removed: the node agent would write it again.
            node = await nodes.write_reason(self._shoot, node, in_place.HAS_SUCCEEDED, "The node was updated in place")
        elif not was_released and in_place.reason_of(node):
            node = await nodes.write_reason(self._shoot, node, None)
        taints = list(node["spec"].get("taints") or [])
        if was_released and _NOT_READY["key"] not in {each["key"] for each in taints}:
            taints.append(_NOT_READY)
        # The cluster itself removes the taint of a cordoned node.
        metadata = {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "labels": dict.fromkeys((in_place.CANDIDATE, in_place.SELECTED, in_place.RESULT)),
            "annotations": {in_place.FAILED_REASON: None},
        }
        spec: dict[str, Any] = {"unschedulable": None, "taints": taints}
        await self._shoot.patch(NODE, name, None, {"metadata": metadata, "spec": spec})
        await self._annotate(machine, {in_place.SINCE: None, in_place.DRAINED_FOR: None})

    async def _drain(self, machine: Object, node: Object) -> list[StayingPod]:
        """Drain the node. Returns the pods to wait for: none once the node is empty, or the drain's timeout is over."""
        if nodes.unready_for(node) > nodes.UNREADY_DRAIN:
            return []
        name = machine["metadata"]["name"]
        since = age_of(in_place.annotation(machine, in_place.SINCE) or timestamp())
        allowed = duration(machine["spec"].get("drainTimeout"), self._config.drain_timeout)
        if since >= allowed:
            staying = await nodes.drain(self._shoot, name, evict=False)
            if staying:
                _log.warning("machine %s is updated though its node is not empty after %s", name, allowed)
            return []
        return await nodes.drain(self._shoot, name, evict=nodes.may_evict(machine, since))

    async def _release(self, machine: Object, node: Object) -> None:
        """Tell the node agent that it may update the machine.

        The result of an earlier update is removed first. The Machine says last that its Node is released, so a run that
        was interrupted is repeated as a whole; a node agent that was faster writes its result again.
        """
        name, target = machine["metadata"]["name"], in_place.annotation(machine, in_place.TARGET)
        metadata = {
            "labels": {in_place.SELECTED: "true", in_place.RESULT: None},
            "annotations": {in_place.FAILED_REASON: None},
        }
        node = await self._shoot.patch(NODE, name, None, {"metadata": metadata})
        await nodes.write_reason(self._shoot, node, in_place.IS_READY, "The node is drained and may be updated")
        await self._write(machine, in_place.UPDATING, "Processing", f"Updating in place to {target}", fresh=True)
        await self._annotate(machine, {in_place.DRAINED_FOR: target})
        _log.info("machine %s may be updated in place to %s", name, target)

    async def _await(self, machine: Object, node: Object | None = None) -> Requeue | None:
        """Wait for the result until the timeout is over. A later result still counts."""
        if phase_of(machine) != in_place.UPDATING:
            return None
        allowed = duration(machine["spec"].get("inPlaceUpdateTimeout"), self._config.in_place_update_timeout)
        waited = age_of(machine["status"]["currentStatus"]["lastUpdateTime"])
        if waited < allowed:
            return Requeue((allowed - waited).total_seconds() + 1)
        await self._fail(machine, node, f"its node agent has reported no result within {allowed}")
        return None

    async def _fail(self, machine: Object, node: Object | None, why: str) -> None:
        if node is not None:
            await nodes.write_reason(self._shoot, node, in_place.HAS_FAILED, why)
        description = f"The in-place update has failed: {why}"
        if phase_of(machine) != in_place.UPDATE_FAILED:
            _log.warning("machine %s: %s", machine["metadata"]["name"], description)
        await self._write(machine, in_place.UPDATE_FAILED, "Failed", description, node)

    async def _annotate(self, machine: Object, annotations: Mapping[str, str | None]) -> None:
        metadata = machine["metadata"]
        patch = {"metadata": {"annotations": dict(annotations)}}
        await self._seed.patch(MACHINE, metadata["name"], metadata["namespace"], patch)

    async def _write(
        self,
        machine: Object,
        phase: str,
        state: str,
        description: str,
        node: Object | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Write the Machine's status. ``fresh``: its phase begins now, though it may have been the same before."""
        status = machine.get("status") or {}
        wanted: dict[str, Any] = {}
        if node is not None:
            wanted["conditions"] = nodes.conditions_of(node)
        if fresh or (status.get("currentStatus") or {}).get("phase") != phase:
            wanted["currentStatus"] = {"phase": phase, "lastUpdateTime": timestamp()}
        operation = {"type": _OPERATION, "state": state, "description": description}
        last = status.get("lastOperation") or {}
        if {key: last.get(key) for key in operation} != operation:
            wanted["lastOperation"] = {**operation, "lastUpdateTime": timestamp(), "errorCode": None}
        await write_status(self._seed, MACHINE, machine, wanted)
