"""Delete the users' objects in a shoot before its nodes and control plane: they may hold load balancers and disks.

Webhooks are deleted first, because they could reject the other deletions; then extended APIs; then everything that runs
or costs money. Objects of our own ManagedResources stay: nodes and tunnel are needed until the end.
Source: spec/flows.md 3.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.errors import transient
from activities.heartbeat import heartbeating
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.errors import ErrorCode
from api.labels import is_true
from api.resources import Resource
from kube.cache import Cache, Caches
from kube.client import KubeClient, Object
from kube.errors import AlreadyExists, ApiError, Conflict, NotFound

_WEBHOOKS = (resources.VALIDATING_WEBHOOK_CONFIGURATION, resources.MUTATING_WEBHOOK_CONFIGURATION)
_EXTENDED_APIS = (resources.API_SERVICE, resources.CUSTOM_RESOURCE_DEFINITION)
_SNAPSHOTS = (resources.VOLUME_SNAPSHOT, resources.VOLUME_SNAPSHOT_CONTENT)
_COSTLY = (resources.SERVICE, resources.PERSISTENT_VOLUME_CLAIM)
"""Kinds that create resources in the cloud; their objects are deleted even if the owner asked to skip the cleanup."""
_WORKLOADS = (
    resources.CRON_JOB,
    resources.JOB,
    resources.DEPLOYMENT,
    resources.STATEFUL_SET,
    resources.DAEMON_SET,
    resources.REPLICA_SET,
    resources.REPLICATION_CONTROLLER,
    resources.POD,
    resources.INGRESS,
)

_GRACE = timedelta(minutes=5)
_LONG_GRACE = timedelta(hours=1)
_LEASE_AGE = timedelta(seconds=4)
_PATIENCE = 10 * 60.0
_MARGIN = 15.0
"""Seconds before the activity's timeout at which it fails with the names of the objects left."""
_SYNC_PATIENCE = 60.0
_NAMED_LEFTOVERS = 10
_PARALLEL = 16

_SYSTEM_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
_MANAGED_BY = "resources.gardener.cloud/managed-by"
_AUTOMANAGED = "kube-aggregator.kubernetes.io/automanaged"
_MIRROR_POD = "kubernetes.io/config.mirror"


_OUTLINE = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_READ_LABELS = (constants.SHOOT_NO_CLEANUP, _MANAGED_BY, _AUTOMANAGED)
_NAMED_FINALIZERS = 5


@dataclass(frozen=True)
class Sweep:
    """Kinds whose objects are to be deleted, and the time for which their finalizers are respected."""

    kinds: tuple[Resource, ...]
    grace: timedelta
    ignore_created_after: datetime | None = None
    """Users or controllers may still create objects: those created after this time are not waited for."""


class CleanupActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def clean_webhooks(self, task: ShootTask) -> TaskResult:
        """Delete the user's admission webhooks.

        Raises:
            ApplicationError: ``ERR_CLEANUP_CLUSTER_RESOURCES`` with the objects that are left.
        """
        view = await self._clusters.cluster(task.technical_id)
        grace = _grace(view, constants.SHOOT_CLEANUP_WEBHOOKS_GRACE_PERIOD, _GRACE)
        return await self._sweep(task, [Sweep(_WEBHOOKS, grace)])

    @activity.defn
    async def wait_kube_controller_manager_active(self, task: ShootTask) -> TaskResult:
        """Wait until kube-controller-manager renews its lease.

        Without it no object is garbage-collected, and no namespace ends.
        """
        shoot = await self._clusters.shoot(task.technical_id)
        name = "kube-controller-manager"
        async with Cache(shoot, resources.LEASE, "kube-system", fields=f"metadata.name={name}") as leases:
            await heartbeating(leases.wait_for(name, None, _lease_is_fresh, _time_left()))
        return TaskResult()

    @activity.defn
    async def clean_extended_apis(self, task: ShootTask) -> TaskResult:
        """Delete the user's aggregated APIs and custom resource definitions, with all their objects.

        Raises:
            ApplicationError: ``ERR_CLEANUP_CLUSTER_RESOURCES`` with the objects that are left.
        """
        view = await self._clusters.cluster(task.technical_id)
        grace = _grace(view, constants.SHOOT_CLEANUP_EXTENDED_APIS_GRACE_PERIOD, _LONG_GRACE)
        # One kind after the other: a broken aggregated API keeps the API server from finding all custom objects.
        return await self._sweep(task, [Sweep((kind,), grace) for kind in _EXTENDED_APIS])

    @activity.defn
    async def clean_kubernetes_resources(self, task: ShootTask) -> TaskResult:
        """Delete the user's workloads, Services, volumes and namespaces.

        Raises:
            ApplicationError: ``ERR_CLEANUP_CLUSTER_RESOURCES`` with the objects that are left.
        """
        view = await self._clusters.cluster(task.technical_id)
        grace = _grace(view, constants.SHOOT_CLEANUP_RESOURCES_GRACE_PERIOD, _GRACE)
        snapshots_grace = _grace(view, constants.SHOOT_CLEANUP_RESOURCES_GRACE_PERIOD, _LONG_GRACE)
        until = _started(task) + grace
        snapshots = Sweep(_SNAPSHOTS, snapshots_grace, until)
        if is_true(view.annotations.get(constants.SHOOT_SKIP_CLEANUP)):
            return await self._sweep(task, [Sweep(_COSTLY, grace, until), snapshots])
        return await self._sweep(
            task,
            [
                Sweep((*_WORKLOADS, *_COSTLY), grace, until),
                snapshots,
                Sweep((resources.NAMESPACE,), grace, until),
            ],
        )

    async def _sweep(self, task: ShootTask, sweeps: Sequence[Sweep]) -> TaskResult:
        shoot = await self._clusters.shoot(task.technical_id)
        deadline = asyncio.get_running_loop().time() + _time_left()
        deleted = 0
        state = {"text": "listing objects"}
        for sweep in sweeps:
            deleted += await heartbeating(
                _Sweeper(shoot, sweep, deadline, lambda text: state.update(text=text)).run(),
                details=lambda: state["text"],
            )
        return TaskResult(note=f"{deleted} objects deleted" if deleted else "")


