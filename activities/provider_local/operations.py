"""The steps of provider-local's long operations, as activities of queue ``provider-local-<seed>``.

Each activity works on one object of the extension API, which the activity reads itself.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import permanent
from activities.extension import Extension, delete_quietly, load_extension, missing_secret, secret_data
from activities.heartbeat import heartbeating
from activities.provider_local.infrastructure import InfrastructureActuator, cloud_profile_config
from activities.provider_local.machines import (
    CLASS_SECRET_LABEL,
    RESTORING,
    WantedDeployment,
    machine_class,
    machine_class_secret,
    machine_deployment,
    restored,
    wanted_deployments,
)
from activities.provider_local.provider import MANAGER, provider_section
from api import compression, images
from api.constants import WORKER_POOL
from api.decisions.shoot_state import unpacked_machine_state
from api.errors import ErrorCode
from api.local import InfrastructureStatus
from api.machine.codes import MachineCode
from api.machine.names import FORCE_DELETION_LABEL, KUBELET_SAYS, NAME_LABEL
from api.machine.objects import phase_of
from api.model import ApiModel
from api.resources import (
    DEPLOYMENT,
    INFRASTRUCTURE,
    MACHINE,
    MACHINE_CLASS,
    MACHINE_DEPLOYMENT,
    MACHINE_SET,
    SECRET,
    WORKER,
    Resource,
)
from api.times import timestamp
from kube.cache import Cache, Caches
from kube.client import KubeClient, Objects
from kube.errors import AlreadyExists
from kube.objects import label_selector

JOIN_SECONDS = 300.0
"""A wait for machines to join or leave fails if nothing has changed for so long.

Source: Gardener's generic Worker actuator.
"""
DELETE_SECONDS = 600.0
"""A wait for machines to leave fails if nothing has changed for so long.

