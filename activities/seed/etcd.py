"""The etcds of a control plane: apply their ``Etcd`` objects, wait for them, delete them."""

import asyncio
import copy
import hashlib
import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, ClusterView
from activities.components import etcd as component
from activities.components.etcd import MEMBERS, ROLES, Backup, EtcdValues
from activities.components.etcd_between_seeds import member_prefix
from activities.errors import permanent
from activities.heartbeat import heartbeating
from activities.secrets.manager import SecretsManager, Which
from activities.seed import zones
from activities.seed.etcd_between_seeds import hide_members, remove_others
from activities.seed.extension_objects import asked_at
from activities.seed.facts import failure_tolerance
from activities.seed.hibernation import wanted_asleep
from activities.seed.sidecar import ask_sidecar
from api import constants
from api.constants import ETCD_SNAPSHOTTED
from api.contracts.operations import OperationType, OtherMembers, ShootTask, TaskResult, backup_entry_name
from api.errors import ErrorCode
from api.images import OWN_VERSION
from api.resources import BACKUP_ENTRY, DEPLOYMENT, ETCD, NAMESPACE
from api.times import micro_timestamp
from etcd.client import EtcdError
from etcd.handover import Unsafe
from kube.client import KubeClient

MANAGER = "gardenlet"
_Joined = tuple[str, Mapping[str, Any]]
"""Prefix of the members' names, and the cluster of another seed that they join."""

# Source: spec/extensions.md 1.4.
_TIMEOUT = 5 * 60
_SEVERE_AFTER = 3 * 60
_PARTING_SECONDS = 60.0
"""How long members here try to part from those of a lost seed. It covers an election, and members that are joining."""
_LOOK_SECONDS = 1.0


