"""The MachineSet controller: keeps as many machines of one class as wanted."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from api.constants import FINALIZER_MACHINE_CONTROLLER_MANAGER
from api.machine import in_place
from api.machine.names import NODE_LABEL, PRIORITY
from api.machine.objects import is_deleting, owner_name, owner_uid, phase_of
from api.resources import MACHINE, MACHINE_SET
from kube.cache import Caches, Key
from kube.client import KubeClient, Object, Objects, WatchEvent
from kube.controller import Controller, TryAgain
from kube.errors import AlreadyExists
from kube.objects import controller_reference
from workers.machine_controller_manager.objects import (
    BY_OWNER,
    hold,
    in_batches,
    is_active,
    owners_of,
    release,
    replacing,
    selector_of,
    write_status,
)

_PHASES_TO_GO = ("", "Failed", "CrashLoopBackOff", "Pending", "Unknown", "Available", "Running")
_SYNCED = (
    "nodeTemplate",
    "drainTimeout",
    "healthTimeout",
    "creationTimeout",
    "inPlaceUpdateTimeout",
    "disableHealthTimeout",
    "maxEvictRetries",
    "nodeConditions",
)
"""Fields of a machine that are kept equal to those of its set. All others are fixed when the machine is created."""


class MachineSetController:
    """Creates and deletes Machines.

    Before it creates or deletes, it counts the machines that the API server has, not those in a cache, and it names
    machines by slots. So this process and the next one create the same machine if one is missing. If the cache shows
    that no machine must be created, deleted or changed, it only counts for the status, and from the cache.
    """

    def __init__(self, seed: KubeClient, caches: Caches, namespace: str) -> None:
        self._seed = seed
        self._namespace = namespace
        self._controller = Controller("machine sets", self._reconcile, longest_delay=15.0)
        self._controller.watch(caches.of(MACHINE_SET, namespace))
        self._cache = caches.of(MACHINE, namespace)
        self._cache.index(BY_OWNER, owners_of)
        self._controller.watch(self._cache, keys=self._owner)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _owner(self, event: WatchEvent) -> list[Key]:
        name = owner_name(event.object, MACHINE_SET.kind)
        return [Key(self._namespace, name)] if name else []

    async def _reconcile(self, key: Key) -> None:
        found = await self._seed.find(MACHINE_SET, key.name, self._namespace)
        if found is not None:
            await self._converge(found)

    async def _converge(self, found: Object) -> None:
        machines = await self._machines(found)
        if is_deleting(found):
            await in_batches(lambda each: self._sync(found, each), machines)
            await in_batches(self._delete, machines)
            if not machines:
                await release(self._seed, MACHINE_SET, found)
            return
        found = await hold(self._seed, MACHINE_SET, found)
        active = list(filter(is_active, machines))
        await in_batches(self._delete, [each for each in machines if phase_of(each) == "Failed"])
        missing, leaving = plan(found, active)
        if missing or leaving:
            await self._check_unchanged(found)
        names = free_names(found, {each["metadata"]["name"] for each in machines})
        new = list(islice(names, missing))
        active += await in_batches(lambda name: self._create(found, name), new)
        await in_batches(self._delete, leaving)
        names_leaving = {each["metadata"]["name"] for each in leaving}
        active = [each for each in active if each["metadata"]["name"] not in names_leaving]
        await in_batches(lambda each: self._sync(found, each), [*active, *filter(is_deleting, machines)])
        await write_status(self._seed, MACHINE_SET, found, status(found, active))

    async def _machines(self, found: Object) -> Objects:
        """Machines of a set: from the cache if nothing is to do there, else from the API server."""
        uid = found["metadata"]["uid"]
        await self._cache.synced()
        cached = self._cache.by_index(BY_OWNER, uid)
        if is_settled(found, cached):
            return cached
        listed = await self._seed.list(MACHINE, self._namespace, labels=selector_of(found))
        return [each for each in listed if owner_uid(each) == uid]

    async def _check_unchanged(self, found: Object) -> None:
        """Raise TryAgain if the set was changed after it was read.

        Its machines were listed later than the set was read: a machine that has moved to another set in between must
        not be replaced, because the number of replicas was lowered before the machine moved.
        """
        name = found["metadata"]["name"]
        live = await self._seed.find(MACHINE_SET, name, self._namespace)
        if live is None or live["metadata"]["generation"] != found["metadata"]["generation"]:
            raise TryAgain(f"MachineSet {name} has changed since it was read", after=0.1)

    async def _create(self, found: Object, name: str) -> Object:
        machine = new_machine(found, name)
        try:
            return await self._seed.create(machine)
        except AlreadyExists:
            return await self._seed.get(MACHINE, name, self._namespace)

    async def _delete(self, machine: Object) -> None:
        if not is_deleting(machine):
            metadata = machine["metadata"]
            await self._seed.delete(MACHINE, metadata["name"], self._namespace, uid=metadata["uid"])

    async def _sync(self, found: Object, machine: Object) -> None:
        if patch := sync_patch(found, machine):
            await self._seed.patch(MACHINE, machine["metadata"]["name"], self._namespace, {"spec": patch})


def plan(found: Mapping[str, Any], active: Objects) -> tuple[int, Objects]:
    """Number of machines to create, and the machines to delete, of the active ones.

    While an updated machine moves from one set to another, the numbers of replicas change before and after it: neither
    is a machine created because one is missing, nor is one deleted because there is one too many.
    """
    wanted = int(found["spec"].get("replicas") or 0)
    fixed = [each for each in active if not in_place.is_moving(each)]
    grows = (found["metadata"].get("labels") or {}).get(in_place.NO_SCALE_UP) != "true"
    return max(0, wanted - len(active)) if grows else 0, surplus(fixed, len(fixed) - wanted)


def is_settled(found: Mapping[str, Any], machines: Objects) -> bool:
    """Whether no machine of a set must be created, deleted or changed.

    False until the set's generation was observed: the status of a new generation must not come from older machines.
    """
    if any(sync_patch(found, each) for each in machines if is_deleting(each) or phase_of(each) != "Failed"):
        return False
    if is_deleting(found):
        return bool(machines) and all(map(is_deleting, machines))
    if (found.get("status") or {}).get("observedGeneration") != found["metadata"]["generation"]:
        return False
    if any(phase_of(each) == "Failed" and not is_deleting(each) for each in machines):
        return False
    return plan(found, list(filter(is_active, machines))) == (0, [])


def sync_patch(found: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Patch of a machine's spec that brings the settings of its set; empty if the machine has them."""
    wanted, live = ({key: spec[key] for key in _SYNCED if key in spec} for spec in (_spec(found), machine["spec"]))
    return replacing(live, wanted)


