"""The steps of provider-local's long operations, as activities of queue ``provider-local-<seed>``.

Each works on one object of the extension API, which it reads itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import permanent
from activities.heartbeat import heartbeating
from activities.kube.cache import Cache, Caches
from activities.kube.client import KubeClient
from activities.provider_local.extension import (
    MANAGER,
    Extension,
    delete_quietly,
    load_extension,
    missing_secret,
    provider_section,
    secret_data,
)
from activities.provider_local.infrastructure import InfrastructureActuator, cloud_profile_config
from activities.provider_local.machines import (
    CLASS_SECRET_LABEL,
    FORCE_DELETION_LABEL,
    WantedDeployment,
    machine_class,
    machine_class_secret,
    machine_deployment,
    wanted_deployments,
)
from api import images
from api.errors import ErrorCode
from api.local import InfrastructureStatus
from api.model import ApiModel
from api.resources import (
    DEPLOYMENT,
    INFRASTRUCTURE,
    MACHINE,
    MACHINE_CLASS,
    MACHINE_DEPLOYMENT,
    SECRET,
    WORKER,
)

JOIN_SECONDS = 300.0
"""Machines get this long to join in one run. Source: Gardener's generic Worker actuator."""
DELETE_SECONDS = 600.0


class ExtensionTask(ApiModel):
    """Names one object; what it wants is read where it is needed."""

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
            self.deploy_machines,
            self.wait_machines,
            self.remove_unwanted_machines,
            self.delete_machines,
            self.wait_machines_deleted,
            self.delete_cloud_namespace,
            self.wait_cloud_namespace_deleted,
        ]

    @activity.defn(name="provider_local.deploy_machines")
    async def deploy_machines(self, task: ExtensionTask) -> None:
        """Write MachineClasses and MachineDeployments, and tell the Worker their names."""
        worker = await self._worker(task)
        if await secret_data(self._seed, worker) is None:
            raise missing_secret(worker)
        wanted = _wanted(worker)
        for each in wanted:
            await self._deploy(worker, each)
        status = {
            "machineDeployments": [each.status for each in wanted],
            "machineDeploymentsLastUpdateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self._seed.patch(WORKER, task.name, task.namespace, {"status": status}, subresource="status")

    @activity.defn(name="provider_local.wait_machines")
    async def wait_machines(self, task: ExtensionTask) -> None:
        """Wait until as many machines as wanted have joined, all of the wanted class."""
        worker = await self._worker(task)
        names = [each.name for each in _wanted(worker)]
        deployments = self._caches.of(MACHINE_DEPLOYMENT, task.namespace)
        machines = self._caches.of(MACHINE, task.namespace)
        started = datetime.now(UTC)
        for name in names:
            # What a deployment's controller knows may be older than what was written just now.
            live = await self._seed.get(MACHINE_DEPLOYMENT, name, task.namespace)
            rolled_out = partial(_rolled_out, live["metadata"]["generation"])
            joined = deployments.wait_for(name, task.namespace, rolled_out, JOIN_SECONDS)
            await heartbeating(
                _unless_refused(joined, machines, started), details=partial(_progress, deployments, name)
            )

    @activity.defn(name="provider_local.remove_unwanted_machines")
    async def remove_unwanted_machines(self, task: ExtensionTask) -> None:
        """Delete deployments of pools that are gone, then classes that no machine is made from."""
        worker = await self._worker(task)
        wanted = _wanted(worker)
        names = {each.name for each in wanted}
        for deployment in await self._seed.list(MACHINE_DEPLOYMENT, task.namespace):
            metadata = deployment["metadata"]
            if metadata["name"] not in names and not metadata.get("deletionTimestamp"):
                await self._seed.delete(MACHINE_DEPLOYMENT, metadata["name"], task.namespace, uid=metadata["uid"])
        await self._wait_no_machines_of_others(task, names)
        await self._delete_classes(task.namespace, keep={each.class_name for each in wanted})

    @activity.defn(name="provider_local.delete_machines")
    async def delete_machines(self, task: ExtensionTask) -> None:
        """Delete all machines of a Worker, without draining: their cluster goes, too."""
        worker = await self._worker_in_deletion(task)
        if worker is not None and await secret_data(self._seed, worker) is not None:
            await self._refresh_credentials(worker)
        for machine in await self._seed.list(MACHINE, task.namespace):
            labels = {"metadata": {"labels": {FORCE_DELETION_LABEL: "True"}}}
            await self._seed.patch(MACHINE, machine["metadata"]["name"], task.namespace, labels)
        for deployment in await self._seed.list(MACHINE_DEPLOYMENT, task.namespace):
            name, uid = deployment["metadata"]["name"], deployment["metadata"]["uid"]
            await self._seed.delete(MACHINE_DEPLOYMENT, name, task.namespace, uid=uid)

    @activity.defn(name="provider_local.wait_machines_deleted")
    async def wait_machines_deleted(self, task: ExtensionTask) -> None:
        """Wait until no machine is left, then delete what they were made from."""
        machines = self._caches.of(MACHINE, task.namespace)
        deployments = self._caches.of(MACHINE_DEPLOYMENT, task.namespace)
        started = datetime.now(UTC)
        # Asked of the API server first: the caches may not know yet what was made a moment ago.
        left = [
            *(deployments.wait_for(each["metadata"]["name"], task.namespace, _gone, DELETE_SECONDS)
              for each in await self._seed.list(MACHINE_DEPLOYMENT, task.namespace)),
            *(machines.wait_for(each["metadata"]["name"], task.namespace, _gone, DELETE_SECONDS)
              for each in await self._seed.list(MACHINE, task.namespace)),
        ]  # fmt: skip
        await heartbeating(
            _unless_refused(asyncio.gather(*left), machines, started),
            details=lambda: f"{len(machines.list())} machines left",
        )
        await self._delete_classes(task.namespace, keep=set())

    @activity.defn(name="provider_local.delete_cloud_namespace")
    async def delete_cloud_namespace(self, task: ExtensionTask) -> bool:
        """Delete the shoot's namespace in the cloud; True if it is gone already."""
        infrastructure = await self._infrastructure(task)
        return infrastructure is None or await self._infrastructures.delete_namespace(infrastructure)

    @activity.defn(name="provider_local.wait_cloud_namespace_deleted")
    async def wait_cloud_namespace_deleted(self, task: ExtensionTask) -> None:
        """Wait until it is gone."""
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

    async def _deploy(self, worker: Extension, wanted: WantedDeployment) -> None:
        namespace, region = worker.namespace, worker.spec["region"]
        user_data = await self._user_data(worker, wanted.pool)
        await self._seed.apply(machine_class_secret(wanted, namespace, user_data), manager=MANAGER)
        credentials = worker.spec["secretRef"]
        await self._seed.apply(machine_class(wanted, namespace, credentials, region), manager=MANAGER)
        live = await self._seed.find(MACHINE_DEPLOYMENT, wanted.name, namespace)
        replicas = wanted.replicas(
            None if live is None else live["spec"].get("replicas"),
            hibernated=worker.hibernated,
            autoscaled=await self._has_autoscaler(namespace),
        )
        await self._seed.apply(machine_deployment(wanted, namespace, region, replicas), manager=MANAGER)

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

    async def _has_autoscaler(self, namespace: str) -> bool:
        deployment = await self._seed.find(DEPLOYMENT, "cluster-autoscaler", namespace)
        return deployment is not None

    async def _refresh_credentials(self, worker: Extension) -> None:
        """Machines must be deleted with today's credentials, though their class is older."""
        reference = {"credentialsSecretRef": dict(worker.spec["secretRef"])}
        for found in await self._seed.list(MACHINE_CLASS, worker.namespace):
            await self._seed.patch(MACHINE_CLASS, found["metadata"]["name"], worker.namespace, reference)

    async def _wait_no_machines_of_others(self, task: ExtensionTask, names: set[str]) -> None:
        deployments = self._caches.of(MACHINE_DEPLOYMENT, task.namespace)
        others = [
            each["metadata"]["name"]
            for each in await self._seed.list(MACHINE_DEPLOYMENT, task.namespace)
            if each["metadata"]["name"] not in names
        ]
        for name in others:
            await heartbeating(deployments.wait_for(name, task.namespace, _gone, DELETE_SECONDS))

    async def _delete_classes(self, namespace: str, keep: set[str]) -> None:
        used = {each["spec"]["class"]["name"] for each in await self._seed.list(MACHINE, namespace)}
        for found in await self._seed.list(MACHINE_CLASS, namespace):
            if (name := found["metadata"]["name"]) not in keep | used:
                await self._seed.delete(MACHINE_CLASS, name, namespace)
        selector = ",".join(f"{key}={value}" for key, value in CLASS_SECRET_LABEL.items())
        for secret in await self._seed.list(SECRET, namespace, labels=selector):
            if (name := secret["metadata"]["name"]) not in keep | used:
                await delete_quietly(self._seed, SECRET, name, namespace)


def _wanted(worker: Extension) -> list[WantedDeployment]:
    infrastructure = provider_section(
        InfrastructureStatus,
        worker.spec.get("infrastructureProviderStatus"),
        f"spec.infrastructureProviderStatus of {worker}",
    )
    return wanted_deployments(
        worker.namespace,
        worker.spec,
        worker.cloud_profile,
        cloud_profile_config(worker),
        infrastructure,
        images.MACHINE,
    )


def is_rolled_out(deployment: Mapping[str, Any], generation: int) -> bool:
    """Whether all machines of a deployment are of its newest class and have joined."""
    status = deployment.get("status") or {}
    replicas = deployment["spec"].get("replicas", 0)
    return bool(
        deployment["metadata"]["generation"] >= generation
        and status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and status.get("replicas", 0) == replicas
        and status.get("updatedReplicas", 0) == replicas
        and status.get("availableReplicas", 0) == replicas
    )


def _rolled_out(generation: int, deployment: dict[str, Any] | None) -> bool:
    return deployment is not None and is_rolled_out(deployment, generation)


async def _unless_refused(wait: Awaitable[object], machines: Cache, since: datetime) -> None:
    """Await something about machines, or fail as soon as the cloud refuses one in a way only a user can mend."""

    def refused(cache: Cache) -> bool:
        for machine in cache.list():
            _raise_for(machine, since)
        return False

    waiting = asyncio.ensure_future(wait)
    watching: asyncio.Future[object] = asyncio.ensure_future(machines.wait_until(refused, DELETE_SECONDS))
    try:
        done, _ = await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
        (waiting if waiting in done else watching).result()
    finally:
        for task in (waiting, watching):
            task.cancel()
        await asyncio.gather(waiting, watching, return_exceptions=True)


def _progress(deployments: Cache, name: str) -> str:
    """One line about a deployment that is not done."""
    deployment = deployments.get(name)
    if deployment is None:
        return f"{name}: not seen yet"
    available = (deployment.get("status") or {}).get("availableReplicas", 0)
    return f"{name}: {available} of {deployment['spec'].get('replicas', 0)} machines have joined"


_CODES = {
    "Unauthenticated": ErrorCode.INFRA_UNAUTHENTICATED,
    "PermissionDenied": ErrorCode.INFRA_UNAUTHORIZED,
    "InvalidArgument": ErrorCode.CONFIGURATION_PROBLEM,
    "ResourceExhausted": ErrorCode.INFRA_RESOURCES_DEPLETED,
}
"""Codes of the machine controller manager that mean more than try again."""


def _raise_for(machine: Mapping[str, Any], since: datetime) -> None:
    """Raise what a machine was refused since then. What is older may have been mended meanwhile."""
    last = (machine.get("status") or {}).get("lastOperation") or {}
    code = _CODES.get(last.get("errorCode") or "")
    if last.get("state") != "Failed" or code is None or code.retryable:
        return
    if datetime.fromisoformat(last["lastUpdateTime"]) >= since.replace(microsecond=0):
        raise permanent(code, f"machine {machine['metadata']['name']}: {last.get('description', '')}")


def _gone(found: dict[str, Any] | None) -> bool:
    return found is None