A wait for the deletion of a namespace in the cloud fails after so long.
"""


class ExtensionTask(ApiModel):
    """Names one object; activities read its spec when they need it."""

    namespace: str
    name: str
    uid: str


class ProviderLocalActivities:
    """One instance per process."""

    def __init__(self, seed: KubeClient, caches: Caches, infrastructures: InfrastructureActuator) -> None:
        self._seed = seed
        self._caches = caches
        self._infrastructures = infrastructures

    def all(self) -> list[Callable[..., Any]]:
        """Every activity, for a worker."""
        return [
            self.restore_machines,
            self.deploy_machines,
            self.wait_machines,
            self.remove_unwanted_machines,
            self.delete_machines,
            self.wait_machines_deleted,
            self.delete_cloud_namespace,
            self.wait_cloud_namespace_deleted,
        ]

    @activity.defn(name="provider_local.restore_machines")
    async def restore_machines(self, task: ExtensionTask) -> None:
        """Write the machine objects of the source before a machine-controller-manager runs and creates new machines.

        A MachineDeployment has the annotation ``RESTORING`` until it is restored completely. A second run continues
        with a MachineDeployment that has the annotation. It does not change one without the annotation, whose machines
        may have been replaced by then.
        """
        worker = await self._worker(task)
        state = worker.status.get("state")
        if not state or await secret_data(self._seed, worker) is None:
            return
        try:
            saved = unpacked_machine_state(state)
        except (compression.TooLarge, compression.Damaged) as error:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"the machines in status.state of {worker} cannot be restored: their content {error}; "
                "restore the ShootState from a backup of the garden",
            ) from None
        for each in wanted_of(worker):
            if each.name in saved:
                await self._restore(worker, each, saved[each.name])

    @activity.defn(name="provider_local.deploy_machines")
    async def deploy_machines(self, task: ExtensionTask) -> None:
        """Write MachineClasses and MachineDeployments, and list the MachineDeployments in the Worker's status."""
        worker = await self._worker(task)
        if await secret_data(self._seed, worker) is None:
            raise missing_secret(worker)
        wanted = wanted_of(worker)
        if worker.hibernated:
            await self._forgo_drains(task.namespace)
        for each in wanted:
            await self._deploy(worker, each)
        status = {
            "machineDeployments": [each.status for each in wanted],
            "machineDeploymentsLastUpdateTime": timestamp(),
        }
        await self._seed.patch(WORKER, task.name, task.namespace, {"status": status}, subresource="status")

    @activity.defn(name="provider_local.wait_machines")
    async def wait_machines(self, task: ExtensionTask) -> None:
        """Wait until as many machines as wanted have joined, all of the wanted class.

        The activity does not wait for a Shoot that is hibernated already: the Shoot has no machines, and no
        machine-controller-manager that updates the status of MachineDeployments.
        """
        worker = await self._worker(task)
        if worker.hibernated and not await self._has_machine_controllers(task.namespace):
            return
        wanted = wanted_of(worker)
        # The status of a MachineDeployment may be older than its spec, which was written just now.
        generations = {
            each.name: (await self._seed.get(MACHINE_DEPLOYMENT, each.name, task.namespace))["metadata"]["generation"]
            for each in wanted
        }

        def missing(deployments: Cache, machines: Cache) -> Iterator[str]:
            for name, generation in generations.items():
                yield from _not_rolled_out(name, generation, deployments.get(name), machines.list())

        await self._until_nothing(task, missing, JOIN_SECONDS)
        await write_update_hashes(self._seed, worker, wanted, automatic=True)

    @activity.defn(name="provider_local.remove_unwanted_machines")
    async def remove_unwanted_machines(self, task: ExtensionTask) -> None:
        """Delete MachineDeployments of removed pools, then MachineClasses that no machine uses."""
        worker = await self._worker(task)
        wanted = wanted_of(worker)
        names = {each.name for each in wanted}
        others = set()
        for deployment in await self._seed.list(MACHINE_DEPLOYMENT, task.namespace):
            metadata = deployment["metadata"]
            if metadata["name"] in names:
                continue
            others.add(metadata["name"])
            if not metadata.get("deletionTimestamp"):
                await self._seed.delete(MACHINE_DEPLOYMENT, metadata["name"], task.namespace, uid=metadata["uid"])

        def left(deployments: Cache, machines: Cache) -> Iterator[str]:
            for name in sorted(others):
                if deployments.get(name) is not None:
                    yield f"{name} is being removed{_leaving(name, machines.list())}"

        await self._until_nothing(task, left, DELETE_SECONDS)
        await self._delete_classes(task.namespace, keep={each.class_name for each in wanted})

    @activity.defn(name="provider_local.delete_machines")
    async def delete_machines(self, task: ExtensionTask) -> None:
        """Delete all machines of a Worker without a drain, because their cluster is deleted, too."""
        worker = await self._worker_in_deletion(task)
        if worker is not None and await secret_data(self._seed, worker) is not None:
            await self._refresh_credentials(worker)
        await self._forgo_drains(task.namespace)
        for deployment in await self._seed.list(MACHINE_DEPLOYMENT, task.namespace):
            name, uid = deployment["metadata"]["name"], deployment["metadata"]["uid"]
            await self._seed.delete(MACHINE_DEPLOYMENT, name, task.namespace, uid=uid)

    @activity.defn(name="provider_local.wait_machines_deleted")
    async def wait_machines_deleted(self, task: ExtensionTask) -> None:
        """Wait until no machine is left, then delete the MachineClasses and their Secrets."""
        # Read from the API server first: the caches may not have machines that were created a moment ago.
        going = {
            kind: [each["metadata"]["name"] for each in await self._seed.list(kind, task.namespace)]
            for kind in (MACHINE_DEPLOYMENT, MACHINE)
        }

        def left(deployments: Cache, machines: Cache) -> Iterator[str]:
            yield from (name for name in going[MACHINE] if machines.get(name) is not None)
            yield from (name for name in going[MACHINE_DEPLOYMENT] if deployments.get(name) is not None)

        await self._until_nothing(task, left, DELETE_SECONDS)
        await self._delete_classes(task.namespace, keep=set())

    @activity.defn(name="provider_local.delete_cloud_namespace")
    async def delete_cloud_namespace(self, task: ExtensionTask) -> bool:
        """Delete the shoot's namespace in the cloud; True if it is gone already."""
        infrastructure = await self._infrastructure(task)
        return infrastructure is None or await self._infrastructures.delete_namespace(infrastructure)

    @activity.defn(name="provider_local.wait_cloud_namespace_deleted")
    async def wait_cloud_namespace_deleted(self, task: ExtensionTask) -> None:
        """Wait until the shoot's namespace in the cloud is gone."""
        infrastructure = await self._infrastructure(task)
        if infrastructure is not None:
            await heartbeating(self._infrastructures.wait_namespace_gone(infrastructure, DELETE_SECONDS))

    async def _worker(self, task: ExtensionTask) -> Extension:
        found = await load_extension(self._seed, WORKER, task.namespace, task.name)
        if found is None or found.uid != task.uid:
            raise ApplicationError(
                f"Worker {task.namespace}/{task.name} is gone", type="ExtensionGone", non_retryable=True
            )
        return found

    async def _worker_in_deletion(self, task: ExtensionTask) -> Extension | None:
        return await load_extension(self._seed, WORKER, task.namespace, task.name)

    async def _infrastructure(self, task: ExtensionTask) -> Extension | None:
        return await load_extension(self._seed, INFRASTRUCTURE, task.namespace, task.name)

    async def _restore(self, worker: Extension, wanted: WantedDeployment, saved: Mapping[str, Any]) -> None:
        namespace = worker.namespace
        live = await self._seed.find(MACHINE_DEPLOYMENT, wanted.name, namespace)
        if live is not None and RESTORING not in (live["metadata"].get("annotations") or {}):
            return
        # An older MachineClass, which is being replaced, is needed to stop its machines.
        classes = {each["spec"]["template"]["spec"]["class"]["name"] for each in saved["machineSets"]}
        for name in sorted(classes | {wanted.class_name}):
            await self._deploy_class(worker, replace(wanted, class_name=name))
        manifest = machine_deployment(wanted, namespace, worker.spec["region"], saved["replicas"])
        manifest["metadata"]["annotations"][RESTORING] = "true"
        deployment = await self._seed.apply(manifest, manager=MANAGER)
        sets = {}
        for each in saved["machineSets"]:
            made = restored(each, MACHINE_SET, namespace, deployment)
            sets[each["metadata"]["name"]] = await self._create_or_get(MACHINE_SET, made)
        for each in saved["machines"]:
            if each["machineSet"] in sets:
                await self._create_or_get(MACHINE, restored(each, MACHINE, namespace, sets[each["machineSet"]]))
        done = {"metadata": {"annotations": {RESTORING: None}}}
        await self._seed.patch(MACHINE_DEPLOYMENT, wanted.name, namespace, done)

    async def _create_or_get(self, resource: Resource, wanted: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._seed.create(wanted)
        except AlreadyExists:
            return await self._seed.get(resource, wanted["metadata"]["name"], wanted["metadata"]["namespace"])

    async def _deploy_class(self, worker: Extension, wanted: WantedDeployment) -> None:
        namespace, region = worker.namespace, worker.spec["region"]
        user_data = await self._user_data(worker, wanted.pool)
        await self._seed.apply(machine_class_secret(wanted, namespace, user_data), manager=MANAGER)
        credentials = worker.spec["secretRef"]
        await self._seed.apply(machine_class(wanted, namespace, credentials, region), manager=MANAGER)

    async def _deploy(self, worker: Extension, wanted: WantedDeployment) -> None:
        namespace, region = worker.namespace, worker.spec["region"]
        await self._deploy_class(worker, wanted)
        live = await self._seed.find(MACHINE_DEPLOYMENT, wanted.name, namespace)
        replicas = wanted.replicas(None if live is None else live["spec"].get("replicas"), hibernated=worker.hibernated)
        manifest = machine_deployment(wanted, namespace, region, replicas)
        # The cluster autoscaler may change the number of replicas at any moment: fail on another resource version.
        version = "" if live is None else live["metadata"]["resourceVersion"]
        await self._seed.apply(manifest, manager=MANAGER, live=live, version=version)

    async def _user_data(self, worker: Extension, pool: Mapping[str, Any]) -> str:
        reference = pool["userDataSecretRef"]
        secret = await self._seed.find(SECRET, reference["name"], worker.namespace)
        data = (secret or {}).get("data") or {}
        if reference["key"] not in data:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"pool {pool['name']} of {worker} takes its user data from key {reference['key']} of Secret"
                f" {worker.namespace}/{reference['name']}, which does not exist",
            )
        return str(data[reference["key"]])

    async def _forgo_drains(self, namespace: str) -> None:
        """Mark all machines for deletion without a drain: no node will be left to which pods could move."""
        for machine in await self._seed.list(MACHINE, namespace):
            labels = {"metadata": {"labels": {FORCE_DELETION_LABEL: "True"}}}
            await self._seed.patch(MACHINE, machine["metadata"]["name"], namespace, labels)

    async def _has_machine_controllers(self, namespace: str) -> bool:
        deployment = await self._seed.find(DEPLOYMENT, "machine-controller-manager", namespace)
        return bool(deployment and deployment["spec"].get("replicas"))

    async def _refresh_credentials(self, worker: Extension) -> None:
        """Write the present credentials to all MachineClasses: older ones may have credentials that no longer work."""
        reference = {"credentialsSecretRef": dict(worker.spec["secretRef"])}
        for found in await self._seed.list(MACHINE_CLASS, worker.namespace):
            await self._seed.patch(MACHINE_CLASS, found["metadata"]["name"], worker.namespace, reference)

    async def _until_nothing(
        self, task: ExtensionTask, missing: Callable[[Cache, Cache], Iterable[str]], patience: float
    ) -> None:
        """Wait until nothing is missing; each change of a deployment or machine calls ``missing`` again.

        Raises ApplicationError as soon as a machine cannot be created or deleted for a reason that only a user can
        fix; TimeoutError once nothing has changed for ``patience`` seconds.
        """
        deployments = self._caches.of(MACHINE_DEPLOYMENT, task.namespace)
        machines = self._caches.of(MACHINE, task.namespace)
        started, state = datetime.now(UTC), ""
        changed = asyncio.Event()

        async def until_nothing() -> None:
            nonlocal state
            await asyncio.gather(deployments.synced(), machines.synced())
            loop = asyncio.get_running_loop()
            deadline = loop.time() + patience
            while True:
                changed.clear()
                for machine in machines.list():
                    _raise_for(machine, started)
                before, state = state, "; ".join(missing(deployments, machines))
                if not state:
                    return
                if state != before:
                    deadline = loop.time() + patience
                async with asyncio.timeout_at(deadline):
                    await changed.wait()

        unsubscribe = [each.subscribe(lambda _: changed.set()) for each in (deployments, machines)]
        try:
            await heartbeating(until_nothing(), details=lambda: "; ".join((state, *_joining(machines))))
        except TimeoutError:
            told = "".join(f"; {each}" for each in _joining(machines))
            raise TimeoutError(f"nothing has changed for {patience:.0f} s: {state}{told}") from None
        finally:
            for each in unsubscribe:
                each()

    async def _delete_classes(self, namespace: str, keep: set[str]) -> None:
        used = {each["spec"]["class"]["name"] for each in await self._seed.list(MACHINE, namespace)}
        for found in await self._seed.list(MACHINE_CLASS, namespace):
            if (name := found["metadata"]["name"]) not in keep | used:
                await self._seed.delete(MACHINE_CLASS, name, namespace)
        for secret in await self._seed.list(SECRET, namespace, labels=label_selector(CLASS_SECRET_LABEL)):
            if (name := secret["metadata"]["name"]) not in keep | used:
                await delete_quietly(self._seed, SECRET, name, namespace)