def new_machine(found: Mapping[str, Any], name: str) -> Object:
    """A Machine of a set. It is created with its finalizer, because from then on a pod may exist for it."""
    template = found["spec"]["template"]
    return {
        "apiVersion": MACHINE.api_version,
        "kind": MACHINE.kind,
        "metadata": {
            "name": name,
            "namespace": found["metadata"]["namespace"],
            "labels": {**((template.get("metadata") or {}).get("labels") or {}), NODE_LABEL: name},
            "annotations": dict((template.get("metadata") or {}).get("annotations") or {}),
            "ownerReferences": [controller_reference(found)],
            "finalizers": [FINALIZER_MACHINE_CONTROLLER_MANAGER],
        },
        "spec": template["spec"],
    }


def free_names(found: Mapping[str, Any], taken: set[str]) -> Iterator[str]:
    """Names for new machines: slots of the set in order, without those whose machine still exists."""
    uid, slot = found["metadata"]["uid"], 0
    while True:
        name = f"{found['metadata']['name']}-{hashlib.sha256(f'{uid}/{slot}'.encode()).hexdigest()[:5]}"
        if name not in taken:
            yield name
        slot += 1


def surplus(machines: Objects, count: int) -> Objects:
    """Machines to delete when there are too many: by priority, then the least useful by phase, then the newest.

    Machines whose in-place update is under way are deleted last.
    """
    if count <= 0:
        return []

    def order(machine: Object) -> tuple[int, bool, int]:
        priority = (machine["metadata"].get("annotations") or {}).get(PRIORITY, "3")
        phase = phase_of(machine)
        updating = in_place.is_under_way(machine)
        return int(priority), updating, _PHASES_TO_GO.index(phase) if phase in _PHASES_TO_GO else len(_PHASES_TO_GO)

    newest_first = sorted(machines, key=lambda each: str(each["metadata"].get("creationTimestamp")), reverse=True)
    return sorted(newest_first, key=order)[:count]


def status(found: Mapping[str, Any], active: Objects) -> dict[str, Any]:
    """``MachineSet.status``."""
    running = sum(phase_of(each) == "Running" for each in active)
    return {
        "observedGeneration": found["metadata"]["generation"],
        "replicas": len(active),
        "fullyLabeledReplicas": len(active),
        "readyReplicas": running,
        "availableReplicas": running,
    }


def _spec(found: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec
