"""The Machine controller: creates a machine for each object, follows the health of its node, and deletes it."""

import base64
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from api.constants import KUBELET_ERROR, TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.decisions.workload_identity import PURPOSE, TOKEN_REQUESTOR
from api.machine import in_place
from api.machine.codes import MachineCode
from api.machine.names import FORCE_DELETION_LABEL, KUBELET_SAYS, NODE_LABEL, USER_DATA_KEY
from api.machine.objects import is_deleting, phase_of
from api.resources import LEASE, MACHINE, MACHINE_CLASS, NODE, SECRET
from api.times import timestamp
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import ApiError, Conflict, NotFound
from kube.objects import has_taint
from workers.machine_controller_manager import nodes
from workers.machine_controller_manager.bootstrap import delete_token, ensure_token, fill_in
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.driver import Driver, MachineError, Machines, ResolvedClass, credentials_field
from workers.machine_controller_manager.machine_update import MachineUpdate
from workers.machine_controller_manager.nodes import StayingPod
from workers.machine_controller_manager.objects import age_of, duration, hold, release, write_status

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
"""Seconds between retries of an operation that a user must make possible first. Short, because the user may be waiting
for the result."""
_PATIENCE = timedelta(minutes=5)
"""A drain that takes longer than this, or than half of its timeout, is reported as a fault, although it may still
succeed."""
_JOINING_SECONDS = 15.0
"""Seconds between two looks at what the kubelet of a machine without Node says."""
_JOINING = ("", "Pending", "CrashLoopBackOff")
"""Phases of a machine that cannot run pods yet, and never could."""
_QUOTED = 300
"""Maximum number of characters of the kubelet's error in a Machine's status: a machine writes it."""
LEASE_PREFIX, LEASE_NAMESPACE = "gardener-node-agent-", "kube-system"
"""Prefix of the name, and namespace, of the Lease of a machine's node agent."""


