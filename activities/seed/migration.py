"""Activities for the move of a control plane, in addition to those of reconciliations and deletions.

In the source: keep the objects in the shoot, delete the objects of machines but not the machines, take the final
snapshot, and hand the backups over. In the destination: get access to the source's bucket, and copy the backups.
Source: spec/flows.md 5 and 7.
"""

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.components import base, machine_controller_manager, vpn_seed_server
from activities.components import etcd as etcd_component
from activities.errors import transient
from activities.heartbeat import heartbeating
from activities.seed import extension_kinds as kinds
from activities.seed import rollout
from activities.seed.backup_keys import is_key_for
from activities.seed.extension_access import ExtensionAccess, shared_by_source
from activities.seed.extension_objects import MANAGER, ExtensionObject
from activities.seed.extension_operations import Extensions
from activities.seed.extensions import is_taken_over, says_taken_over
from activities.seed.sidecar import ask_sidecar
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult, backup_entry_name, source_backup_entry_name
from api.decisions.conditions import find_condition
from api.errors import ErrorCode
from etcd import snapshots
from etcd.store import StoreError, open_store
from kube.errors import NotFound

_COPY_SECONDS = 5 * 60.0
_FINAL_SNAPSHOT_SECONDS = 5 * 60
"""How long a copy waits for the source's final snapshot. Source: spec/extensions.md 5."""
_TAKEN_OVER_SECONDS = 5
"""The same for a source that is reported lost: if it still runs, it has this time to take the final snapshot."""
_FOLLOWING_SECONDS = 4 * 60
_VPN_SECONDS = 60
_LOOK_SECONDS = 0.3
_TAKING_OVER_LOOK_SECONDS = 0.1
"""Seconds between polls while users wait for the takeover."""
_MACHINE_KINDS = (resources.MACHINE_DEPLOYMENT, resources.MACHINE_SET, resources.MACHINE)
_ETCD = etcd_component.name_of(etcd_component.MAIN)


class MigrationActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._extensions = Extensions(clusters)

    # On the source

    @activity.defn
    async def keep_managed_objects(self, task: ShootTask) -> TaskResult:
        """Set ``keepObjects`` in all ManagedResources for the shoot: their objects stay when they are deleted."""
        seed = self._clusters.seed
        found = await seed.list(resources.MANAGED_RESOURCE, task.technical_id)
        names = [
            each["metadata"]["name"]
            for each in found
            if not each["spec"].get("class") and not each["spec"].get("keepObjects")
        ]
        for name in names:
            with contextlib.suppress(NotFound):
                await seed.patch(resources.MANAGED_RESOURCE, name, task.technical_id, {"spec": {"keepObjects": True}})
        return TaskResult(note=f"{len(names)} ManagedResources keep their objects")

    @activity.defn
    async def shallow_delete_machine_objects(self, task: ShootTask) -> TaskResult:
        """Delete the objects of all machines, but not the machines in the cloud; a second run finds none.

        Raises:
            ApplicationError: ``MachineControllerManagerRuns`` if the Deployment of the machine-controller-manager
                exists, which would stop the machines.
        """
        seed, namespace = self._clusters.seed, task.technical_id
        if await seed.find(resources.DEPLOYMENT, machine_controller_manager.NAME, namespace) is not None:
            raise ApplicationError(
                f"machine-controller-manager of shoot {namespace} exists and would delete the machines: "
                "delete it first",
                type="MachineControllerManagerRuns",
            )
        count = 0
        for kind in _MACHINE_KINDS:
            for each in await seed.list(kind, namespace):
                metadata = each["metadata"]
                with contextlib.suppress(NotFound):
                    await seed.patch(kind, metadata["name"], namespace, {"metadata": {"finalizers": None}})
                await seed.delete(kind, metadata["name"], namespace, uid=metadata["uid"], propagation="Background")
                count += kind == resources.MACHINE
        return TaskResult(note=f"{count} machines keep running; their objects are deleted here")

    @activity.defn
    async def delete_vpn_server(self, task: ShootTask) -> TaskResult:
        """Delete the VPN servers, the seed's end of the tunnel, so that the shoot's end connects to the new one."""
        seed, caches = self._clusters.seed, self._clusters.seed_caches
        for name in vpn_seed_server.NAMES:
            await rollout.end(seed, caches, task.technical_id, base.control_plane_labels(name), _VPN_SECONDS)
            doomed = [(resources.SERVICE, name), (resources.POD_DISRUPTION_BUDGET, name)]
            await rollout.delete(seed, doomed, task.technical_id)
        return TaskResult()

    @activity.defn
    async def snapshot_etcd(self, task: ShootTask) -> TaskResult:
        """Take the final snapshot of etcd-main; a second run finds this snapshot and takes no other.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` if the sidecar does not answer, or its store fails.
        """
        doing = f"final snapshot of {task.technical_id}/{_ETCD}"
        info = await heartbeating(
            ask_sidecar(self._clusters.seed, task.technical_id, "snapshot/full?final=true", doing)
        )
        return TaskResult(note=str(info.get("snapName", "")))

    @activity.defn
    async def flush_etcd(self, task: ShootTask) -> TaskResult:
        """Take a delta snapshot of etcd-main, so that few changes are left for the final snapshot.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` if the sidecar does not answer, or its store fails.
        """
        doing = f"snapshot of {task.technical_id}/{_ETCD}"
        info = await heartbeating(ask_sidecar(self._clusters.seed, task.technical_id, "snapshot/delta", doing))
        return TaskResult(note=str(info.get("snapName", "nothing new")))

    # On the destination

    @activity.defn
    async def deploy_source_backup_entry(self, task: ShootTask) -> TaskResult:
        """Deploy a BackupEntry for the bucket with the backups, if it is another bucket and they are not copied yet.

        The garden's BackupEntry of the Shoot names that bucket, until ``deploy_backup_entry`` writes ours. A second
        run reads it from the source BackupEntry of the first one. A source that has not handed its backups over is
        lost: the source BackupEntry is annotated with that.

        The destination gets the key of the source's etcd, which has rights to the Shoot's own backups only.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` if the source has not published that key.
        """
        garden, seed, namespace = self._clusters.garden, self._clusters.seed, task.shoot.namespace
        name = source_backup_entry_name(task)
        view = await self._clusters.cluster(task.technical_id)
        ordered = await garden.find(resources.CORE_BACKUP_ENTRY, name, namespace)
        home = await garden.find(resources.CORE_BACKUP_ENTRY, backup_entry_name(task), namespace)
        entry = ordered or home
        if entry is None or entry["spec"]["bucketName"] == view.seed["metadata"]["uid"]:
            return TaskResult(note="the backups are in this seed's bucket")
        lost = home is not None and home["spec"].get("seedName") != task.seed and not task.destination
        annotations = {constants.BACKUP_ENTRY_TAKEN_OVER: "true"} if lost or says_taken_over(ordered) else {}
        if await seed.find(resources.ETCD, _ETCD, task.technical_id) is not None:
            if ordered is not None and annotations:
                patch = {"metadata": {"annotations": annotations}}
                await garden.patch(resources.CORE_BACKUP_ENTRY, name, namespace, patch)
            return TaskResult(note="the etcd exists, and was created with these backups")
        bucket_name = entry["spec"]["bucketName"]
        bucket = await garden.get(resources.CORE_BACKUP_BUCKET, bucket_name)
        credentials = {"name": name, "namespace": constants.GARDEN_NAMESPACE}
        await self._copy_key(task, bucket, credentials)
        await ExtensionAccess(self._clusters).share(shared_by_source(name, bucket))
        await garden.apply(
            {
                "apiVersion": resources.CORE_BACKUP_ENTRY.api_version,
                "kind": "BackupEntry",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "annotations": annotations,
                    "ownerReferences": entry["metadata"].get("ownerReferences") or [],
                    "finalizers": [constants.FINALIZER],
                },
                "spec": {"bucketName": bucket_name, "seedName": task.seed},
            },
            manager=MANAGER,
        )
        spec = {
            "type": bucket["spec"]["provider"]["type"],
            "region": bucket["spec"]["provider"]["region"],
            "bucketName": bucket_name,
            "secretRef": credentials,
        }
        wanted = ExtensionObject(resources.BACKUP_ENTRY, name, None, spec)
        await self._extensions.deploy(kinds.SOURCE_BACKUP_ENTRY, task, [wanted])
        return TaskResult(note=f"bucket {bucket_name}")

    async def _copy_key(self, task: ShootTask, bucket: Mapping[str, Any], secret: Mapping[str, str]) -> None:
        """Copy the key of the Shoot's backups in the source's bucket to a Secret of this seed.

        A copy of an earlier run stays if the garden does not have the key any more: this seed publishes its own there.
        """
        bucket_name, name = bucket["metadata"]["name"], f"{task.shoot.name}.{constants.BACKUP_KEY}"
        published = await self._clusters.garden.find(resources.INTERNAL_SECRET, name, task.shoot.namespace)
        data = (published or {}).get("data") or {}
        if not is_key_for(bucket_name, data):
            copied = await self._clusters.seed.find(resources.SECRET, secret["name"], secret["namespace"])
            if copied is not None:
                return
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                f"InternalSecret {task.shoot.namespace}/{name} holds no key for bucket {bucket_name}: the gardenlet of "
                f"seed {bucket['spec'].get('seedName')} writes it; if that seed is lost, an operator has to write it, "
                "with the credentials of the bucket",
            )
        await self._clusters.seed.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": dict(secret), "type": "Opaque", "data": dict(data)},
            manager=MANAGER,
        )

    @activity.defn
    async def copy_etcd_backups(self, task: ShootTask) -> TaskResult:
        """Request a copy of all snapshots into the destination's bucket; do nothing if they are there already.

        A second run of the same attempt finds the EtcdCopyBackupsTask. That of another attempt is replaced, unless it
        has succeeded.
        """
        seed, namespace = self._clusters.seed, task.technical_id
        if not await kinds.SOURCE_BACKUP_ENTRY.wanted(self._clusters, task):
            return TaskResult(note="nothing to copy")
        live = await seed.find(resources.ETCD_COPY_BACKUPS_TASK, task.shoot.name, namespace)
        if live is not None:
            asked = (live["metadata"].get("annotations") or {}).get(constants.TIMESTAMP)
            if asked == task.trigger or _success(live):
                return TaskResult()
            await self.delete_copy_task(task)
        # Members that joined those of the source have all data: the source takes no final snapshot.
        etcd = await seed.find(resources.ETCD, _ETCD, namespace)
        joined = bool(((etcd or {}).get("spec") or {}).get("memberNamePrefix"))
        patience = _TAKEN_OVER_SECONDS if await is_taken_over(self._clusters, task) else _FINAL_SNAPSHOT_SECONDS
        source, target = await asyncio.gather(
            seed.get(resources.BACKUP_ENTRY, source_backup_entry_name(task)),
            seed.get(resources.BACKUP_ENTRY, backup_entry_name(task)),
        )
        await seed.create(
            {
                "apiVersion": resources.ETCD_COPY_BACKUPS_TASK.api_version,
                "kind": resources.ETCD_COPY_BACKUPS_TASK.kind,
                "metadata": {
                    "name": task.shoot.name,
                    "namespace": namespace,
                    "annotations": {constants.TIMESTAMP: task.trigger},
                },
                "spec": {
                    "sourceStore": _store(source, task, constants.SOURCE_BACKUP_SECRET),
                    "targetStore": _store(target, task, etcd_component.BACKUP_SECRET),
                    "waitForFinalSnapshot": {"enabled": not joined, "timeout": f"{patience}s"},
                },
            }
        )
        return TaskResult()

    @activity.defn
    async def wait_etcd_following(self, task: ShootTask) -> TaskResult:
        """Wait until the destination's etcd-main holds the content of the source's bucket, and replicates new deltas.

        Raises:
            ApplicationError: ``EtcdNotFollowing`` after 4 minutes, with the state that the sidecar reports.
        """
        return await self._wait_following(task, taken_over=False)

    @activity.defn
    async def wait_etcd_taken_over(self, task: ShootTask) -> TaskResult:
        """Wait until the destination's etcd-main holds the whole history of the source, and its clients may write.

        Raises:
            ApplicationError: ``EtcdNotFollowing`` after 4 minutes, with the state that the sidecar reports.
        """
        return await self._wait_following(task, taken_over=True)

    async def _wait_following(self, task: ShootTask, *, taken_over: bool) -> TaskResult:
        fault = ""

        async def following() -> str:
            nonlocal fault
            while True:
                try:
                    doing = f"state of {task.technical_id}/{_ETCD}"
                    answer = await ask_sidecar(self._clusters.seed, task.technical_id, "initialization/revision", doing)
                except (ApplicationError, NotFound) as error:
                    fault = str(error)
                else:
                    if answer["status"] == "Successful":
                        return "it has taken over"
                    if answer["revision"] and not taken_over:
                        return f"revision {answer['revision']}"
                    fault = f"it holds revision {answer['revision']}" if answer["revision"] else "it has not started"
                await asyncio.sleep(_TAKING_OVER_LOOK_SECONDS if taken_over else _LOOK_SECONDS)

        try:
            async with asyncio.timeout(_FOLLOWING_SECONDS):
                return TaskResult(note=await heartbeating(following()))
        except TimeoutError:
            raise ApplicationError(
                f"{_ETCD} of shoot {task.technical_id} does not replicate from the source's etcd: {fault}",
                type="EtcdNotFollowing",
            ) from None

    @activity.defn
    async def wait_etcd_backups_copied(self, task: ShootTask) -> TaskResult:
        """Wait until the copy is complete; without a copy, check that the destination's bucket has a full snapshot.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` with the reason why the copy is not complete,
                ``NoBackup`` if etcd would start empty.
        """
        if await self._clusters.seed.find(resources.ETCD_COPY_BACKUPS_TASK, task.shoot.name, task.technical_id) is None:
            await self._refuse_empty_start(task)
            return TaskResult(note="nothing to copy")
        cache = self._clusters.seed_caches.of(resources.ETCD_COPY_BACKUPS_TASK)

        def copied(live: dict[str, Any] | None) -> str | None:
            return _success(live)

        try:
            wait = cache.wait_for(task.shoot.name, task.technical_id, copied, _FINAL_SNAPSHOT_SECONDS + _COPY_SECONDS)
            return TaskResult(note=await heartbeating(wait) or "")
        except TimeoutError:
            live = cache.get(task.shoot.name, task.technical_id)
            reason = ((live or {}).get("status") or {}).get("lastError") or "the copy has not started"
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"backups of shoot {task.technical_id} are not copied: {reason}"
            ) from None

    @activity.defn
    async def delete_copy_task(self, task: ShootTask) -> TaskResult:
        """Delete the EtcdCopyBackupsTask, whether it has succeeded or not; copied snapshots stay."""
        name, namespace = task.shoot.name, task.technical_id
        await self._clusters.seed.delete(resources.ETCD_COPY_BACKUPS_TASK, name, namespace)
        return TaskResult()

    async def _refuse_empty_start(self, task: ShootTask) -> None:
        """Fail if etcd does not exist yet and its bucket has no full snapshot: an empty etcd means a lost cluster."""
        seed, namespace = self._clusters.seed, task.technical_id
        if await seed.find(resources.ETCD, _ETCD, namespace) is not None:
            return
        place = _store(await seed.get(resources.BACKUP_ENTRY, backup_entry_name(task)), task, "")
        secret = await seed.get(resources.SECRET, etcd_component.BACKUP_SECRET, namespace)
        credentials = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        directory = snapshots.directory(place["prefix"])
        try:
            store = open_store(place["provider"], credentials, place["container"])
            there = snapshots.parse_all(item.name for item in await store.list(directory))
        except StoreError as error:
            raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, str(error)) from None
        if not snapshots.fulls(there):
            raise ApplicationError(
                f"{_ETCD} of shoot {namespace} would start empty: bucket {place['container']} has no full snapshot in "
                f"{directory}; copy the backups of its old seed there",
                type="NoBackup",
            )


def _store(entry: Mapping[str, Any], task: ShootTask, secret: str) -> dict[str, Any]:
    """Store of an Etcd's backups; the prefix is the same in both buckets."""
    return {
        "provider": entry["spec"]["type"],
        "container": entry["spec"]["bucketName"],
        "prefix": f"{backup_entry_name(task)}/{_ETCD}",
        "secretRef": {"name": secret},
    }


def _success(live: Mapping[str, Any] | None) -> str | None:
    """Message of the condition Succeeded, if it is True; else None."""
    condition = find_condition(live, "Succeeded")
    return str(condition.get("message") or "Succeeded") if condition.get("status") == "True" else None
