"""Extension objects of a Shoot, for its infrastructure, DNS, backup, network and worker providers.

Each ``deploy_*`` writes its object with this operation's timestamp, so a second run finds the timestamp of the first
one and writes nothing. Each ``wait_*`` only reads. A second run of ``delete_*`` finds an object that is gone or being
deleted. Activities that do the same for each kind are made from ``activities.seed.extension_operations``, one line per
activity.
"""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.garden.credentials import seed_credentials
from activities.heartbeat import heartbeating
from activities.secrets.manager import SecretsManager
from activities.seed import extension_kinds as kinds
from activities.seed import extension_objects as extension
from activities.seed import workload_identity
from activities.seed.backups import backup_entries_of, backup_entry_spec
from activities.seed.extension_access import ExtensionAccess
from activities.seed.extension_kinds import Kind
from activities.seed.extension_objects import ExtensionObject
from activities.seed.extension_operations import CLOUD_SECRET, Extensions
from activities.seed.facts import Networks
from activities.seed.gateway import gateway_address, gateway_address_ipv6
from activities.seed.handlers import ExposureClassHandler, Handlers, note_of_none
from activities.seed.namespace import write_shoot_status
from activities.seed.operating_system_configs import wait_updates_described
from activities.seed.retention import Retention, is_marked
from activities.seed.secrets import ssh_public_keys
from api import resources
from api.constants import (
    BACKUP_ENTRY_TAKEN_OVER,
    CONTAINER_RUNTIME_BINARIES,
    FINALIZER,
    GARDEN_NAMESPACE,
    SHOOT_PURPOSE,
    WORKER_POOL,
)
from api.contracts.operations import OperationType, ShootTask, TaskResult, backup_entry_name, source_backup_entry_name
from api.decisions import dual_stack, in_place_updates, ssh
from api.decisions.registrations import Phase
from api.decisions.workload_identity import is_identity
from api.names import (
    container_runtime_labels,
    dns_record_type,
    internal_api_domain,
    is_updated_in_place,
    node_agent_secret_name,
)
from api.times import timestamp
from kube.errors import NotFound
from kube.objects import owner_reference

_KEPT = "kept for the source seed, which is lost: its etcd must read there that it is superseded"
_REVOKED_SECONDS = 30


Operation = Callable[[Extensions, Kind, ShootTask], Awaitable[TaskResult]]
Activity = Callable[["ExtensionActivities", ShootTask], Awaitable[TaskResult]]


def _activity(name: str, kind: Kind, operation: Operation) -> Activity:
    """Make a method of ``ExtensionActivities``."""

    # Temporal takes the first parameter for a part of the input if it has an annotation.
    @activity.defn(name=name)
    async def run(self, task: ShootTask) -> TaskResult:  # type: ignore[no-untyped-def]
        return await operation(self._extensions, kind, task)

    run.__name__, run.__doc__ = name, operation.__doc__
    return run


def _wait(kind: Kind) -> Activity:
    return _activity(f"wait_{kind.task}", kind, Extensions.wait)


def _delete(kind: Kind) -> Activity:
    return _activity(f"delete_{kind.task}", kind, Extensions.delete)


def _wait_deleted(kind: Kind) -> Activity:
    return _activity(f"wait_{kind.task}_deleted", kind, Extensions.wait_deleted)


def _delete_and_wait(kind: Kind) -> Activity:
    return _activity(f"delete_{kind.task}", kind, Extensions.delete_and_wait)


def _delete_stale(kind: Kind) -> Activity:
    return _activity(f"delete_stale_{kind.task}", kind, Extensions.delete_stale)


def _wait_stale_deleted(kind: Kind) -> Activity:
    return _activity(f"wait_stale_{kind.task}_deleted", kind, Extensions.wait_stale_deleted)


def _migrate(kind: Kind) -> Activity:
    return _activity(f"migrate_{kind.task}", kind, Extensions.migrate)


def _wait_migrated(kind: Kind) -> Activity:
    return _activity(f"wait_{kind.task}_migrated", kind, Extensions.wait_migrated)