class EtcdActivities:
    """One instance per gardenlet."""

    def __init__(
        self,
        clusters: Clusters,
        *,
        delta_snapshot_period: timedelta = component.DELTA_SNAPSHOT_PERIOD,
        image_digest: str = "",
    ) -> None:
        self._clusters = clusters
        self._delta_snapshot_period = delta_snapshot_period
        self._image_digest = image_digest

    @activity.defn
    async def deploy_etcds(self, task: ShootTask) -> TaskResult:
        """Apply etcd-main and etcd-events, with their certificates.

        If an etcd has several members, each must trust a new peer CA before one of them presents a certificate from
        that CA: the activity waits for that. On restore, an etcd has one member at first.

        A second run of the same operation finds the timestamp that the first one wrote with the spec, and requests no
        second rollout. An operation requests none either if its spec is applied already and the etcd is healthy.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if the Shoot's maintenance window is invalid;
                ``EtcdNotReady`` if the members do not trust the new peer CA in time.
        """
        return await self._deploy(task, first=1 if task.operation is OperationType.RESTORE else None)

    @activity.defn
    async def part_from_lost_seed(self, task: ShootTask) -> TaskResult:
        """End the cluster that etcd-main forms together with members in the source, which is lost.

        While that cluster answers, it holds all data: only the source's members leave it. If it does not answer within
        a minute, the members here have no quorum: they are deleted, and ``deploy_etcds`` restores the source's backups.

        A second run removes or deletes the members that are left.
        """
        _, existing = await self._joined(task, ("", {}))
        if not existing:
            return TaskResult(note="no member is in the source")
        seed, namespace = self._clusters.seed, task.technical_id
        try:
            removed = await heartbeating(_remove_others_patiently(seed, task))
        except (Unsafe, EtcdError) as error:
            await hide_members(seed, namespace)
            await self.delete_etcds(task)
            await self.wait_etcds_deleted(task)
            return TaskResult(note=f"the backups are restored: {error}")
        await self.end_etcd_joining(task)
        await hide_members(seed, namespace)
        return TaskResult(note=f"removed {', '.join(removed)}")

    @activity.defn
    async def scale_etcd_after_restore(self, task: ShootTask) -> TaskResult:
        """Add the members that the etcds of a restored control plane with failure tolerance lack.

        A second run finds the number of members already applied.
        """
        return await self._deploy(task.model_copy(update={"trigger": f"{task.trigger} scaling"}))

    @activity.defn
    async def join_etcd(self, request: OtherMembers) -> TaskResult:
        """Apply etcd-main with members that join the cluster of the other seed, and an etcd-events without data.

        A second run finds the Etcd of the first one, and neither repeats nor ends what that one has ordered.
        """
        task = request.task
        cluster = component.existing_cluster(component.MAIN, task.technical_id, request.prefix, MEMBERS)
        return await self._deploy(task, joining=(member_prefix(task.seed), cluster))

    @activity.defn
    async def end_etcd_joining(self, task: ShootTask) -> TaskResult:
        """Take the other seed's cluster out of etcd-main, whose members are the whole cluster now. Their pods stay.

        A second run finds it applied.
        """
        return await self._deploy(task.model_copy(update={"trigger": f"{task.trigger} joined"}), joined=True)

    async def _deploy(
        self, task: ShootTask, *, first: int | None = None, joining: _Joined | None = None, joined: bool = False
    ) -> TaskResult:
        """Apply both etcds; ``first`` is the number of members before others join.

        ``joining``: of a new etcd-main. ``joined``: its members need not join any more.
        """
        view = await self._clusters.cluster(task.technical_id)
        secrets, backup = await asyncio.gather(
            SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot),
            self._backup(task, view),
        )
        other = await self._joined(task, joining or ("", {}))
        if joined:
            other = (other[0], {})
        wanted = await asyncio.gather(
            *(
                self._etcd(task, view, secrets, backup, role, first, other if role == component.MAIN else ("", {}))
                for role in ROLES
            )
        )
        await heartbeating(asyncio.gather(*(self._trust_new_peers(task, etcd) for etcd in wanted)))
        await asyncio.gather(*(self._apply(task, etcd) for etcd in wanted))
        return TaskResult(secrets=secrets.generated)

    async def _trust_new_peers(self, task: ShootTask, wanted: dict[str, Any]) -> None:
        """Roll out everything except the members' new certificates, so that all members trust the new peer CA first.

        A member that trusts only the old CA would reject connections of a member with a new certificate.
        """
        metadata, peers = wanted["metadata"], wanted["spec"]["etcd"].get("peerUrlTls")
        live = await self._clusters.seed.find(ETCD, metadata["name"], metadata["namespace"])
        shown = ((live or {}).get("spec") or {}).get("etcd", {}).get("peerUrlTls", {}).get("serverTLSSecretRef")
        if not (peers and shown) or shown == peers["serverTLSSecretRef"]:
            return
        before = copy.deepcopy(wanted)
        before["spec"]["etcd"]["peerUrlTls"]["serverTLSSecretRef"] = shown
        await self._apply(task.model_copy(update={"trigger": f"{task.trigger} authorities"}), before)
        await self._wait_ready(task, before["spec"]["labels"]["role"])

    @activity.defn
    async def wait_etcds(self, task: ShootTask) -> TaskResult:
        """Wait until both etcds run with the applied spec and have quorum.

        Raises:
            ApplicationError: ``EtcdNotReady`` after 3 minutes if the etcd controller reports an error, which the text
                repeats; otherwise after 5 minutes.
        """
        await heartbeating(asyncio.gather(*(self._wait_ready(task, role) for role in ROLES)))
        return TaskResult()

    @activity.defn
    async def snapshot_after_rewrite(self, task: ShootTask) -> TaskResult:
        """Take a full snapshot of etcd-main, then annotate the API server's Deployment.

        By now no object in etcd is encrypted with the old key; to restore an older snapshot, the old key would be
        needed. A second run finds the annotation.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` with the sidecar's answer.
        """
        server = await self._clusters.seed.get(DEPLOYMENT, "kube-apiserver", task.technical_id)
        if ETCD_SNAPSHOTTED in _annotations(server):
            return TaskResult(note="done before")
        doing = f"full snapshot of {task.technical_id}/{component.name_of(component.MAIN)}"
        taken = await heartbeating(ask_sidecar(self._clusters.seed, task.technical_id, "snapshot/full", doing))
        mark = {"metadata": {"annotations": {ETCD_SNAPSHOTTED: "true"}}}
        await self._clusters.seed.patch(DEPLOYMENT, "kube-apiserver", task.technical_id, mark)
        return TaskResult(note=taken.get("snapName", ""))

    @activity.defn
    async def delete_etcds(self, task: ShootTask) -> TaskResult:
        """Confirm and request the deletion of both etcds, unless they are gone or being deleted. Backups stay."""
        await asyncio.gather(*(self._delete(task, component.name_of(role)) for role in ROLES))
        return TaskResult()

    @activity.defn
    async def wait_etcds_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until both etcds are gone and no member runs any more.

        Raises:
            ApplicationError: ``EtcdNotDeleted`` after 5 minutes.
        """
        await heartbeating(asyncio.gather(*(self._wait_deleted(task, role) for role in ROLES)))
        return TaskResult()

    async def _backup(self, task: ShootTask, view: ClusterView) -> Backup | None:
        configured = view.seed["spec"].get("backup")
        if not configured:
            return None
        entry = await self._clusters.seed.get(BACKUP_ENTRY, backup_entry_name(task))
        return Backup(configured["provider"], entry["spec"]["bucketName"], entry["metadata"]["name"])

    async def _etcd(
        self,
        task: ShootTask,
        view: ClusterView,
        secrets: SecretsManager,
        backup: Backup | None,
        role: str,
        first: int | None,
        joined: _Joined,
    ) -> dict[str, Any]:
        tolerance = failure_tolerance(view)
        place = await self._clusters.seed.find(NAMESPACE, task.technical_id)
        replicas = await self._replicas(task, view, role, MEMBERS if tolerance else 1, first)
        prefix, existing = joined
        namespace = task.technical_id
        certificates = [component.server_certificate(role, namespace, prefix), component.client_certificate()]
        if replicas > 1:
            certificates.append(component.peer_certificate(role, namespace, prefix))
        server, client, *peer = await asyncio.gather(*map(secrets.generate, certificates))
        window = (view.shoot["spec"].get("maintenance") or {}).get("timeWindow") or {}
        values = EtcdValues(
            role=role,
            namespace=task.technical_id,
            replicas=replicas,
            ca_bundle=secrets.get(component.CA, Which.BUNDLE).name,
            server_certificate=server.name,
            client_certificate=client.name,
            uid=task.shoot.uid,
            backup=backup if role == component.MAIN else None,
            delta_snapshot_period=self._delta_snapshot_period,
            peer_ca_bundle=secrets.get(component.PEER_CA, Which.BUNDLE).name if peer else "",
            peer_certificate=peer[0].name if peer else "",
            failure_tolerance=tolerance,
            member_prefix=prefix,
            existing=existing,
            affinity=zones.affinity(zones.pinned_zones(place)),
            autoscaling=((view.shoot["spec"]["kubernetes"].get("etcd") or {}).get(role) or {}).get("autoscaling") or {},
            image_digest=self._image_digest,
            **({"window_begin": window["begin"]} if window.get("begin") else {}),
        )
        try:
            return component.etcd(values)
        except ValueError:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"maintenance window of Shoot {task.shoot} begins at {window.get('begin')!r}, "
                "must be like 220000+0100: correct spec.maintenance.timeWindow.begin",
            ) from None

    async def _joined(self, task: ShootTask, new: _Joined) -> _Joined:
        """Prefix and cluster of etcd-main: both stay as they are. ``new``: of an etcd that does not exist yet."""
        live = await self._clusters.seed.find(ETCD, component.name_of(component.MAIN), task.technical_id)
        if live is None:
            return new
        spec = live.get("spec") or {}
        return spec.get("memberNamePrefix", ""), spec.get("etcd", {}).get("bootstrapWithExistingCluster") or {}

    async def _replicas(self, task: ShootTask, view: ClusterView, role: str, awake: int, first: int | None) -> int:
        """Number of members; while the Shoot is to be hibernated, the present number.

        ``hibernate_control_plane`` stops etcd last, when no component needs it any more.
        """
        asleep = wanted_asleep(view, task)
        if not asleep and first is None:
            return awake
        live = await self._clusters.seed.find(ETCD, component.name_of(role), task.technical_id)
        there = int(live["spec"]["replicas"]) if live else 0
        if asleep or there:
            return there
        return awake if live else first or awake

    async def _apply(self, task: ShootTask, wanted: dict[str, Any]) -> None:
        metadata = wanted["metadata"]
        digest = hashlib.sha256(json.dumps([OWN_VERSION, wanted], sort_keys=True).encode()).hexdigest()[:16]
        live = await self._clusters.seed.find(ETCD, metadata["name"], metadata["namespace"])
        if live is not None:
            asked = _annotations(live).get(constants.TIMESTAMP, "")
            same = _annotations(live).get(constants.INPUTS_DIGEST) == digest
            if asked == task.trigger or (same and asked and _fault(live, asked) is None):
                return
        metadata["annotations"] |= {
            constants.OPERATION: constants.OPERATION_RECONCILE,
            constants.TIMESTAMP: task.trigger,
            constants.INPUTS_DIGEST: digest,
        }
        await self._clusters.seed.apply_blindly(wanted, manager=MANAGER)

    async def _wait_ready(self, task: ShootTask, role: str) -> None:
        name = component.name_of(role)
        cache = self._clusters.seed_caches.of(ETCD)
        fault = "it does not exist"
        # The timestamp of this operation, or of an earlier one that applied the same spec.
        trigger = await asked_at(self._clusters.seed, ETCD, name, task.technical_id)

        def ready(live: dict[str, Any] | None) -> bool:
            nonlocal fault
            fault = _fault(live, trigger) or ""
            return not fault

        try:
            await cache.wait_for(name, task.technical_id, ready, _SEVERE_AFTER)
        except TimeoutError:
            live = cache.get(name, task.technical_id)
            if live is not None and _reported(live):
                raise _not_ready(name, task, fault) from None
        else:
            return
        try:
            await cache.wait_for(name, task.technical_id, ready, _TIMEOUT - _SEVERE_AFTER)
        except TimeoutError:
            raise _not_ready(name, task, fault) from None

    async def _delete(self, task: ShootTask, name: str) -> None:
        live = await self._clusters.seed.find(ETCD, name, task.technical_id)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return
        confirmed = {constants.CONFIRMATION_DELETION: "true", constants.TIMESTAMP: micro_timestamp()}
        await self._clusters.seed.patch(ETCD, name, task.technical_id, {"metadata": {"annotations": confirmed}})
        await self._clusters.seed.delete(ETCD, name, task.technical_id, uid=live["metadata"]["uid"])

    async def _wait_deleted(self, task: ShootTask, role: str) -> None:
        name = component.name_of(role)
        cache = self._clusters.seed_caches.of(ETCD)
        try:
            await cache.wait_for(name, task.technical_id, lambda live: live is None, _TIMEOUT)
        except TimeoutError:
            live = cache.get(name, task.technical_id)
            raise ApplicationError(
                f"etcd {task.technical_id}/{name} still exists after {_TIMEOUT} s"
                + (f": {text}" if live and (text := _reported(live)) else ""),
                type="EtcdNotDeleted",
            ) from None


async def _remove_others_patiently(seed: KubeClient, task: ShootTask) -> list[str]:
    deadline = time.monotonic() + _PARTING_SECONDS
    while True:
        try:
            return await remove_others(seed, task)
        except (Unsafe, EtcdError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_LOOK_SECONDS)


def _fault(live: Mapping[str, Any] | None, trigger: str | None) -> str | None:
    """Reason why the etcd is not as this operation has applied it; None if it is. Source: spec/extensions.md 5."""
    if live is None:
        return "it does not exist"
    annotations, status = _annotations(live), live.get("status") or {}
    if annotations.get(constants.TIMESTAMP) != trigger:
        return "the change of this operation is not visible yet"
    if reported := _reported(live):
        return f"its controller reports: {reported}"
    if annotations.get(constants.OPERATION) or status.get("observedGeneration") != live["metadata"].get("generation"):
        return "its controller has not rolled it out"
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    if conditions.get("AllMembersUpdated", {}).get("status") != "True":
        return "not all members have the newest configuration"
    if not status.get("ready"):
        return conditions.get("Ready", {}).get("message") or "it has no quorum"
    return None


def _reported(live: Mapping[str, Any]) -> str:
    return "; ".join(item["description"] for item in (live.get("status") or {}).get("lastErrors") or ())


def _not_ready(name: str, task: ShootTask, fault: str) -> ApplicationError:
    return ApplicationError(f"etcd {task.technical_id}/{name} is not ready: {fault}", type="EtcdNotReady")


def _annotations(live: Mapping[str, Any]) -> Mapping[str, str]:
    return live["metadata"].get("annotations") or {}