class MachineController:
    """Creates machines in the cloud, reports their health from their nodes, drains and deletes them."""

    def __init__(
        self,
        seed: KubeClient,
        seed_caches: Caches,
        shoot: KubeClient,
        shoot_caches: Caches,
        drivers: Iterable[Driver],
        config: MachineControllerManagerConfig,
    ) -> None:
        self._seed = seed
        self._shoot = shoot
        self._drivers = {each.provider: each for each in drivers}
        self._config = config
        self._namespace = config.namespace
        self._machines = seed_caches.of(MACHINE, config.namespace)
        self._nodes = shoot_caches.of(NODE)
        self._watched: set[Machines] = set()
        self._update = MachineUpdate(seed, shoot, config)
        self._controller = Controller("machines", self._reconcile, workers=20, longest_delay=15.0)
        self._controller.watch(self._machines)
        self._controller.watch(self._nodes, keys=self._machine_of_node, when=_matters)
        # A reconcile hands a renewed token to the driver, whose watch of the cloud must not go on with the old one.
        tokens = seed_caches.of(SECRET, config.namespace, labels=f"{PURPOSE}={TOKEN_REQUESTOR}")
        self._controller.watch(tokens, keys=lambda _: [key_of(each) for each in self._machines.list()])

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _machine_of_node(self, event: WatchEvent) -> list[Key]:
        # A machine and its node have the same name.
        return [Key(self._namespace, event.object["metadata"]["name"])]

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
        except MachineError as error:
            await self._refused(machine, error)
            if error.code.needs_change:
                return Requeue(_RETRY_SECONDS)
            raise TryAgain(str(error)) from None

    async def _converge(self, machine: Object) -> Requeue | None:
        if phase_of(machine) == "Failed":
            return None  # its set replaces it
        name = machine["spec"]["class"]["name"]
        class_ = await self._seed.find(MACHINE_CLASS, name, self._namespace)
        if class_ is None:
            raise MachineError(
                MachineCode.INVALID_ARGUMENT,
                f"machine {machine['metadata']['name']}: MachineClass {self._namespace}/{name} does not exist",
            )
        driver, resolved = self._driver(class_), await self._resolve(class_)
        seen = await self._watch(driver, resolved)
        if not machine["spec"].get("providerID"):
            machine = await self._create(machine, driver, resolved)
        elif _seems_lost(machine, seen) and not await _exists(machine, driver, resolved):
            await self._fail(machine, "it is gone in the cloud")
            return None
        node = self._nodes.get(machine["metadata"]["name"])
        if node is None:
            if in_place.is_under_way(machine) and phase_of(machine) in in_place.PHASES:
                return await self._update.advance(machine, None)
            return await self._without_node(machine)
        spec = machine["spec"]
        if patch := nodes.template_patch(node, spec.get("nodeTemplate") or {}, spec.get("providerID")):
            await self._shoot.patch(NODE, node["metadata"]["name"], None, patch)
        if in_place.is_under_way(machine):
            return await self._update.advance(machine, node)
        if in_place.annotation(machine, in_place.SINCE):
            await self._update.finish(machine, node)
            return Requeue(0)
        return await self._with_node(machine, node)

    async def _create(self, machine: Object, driver: Driver, class_: ResolvedClass) -> Object:
        name = machine["metadata"]["name"]
        user_data = await self._user_data(class_)
        token = await ensure_token(self._shoot, machine, self._creation_timeout(machine))
        provider_id = await driver.create(machine, class_, fill_in(user_data, name, token))
        _log.info("machine %s was created in the cloud", name)
        patch: dict[str, Any] = {"spec": {"providerID": provider_id}}
        if (machine["metadata"].get("labels") or {}).get(NODE_LABEL) != name:
            patch["metadata"] = {"labels": {NODE_LABEL: name}}
        written = await self._seed.patch(MACHINE, name, self._namespace, patch)
        await self._write_phase(written, "Pending", "Create", "Processing", "Waiting for the node to join")
        return written

    async def _without_node(self, machine: Object) -> Requeue | None:
        if phase_of(machine) in _JOINING:
            return await self._joining(machine, "Waiting for the node to join", "its node did not join")
        return await self._unhealthy(machine, "its node object is gone")

    async def _joining(self, machine: Object, description: str, fault: str) -> Requeue | None:
        """Report what a new machine waits for. After its creation's timeout, it has failed with this fault."""
        waited, allowed = age_of(machine["metadata"]["creationTimestamp"]), self._creation_timeout(machine)
        error = await self._error_of_kubelet(machine)
        if waited >= allowed:
            await self._fail(machine, f"{fault} within {allowed}{error}")
            return None
        await self._write_phase(machine, "Pending", "Create", "Processing", f"{description}{error}")
        return Requeue(min((allowed - waited).total_seconds() + 1, _JOINING_SECONDS))

    async def _error_of_kubelet(self, machine: Object) -> str:
        """Text with the kubelet's last error, which the node agent has written into its Lease; empty without one."""
        name = f"{LEASE_PREFIX}{machine['metadata']['name']}"
        try:
            lease = await self._shoot.find(LEASE, name, LEASE_NAMESPACE)
        except ApiError as error:
            # An explanation less must not keep the machine from what is done with it.
            _log.warning("reading Lease %s of machine %s: %s", name, machine["metadata"]["name"], error)
            return ""
        said = ((lease or {}).get("metadata", {}).get("annotations") or {}).get(KUBELET_ERROR, "")
        return f"; {KUBELET_SAYS}: {said[:_QUOTED]}" if said else ""

    async def _with_node(self, machine: Object, node: Object) -> Requeue | None:
        listed = machine["spec"].get("nodeConditions")
        bad = listed.split(",") if listed else nodes.DEFAULT_BAD_CONDITIONS
        fault = nodes.fault(node, bad)
        joins = phase_of(machine) in _JOINING
        if fault is None and joins and has_taint(node, TAINT_CRITICAL_COMPONENTS_NOT_READY):
            # A rolling update deletes an old machine for each one that runs: pods and connections could not move yet.
            return await self._joining(
                machine, "Waiting for critical components of the node", "critical components of its node were not ready"
            )
        if fault is None:
            joined = joins or phase_of(machine) == "Available"
            await self._write_phase(
                machine,
                "Running",
                "Create" if joined else "HealthCheck",
                "Successful",
                "The node has joined" if joined else "The node is healthy",
                node,
            )
            return None
        if joins:
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
            driver, resolved = self._driver(class_), await self._resolve(class_)
            await self._watch(driver, resolved)
            if not await driver.delete(machine, resolved):
                return Requeue(nodes.DRAIN_SECONDS)  # usually the driver reports earlier that the machine is gone
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
        if node is None or nodes.unready_for(node) > nodes.UNREADY_DRAIN:
            return []
        since, allowed = age_of(machine["metadata"]["deletionTimestamp"]), self._drain_timeout(machine)
        if since >= allowed:
            _log.warning("machine %s is deleted though its node is not empty after %s", name, allowed)
            return []
        return await nodes.drain(self._shoot, name, evict=nodes.may_evict(machine, since), leaves=True)

    async def _report_drain(self, machine: Object, staying: list[StayingPod]) -> Requeue:
        """Write into the status which pods the drain waits for; as a fault if that takes long or would never end."""
        since, allowed = age_of(machine["metadata"]["deletionTimestamp"]), self._drain_timeout(machine)
        stuck = [each for each in staying if each.hopeless]
        if not stuck and since < min(_PATIENCE, allowed / 2):
            description = f"Draining the node, {len(staying)} pods are left"
            await self._write_phase(machine, "Terminating", "Delete", "Processing", description)
            return Requeue(nodes.DRAIN_SECONDS)
        until = datetime.fromisoformat(machine["metadata"]["deletionTimestamp"]) + allowed
        description = (
            f"node {machine['metadata']['name']} cannot be drained: {nodes.listed(stuck or staying)};"
            f" allow their eviction, or they are deleted with their machine at {until:%Y-%m-%dT%H:%M:%SZ}"
        )
        await self._write_phase(
            machine, "Terminating", "Delete", "Failed", description, code=MachineCode.FAILED_PRECONDITION
        )
        return Requeue(_RETRY_SECONDS)

    async def _clean_shoot(self, machine: Object, *, forced: bool) -> None:
        try:
            await delete_token(self._shoot, machine)
            # The node is deleted first: while it exists, DaemonSets replace the pods that are deleted from it.
            await self._shoot.delete(NODE, machine["metadata"]["name"])
            # With a Node as its owner, it goes with the Node. It has none if the machine has never joined.
            await self._shoot.delete(LEASE, f"{LEASE_PREFIX}{machine['metadata']['name']}", LEASE_NAMESPACE)
            await nodes.forget_pods(self._shoot, machine["metadata"]["name"])
        except ApiError as error:
            if not forced:
                raise
            _log.info(
                "node and token of machine %s cannot be deleted in its cluster: %s", machine["metadata"]["name"], error
            )

    def _driver(self, class_: Object) -> Driver:
        provider = str(class_.get("provider") or "")
        if provider not in self._drivers:
            raise MachineError(
                MachineCode.UNIMPLEMENTED,
                f"MachineClass {self._namespace}/{class_['metadata']['name']} has provider '{provider}'; this"
                f" machine-controller-manager has drivers of providers {', '.join(sorted(self._drivers))}",
            )
        return self._drivers[provider]

    async def _resolve(self, class_: Object) -> ResolvedClass:
        return ResolvedClass(class_, await self._secret_of(class_, credentials_field(class_)))

    async def _user_data(self, class_: ResolvedClass) -> bytes:
        encoded = (await self._secret_of(class_.object, "secretRef")).get(USER_DATA_KEY)
        if encoded is None:
            raise MachineError(
                MachineCode.INVALID_ARGUMENT,
                f"Secret {self._namespace}/{class_.object['secretRef']['name']} has no key {USER_DATA_KEY}, which"
                f" machines of MachineClass {class_.name} boot with",
            )
        return base64.b64decode(encoded)

    async def _secret_of(self, class_: Mapping[str, Any], field: str) -> dict[str, str]:
        """Base64 data of the Secret that a field of a MachineClass names. Raises MachineError if there is none.

        The rules of the API server cannot compare the reference's namespace with that of the MachineClass.
        """
        reference = class_.get(field) or {}
        name, namespace = reference.get("name") or "", reference.get("namespace") or self._namespace
        in_reach = name and namespace == self._namespace
        found = await self._seed.find(SECRET, name, namespace) if in_reach else None
        if found is None:
            raise MachineError(
                MachineCode.INVALID_ARGUMENT,
                f"{field} of MachineClass {class_['metadata']['name']} names Secret {namespace}/{name},"
                f" but it must exist in namespace {self._namespace}",
            )
        return dict(found.get("data") or {})

    async def _watch(self, driver: Driver, class_: ResolvedClass) -> Machines:
        machines = await driver.machines(class_)
        if machines not in self._watched:
            self._watched.add(machines)
            machines.subscribe(lambda name: self._controller.enqueue(Key(self._namespace, name)))
        return machines

    def _drain_timeout(self, machine: Object) -> timedelta:
        return duration(machine["spec"].get("drainTimeout"), self._config.drain_timeout)

    def _creation_timeout(self, machine: Object) -> timedelta:
        return duration(machine["spec"].get("creationTimeout"), self._config.creation_timeout)

    async def _refused(self, machine: Object, error: MachineError) -> None:
        """Write into the status why the cloud refused an operation. The error code tells what kind of fault it is."""
        deleting = is_deleting(machine)
        phase = "Terminating" if deleting else "CrashLoopBackOff"
        if not deleting and machine["spec"].get("providerID"):
            phase = phase_of(machine) or "Pending"
        verb = "Delete" if deleting else "Create"
        _log.warning("machine %s: %s", machine["metadata"]["name"], error)
        await self._write_phase(machine, phase, verb, "Failed", str(error), code=error.code)

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


def _seems_lost(machine: Object, seen: Machines) -> bool:
    return seen.is_complete and machine["metadata"]["name"] not in seen


async def _exists(machine: Object, driver: Driver, class_: ResolvedClass) -> bool:
    try:
        await driver.status(machine, class_)
    except MachineError as error:
        if error.code is MachineCode.NOT_FOUND:
            return False
        raise
    return True


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
