"""The MachineDeployment controller: one MachineSet for each machine class, and rolling updates from old to new sets."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.constants import FINALIZER_MACHINE_CONTROLLER_MANAGER
from api.decisions.conditions import set_conditions
from api.machine.in_place import SELECTED, UPDATED
from api.machine.names import FIRST_TO_GO, NAME_LABEL, PRIORITY, TRIGGER_DELETION
from api.machine.objects import chosen_machines, is_alive, is_deleting, owner_name, owner_uid, phase_of
from api.resources import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET, NODE
from api.times import timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, Object, Objects, WatchEvent
from kube.controller import Controller, TryAgain
from kube.errors import AlreadyExists, Conflict, NotFound
from kube.objects import controller_reference
from workers.machine_controller_manager.in_place_rollout import InPlaceRollout
from workers.machine_controller_manager.objects import hold, release, replacing, selector_of, write_status

_HASH_LABEL = "machine-template-hash"
_PREFER_NO_SCHEDULE = {
    "key": "deployment.machine.sapcloud.io/prefer-no-schedule",
    "value": "True",
    "effect": "PreferNoSchedule",
}
"""Taint on nodes that will be replaced: a pod that is evicted from one of them should not be scheduled to the next
one."""


class MachineDeploymentController:
    """Creates, scales and deletes MachineSets."""

    def __init__(
        self, seed: KubeClient, caches: Caches, shoot: KubeClient, shoot_caches: Caches, namespace: str
    ) -> None:
        self._seed = seed
        self._namespace = namespace
        self._machines, shoot_nodes = caches.of(MACHINE, namespace), shoot_caches.of(NODE)
        self._in_place = InPlaceRollout(seed, shoot, shoot_nodes, namespace)
        self._controller = Controller("machine deployments", self._reconcile, longest_delay=15.0)
        self._controller.watch(caches.of(MACHINE_DEPLOYMENT, namespace))
        self._controller.watch(caches.of(MACHINE_SET, namespace), keys=self._owner)
        self._controller.watch(self._machines, keys=self._deployment_of, when=_ends_update)
        self._controller.watch(shoot_nodes, keys=self._deployment_of_node, when=_changes_selection)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _owner(self, event: WatchEvent) -> list[Key]:
        name = owner_name(event.object, MACHINE_DEPLOYMENT.kind)
        return [Key(self._namespace, name)] if name else []

    def _deployment_of(self, event: WatchEvent) -> list[Key]:
        name = (event.object["metadata"].get("labels") or {}).get(NAME_LABEL)
        return [Key(self._namespace, name)] if name else []

    def _deployment_of_node(self, event: WatchEvent) -> list[Key]:
        machine = self._machines.get(event.object["metadata"]["name"], self._namespace)
        name = ((machine or {}).get("metadata", {}).get("labels") or {}).get(NAME_LABEL)
        return [Key(self._namespace, name)] if name else []

    async def _reconcile(self, key: Key) -> None:
        found = await self._seed.find(MACHINE_DEPLOYMENT, key.name, self._namespace)
        if found is None:
            return
        try:
            await self._converge(found)
        except Conflict as error:
            raise TryAgain(f"MachineDeployment {key.name}: {error}", after=0.2) from None

    async def _converge(self, found: Object) -> None:
        sets = await self._sets(found)
        if is_deleting(found):
            for each in sets:
                await self._delete(each)
            if not sets:
                await release(self._seed, MACHINE_DEPLOYMENT, found)
            return
        found = await hold(self._seed, MACHINE_DEPLOYMENT, found)
        found = await self._prefer_chosen(found)
        living = [each for each in sets if not is_deleting(each)]
        new = next((each for each in living if _class_of(each) == _class_of(found)), None)
        old = [each for each in living if each is not new]
        if new is None:
            first = int(found["spec"].get("replicas") or 0) if not old else 0
            new = await self._create(found, first)
        if not found["spec"].get("paused"):
            for each in sets:
                if each is not new:
                    await self._share_settings(found, each)
            if in_place_strategy(found) is None:
                await self._scale(found, new, old)
            else:
                await self._update_in_place(found, new, old)
        await write_status(self._seed, MACHINE_DEPLOYMENT, found, status(found, new, old))

    async def _prefer_chosen(self, found: Object) -> Object:
        """Mark the machines that the cluster autoscaler chose, so that their set deletes them first when it shrinks.

        Only the replicas decide how many machines are deleted. A second run finds the marks. The name of a deleted
        machine is removed from the annotation, because the next machine may have the same name. All names are removed
        once no machine has to be deleted any more. Raises Conflict if the deployment has changed, because a name may
        have been added.
        """
        metadata = found["metadata"]
        if TRIGGER_DELETION not in (metadata.get("annotations") or {}):
            return found
        listed = await self._seed.list(MACHINE, self._namespace, labels=f"{NAME_LABEL}={metadata['name']}")
        machines = [each for each in listed if is_alive(each, metadata["name"])]
        chosen = chosen_machines(found, {each["metadata"]["name"] for each in machines})
        for machine in machines:
            await self._prefer(machine, first=machine["metadata"]["name"] in chosen)
        named = ",".join(chosen)
        if named == metadata["annotations"][TRIGGER_DELETION]:
            return found
        patch = {"resourceVersion": metadata["resourceVersion"], "annotations": {TRIGGER_DELETION: named or None}}
        return await self._seed.patch(MACHINE_DEPLOYMENT, metadata["name"], self._namespace, {"metadata": patch})

    async def _prefer(self, machine: Object, *, first: bool) -> None:
        """Mark a machine, or remove its mark: with an old mark it would be deleted in place of one chosen later."""
        metadata = machine["metadata"]
        marked = (metadata.get("annotations") or {}).get(PRIORITY) == FIRST_TO_GO
        if marked != first:
            patch = {"metadata": {"annotations": {PRIORITY: FIRST_TO_GO if first else None}}}
            with contextlib.suppress(NotFound):
                await self._seed.patch(MACHINE, metadata["name"], self._namespace, patch)

    async def _share_settings(self, found: Object, old: Object) -> None:
        live, wanted = old["spec"]["template"]["spec"], leaving_template(old, _template(found))
        if live != wanted:
            await self._patch(old, {"spec": {"template": {"spec": replacing(live, wanted)}}})

    async def _update_in_place(self, found: Object, new: Object, old: Objects) -> None:
        strategy = in_place_strategy(found) or {}
        template = _template(found)
        if changes := replacing(new["spec"]["template"]["spec"], template["spec"]):
            await self._patch(new, {"spec": {"template": {"spec": changes}}})
        manual = strategy.get("orchestrationType") == "Manual"
        surge, unavailable = (0, 0) if manual else _bounds(strategy, int(found["spec"].get("replicas") or 0))
        await self._in_place.advance(found, new, old, surge, unavailable, manual=manual)
        for each in old:
            if not each["spec"].get("replicas") and not (each.get("status") or {}).get("replicas"):
                await self._delete(each)

    async def _scale(self, found: Object, new: Object, old: Objects) -> None:
        plan = plan_scaling(found["spec"], new, old)
        template = _template(found)
        patch: dict[str, Any] = {}
        if new["spec"].get("replicas") != plan.new:
            patch["replicas"] = plan.new
        if new["spec"]["template"]["spec"] != template["spec"]:
            patch["template"] = {"spec": replacing(new["spec"]["template"]["spec"], template["spec"])}
        if patch:
            await self._patch(new, {"spec": patch})
        for each, replicas in zip(old, plan.old, strict=True):
            if each["spec"].get("replicas") != replicas:
                await self._patch(each, {"spec": {"replicas": replicas}})
            elif replicas == 0 and not (each.get("status") or {}).get("replicas"):
                await self._delete(each)

    async def _sets(self, found: Object) -> Objects:
        uid = found["metadata"]["uid"]
        listed = await self._seed.list(MACHINE_SET, self._namespace, labels=selector_of(found))
        return [each for each in listed if owner_uid(each) == uid]

    async def _create(self, found: Object, replicas: int) -> Object:
        made = new_set(found, replicas)
        try:
            return await self._seed.create(made)
        except AlreadyExists:
            # An earlier attempt created the set, or an older set of the same class is still being deleted.
            live = await self._seed.get(MACHINE_SET, made["metadata"]["name"], self._namespace)
            if is_deleting(live) or owner_uid(live) != found["metadata"]["uid"]:
                raise TryAgain(f"MachineSet {made['metadata']['name']} is still being deleted", after=0.5) from None
            return live

    async def _patch(self, each: Object, patch: Mapping[str, Any]) -> None:
        await self._seed.patch(MACHINE_SET, each["metadata"]["name"], self._namespace, patch)

    async def _delete(self, each: Object) -> None:
        if not is_deleting(each):
            metadata = each["metadata"]
            await self._seed.delete(MACHINE_SET, metadata["name"], self._namespace, uid=metadata["uid"])


def new_set(found: Mapping[str, Any], replicas: int) -> Object:
    """The MachineSet for a deployment's current class; its name is derived from the class."""
    digest = hashlib.sha256(_class_of(found).encode()).hexdigest()[:5]
    template = _template(found)
    labels = {**((template.get("metadata") or {}).get("labels") or {}), _HASH_LABEL: digest}
    return {
        "apiVersion": MACHINE_SET.api_version,
        "kind": MACHINE_SET.kind,
        "metadata": {
            "name": f"{found['metadata']['name']}-{digest}",
            "namespace": found["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [controller_reference(found)],
            "finalizers": [FINALIZER_MACHINE_CONTROLLER_MANAGER],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}},
        },
    }