def wanted_of(worker: Extension) -> list[WantedDeployment]:
    """The MachineDeployments that a Worker wants. Raises ApplicationError for sections that cannot be read."""
    infrastructure = provider_section(
        InfrastructureStatus,
        worker.spec.get("infrastructureProviderStatus"),
        f"spec.infrastructureProviderStatus of {worker}",
    )
    return wanted_deployments(
        worker.namespace,
        worker.spec,
        worker.shoot,
        worker.cloud_profile,
        cloud_profile_config(worker),
        infrastructure,
        images.MACHINE,
    )


async def write_update_hashes(
    seed: KubeClient, worker: Extension, wanted: Iterable[WantedDeployment], *, automatic: bool
) -> None:
    """Write the hashes of in-place updates that all machines of a pool have into the Worker's status.

    ``automatic``: all automatic updates are done; otherwise their pools keep the former hash. A pool whose manual
    update is pending keeps it, too.
    """
    known: Mapping[str, str] = (worker.status.get("inPlaceUpdates") or {}).get("workerPoolToHashMap") or {}
    hashes: dict[str, str | None] = dict.fromkeys(known)
    pending: set[str] = set()
    for each in wanted:
        pool = str(each.pool["name"])
        if not each.update:
            continue
        live = await seed.find(MACHINE_DEPLOYMENT, each.name, worker.namespace) if each.is_manual else None
        if not (_has_updated(live, each) if each.is_manual else automatic):
            pending.add(pool)
        hashes[pool] = known.get(pool) if pool in pending else each.update
    if {pool: value for pool, value in hashes.items() if value is not None} != dict(known):
        status = {"status": {"inPlaceUpdates": {"workerPoolToHashMap": hashes}}}
        await seed.patch(WORKER, worker.name, worker.namespace, status, subresource="status")


