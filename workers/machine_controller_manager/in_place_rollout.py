"""In-place updates of a MachineDeployment: its machines move from the old sets to the newest one and are not replaced.

A machine is selected (annotation ``TARGET``), updated by the Machine controller, moved to the set of its target, and
counted there. From the success of its update until the annotation is removed, no MachineSet creates or deletes a
machine because of it: so the number of replicas of the old set, the owner of the machine, and the number of replicas of
the new set can change one after another, and a process that is killed in between leaves nothing that another one would
misunderstand.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.machine import in_place
from api.machine.names import FIRST_TO_GO, NAME_LABEL, PRIORITY
from api.machine.objects import is_deleting, owner_uid, phase_of
from api.resources import MACHINE, MACHINE_SET, NODE
from api.times import timestamp
from kube.cache import Cache
from kube.client import KubeClient, Object, Objects
from kube.objects import controller_reference
from workers.machine_controller_manager import nodes
from workers.machine_controller_manager.objects import is_active

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sizes:
    """Wanted replicas of the new set and of each old one."""

    new: int
    old: tuple[int, ...]


@dataclass
class Members:
    """The active machines of one set."""

    found: Object
    machines: Objects = field(default_factory=list)

    @property
    def replicas(self) -> int:
        return int(self.found["spec"].get("replicas") or 0)

    @property
    def chosen(self) -> int:
        """Number of machines that the cluster autoscaler wants to be deleted first."""
        return sum(
            (each["metadata"].get("annotations") or {}).get(PRIORITY) == FIRST_TO_GO and not in_place.is_under_way(each)
            for each in self.machines
        )

    @property
    def idle(self) -> Objects:
        """Machines whose update has not begun, in the order of their names."""
        found = [each for each in self.machines if not in_place.is_under_way(each)]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))


class InPlaceRollout:
    """Selects machines for updates, moves updated ones, and sizes the sets."""

    def __init__(self, seed: KubeClient, shoot: KubeClient, shoot_nodes: Cache, namespace: str) -> None:
        self._seed = seed
        self._shoot = shoot
        self._nodes = shoot_nodes
        self._namespace = namespace

    async def advance(
        self, found: Object, new_set: Object, old_sets: Objects, surge: int, unavailable: int, *, manual: bool
    ) -> None:
        """Do what is possible now. An event of a Machine or Node calls it again."""
        await self._nodes.synced()
        wanted = int(found["spec"].get("replicas") or 0)
        class_ = str(found["spec"]["template"]["spec"]["class"]["name"])
        new, old = await self._members(found, new_set, old_sets)
        await self._correct_targets(class_, new, old)
        await self._disable_scale_up(new, old)
        movable = [[each for each in members.machines if _may_move(each, class_)] for members in old]
        sizes = plan_sizes(wanted, new, old, [len(each) for each in movable], surge=surge, unavailable=unavailable)
        for members, replicas in zip(old, sizes.old, strict=True):
            await self._scale(members, replicas)
        for members, machines in zip(old, movable, strict=True):
            for machine in machines:
                new.machines.append(await self._move(machine, new_set, class_))
                members.machines.remove(machine)
        await self._scale(new, sizes.new)
        for machine in new.machines:
            if _may_move(machine, class_):
                await self._annotate(machine, {in_place.TARGET: None})
        await self._label_nodes(new, old)
        if manual:
            selected = self._selected_by_users(old)
        else:
            selected = plan_selection(wanted, sizes.new, new, old, unavailable=unavailable)
        for machine in selected:
            await self._select(machine, class_)

    async def _members(self, found: Object, new_set: Object, old_sets: Objects) -> tuple[Members, list[Members]]:
        """The sets with their machines, as the API server has them: a cache could lack a machine."""
        name = found["metadata"]["name"]
        listed = await self._seed.list(MACHINE, self._namespace, labels=f"{NAME_LABEL}={name}")
        by_owner: dict[str, Objects] = {}
        for machine in filter(is_active, listed):
            by_owner.setdefault(owner_uid(machine), []).append(machine)
        new, *old = (Members(each, by_owner.get(each["metadata"]["uid"], [])) for each in (new_set, *old_sets))
        return new, old

    async def _correct_targets(self, class_: str, new: Members, old: Sequence[Members]) -> None:
        """Adapt updates that lead to another class: the deployment has changed since they began.

        A node agent may have begun to update a Node that was released. So such a machine is updated once more, to the
        newest class, though it may be in the set of this class; any other machine of this set needs no update.
        """
        for members in (new, *old):
            for index, machine in enumerate(members.machines):
                if not in_place.is_under_way(machine) or in_place.annotation(machine, in_place.TARGET) == class_:
                    continue
                if in_place.is_moving(machine):
                    await self._scale(members, max(members.replicas, len(members.machines)))  # it stays for now
                cancelled = members is new and not in_place.annotation(machine, in_place.DRAINED_FOR)
                changed = await self._annotate(machine, {in_place.TARGET: None if cancelled else class_})
                members.machines[index] = changed

    async def _disable_scale_up(self, new: Members, old: Sequence[Members]) -> None:
        """A machine that is missing in an old set is created in the new one."""
        for members, disabled in ((new, None), *((each, "true") for each in old)):
            labels = members.found["metadata"].get("labels") or {}
            if labels.get(in_place.NO_SCALE_UP) != disabled:
                patch = {"metadata": {"labels": {in_place.NO_SCALE_UP: disabled}}}
                await self._seed.patch(MACHINE_SET, members.found["metadata"]["name"], self._namespace, patch)

    async def _scale(self, members: Members, replicas: int) -> None:
        metadata = members.found["metadata"]
        if members.replicas != replicas:
            patch = {"spec": {"replicas": replicas}}
            members.found = await self._seed.patch(MACHINE_SET, metadata["name"], self._namespace, patch)

    async def _move(self, machine: Object, new_set: Object, class_: str) -> Object:
        patch = {
            "metadata": {
                "labels": dict(new_set["spec"]["selector"]["matchLabels"]),
                "ownerReferences": [controller_reference(new_set)],
            },
            "spec": {"class": {"name": class_}},
        }
        _log.info("machine %s moves to MachineSet %s", machine["metadata"]["name"], new_set["metadata"]["name"])
        return await self._seed.patch(MACHINE, machine["metadata"]["name"], self._namespace, patch)

    async def _select(self, machine: Object, class_: str) -> None:
        node = self._nodes.get(machine["metadata"]["name"])
        if node is not None:
            node = await self._label(node, {in_place.SELECTED: "true"})
            await nodes.write_reason(self._shoot, node, in_place.IS_SELECTED, "The node is selected for its update")
        # Last: from now on, the Machine controller writes the Node.
        await self._annotate(machine, {in_place.TARGET: class_, in_place.SINCE: timestamp()})
        _log.info("machine %s is selected for an in-place update to %s", machine["metadata"]["name"], class_)

    def _selected_by_users(self, old: Sequence[Members]) -> Objects:
        """Machines of old sets whose Node a user has labelled."""
        idle = [machine for members in old for machine in members.idle]
        return [each for each in idle if _has(self._nodes.get(each["metadata"]["name"]), in_place.SELECTED)]

    async def _label_nodes(self, new: Members, old: Sequence[Members]) -> None:
        """Mark the Nodes that wait for an update, and no others."""
        for machine in (each for members in old for each in members.machines):
            node = self._nodes.get(machine["metadata"]["name"])
            if node is None or _has(node, in_place.CANDIDATE):
                continue
            node = await self._label(node, {in_place.CANDIDATE: "true"})
            if not in_place.is_under_way(machine):
                text = "The configuration of the pool has changed"
                await nodes.write_reason(self._shoot, node, in_place.IS_CANDIDATE, text)
        for machine in new.idle:
            node = self._nodes.get(machine["metadata"]["name"])
            # The Machine controller removes the labels of Nodes whose update had begun.
            if node is None or not _has(node, in_place.CANDIDATE) or in_place.annotation(machine, in_place.SINCE):
                continue
            node = await self._label(node, dict.fromkeys((in_place.CANDIDATE, in_place.SELECTED)))
            await nodes.write_reason(self._shoot, node, None)

    async def _label(self, node: Object, labels: Mapping[str, str | None]) -> Object:
        """Change labels of a Node. Raises Conflict if the Node has changed since the cache saw it."""
        metadata = node["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "labels": dict(labels)}}
        return await self._shoot.patch(NODE, metadata["name"], None, patch)

    async def _annotate(self, machine: Object, annotations: Mapping[str, str | None]) -> Object:
        patch = {"metadata": {"annotations": dict(annotations)}}
        return await self._seed.patch(MACHINE, machine["metadata"]["name"], self._namespace, patch)


def plan_sizes(
    wanted: int, new: Members, old: Sequence[Members], moving: Sequence[int], *, surge: int, unavailable: int
) -> Sizes:
    """Replicas of the sets once ``moving`` machines of each old set have moved to the new one.

    All sets together have as many replicas as wanted, and up to ``surge`` more while old machines are left. An old set
    never grows. If there are too many replicas, the machines that the cluster autoscaler chose are deleted first, then
    old ones.
    """
    sizes = [len(each.machines) - count for each, count in zip(old, moving, strict=True)]
    present = new.replicas + sum(moving)
    total = wanted + min(surge, sum(sizes))
    by_choice = sorted(range(len(sizes)), key=lambda index: -old[index].chosen)
    excess = present + sum(sizes) - total
    if excess <= 0:
        # A machine that an interrupted run has moved, and not counted, is counted here.
        new_size = total - sum(sizes)
    else:
        new_size = present - min(excess, new.chosen, present)
        excess -= present - new_size
        for index in by_choice:
            updating = sum(map(in_place.is_under_way, old[index].machines)) - moving[index]
            less = min(excess, max(0, sizes[index] - updating))
            sizes[index] -= less
            excess -= less
        new_size = max(0, new_size - excess)
    if new_size >= wanted and any(sizes):
        # After an update with a surge: the old machines that are left need no update.
        spare = max(0, _running((new, *old)) - (wanted - unavailable))
        for index in by_choice:
            less = min(spare, sizes[index])
            sizes[index] -= less
            spare -= less
    return Sizes(new_size, tuple(sizes))


def plan_selection(wanted: int, new_size: int, new: Members, old: Sequence[Members], *, unavailable: int) -> Objects:
    """Machines whose update may begin now: so many that ``wanted - unavailable`` machines go on running.

    Machines that do not run anyway come first: their update makes nothing worse, and may mend them.
    """
    under_way = sum(in_place.is_under_way(machine) for members in old for machine in members.machines)
    open_ = max(0, wanted - new_size - under_way)
    idle = [machine for members in old for machine in members.idle]
    broken = [each for each in idle if phase_of(each) == "Unknown"][:open_]
    running = [each for each in idle if phase_of(each) == "Running"]
    free = max(0, _running((new, *old)) - (wanted - unavailable))
    return [*broken, *running[: min(free, open_ - len(broken))]]


def _running(sets: Sequence[Members]) -> int:
    return sum(phase_of(machine) == "Running" for members in sets for machine in members.idle)


def _may_move(machine: Mapping[str, Any], class_: str) -> bool:
    return (
        in_place.annotation(machine, in_place.TARGET) == class_
        and in_place.is_moving(machine)
        and not is_deleting(machine)
    )


def _has(node: Mapping[str, Any] | None, label: str) -> bool:
    return ((node or {}).get("metadata", {}).get("labels") or {}).get(label) == "true"