class _Sweeper:
    """Deletes the objects of a sweep, and watches them until they are gone."""

    def __init__(self, shoot: KubeClient, sweep: Sweep, deadline: float, tell: Callable[[str], None]) -> None:
        self._shoot = shoot
        self._sweep = sweep
        self._deadline = deadline
        self._tell = tell
        self._asked: set[str] = set()
        self._refused: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_PARALLEL)

    async def run(self) -> int:
        """Delete the objects, wait until they are gone, and return how many were deleted."""
        loop = asyncio.get_running_loop()
        async with self._caches() as (caches, changed):
            while True:
                changed.clear()
                left = self._left(caches)
                if not left:
                    return len(self._asked)
                self._tell(f"{len(left)} objects still exist, such as {_name(*left[0])}")
                if loop.time() >= self._deadline:
                    raise transient(ErrorCode.CLEANUP_CLUSTER_RESOURCES, self._explain(left))
                pauses = await asyncio.gather(*(self._push(resource, obj, caches) for resource, obj in left))
                pause = min(self._deadline - loop.time(), *pauses)
                try:
                    async with asyncio.timeout(max(pause, 0)):
                        await changed.wait()
                except TimeoutError:
                    continue  # the grace period of an object is over, or the time of this attempt

    @asynccontextmanager
    async def _caches(self) -> AsyncIterator[tuple[dict[Resource, Cache], asyncio.Event]]:
        """Watches on the kinds of this sweep, and on nodes if pods are among them."""
        kinds = [kind for kind in self._sweep.kinds if await self._served(kind)]
        if resources.POD in kinds:
            kinds.append(resources.NODE)
        changed = asyncio.Event()
        caches = Caches(self._shoot, keep=_outline)
        try:
            by_kind = {kind: caches.of(kind) for kind in kinds}
            await asyncio.gather(*(cache.synced(_SYNC_PATIENCE) for cache in by_kind.values()))
            for cache in by_kind.values():
                cache.subscribe(lambda _: changed.set())
            yield by_kind, changed
        finally:
            await caches.close()

    async def _served(self, kind: Resource) -> bool:
        if kind not in _SNAPSHOTS:
            return True
        try:
            await self._shoot.request("GET", f"/apis/{kind.api_version}", doing=f"looking for {kind}")
        except NotFound:
            return False
        return True

    def _left(self, caches: Mapping[Resource, Cache]) -> list[tuple[Resource, Object]]:
        """Objects that are to be deleted and still exist."""
        kept: set[str] = set()
        objects = [(kind, obj) for kind, cache in caches.items() if kind != resources.NODE for obj in cache.list()]
        # Follow owner references for two levels: Deployment, ReplicaSet, Pod.
        for _ in range(3):
            kept |= {obj["metadata"]["uid"] for kind, obj in objects if _is_kept(kind, obj, kept)}
        limit = self._sweep.ignore_created_after
        return [
            (kind, obj)
            for kind, obj in objects
            if obj["metadata"]["uid"] not in kept
            and (limit is None or datetime.fromisoformat(obj["metadata"]["creationTimestamp"]) <= limit)
        ]

    async def _push(self, resource: Resource, obj: Object, caches: Mapping[Resource, Cache]) -> float:
        """Delete, finalize or leave an object; return the seconds until the object must be checked again."""
        metadata = obj["metadata"]
        async with self._slots:
            try:
                if not metadata.get("deletionTimestamp"):
                    if metadata["uid"] not in self._asked:
                        await self._delete(resource, obj)
                    return float("inf")
                overdue = datetime.now(UTC) - _deleted_at(obj) - self._sweep.grace
                if resource == resources.POD and _is_lost(obj, caches[resources.NODE]):
                    await self._delete(resource, obj, grace_seconds=0)
                elif overdue < timedelta(0):
                    return -overdue.total_seconds()
                else:
                    await self._finalize(resource, obj)
            except (NotFound, Conflict):
                pass  # gone, or changed: an event of the watch follows
            except ApiError as error:
                self._refused[metadata["uid"]] = str(error)
                self._asked.discard(metadata["uid"])
                return 5.0
            return float("inf")

    async def _delete(self, resource: Resource, obj: Object, grace_seconds: int | None = None) -> None:
        metadata = obj["metadata"]
        propagation: Literal["Background"] = "Background"  # a Job would orphan its pods by default
        await self._shoot.delete(
            resource,
            metadata["name"],
            metadata.get("namespace"),
            uid=metadata["uid"],
            propagation=propagation,
            grace_seconds=grace_seconds,
        )
        self._asked.add(metadata["uid"])
        self._refused.pop(metadata["uid"], None)

    async def _finalize(self, resource: Resource, obj: Object) -> None:
        """Remove the finalizers of an object whose grace period is over; end a pod without finalizers at once."""
        metadata = obj["metadata"]
        if resource == resources.NAMESPACE:
            await self._shoot.request(
                "PUT",
                resource.path(None, metadata["name"], "finalize"),
                body={**obj, "spec": {"finalizers": []}},
                doing=f"finalizing Namespace {metadata['name']}",
            )
        elif metadata.get("finalizers"):
            try:
                await self._remove_finalizers(resource, obj)
            except NotFound:
                if not await self._bring_back_namespace(metadata.get("namespace")):
                    raise
                await self._remove_finalizers(resource, obj)
        elif resource == resources.POD:
            await self._delete(resource, obj, grace_seconds=0)

    async def _remove_finalizers(self, resource: Resource, obj: Object) -> None:
        metadata = obj["metadata"]
        change = {"metadata": {"finalizers": None}}
        await self._shoot.patch(resource, metadata["name"], metadata.get("namespace"), change)

    async def _bring_back_namespace(self, name: str | None) -> bool:
        """Create a namespace that is gone while objects in it are left; returns whether it was gone.

        An object outlasts its namespace if it was created while the finalizers of the namespace were removed. The API
        server refuses each change of such an object as "not found", so that its finalizers would hold the cleanup for
        ever.
        """
        if name is None or await self._shoot.find(resources.NAMESPACE, name) is not None:
            return False
        with suppress(AlreadyExists):
            await self._shoot.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return True

    def _explain(self, left: Sequence[tuple[Resource, Object]]) -> str:
        named = []
        for resource, obj in left[:_NAMED_LEFTOVERS]:
            metadata = obj["metadata"]
            why = []
            if metadata.get("finalizers"):
                why.append("finalizers " + ", ".join(metadata["finalizers"]))
            if refusal := self._refused.get(metadata["uid"]):
                why.append(refusal)
            named.append(_name(resource, obj) + (f" ({'; '.join(why)})" if why else ""))
        more = f" and {len(left) - len(named)} more" if len(left) > len(named) else ""
        return (
            f"objects in the cluster are not gone yet: {'; '.join(named)}{more}; find out which controllers "
            "hold them, or have the cleanup remove their finalizers sooner by the Shoot's cleanup annotations"
        )


def _is_kept(kind: Resource, obj: Object, kept_owners: set[str]) -> bool:
    """Whether an object must stay: it is not the user's, but ours or Kubernetes' own."""
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    if labels.get(constants.SHOOT_NO_CLEANUP) == "true" or labels.get(_MANAGED_BY) == "gardener":
        return True
    if any(owner.get("controller") and owner["uid"] in kept_owners for owner in metadata.get("ownerReferences") or ()):
        return True
    if kind == resources.NAMESPACE:
        return metadata["name"] in _SYSTEM_NAMESPACES
    if kind == resources.SERVICE:
        return (metadata.get("namespace"), metadata["name"]) == ("default", "kubernetes")
    if kind == resources.API_SERVICE:
        return _AUTOMANAGED in labels
    if kind == resources.POD:
        return _MIRROR_POD in (metadata.get("annotations") or {})
    return False


def _outline(obj: Object) -> Object:
    """The parts of an object that a sweep reads. The Shoot's owner decides how large objects are; these are small."""
    metadata = obj["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    kept = {
        **{key: metadata[key] for key in _OUTLINE if key in metadata},
        "labels": {key: value for key, value in (metadata.get("labels") or {}).items() if key in _READ_LABELS},
        "annotations": {_MIRROR_POD: ""} if _MIRROR_POD in (metadata.get("annotations") or {}) else {},
        "ownerReferences": [{"controller": True, "uid": each["uid"]} for each in owners],
        "finalizers": (metadata.get("finalizers") or [])[:_NAMED_FINALIZERS],
    }
    node = (obj.get("spec") or {}).get("nodeName")
    return {
        **{key: obj[key] for key in ("apiVersion", "kind") if key in obj},
        "metadata": kept,
        **({"spec": {"nodeName": node}} if node else {}),
    }


def _is_lost(pod: Object, nodes: Cache) -> bool:
    """Whether no kubelet can end the pod: its node is gone, as all nodes are while a cluster is hibernated."""
    node: str | None = (pod.get("spec") or {}).get("nodeName")
    return node is not None and nodes.get(node) is None


def _deleted_at(obj: Object) -> datetime:
    """Time at which the deletion was requested: a pod's timestamp is later, by the pod's grace period."""
    metadata = obj["metadata"]
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return datetime.fromisoformat(metadata["deletionTimestamp"]) - grace


def _lease_is_fresh(lease: Object | None) -> bool:
    renewed: str | None = ((lease or {}).get("spec") or {}).get("renewTime")
    return renewed is not None and datetime.now(UTC) - datetime.fromisoformat(renewed) <= _LEASE_AGE


def _grace(view: ClusterView, annotation: str, default: timedelta) -> timedelta:
    """Time for which finalizers are respected; an annotation of the owner may give another one, in seconds."""
    text = view.annotations.get(annotation, "")
    return timedelta(seconds=int(text)) if text.isdigit() else default


def _started(task: ShootTask) -> datetime:
    try:
        return datetime.fromisoformat(task.trigger)
    except ValueError:
        return datetime.now(UTC)


def _time_left() -> float:
    """Seconds that this attempt may take."""
    if not activity.in_activity():
        return _PATIENCE
    limit = activity.info().start_to_close_timeout
    return min(_PATIENCE, max(limit.total_seconds() - _MARGIN, 1.0)) if limit else _PATIENCE


def _name(resource: Resource, obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return f"{resource.kind} " + "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