class ExtensionActivities:
    """One instance per gardenlet."""

    def __init__(
        self,
        clusters: Clusters,
        retention: Retention | None = None,
        handlers: Iterable[ExposureClassHandler] = (),
    ) -> None:
        """``retention``: how long backups are kept; by default they are deleted with their Shoot."""
        self._clusters = clusters
        self._retention = retention or Retention()
        self._extensions = Extensions(clusters)
        self._handlers = Handlers(clusters, handlers)

    # Activities that do the same for each kind. Activities of one kind only stand below, as methods.

    migrate_infrastructure = _migrate(kinds.INFRASTRUCTURE)
    wait_infrastructure_migrated = _wait_migrated(kinds.INFRASTRUCTURE)
    delete_infrastructure = _delete(kinds.INFRASTRUCTURE)
    wait_infrastructure_deleted = _wait_deleted(kinds.INFRASTRUCTURE)

    migrate_control_plane_extension = _migrate(kinds.CONTROL_PLANE)
    wait_control_plane_extension_migrated = _wait_migrated(kinds.CONTROL_PLANE)
    wait_control_plane_extension = _wait(kinds.CONTROL_PLANE)
    delete_control_plane_extension = _delete(kinds.CONTROL_PLANE)
    wait_control_plane_extension_deleted = _wait_deleted(kinds.CONTROL_PLANE)

    migrate_network = _migrate(kinds.NETWORK)
    wait_network_migrated = _wait_migrated(kinds.NETWORK)
    wait_network = _wait(kinds.NETWORK)
    delete_network = _delete(kinds.NETWORK)
    wait_network_deleted = _wait_deleted(kinds.NETWORK)

    migrate_worker = _migrate(kinds.WORKER)
    wait_worker_migrated = _wait_migrated(kinds.WORKER)
    delete_worker = _delete(kinds.WORKER)
    wait_worker_deleted = _wait_deleted(kinds.WORKER)

    migrate_os_configs = _migrate(kinds.OPERATING_SYSTEM_CONFIG)
    wait_os_configs_migrated = _wait_migrated(kinds.OPERATING_SYSTEM_CONFIG)
    wait_os_configs = _wait(kinds.OPERATING_SYSTEM_CONFIG)
    delete_os_configs = _delete(kinds.OPERATING_SYSTEM_CONFIG)
    wait_os_configs_deleted = _wait_deleted(kinds.OPERATING_SYSTEM_CONFIG)
    delete_stale_os_configs = _delete_stale(kinds.OPERATING_SYSTEM_CONFIG)
    wait_stale_os_configs_deleted = _wait_stale_deleted(kinds.OPERATING_SYSTEM_CONFIG)

    migrate_bastions = _migrate(kinds.BASTION)
    wait_bastions_migrated = _wait_migrated(kinds.BASTION)
    wait_bastions = _wait(kinds.BASTION)
    delete_bastions = _delete(kinds.BASTION)
    wait_bastions_deleted = _wait_deleted(kinds.BASTION)
    delete_stale_bastions = _delete_stale(kinds.BASTION)
    wait_stale_bastions_deleted = _wait_stale_deleted(kinds.BASTION)

    migrate_container_runtimes = _migrate(kinds.CONTAINER_RUNTIME)
    wait_container_runtimes_migrated = _wait_migrated(kinds.CONTAINER_RUNTIME)
    wait_container_runtimes = _wait(kinds.CONTAINER_RUNTIME)
    delete_container_runtimes = _delete(kinds.CONTAINER_RUNTIME)
    wait_container_runtimes_deleted = _wait_deleted(kinds.CONTAINER_RUNTIME)
    delete_stale_container_runtimes = _delete_stale(kinds.CONTAINER_RUNTIME)
    wait_stale_container_runtimes_deleted = _wait_stale_deleted(kinds.CONTAINER_RUNTIME)

    migrate_extensions = _migrate(kinds.EXTENSIONS)
    wait_extensions_migrated = _wait_migrated(kinds.EXTENSIONS)
    wait_extensions = _wait(kinds.EXTENSIONS)
    delete_extensions = _delete(kinds.EXTENSIONS)
    wait_extensions_deleted = _wait_deleted(kinds.EXTENSIONS)
    delete_stale_extensions = _delete_stale(kinds.EXTENSIONS)
    wait_stale_extensions_deleted = _wait_stale_deleted(kinds.EXTENSIONS)

    migrate_extensions_before_apiserver = _migrate(kinds.EXTENSIONS_BEFORE_API_SERVER)
    wait_extensions_before_apiserver_migrated = _wait_migrated(kinds.EXTENSIONS_BEFORE_API_SERVER)
    wait_extensions_before_apiserver = _wait(kinds.EXTENSIONS_BEFORE_API_SERVER)
    delete_extensions_before_apiserver = _delete(kinds.EXTENSIONS_BEFORE_API_SERVER)
    wait_extensions_before_apiserver_deleted = _wait_deleted(kinds.EXTENSIONS_BEFORE_API_SERVER)
    delete_stale_extensions_before_apiserver = _delete_stale(kinds.EXTENSIONS_BEFORE_API_SERVER)
    wait_stale_extensions_before_apiserver_deleted = _wait_stale_deleted(kinds.EXTENSIONS_BEFORE_API_SERVER)

    migrate_extensions_after_apiserver = _migrate(kinds.EXTENSIONS_AFTER_API_SERVER)
    wait_extensions_after_apiserver_migrated = _wait_migrated(kinds.EXTENSIONS_AFTER_API_SERVER)
    wait_extensions_after_apiserver = _wait(kinds.EXTENSIONS_AFTER_API_SERVER)
    delete_extensions_after_apiserver = _delete(kinds.EXTENSIONS_AFTER_API_SERVER)
    wait_extensions_after_apiserver_deleted = _wait_deleted(kinds.EXTENSIONS_AFTER_API_SERVER)
    delete_stale_extensions_after_apiserver = _delete_stale(kinds.EXTENSIONS_AFTER_API_SERVER)
    wait_stale_extensions_after_apiserver_deleted = _wait_stale_deleted(kinds.EXTENSIONS_AFTER_API_SERVER)

    migrate_extensions_after_worker = _migrate(kinds.EXTENSIONS_AFTER_WORKER)
    wait_extensions_after_worker_migrated = _wait_migrated(kinds.EXTENSIONS_AFTER_WORKER)
    wait_extensions_after_worker = _wait(kinds.EXTENSIONS_AFTER_WORKER)
    delete_extensions_after_worker = _delete(kinds.EXTENSIONS_AFTER_WORKER)
    wait_extensions_after_worker_deleted = _wait_deleted(kinds.EXTENSIONS_AFTER_WORKER)
    delete_stale_extensions_after_worker = _delete_stale(kinds.EXTENSIONS_AFTER_WORKER)
    wait_stale_extensions_after_worker_deleted = _wait_stale_deleted(kinds.EXTENSIONS_AFTER_WORKER)

    wait_backup_entry_migrated = _wait_migrated(kinds.BACKUP_ENTRY)
    wait_backup_entry = _wait(kinds.BACKUP_ENTRY)

    migrate_source_backup_entry = _migrate(kinds.SOURCE_BACKUP_ENTRY)
    wait_source_backup_entry_migrated = _wait_migrated(kinds.SOURCE_BACKUP_ENTRY)
    wait_source_backup_entry = _wait(kinds.SOURCE_BACKUP_ENTRY)

    migrate_internal_dns = _migrate(kinds.INTERNAL_DNS)
    wait_internal_dns_migrated = _wait_migrated(kinds.INTERNAL_DNS)
    delete_internal_dns = _delete_and_wait(kinds.INTERNAL_DNS)

    migrate_external_dns = _migrate(kinds.EXTERNAL_DNS)
    wait_external_dns_migrated = _wait_migrated(kinds.EXTERNAL_DNS)
    delete_external_dns = _delete_and_wait(kinds.EXTERNAL_DNS)

    # Infrastructure

    @activity.defn
    async def deploy_infrastructure(self, task: ShootTask) -> TaskResult:
        """Deploy networks and everything else that machines need; reconcile them again only on a change."""
        view = await self._clusters.cluster(task.technical_id)
        provider = view.shoot["spec"]["provider"]
        spec = {
            "type": provider["type"],
            "region": view.shoot["spec"]["region"],
            "secretRef": _secret_ref(CLOUD_SECRET, task),
            **_optional(
                providerConfig=provider.get("infrastructureConfig"), sshPublicKey=await self._ssh_public_key(task, view)
            ),
        }
        return await self._deploy(kinds.INFRASTRUCTURE, task, spec)

    @activity.defn
    async def wait_infrastructure(self, task: ShootTask) -> TaskResult:
        """Wait for the Infrastructure, then write the Shoot's networks to its status and to the Cluster object."""
        (live,) = await self._extensions.ready(kinds.INFRASTRUCTURE, task)
        view = await self._clusters.cluster(task.technical_id)
        networking = view.shoot["spec"].get("networking") or {}
        reported = live["status"].get("networking") or {}
        nodes = networking.get("nodes") or live["status"].get("nodesCIDR")
        status = {
            "nodes": reported.get("nodes") or ([nodes] if nodes else []),
            "pods": reported.get("pods") or _optional_list(networking.get("pods")),
            "services": reported.get("services") or _optional_list(networking.get("services")),
            **_optional(egressCIDRs=live["status"].get("egressCIDRs")),
        }
        if view.shoot.get("status", {}).get("networking") != status:
            await write_shoot_status(self._clusters, task, {"networking": status})
        return TaskResult(note=f"nodes {', '.join(status['nodes'])}")

    # DNSRecord

    @activity.defn
    async def deploy_internal_dns(self, task: ShootTask) -> TaskResult:
        """Point ``api.<shoot>.<project>.<internal domain>`` to the seed's gateway and wait for it."""
        view = await self._clusters.cluster(task.technical_id)
        internal = view.seed["spec"]["dns"]["internal"]
        domain = internal_api_domain(task.technical_id, internal["domain"])
        return await self._deploy_dns(task, kinds.INTERNAL_DNS, domain, internal)

    @activity.defn
    async def deploy_external_dns(self, task: ShootTask) -> TaskResult:
        """Point ``api.<spec.dns.domain>`` to the seed's gateway and wait for it; do nothing without a domain."""
        view = await self._clusters.cluster(task.technical_id)
        domain = (view.shoot["spec"].get("dns") or {}).get("domain")
        provider = _external_dns_provider(view)
        if not domain or provider is None:
            return TaskResult(note="no external domain")
        return await self._deploy_dns(task, kinds.EXTERNAL_DNS, f"api.{domain}", provider)

    # Backup

    @activity.defn
    async def deploy_backup_entry(self, task: ShootTask) -> TaskResult:
        """Deploy the Shoot's BackupEntry in the seed's bucket; its provider writes Secret ``etcd-backup``.

        The garden has a BackupEntry of the same name, owned by the Shoot. While the control plane moves, the garden's
        BackupEntry still names the source, which has the backups until it hands them over.
        """
        view = await self._clusters.cluster(task.technical_id)
        name = backup_entry_name(task)
        bucket = await self._clusters.seed.get(resources.BACKUP_BUCKET, view.seed["metadata"]["uid"])
        spec = backup_entry_spec(view.seed, bucket)
        if not task.destination:
            await self._clusters.garden.apply(
                {
                    "apiVersion": resources.CORE_BACKUP_ENTRY.api_version,
                    "kind": "BackupEntry",
                    "metadata": {
                        "name": name,
                        "namespace": task.shoot.namespace,
                        "ownerReferences": [owner_reference(resources.SHOOT, task.shoot.name, task.shoot.uid)],
                        "annotations": {SHOOT_PURPOSE: view.shoot["spec"].get("purpose") or ""},
                        "finalizers": [FINALIZER],
                    },
                    "spec": {"bucketName": bucket["metadata"]["name"], "seedName": task.seed},
                },
                manager=extension.MANAGER,
            )
        return await self._deploy(kinds.BACKUP_ENTRY, task, spec)

    @activity.defn
    async def delete_backup_entry(self, task: ShootTask) -> TaskResult:
        """Delete the backups; if they are kept for a retention period, only mark the garden's BackupEntry as deleted.

        A second run finds the deletion timestamp of the first one, from which the period counts.
        """
        name, garden = backup_entry_name(task), self._clusters.garden
        entry = await self._own_backup_entry(task)
        if entry and not is_marked(entry) and self._retention.keeps(entry):
            # BackupEntries of an earlier version have no finalizer, and would be gone at once.
            patch = {"metadata": {"finalizers": [FINALIZER]}}
            await garden.patch(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace, patch)
            await garden.delete(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace)
        if until := await self._kept_until(task):
            return TaskResult(note=_kept_note(until))
        return await self._extensions.delete(kinds.BACKUP_ENTRY, task)

    @activity.defn
    async def wait_backup_entry_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the backups are gone, then delete the garden's BackupEntry; not during the retention period."""
        if until := await self._kept_until(task):
            return TaskResult(note=_kept_note(until))
        await self._extensions.wait_deleted(kinds.BACKUP_ENTRY, task)
        if await self._own_backup_entry(task):
            name, garden = backup_entry_name(task), self._clusters.garden
            with contextlib.suppress(NotFound):
                patch = {"metadata": {"finalizers": None}}
                await garden.patch(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace, patch)
            await garden.delete(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace)
        return TaskResult()

    async def _kept_until(self, task: ShootTask) -> datetime | None:
        """End of the retention period of the backups; None if there is no such period, or it is over."""
        entry = await self._own_backup_entry(task)
        if entry is None or not is_marked(entry):
            return None
        until = self._retention.ends(entry)
        return until if until > datetime.now(UTC) else None

    async def _own_backup_entry(self, task: ShootTask) -> dict[str, Any] | None:
        """The Shoot's BackupEntry in the garden; None if another seed has the backups that the Shoot continues from."""
        name = backup_entry_name(task)
        entry = await self._clusters.garden.find(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace)
        return entry if entry is not None and entry["spec"].get("seedName") == task.seed else None

    @activity.defn
    async def migrate_backup_entry(self, task: ShootTask) -> TaskResult:
        """Hand the backups over: the garden's BackupEntry names the destination, then this seed releases its own.

        The data stay in the bucket. A second run does what is left to do. If another seed has taken the backups over,
        the garden's BackupEntry names that seed already, and is not changed.
        """
        name, garden = backup_entry_name(task), self._clusters.garden
        entry = await garden.get(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace)
        if entry["spec"].get("seedName") == task.seed:
            began = {"migrationStartTime": timestamp()}
            await garden.patch(
                resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace, {"status": began}, subresource="status"
            )
            patch = {"spec": {"seedName": task.destination}}
            await garden.patch(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace, patch)
        for step in (
            self._extensions.migrate,
            self._extensions.wait_migrated,
            self._extensions.delete,
            self._extensions.wait_deleted,
        ):
            await step(kinds.BACKUP_ENTRY, task)
        return TaskResult(note=f"{name} belongs to {task.destination}")

    @activity.defn
    async def delete_source_backup_entry(self, task: ShootTask) -> TaskResult:
        """Delete the Shoot's backups in the source's bucket; if the source is lost, only after it has cleaned up.

        Until then an etcd of the source must find the takeover marker in this bucket. The deletion of a Shoot does not
        wait for a lost source: the content of the bucket then stays for good.
        """
        if task.operation is not OperationType.RECONCILE and await is_taken_over(self._clusters, task):
            if task.operation is OperationType.DELETE:
                await self._extensions.migrate(kinds.SOURCE_BACKUP_ENTRY, task)
                await self._extensions.wait_migrated(kinds.SOURCE_BACKUP_ENTRY, task)
                await self._extensions.delete(kinds.SOURCE_BACKUP_ENTRY, task)
            return TaskResult(note=_KEPT)
        return await self._extensions.delete(kinds.SOURCE_BACKUP_ENTRY, task)

    @activity.defn
    async def wait_source_backup_entry_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the source's bucket holds nothing of the Shoot, then delete the credentials for that bucket.

        Also delete the garden's BackupEntry for it, and wait up to 30 s until the source has revoked the credentials.
        A lost source does not revoke them: if the Shoot is deleted, nothing waits for it. The garden's BackupEntry
        stays if the Shoot's next seed has created it meanwhile, to copy from the bucket of this seed.
        """
        lost = await is_taken_over(self._clusters, task)
        if task.operation is OperationType.RESTORE and lost:
            return TaskResult(note=_KEPT)
        await self._extensions.wait_deleted(kinds.SOURCE_BACKUP_ENTRY, task)
        name = source_backup_entry_name(task)
        await self._clusters.seed.delete(resources.SECRET, name, GARDEN_NAMESPACE)
        await ExtensionAccess(self._clusters).unshare(name)
        if next_seed := await self._next_seed(task, name):
            return TaskResult(note=f"seed {next_seed} prepares to take over, and needs BackupEntry {name}")
        garden, namespace = self._clusters.garden, task.shoot.namespace
        if lost and task.operation is OperationType.DELETE:
            with contextlib.suppress(NotFound):
                await garden.patch(resources.CORE_BACKUP_ENTRY, name, namespace, {"metadata": {"finalizers": None}})
        await garden.delete(resources.CORE_BACKUP_ENTRY, name, namespace)
        try:
            cache = backup_entries_of(self._clusters)
            await heartbeating(cache.wait_for(name, namespace, lambda live: live is None, _REVOKED_SECONDS))
        except TimeoutError:
            return TaskResult(note="the source seed has not revoked the credentials of its bucket yet")
        return TaskResult()

    async def _next_seed(self, task: ShootTask, source: str) -> str:
        """Seed that the Shoot moves to, if it has created BackupEntry ``source``; empty if the Shoot is deleted."""
        garden, namespace = self._clusters.garden, task.shoot.namespace
        if task.operation is OperationType.DELETE:
            return ""
        shoot = await garden.find(resources.SHOOT, task.shoot.name, namespace)
        if shoot is None or shoot["metadata"]["uid"] != task.shoot.uid:
            return ""
        entry = await garden.find(resources.CORE_BACKUP_ENTRY, source, namespace)
        made_by = str(entry["spec"].get("seedName") or "") if entry else ""
        homes = {shoot["spec"].get("seedName"), (shoot.get("status") or {}).get("seedName")}
        return made_by if made_by != task.seed and made_by in homes else ""

    # ControlPlane

    @activity.defn
    async def deploy_control_plane_extension(self, task: ShootTask) -> TaskResult:
        """Deploy the provider's additions to the control plane: cloud controllers, storage classes."""
        view = await self._clusters.cluster(task.technical_id)
        provider = view.shoot["spec"]["provider"]
        spec = {
            "type": provider["type"],
            "region": view.shoot["spec"]["region"],
            "secretRef": _secret_ref(CLOUD_SECRET, task),
            **_optional(
                providerConfig=provider.get("controlPlaneConfig"),
                infrastructureProviderStatus=await self._infrastructure_status(task),
            ),
        }
        return await self._deploy(kinds.CONTROL_PLANE, task, spec)

    # Network

    @activity.defn
    async def deploy_network(self, task: ShootTask) -> TaskResult:
        """Deploy the pod network; it gets a second IP family once all nodes have networks of it."""
        view = await self._clusters.cluster(task.technical_id)
        networking, networks = view.shoot["spec"]["networking"], Networks.of(view)
        spec = {
            "type": networking["type"],
            "podCIDR": networking.get("pods") or networks.pods[0],
            "serviceCIDR": networking.get("services") or networks.services[0],
            "ipFamilies": list(dual_stack.in_use(view.shoot)),
            **_optional(providerConfig=networking.get("providerConfig")),
        }
        return await self._deploy(kinds.NETWORK, task, spec)

    # Worker

    @activity.defn
    async def deploy_worker(self, task: ShootTask) -> TaskResult:
        """Deploy the machines of all pools, each pool with the user data of its OperatingSystemConfig."""
        view = await self._clusters.cluster(task.technical_id)
        provider = view.shoot["spec"]["provider"]
        # The client limits the number of requests at the same time.
        status, ssh_key, pools = await asyncio.gather(
            self._infrastructure_status(task),
            self._ssh_public_key(task, view),
            asyncio.gather(*(self._pool(task, view, pool) for pool in provider["workers"])),
        )
        spec = {
            "type": provider["type"],
            "region": view.shoot["spec"]["region"],
            "secretRef": _secret_ref(CLOUD_SECRET, task),
            "pools": pools,
            **_optional(infrastructureProviderStatus=status, sshPublicKey=ssh_key),
        }
        live = await self._clusters.seed.find(resources.WORKER, task.shoot.name, task.technical_id)
        if live is not None and any(map(is_updated_in_place, view.pools)):
            if not (view.shoot["spec"].get("hibernation") or {}).get("enabled"):
                await wait_updates_described(self._clusters, task, view)
            before = in_place_updates.pending_of(view.shoot)
            await self._note_updates(task, before, in_place_updates.begun(view.shoot, live, before))
        return await self._deploy(kinds.WORKER, task, spec)

    async def _note_updates(
        self, task: ShootTask, before: in_place_updates.Pending, pending: in_place_updates.Pending
    ) -> None:
        """Write into the Shoot's status which pools wait for an in-place update."""
        if pending != before:
            status = {"inPlaceUpdates": in_place_updates.status_of(pending)}
            await write_shoot_status(self._clusters, task, status)

    @activity.defn
    async def wait_machine_deployments(self, task: ShootTask) -> TaskResult:
        """Wait until the Worker's status names the machine deployments: machines are being created then.

        Raises:
            ApplicationError: as ``wait_worker``, for errors that the provider reports meanwhile.
        """
        seed, place = self._clusters.seed, (task.shoot.name, task.technical_id)
        asked = await extension.asked_at(seed, resources.WORKER, *place)
        await extension.wait_machine_deployments(self._clusters.seed_caches, *place, kinds.WORKER.wait, asked or "")
        return TaskResult()

    @activity.defn
    async def wait_worker(self, task: ShootTask) -> TaskResult:
        """Wait until the Worker is ready: all machines have joined the cluster."""
        (live,) = await self._extensions.ready(kinds.WORKER, task)
        view = await self._clusters.cluster(task.technical_id)
        before = in_place_updates.pending_of(view.shoot)
        await self._note_updates(task, before, in_place_updates.ended(view.shoot, live))
        deployments = live.get("status", {}).get("machineDeployments") or []
        return TaskResult(note=", ".join(each["name"] for each in deployments))

    # Extension and ContainerRuntime

    @activity.defn
    async def deploy_extensions_before_apiserver(self, task: ShootTask) -> TaskResult:
        """Deploy the Extensions that the API server needs."""
        return await self._deploy_extensions(kinds.EXTENSIONS_BEFORE_API_SERVER, task, Phase.BEFORE_API_SERVER)

    @activity.defn
    async def deploy_extensions_after_apiserver(self, task: ShootTask) -> TaskResult:
        """Deploy the Extensions that need the API server."""
        return await self._deploy_extensions(kinds.EXTENSIONS_AFTER_API_SERVER, task, Phase.AFTER_API_SERVER)

    @activity.defn
    async def deploy_extensions_after_worker(self, task: ShootTask) -> TaskResult:
        """Deploy the Extensions that need machines; by now machines are being created."""
        return await self._deploy_extensions(kinds.EXTENSIONS_AFTER_WORKER, task, Phase.AFTER_WORKER)

    async def _deploy_extensions(self, kind: Kind, task: ShootTask, phase: Phase) -> TaskResult:
        wanted = await kinds.extensions_of(self._clusters, task, phase)
        objects = []
        for each in wanted:
            spec = {"type": each.type, **_optional(providerConfig=each.provider_config)}
            objects.append(ExtensionObject(kind.resource, each.type, kind.place(task), spec))
        await self._extensions.deploy(kind, task, objects)
        return TaskResult(note=", ".join(each.type for each in wanted))

    @activity.defn
    async def deploy_container_runtimes(self, task: ShootTask) -> TaskResult:
        """Deploy the container runtimes that pools have in addition to containerd."""
        view = await self._clusters.cluster(task.technical_id)
        objects = []
        for pool in view.pools:
            selector = {"matchLabels": {WORKER_POOL: pool["name"]}}
            for runtime in (pool.get("cri") or {}).get("containerRuntimes") or ():
                spec = {
                    "type": runtime["type"],
                    "binaryPath": CONTAINER_RUNTIME_BINARIES,
                    "workerPool": {"name": pool["name"], "selector": selector},
                    **_optional(providerConfig=runtime.get("providerConfig")),
                }
                name = f"{runtime['type']}-{pool['name']}"
                objects.append(ExtensionObject(resources.CONTAINER_RUNTIME, name, task.technical_id, spec))
        await self._extensions.deploy(kinds.CONTAINER_RUNTIME, task, objects)
        return TaskResult(note=", ".join(each.name for each in objects))

    # Shared by these activities

    async def _deploy(self, kind: Kind, task: ShootTask, spec: dict[str, Any]) -> TaskResult:
        (name,) = await kind.wanted(self._clusters, task)
        await self._extensions.deploy(kind, task, [ExtensionObject(kind.resource, name, kind.place(task), spec)])
        return TaskResult()

    async def _deploy_dns(self, task: ShootTask, kind: Kind, domain: str, provider: Mapping[str, Any]) -> TaskResult:
        """Deploy a DNSRecord and wait for it. Its credentials are in a Secret: new ones do not change the DNSRecord.

        ``provider``: type, credentials and zone, as in a Seed or a Shoot. A Shoot with IPv6 alone gets a record of type
        AAAA, since its machines and pods reach no address of IPv4; a Shoot with IPv4 gets one of type A.
        """
        if (served_by := await self._handlers.place(task)) is None:
            return TaskResult(note=note_of_none(task))
        credentials = provider["credentialsRef"]
        view = await self._clusters.cluster(task.technical_id)
        find_address = gateway_address_ipv6 if dual_stack.is_ipv6_alone(view.shoot) else gateway_address
        address = await find_address(self._clusters.seed_caches, served_by.namespace)
        (name,) = await kind.wanted(self._clusters, task)
        secret = f"dnsrecord-{name}"
        garden = self._clusters.garden
        place = {"name": secret, "namespace": task.technical_id}
        if is_identity(credentials):
            identity = await garden.get(resources.WORKLOAD_IDENTITY, credentials["name"], task.shoot.namespace)
            await workload_identity.deploy_secret(self._clusters, identity, view.shoot, place, {})
        else:
            if credentials.get("namespace"):  # credentials of the Seed; a Shoot names Secrets of its own namespace
                source = await seed_credentials(garden, task.seed, credentials)
            else:
                source = await garden.get(resources.SECRET, credentials["name"], task.shoot.namespace)
            await workload_identity.drop_token(self._clusters.seed, secret, task.technical_id)
            await self._clusters.seed.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": place,
                    "type": "Opaque",
                    "data": source.get("data", {}),
                },
                manager=extension.MANAGER,
            )
        spec = {
            "type": provider["type"],
            "secretRef": _secret_ref(secret, task),
            **_optional(zone=provider.get("zone")),
            "name": domain,
            "recordType": dns_record_type(address),
            "values": [address],
            "ttl": 120,
        }
        await self._deploy(kind, task, spec)
        await self._extensions.wait(kind, task)
        return TaskResult(note=f"{domain} is {address}")

    async def _infrastructure_status(self, task: ShootTask) -> Any:
        live = await self._clusters.seed.find(resources.INFRASTRUCTURE, task.shoot.name, task.technical_id)
        return live.get("status", {}).get("providerStatus") if live else None

    async def _ssh_public_key(self, task: ShootTask, view: ClusterView) -> str | None:
        """Newest SSH public key in base64, for clouds that put it on machines themselves; None without SSH access."""
        if not ssh.has_access(view.shoot):
            return None
        newest, *_ = ssh_public_keys(await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot))
        return base64.b64encode(newest.encode()).decode()

    async def _pool(self, task: ShootTask, view: ClusterView, pool: dict[str, Any]) -> dict[str, Any]:
        key = node_agent_secret_name(view.shoot, pool)
        provision = await self._clusters.seed.get(resources.OPERATING_SYSTEM_CONFIG, f"{key}-init", task.technical_id)
        user_data = provision["status"]["cloudConfig"]["secretRef"]["name"]
        version = (pool.get("kubernetes") or {}).get("version") or view.shoot["spec"]["kubernetes"]["version"]
        labels = {
            "worker.gardener.cloud/pool": pool["name"],
            "worker.gardener.cloud/kubernetes-version": version,
            "worker.gardener.cloud/gardener-node-agent-secret-name": key,
            "worker.gardener.cloud/cri-name": (pool.get("cri") or {}).get("name", "containerd"),
            "worker.gardener.cloud/system-components": str(
                (pool.get("systemComponents") or {}).get("allow", True)
            ).lower(),
            "node.kubernetes.io/role": "node",
        }
        kept = [
            "annotations",
            "taints",
            "zones",
            "volume",
            "dataVolumes",
            "kubeletDataVolumeName",
            "providerConfig",
            "clusterAutoscaler",
            "priority",
            "updateStrategy",
        ]
        return {
            "name": pool["name"],
            "minimum": pool["minimum"],
            "maximum": pool["maximum"],
            "maxSurge": pool.get("maxSurge", 1),
            "maxUnavailable": pool.get("maxUnavailable", 0),
            "machineType": pool["machine"]["type"],
            "architecture": pool["machine"].get("architecture", "amd64"),
            "machineImage": {key: pool["machine"]["image"][key] for key in ("name", "version")},
            "nodeAgentSecretName": key,
            "userDataSecretRef": {"name": user_data, "key": "cloud_config"},
            "labels": {**(pool.get("labels") or {}), **labels, **container_runtime_labels(pool)},
            "kubernetesVersion": version,
            **_optional(
                kubeletConfig=(pool.get("kubernetes") or {}).get("kubelet")
                or view.shoot["spec"]["kubernetes"].get("kubelet"),
                machineControllerManager=machine_settings(view.cloud_profile, pool),
                nodeTemplate=node_template(view.cloud_profile, pool),
                **{field: pool.get(field) for field in kept},
            ),
        }