def _has_updated(deployment: Mapping[str, Any] | None, wanted: WantedDeployment) -> bool:
    """Whether no machine of a MachineDeployment has an older class than the wanted one: no update is pending."""
    if deployment is None or deployment["spec"]["template"]["spec"]["class"]["name"] != wanted.class_name:
        return False
    status = deployment.get("status") or {}
    return bool(
        status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and status.get("updatedReplicas", 0) >= status.get("replicas", 0)
    )


def is_rolled_out(deployment: Mapping[str, Any], generation: int) -> bool:
    """Whether all machines of a MachineDeployment are of its newest class and have joined.

    Users decide about manual updates, so these may be pending.
    """
    status = deployment.get("status") or {}
    replicas = deployment["spec"].get("replicas", 0)
    strategy = (deployment["spec"].get("strategy") or {}).get("inPlaceUpdate") or {}
    updated = status.get("updatedReplicas", 0)
    return bool(
        deployment["metadata"]["generation"] >= generation
        and status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and status.get("replicas", 0) == replicas
        and (
            (updated == replicas and status.get("availableReplicas", 0) == replicas)
            or (updated < replicas and strategy.get("orchestrationType") == "Manual")
        )
    )


def _not_rolled_out(
    name: str, generation: int, deployment: Mapping[str, Any] | None, machines: Objects
) -> Iterator[str]:
    """One line about a MachineDeployment that is not rolled out."""
    if deployment is None:
        yield f"{name}: not seen yet"
        return
    replicas = deployment["spec"].get("replicas", 0)
    # A MachineDeployment no longer counts machines in deletion, but they exist until their nodes are drained.
    own = [each for each in machines if (each["metadata"].get("labels") or {}).get(NAME_LABEL) == name]
    if is_rolled_out(deployment, generation) and len(own) <= replicas:
        return
    status = deployment.get("status") or {}
    yield (
        f"{name}: {status.get('availableReplicas', 0)} of {replicas} machines have joined,"
        f" {status.get('updatedReplicas', 0)} are new{_leaving(name, own)}"
    )