def leaving_template(old: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Spec of the machines of an old set: with their own class, and with a taint by which pods prefer new nodes.

    Timeouts are those of the deployment: a user who lengthens one while a drain is stuck means this drain.
    """
    own = old["spec"]["template"]["spec"]
    node = own.get("nodeTemplate") or {}
    taints = [each for each in (node.get("spec") or {}).get("taints") or [] if each != _PREFER_NO_SCHEDULE]
    node = {**node, "spec": {**(node.get("spec") or {}), "taints": [*taints, _PREFER_NO_SCHEDULE]}}
    return {**template["spec"], "class": own["class"], "nodeTemplate": node}


@dataclass(frozen=True)
class Scaling:
    """Wanted replicas of the new set and of each old one."""

    new: int
    old: tuple[int, ...]


def plan_scaling(spec: Mapping[str, Any], new: Mapping[str, Any], old: Sequence[Mapping[str, Any]]) -> Scaling:
    """One step from the old sets to the new one, within maxSurge and maxUnavailable.

    As in a Deployment of Kubernetes, machines that do not run are removed first.
    """
    wanted = int(spec.get("replicas") or 0)
    have = [int(each["spec"].get("replicas") or 0) for each in old]
    new_now = int(new["spec"].get("replicas") or 0)
    if not any(have) and not any((each.get("status") or {}).get("replicas") for each in old):
        return Scaling(wanted, tuple(0 for _ in old))
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Scaling(new_now, tuple(0 for _ in old))
    surge, unavailable = _bounds(_rolling(spec), wanted)
    total = new_now + sum(have)
    grown = new_now if new_now >= wanted else min(wanted, new_now + max(0, wanted + surge - total))
    least = wanted - unavailable
    new_missing = max(0, new_now - _available(new))
    spare = total - least - new_missing
    rest = list(have)
    for index, each in enumerate(old):
        dead = max(0, min(rest[index] - _available(each), spare))
        rest[index] -= dead
        spare -= dead
    live = _available(new) + sum(min(count, _available(each)) for count, each in zip(rest, old, strict=True)) - least
    for index, count in enumerate(rest):
        gone = max(0, min(count, live, spare))
        rest[index] -= gone
        live -= gone
        spare -= gone
    return Scaling(min(grown, wanted), tuple(rest))


def status(found: Mapping[str, Any], new: Mapping[str, Any], old: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``MachineDeployment.status``, as far as the sets have reported."""
    wanted = int(found["spec"].get("replicas") or 0)
    counts = {
        field: sum(int((each.get("status") or {}).get(field) or 0) for each in (new, *old))
        for field in ("replicas", "readyReplicas", "availableReplicas")
    }
    enough = (
        counts["availableReplicas"] >= wanted - _bounds(in_place_strategy(found) or _rolling(found["spec"]), wanted)[1]
    )
    condition = {
        "type": "Available",
        "status": "True" if enough else "False",
        "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        "message": f"{counts['availableReplicas']} of {wanted} machines are available.",
    }
    known = (found.get("status") or {}).get("conditions") or ()
    return {
        **counts,
        "observedGeneration": found["metadata"]["generation"],
        "updatedReplicas": int((new.get("status") or {}).get("replicas") or 0),
        "unavailableReplicas": max(0, wanted - counts["availableReplicas"]),
        "conditions": set_conditions(known, [condition], timestamp()),
    }


def in_place_strategy(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Settings of a deployment whose machines are updated in place; None if they are replaced."""
    strategy = found["spec"].get("strategy") or {}
    return strategy.get("inPlaceUpdate") or {} if strategy.get("type") == "InPlaceUpdate" else None


def _rolling(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return (spec.get("strategy") or {}).get("rollingUpdate") or {}


def _ends_update(event: WatchEvent) -> bool:
    """Whether a machine's in-place update has ended."""
    return phase_of(event.object) == UPDATED and (event.old is None or phase_of(event.old) != UPDATED)


def _changes_selection(event: WatchEvent) -> bool:
    """Whether a user has selected a Node for its update."""
    labels, before = (((each or {}).get("metadata") or {}).get("labels") or {} for each in (event.object, event.old))
    return labels.get(SELECTED) != before.get(SELECTED)


def _bounds(rolling: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    """maxSurge (rounded up) and maxUnavailable (rounded down) in machines; if both are 0, maxSurge is 1."""
    surge = _count(rolling.get("maxSurge", 1), wanted, up=True)
    unavailable = _count(rolling.get("maxUnavailable", 0), wanted, up=False)
    return (1, 0) if surge == 0 and unavailable == 0 else (surge, unavailable)


def _count(value: int | str, of: int, *, up: bool) -> int:
    if isinstance(value, str) and value.endswith("%"):
        percent = int(value[:-1]) * of
        return -(-percent // 100) if up else percent // 100
    return int(value)


def _available(each: Mapping[str, Any]) -> int:
    return int((each.get("status") or {}).get("availableReplicas") or 0)


def _class_of(found: Mapping[str, Any]) -> str:
    return str(found["spec"]["template"]["spec"]["class"]["name"])


def _template(found: Mapping[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = found["spec"]["template"]
    return template