def node_template(cloud_profile: Mapping[str, Any], pool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Capacity of a new node of the pool; the cluster autoscaler needs it to grow a pool without nodes.

    None if the CloudProfile has no such machine type; the provider's extension reports that error. The machine type is
    part of the key of the pool's node configuration already, so the capacity must not be part of it: an operator who
    corrects the CloudProfile must not replace machines.
    """
    found = _machine_type(cloud_profile, pool)
    if found is None:
        return None
    capacity = {name: str(found[name]) for name in ("cpu", "gpu", "memory")}
    disk = (pool.get("volume") or {}).get("size") or (found.get("storage") or {}).get("size")
    return {"capacity": {**capacity, **({"ephemeral-storage": str(disk)} if disk else {})}}


def machine_settings(cloud_profile: Mapping[str, Any], pool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Timeouts of the pool's machines: the pool's own, else those of its machine type. None if there are none."""
    of_type = (_machine_type(cloud_profile, pool) or {}).get("machineControllerManager") or {}
    default = _optional(machineCreationTimeout=of_type.get("machineCreationTimeout"))
    return {**default, **(pool.get("machineControllerManager") or {})} or None


def _machine_type(cloud_profile: Mapping[str, Any], pool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = pool["machine"]["type"]
    return next((each for each in cloud_profile["spec"].get("machineTypes") or () if each["name"] == wanted), None)


async def is_taken_over(clusters: Clusters, task: ShootTask) -> bool:
    """Whether the backups that this control plane continues from are of a lost seed, which did not hand them over."""
    return says_taken_over(
        await clusters.garden.find(resources.CORE_BACKUP_ENTRY, source_backup_entry_name(task), task.shoot.namespace)
    )


def says_taken_over(entry: Mapping[str, Any] | None) -> bool:
    """Whether an annotation of a garden's BackupEntry says that its seed was lost and did not hand the backups over."""
    return entry is not None and BACKUP_ENTRY_TAKEN_OVER in (entry["metadata"].get("annotations") or {})


def _kept_note(until: datetime) -> str:
    return f"kept until {until:%Y-%m-%d %H:%M:%S} UTC"


def _external_dns_provider(view: ClusterView) -> Mapping[str, Any] | None:
    """Type, credentials and zone of the provider that serves the Shoot's domain: its own, or the seed's default."""
    dns = view.shoot["spec"].get("dns") or {}
    primary = next((each for each in dns.get("providers") or [] if each.get("primary")), None)
    if primary is not None and primary.get("type") == "unmanaged":
        return None
    if primary is not None and primary.get("credentialsRef"):
        return {"type": primary["type"], "credentialsRef": primary["credentialsRef"]}
    for default in view.seed["spec"]["dns"].get("defaults") or []:
        if (dns.get("domain") or "").endswith("." + default["domain"]):
            chosen: Mapping[str, Any] = default
            return chosen
    return None


def _secret_ref(name: str, task: ShootTask) -> dict[str, str]:
    return {"name": name, "namespace": task.technical_id}


def _optional(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _optional_list(value: str | None) -> list[str]:
    return [value] if value else []