def _joining(machines: Cache) -> Iterator[str]:
    """Why machines have not joined, as their kubelets say. Not a change for which one would go on waiting."""
    for each in machines.list():
        description = _last_operation(each).get("description", "")
        if phase_of(each) == "Pending" and KUBELET_SAYS in description:
            yield f"machine {each['metadata']['name']}: {description}"


def _leaving(name: str, machines: Objects) -> str:
    """Text about the machines of a MachineDeployment that are being deleted."""
    told = [
        f"{each['metadata']['name']} leaves ({_last_operation(each).get('description', '')})"
        for each in machines
        if (each["metadata"].get("labels") or {}).get(NAME_LABEL) == name and each["metadata"].get("deletionTimestamp")
    ]
    return "".join(f", {each}" for each in told)


_CODES: Mapping[str, ErrorCode] = {
    each: code for each in MachineCode if each.needs_change and (code := each.error_code) is not None
}
"""Error codes of the machine-controller-manager that are reported at once, each with the code for the Shoot."""


def _raise_for(machine: Mapping[str, Any], since: datetime) -> None:
    """Raise the error of a machine that failed after ``since``. Causes of older errors may be fixed by now."""
    last = _last_operation(machine)
    code = _CODES.get(last.get("errorCode") or "")
    if last.get("state") != "Failed" or code is None:
        return
    if datetime.fromisoformat(last["lastUpdateTime"]) >= since.replace(microsecond=0):
        labels = ((machine["spec"].get("nodeTemplate") or {}).get("metadata") or {}).get("labels") or {}
        pool = f"pool {labels[WORKER_POOL]}: " if WORKER_POOL in labels else ""
        raise permanent(code, f"{pool}machine {machine['metadata']['name']}: {last.get('description', '')}")


def _last_operation(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    return (machine.get("status") or {}).get("lastOperation") or {}
