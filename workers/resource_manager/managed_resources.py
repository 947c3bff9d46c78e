"""The ManagedResource controller: applies, prunes and deletes objects, and reports their health.

Applying and health checks share one queue, so that neither writes a status while the other is working.
Source: spec/resource-manager.md 3 and 4.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from activities.managed_resources import (
    CONDITION_APPLIED,
    CONDITION_HEALTHY,
    CONDITION_PROGRESSING,
    secrets_checksum,
)
from api.decisions.conditions import find_condition, set_conditions
from api.resources import DEPLOYMENT, MANAGED_RESOURCE, POD, SECRET, Resource
from api.times import timestamp
from kube.cache import Cache, Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from kube.finalizers import ensure_finalizer, remove_finalizer
from kube.objects import selector_of
from workers.lib import health
from workers.lib import resource_names as names
from workers.lib.resource_names import annotation
from workers.resource_manager.apply import Applier
from workers.resource_manager.config import ANY_CLASS, DEFAULT_CLASS, Controllers
from workers.resource_manager.lost_pods import LostPods
from workers.resource_manager.manifests import (
    WITH_PODS,
    Equivalences,
    Reference,
    decode,
    finish,
    in_order,
    truthy_annotation,
)
from workers.resource_manager.merge import Applied

_log = logging.getLogger(__name__)

_PENDING_RETRY = 5.0
"""Seconds until a pending deletion is checked again; events come sooner."""
_SETTLE_RETRY = 1.0
"""Seconds until pods of a rolled out Deployment are counted again, if its status does not hold their number."""
_APPLY_MARGIN = 0.1
"""Seconds added to the time of the next apply, so that this time has passed when the object is reconciled again."""
_CACHE_SYNC_SECONDS = 10.0
_EVENT_SECONDS = 1.0
"""Time in which the event of an object that this process wrote usually comes; then the object is read."""
_PARALLEL_WRITES = 8
_UNCERTAIN = frozenset({408, 429})
"""Answers below 500 after which an object may have been written, or will be by a later request."""
_LONGEST_MESSAGE = 32_000
"""Characters of a condition's message: the status also holds the references, and etcd takes 1.5 MB."""
_SHORTEST_TEXT = 120
"""Characters that remain of each text in a message: enough for kind, namespace and name of an object."""
_BY_SECRET = "secretRefs"
"""Index of ManagedResources by the Secrets that they are applied from."""


@dataclass(frozen=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str


def _applied(status: str, reason: str, message: str) -> Condition:
    return Condition(CONDITION_APPLIED, status, reason, message)


def _healthy(status: str, reason: str, message: str) -> Condition:
    return Condition(CONDITION_HEALTHY, status, reason, message)


def _progressing(status: str, reason: str, message: str) -> Condition:
    return Condition(CONDITION_PROGRESSING, status, reason, message)


class ManagedResourceController:
    """Controller of all ManagedResources of one class in one source cluster."""

    def __init__(
        self,
        config: Controllers,
        *,
        source: KubeClient,
        source_caches: Caches,
        target: KubeClient,
        target_caches: Caches,
        namespaces: Iterable[str | None],
        cluster_id: str = "",
    ) -> None:
        self._config = config
        self._source = source
        self._source_caches = source_caches
        self._target = target
        self._target_caches = target_caches
        self._namespaces = tuple(namespaces)
        self._origin_prefix = f"{cluster_id}:" if cluster_id else ""
        self._applier = Applier(target, always_update=config.managed_resource.always_update)
        self._lost_pods = LostPods(target)
        self._controller = Controller(
            "managed-resources",
            self._reconcile,
            workers=config.managed_resource.concurrent_syncs + config.health.concurrent_syncs,
            first_delay=0.2,
            longest_delay=15.0,
        )
        self._next_apply: dict[Key, float] = {}
        self._read: dict[Key, dict[Key, str]] = {}
        """Resource versions of the Secrets that each ManagedResource was applied from."""
        self._written: dict[Reference, int] = {}
        """Resource versions of objects as this process wrote them, until a cache has them."""
        self._watched: dict[Resource, Cache] = {}
        own_class = config.resource_class or DEFAULT_CLASS
        self._finalizer = (
            names.FINALIZER if own_class in (DEFAULT_CLASS, ANY_CLASS) else f"{names.FINALIZER}-{own_class}"
        )

    async def run(self) -> None:
        """Run until cancelled."""
        for namespace in self._namespaces:
            managed_resources = self._source_caches.of(MANAGED_RESOURCE, namespace)
            managed_resources.index(_BY_SECRET, _secrets_of)
            managed_resources.subscribe(self._on_managed_resource)
            self._source_caches.of(SECRET, namespace).subscribe(self._on_secret)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run())
                group.create_task(self._check_regularly())
        finally:
            await self._lost_pods.close()

    async def synced(self) -> None:
        for namespace in self._namespaces:
            await self._source_caches.of(MANAGED_RESOURCE, namespace).synced()

    # Triggers

    def _on_managed_resource(self, event: WatchEvent) -> None:
        key = key_of(event.object)
        if event.type == "DELETED" or event.old is None or _asks_for_apply(event.old, event.object):
            self._apply_soon(key)

    def _on_secret(self, event: WatchEvent) -> None:
        metadata = event.object["metadata"]
        secret = key_of(event.object)
        managed_resources = self._source_caches.of(
            MANAGED_RESOURCE, secret.namespace if secret.namespace in self._namespaces else None
        )
        for managed_resource in managed_resources.by_index(_BY_SECRET, str(secret)):
            key = key_of(managed_resource)
            if self._read.get(key, {}).get(secret) != metadata["resourceVersion"]:
                self._apply_soon(key)

    def _on_target(self, event: WatchEvent) -> None:
        origin = annotation(event.object, names.ORIGIN)
        if origin is None or not origin.startswith(self._origin_prefix):
            return
        namespace, _, name = origin.removeprefix(self._origin_prefix).partition("/")
        # Users of the target cluster can write this annotation, also with a namespace that another instance serves.
        if name and ":" not in namespace and self._serves(namespace):
            self._controller.enqueue(Key(namespace, name))

    def _serves(self, namespace: str) -> bool:
        return namespace in self._namespaces or None in self._namespaces

    def _apply_soon(self, key: Key) -> None:
        self._next_apply[key] = 0.0
        self._controller.enqueue(key)

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.health.sync_period.total_seconds())
            for namespace in self._namespaces:
                for managed_resource in self._source_caches.of(MANAGED_RESOURCE, namespace).list():
                    self._controller.enqueue(key_of(managed_resource))

    # One ManagedResource

    async def _reconcile(self, key: Key) -> Requeue | None:
        due = asyncio.get_running_loop().time() >= self._next_apply.get(key, 0.0)
        if due:
            # Set before anything is read: a change from now on must lead to another apply.
            self._next_apply[key] = float("inf")
        try:
            return await self._look(key, apply=due)
        except BaseException:
            if due:
                self._next_apply[key] = 0.0
            raise

    async def _look(self, key: Key, *, apply: bool) -> Requeue | None:
        managed_resource = await self._source.find(MANAGED_RESOURCE, key.name, key.namespace)
        if managed_resource is None:
            self._next_apply.pop(key, None)
            self._read.pop(key, None)
            self._lost_pods.end(key)
            return None
        finalizers = managed_resource["metadata"].get("finalizers") or []
        responsible = self._responsible(managed_resource)
        deleting = bool(managed_resource["metadata"].get("deletionTimestamp"))
        if truthy_annotation(managed_resource, names.IGNORE) and not deleting:
            # Also after a change of the class: an ignored ManagedResource keeps its objects.
            if responsible or self._finalizer in finalizers:
                await self._report_ignored(managed_resource)
            return None
        if not responsible and self._finalizer not in finalizers:
            return None
        if deleting or not responsible:
            return await self._delete(managed_resource) if self._finalizer in finalizers else None
        if any(name.startswith(names.FINALIZER) and name != self._finalizer for name in finalizers):
            # Another instance still deletes its objects; the removal of its finalizer requeues the ManagedResource.
            return None
        if apply:
            managed_resource = await self._apply(managed_resource)
            if self._next_apply[key] > 0.0:  # else another apply was requested meanwhile
                pause = self._config.managed_resource.sync_period.total_seconds()
                self._next_apply[key] = asyncio.get_running_loop().time() + pause
        again = await self._check(managed_resource)
        until_apply = max(self._next_apply[key] - asyncio.get_running_loop().time(), 0.0) + _APPLY_MARGIN
        return Requeue(min(again.after, until_apply) if again is not None else until_apply)

    def _responsible(self, managed_resource: Object) -> bool:
        wanted = self._config.resource_class or DEFAULT_CLASS
        return wanted in (ANY_CLASS, managed_resource["spec"].get("class") or DEFAULT_CLASS)

    def _origin(self, managed_resource: Object) -> str:
        return f"{self._origin_prefix}{key_of(managed_resource)}"

    async def _report_ignored(self, managed_resource: Object) -> None:
        reason, message = "ManagedResourceIgnored", "The ManagedResource is marked to be ignored."
        await self._report(
            managed_resource,
            _applied("True", reason, message),
            _healthy("True", reason, message),
            _progressing("False", reason, message),
        )

    async def _apply(self, managed_resource: Object) -> Object:
        if annotation(managed_resource, names.OPERATION) == "reconcile":
            managed_resource = await self._patch(managed_resource, {"annotations": {names.OPERATION: None}})
        managed_resource = await ensure_finalizer(self._source, MANAGED_RESOURCE, managed_resource, self._finalizer)

        secrets = await self._read_secrets(managed_resource)
        decoded = [decode(secret) for secret in secrets]
        documents = [document for found, _ in decoded for document in found]
        faults = [fault for _, wrong in decoded for fault in wrong]
        objects = await self._objects_of(managed_resource, documents)
        if outside := self._outside(managed_resource, objects):
            return await self._refuse(managed_resource, outside)
        equivalences = Equivalences(managed_resource["spec"].get("equivalences") or ())
        status = managed_resource.get("status") or {}
        before = status.get("resources") or []
        ours, stale, orphans = _sorted_out(objects, before, equivalences)
        resources = _status_resources(ours)
        digest = secrets_checksum(secrets)
        if status.get("secretsDataChecksum") != digest or before != resources:
            managed_resource = await self._announce(managed_resource, _announced(before, resources, equivalences))

        if stale and not faults:
            managed_resource = await self._prune(managed_resource, stale)
        if orphans:
            managed_resource = await self._release(managed_resource, orphans)
        await self._write(managed_resource, ours, resources, before)
        result = _applied("True", "ApplySucceeded", "All resources are applied.")
        if faults:
            result = _applied("False", "DecodingFailed", f"Could not decode all resources: {_all_of(faults)}")
            # Stale objects may be in a document that could not be decoded: keep their references, delete nothing.
            resources = _status_resources(ours, kept=stale)
        managed_resource = await self._report(
            managed_resource,
            result,
            resources=resources,
            secretsDataChecksum=digest,
            observedGeneration=managed_resource["metadata"]["generation"],
        )
        self._read[key_of(managed_resource)] = {
            key_of(secret): secret["metadata"]["resourceVersion"] for secret in secrets
        }
        return managed_resource

    async def _read_secrets(self, managed_resource: Object) -> list[Object]:
        namespace = managed_resource["metadata"]["namespace"]
        secret_names = [ref["name"] for ref in managed_resource["spec"].get("secretRefs") or ()]
        try:
            # Not from the cache, which may be behind the ManagedResource.
            return list(await asyncio.gather(*(self._source.get(SECRET, name, namespace) for name in secret_names)))
        except ApiError as error:
            await self._report(managed_resource, _applied("False", "CannotReadSecret", str(error)))
            raise TryAgain(str(error)) from None

    async def _objects_of(self, managed_resource: Object, documents: list[Object]) -> list[Object]:
        """The documents with scope, labels and annotations as they are to be applied."""
        objects, declared = [], declared_scopes(documents)
        for document in documents:
            try:
                namespaced = (await self._target.resource_for(document["apiVersion"], document["kind"])).namespaced
            except NotFound:
                # Its CustomResourceDefinition may be applied in this pass.
                group = str(document["apiVersion"]).rpartition("/")[0]
                namespaced = declared.get((group, str(document["kind"])), True)
            metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
            if namespaced:
                metadata["namespace"] = document["metadata"].get("namespace") or "default"
            objects.append(
                finish(
                    {**document, "metadata": metadata},
                    inject_labels=managed_resource["spec"].get("injectLabels") or {},
                    origin=self._origin(managed_resource),
                    managed_by=self._config.managed_resource.managed_by_label_value,
                )
            )
        return objects

    def _is_confined(self, managed_resource: Object) -> bool:
        """Whether a ManagedResource may hold objects of its own namespace alone."""
        trusted = self._config.managed_resource.trusted_namespaces
        return trusted is not None and managed_resource["metadata"]["namespace"] not in trusted

    def _outside(self, managed_resource: Object, objects: Iterable[Object]) -> list[Reference]:
        """Objects that a confined ManagedResource must not hold, also those without a namespace."""
        if not self._is_confined(managed_resource):
            return []
        own = managed_resource["metadata"]["namespace"]
        return [each for each in map(Reference.of, objects) if each.namespace != own]

    async def _refuse(self, managed_resource: Object, outside: list[Reference]) -> Object:
        """Apply no object of a ManagedResource that holds objects outside its namespace, and report them.

        The ManagedResource is reconciled again when it or one of its Secrets changes.
        """
        metadata = managed_resource["metadata"]
        trusted = " or ".join(self._config.managed_resource.trusted_namespaces or ())
        message = (
            f"Could not apply all new resources: {', '.join(map(str, outside))}: a ManagedResource of namespace"
            f" {metadata['namespace']} may hold only objects of this namespace. Write other objects by a"
            f" ManagedResource in namespace {trusted}, for example by the chart of the extension."
        )
        return await self._report(
            managed_resource, _applied("False", "ApplyFailed", message), observedGeneration=metadata["generation"]
        )

    async def _announce(self, managed_resource: Object, resources: list[Object]) -> Object:
        """Write into the status which objects are about to be written, and that their health is not known yet.

        If the process is killed after a write, the next process finds the object in the status. It would not delete the
        object otherwise when the ManagedResource no longer holds it.
        """
        pending = "ChecksPending", "The health checks have not yet been executed for the current set of resources."
        conditions = [
            _healthy("Unknown", *pending),
            _progressing("Unknown", *pending),
        ]
        before = find_condition(managed_resource, CONDITION_APPLIED)
        if before.get("status") != "False":  # the text of an earlier failure stays until that is fixed
            conditions.append(_applied("Progressing", "ApplyProgressing", "The resources are currently being applied."))
        return await self._report(managed_resource, *conditions, resources=resources)

    async def _prune(self, managed_resource: Object, stale: list[Object]) -> Object:
        pending, errors = await self._delete_all(stale, managed_resource)
        if errors:
            await self._report(managed_resource, _applied("False", "DeletionFailed", _all_of(errors)))
            raise TryAgain(_all_of(errors))
        if pending:
            await self._report(managed_resource, _applied("Progressing", "DeletionPending", _all_of(pending)))
            raise TryAgain(_all_of(pending), after=_PENDING_RETRY)
        return managed_resource

    async def _release(self, managed_resource: Object, orphans: list[Reference]) -> Object:
        try:
            await asyncio.gather(*(self._applier.release(orphan, self._origin(managed_resource)) for orphan in orphans))
        except ApiError as error:
            await self._report(managed_resource, _applied("False", "ReleaseOfOrphanedResourcesFailed", str(error)))
            raise TryAgain(str(error)) from None
        return managed_resource

    async def _write(
        self, managed_resource: Object, objects: list[Object], resources: list[Object], before: list[Object]
    ) -> None:
        """Write all objects, also after one of them was refused. Raises TryAgain with all failures.

        ``resources``: entries of the status if all are written; ``before``: the entries before this run.
        """
        spec = managed_resource["spec"]
        announced = (managed_resource.get("status") or {}).get("resources") or []
        equivalences = Equivalences(spec.get("equivalences") or ())
        earlier = {equivalences.identity(Reference.of(entry)): entry for entry in announced}
        known = {equivalences.identity(Reference.of(entry)) for entry in before}
        slots = asyncio.Semaphore(_PARALLEL_WRITES)
        failed: dict[Reference, str] = {}
        refused: set[Reference] = set()

        async def write(obj: Object) -> None:
            reference = Reference.of(obj)
            last = earlier.get(equivalences.identity(reference))
            async with slots:
                try:
                    written = await self._applier.apply(
                        obj,
                        applied=last and Applied(last.get("labels") or {}, last.get("annotations") or {}),
                        known=last is not None and _is_applied(last),
                        force_labels=bool(spec.get("forceOverwriteLabels")),
                        force_annotations=bool(spec.get("forceOverwriteAnnotations")),
                    )
                except ApiError as error:
                    failed[reference] = str(error)
                    if 400 <= error.status < 500 and error.status not in _UNCERTAIN:
                        refused.add(reference)
                except (ValueError, TypeError, AttributeError, KeyError) as error:
                    # A part of the object has another type than its kind has. The text may quote a Secret.
                    _log.warning("ManagedResource %s: cannot merge %s: %s", key_of(managed_resource), reference,
                                 type(error).__name__)  # fmt: skip
                    failed[reference] = f"{reference} is malformed ({type(error).__name__})"
                    refused.add(reference)
                else:
                    if names.MANAGED_BY in (written["metadata"].get("labels") or {}):  # else no cache has it
                        self._written[reference] = int(written["metadata"]["resourceVersion"])

        for group in in_order(objects):
            await asyncio.gather(*(write(obj) for obj in group))
        if failed:
            # Objects that were written must be in the status for pruning, although not all were written. What could not
            # be written keeps the labels and annotations of its last write, so that the next write can remove these.
            # What the API server refused to create is no object of this ManagedResource: another component may own it.
            kept = [entry for entry in announced if Reference.of(entry) in failed]
            entries = [
                entry
                for entry in _status_resources((), kept=[*announced, *resources, *kept])
                if Reference.of(entry) not in refused or equivalences.identity(Reference.of(entry)) in known
            ]
            text = _all_of(failed[reference] for reference in sorted(failed))
            await self._report(
                managed_resource,
                _applied("False", "ApplyFailed", f"Could not apply all new resources: {text}"),
                resources=entries,
            )
            raise TryAgain(text)

    async def _delete_all(self, entries: Iterable[Object], managed_resource: Object) -> tuple[list[str], list[str]]:
        """Request deletions in parallel; returns texts on those that are pending, and on those that were refused.

        ``entries``: those of the status. Extensions may be able to write the status. So an object outside the namespace
        of a confined ManagedResource is deleted only if its origin says that the resource manager has applied it for
        this ManagedResource. The same holds for an object that was announced and is not known to be applied: another
        component may have created an object of this name.
        """
        own = managed_resource["metadata"]["namespace"] if self._is_confined(managed_resource) else None

        async def delete(entry: Object) -> tuple[str | None, str | None]:
            reference = Reference.of(entry)
            doubtful = not _is_applied(entry) or (own is not None and reference.namespace != own)
            try:
                pending = await self._applier.delete(
                    reference,
                    origin=self._origin(managed_resource) if doubtful else None,
                    delete_claims=bool(managed_resource["spec"].get("deletePersistentVolumeClaims")),
                    keep_collectable=self._config.garbage_collector.enabled,
                )
                if pending and self._holds(reference, key_of(managed_resource)):
                    return None, None
                if pending:
                    await self._watch(reference)
            except ApiError as error:
                return None, str(error)
            except ValueError as error:
                return None, f"{reference}: {error}"
            return pending, None

        slots = asyncio.Semaphore(_PARALLEL_WRITES)

        async def limited(entry: Object) -> tuple[str | None, str | None]:
            async with slots:
                return await delete(entry)

        results = await asyncio.gather(*map(limited, entries))
        return [pending for pending, _ in results if pending], [error for _, error in results if error]

    def _holds(self, reference: Reference, key: Key) -> bool:
        """Whether an object in deletion is a ManagedResource that waits for the deletion of ManagedResource ``key``.

        ManagedResources that own each other in a cycle would wait for each other for ever, and their namespace with
        them.
        """
        if self._target is not self._source:
            return False
        seen: set[Key] = set()
        waiting = [reference]
        while waiting:
            each = waiting.pop()
            if (each.group, each.kind) != (MANAGED_RESOURCE.group, MANAGED_RESOURCE.kind):
                continue
            owner = Key(each.namespace, each.name)
            if owner == key:
                return True
            if owner in seen:
                continue
            seen.add(owner)
            if self._serves(owner.namespace or ""):
                served = owner.namespace if owner.namespace in self._namespaces else None
                found = self._source_caches.of(MANAGED_RESOURCE, served).get(owner.name, owner.namespace) or {}
                waiting += [Reference.of(entry) for entry in (found.get("status") or {}).get("resources") or ()]
        return False

    async def _delete(self, managed_resource: Object) -> Requeue | None:
        if not managed_resource["spec"].get("keepObjects"):
            entries = (managed_resource.get("status") or {}).get("resources") or []
            message = "The resources are currently being deleted."
            if find_condition(managed_resource, CONDITION_HEALTHY).get("reason") != "DeletionPending":
                managed_resource = await self._report(
                    managed_resource,
                    _applied("Progressing", "DeletionPending", message),
                    _healthy("False", "DeletionPending", message),
                    _progressing("True", "DeletionPending", message),
                )
            pending, errors = await self._delete_all(entries, managed_resource)
            if errors:
                await self._report(managed_resource, _applied("False", "DeletionFailed", _all_of(errors)))
                raise TryAgain(_all_of(errors))
            if pending:
                self._lost_pods.begin(
                    key_of(managed_resource),
                    {item.namespace for item in map(Reference.of, entries) if item.kind in WITH_PODS},
                )
                await self._report(managed_resource, _applied("Progressing", "DeletionPending", _all_of(pending)))
                return Requeue(_PENDING_RETRY)
        self._lost_pods.end(key_of(managed_resource))
        await remove_finalizer(self._source, MANAGED_RESOURCE, managed_resource, self._finalizer)
        return None

    # Health

    async def _check(self, managed_resource: Object) -> Requeue | None:
        """Update the two conditions on health and progress of the objects."""
        if find_condition(managed_resource, CONDITION_APPLIED).get("status") != "True":
            return None
        references = [Reference.of(item) for item in (managed_resource.get("status") or {}).get("resources") or ()]
        try:
            live = await asyncio.gather(*map(self._live, references))
        except ApiError as error:
            await self._report(managed_resource, _healthy("False", "HealthCheckError", str(error)))
            raise TryAgain(str(error)) from None
        objects = list(zip(references, live, strict=True))
        was_healthy = find_condition(managed_resource, CONDITION_HEALTHY).get("status") == "True"
        healthy = _health_of(objects)
        progress, again = await self._progress_of(objects)
        await self._report(managed_resource, healthy, progress)
        if was_healthy and healthy.status == "False":
            self._apply_soon(key_of(managed_resource))
        return again

    async def _progress_of(self, objects: list[tuple[Reference, Object | None]]) -> tuple[Condition, Requeue | None]:
        for reference, obj in objects:
            if obj is None or annotation(obj, names.SKIP_HEALTH_CHECK) == "true":
                continue
            reason = f"{reference.kind}Progressing"
            if why := health.progressing(obj):
                return _progressing("True", reason, f"{reference} is progressing: {why}"), None
            if reference.kind == DEPLOYMENT.kind and reference.group == DEPLOYMENT.group:
                surplus, by_event = await self._surplus_pods(obj)
                if surplus:
                    condition = _progressing(
                        "True", reason, f"{reference} is progressing: {surplus:+d} non-terminated pods than wanted"
                    )
                    return condition, None if by_event else Requeue(_SETTLE_RETRY)
        return _progressing("False", "ResourcesRolledOut", "All resources have been fully rolled out."), None

    async def _surplus_pods(self, deployment: Object) -> tuple[int, bool]:
        """Number of pods beyond those wanted, and whether the Deployment's status changes when that number does."""
        surplus = health.terminating_pods(deployment)
        if surplus is not None:
            return surplus, True
        labels = selector_of(deployment["spec"].get("selector") or {})
        pods = await self._target.list(POD, deployment["metadata"]["namespace"], labels=labels)
        alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        return len(alive) - health.wanted_replicas(deployment), False

    async def _live(self, reference: Reference) -> Object | None:
        cache = await self._watch(reference)
        if cache is None:
            return None
        name, namespace = reference.name, reference.namespace or None
        if written := self._written.get(reference, 0):

            def seen(obj: Object | None) -> Object | None:
                return obj if obj is not None and int(obj["metadata"]["resourceVersion"]) >= written else None

            with contextlib.suppress(TimeoutError):
                obj: Object | None = await cache.wait_for(name, namespace, seen, _EVENT_SECONDS)
                self._written.pop(reference, None)
                return obj
        elif (obj := cache.get(name, namespace)) is not None:
            return obj
        # The object is missing, has no label of ours because another component created it, or its event is late.
        obj = await self._target.find(cache.resource, name, namespace)
        if obj is None:
            self._written.pop(reference, None)
        return obj

    async def _watch(self, reference: Reference) -> Cache | None:
        """The cache of our objects of a kind, started when first needed; None if the kind is unknown."""
        try:
            resource = await self._target.resource_for(reference.api_version, reference.kind)
        except NotFound:
            return None
        cache = self._watched.get(resource)
        if cache is None:
            label = f"{names.MANAGED_BY}={self._config.managed_resource.managed_by_label_value}"
            cache = self._watched[resource] = self._target_caches.of(resource, labels=label)
            cache.subscribe(self._on_target)
        try:
            await cache.synced(_CACHE_SYNC_SECONDS)
        except TimeoutError as error:
            raise TryAgain(str(error)) from None
        return cache

    # Status

    async def _report(self, managed_resource: Object, *conditions: Condition, **fields: Any) -> Object:
        """Write conditions and other fields of the status, if they differ."""
        status = managed_resource.get("status") or {}
        merged = set_conditions(status.get("conditions") or (), map(asdict, conditions), timestamp())
        patch = {key: value for key, value in fields.items() if status.get(key) != value}
        if merged != (status.get("conditions") or []):
            patch["conditions"] = merged
        if not patch:
            return managed_resource
        metadata = managed_resource["metadata"]
        try:
            return await self._source.patch(
                MANAGED_RESOURCE, metadata["name"], metadata["namespace"], {"status": patch}, subresource="status"
            )
        except NotFound:
            raise TryAgain(f"ManagedResource {key_of(managed_resource)} went away") from None

    async def _patch(self, managed_resource: Object, metadata: dict[str, Any]) -> Object:
        """Change metadata. Raises Conflict if the object has changed meanwhile."""
        return await patch_as_read(self._source, MANAGED_RESOURCE, managed_resource, {"metadata": metadata})


def _secrets_of(managed_resource: Object) -> Iterable[str]:
    namespace = managed_resource["metadata"]["namespace"]
    return [str(Key(namespace, ref["name"])) for ref in managed_resource["spec"].get("secretRefs") or ()]


def _asks_for_apply(old: Object, new: Object) -> bool:
    """Whether a change of a ManagedResource is a reason to apply it again."""
    if old["metadata"].get("generation") != new["metadata"].get("generation"):
        return True
    if old["metadata"].get("deletionTimestamp") != new["metadata"].get("deletionTimestamp"):
        return True
    if annotation(new, names.OPERATION) == "reconcile" and annotation(old, names.OPERATION) != "reconcile":
        return True
    if truthy_annotation(old, names.IGNORE) != truthy_annotation(new, names.IGNORE):
        return True
    before, after = (
        {name for name in obj["metadata"].get("finalizers") or () if name.startswith(names.FINALIZER)}
        for obj in (old, new)
    )
    return bool(before - after)


def _health_of(objects: list[tuple[Reference, Object | None]]) -> Condition:
    for reference, obj in objects:
        if obj is None:
            return _healthy("False", f"{reference.kind}Missing", f"Required {reference} is missing.")
        if annotation(obj, names.SKIP_HEALTH_CHECK) == "true":
            continue
        if why := health.unhealthy(obj):
            return _healthy("False", f"{reference.kind}Unhealthy", f"{reference} is unhealthy: {why}")
    return _healthy("True", "ResourcesHealthy", "All resources are healthy.")


def declared_scopes(documents: Iterable[Object]) -> dict[tuple[str, str], bool]:
    """Whether a kind is namespaced, by group and kind, as the CustomResourceDefinitions among the documents say."""
    return {
        (str(spec.get("group")), str((spec.get("names") or {}).get("kind"))): spec.get("scope") != "Cluster"
        for each in documents
        if each["kind"] == "CustomResourceDefinition"
        for spec in [each.get("spec") or {}]
    }


def _sorted_out(
    objects: Iterable[Object], before: Iterable[Object], equivalences: Equivalences
) -> tuple[list[Object], list[Object], list[Reference]]:
    """The objects to apply, the entries of the status to prune, and the objects to release.

    ``before``: entries of the status. An object that is to be ignored is neither applied nor pruned: it is released.
    """
    ours: list[Object] = []
    ignored: list[Object] = []
    for obj in objects:
        (ignored if annotation(obj, names.MODE) == names.MODE_IGNORE else ours).append(obj)
    wanted, released = ({equivalences.identity(Reference.of(obj)) for obj in some} for some in (ours, ignored))
    stale, orphans = [], []
    for entry in before:
        reference = Reference.of(entry)
        identity = equivalences.identity(reference)
        if identity in released - wanted:
            orphans.append(reference)
        elif identity not in wanted and not _is_of_cluster(reference, ours):
            stale.append(entry)
    return ours, stale, orphans


def _is_of_cluster(reference: Reference, objects: Iterable[Object]) -> bool:
    """Whether one of the objects is this one, and has no namespace.

    A reference to it has a namespace if it was stored while its kind was unknown. The object must not be pruned then:
    the API server ignores the namespace, and would delete the object that is wanted.
    """
    wanted = (reference.group, reference.kind, "", reference.name)
    return any((each.group, each.kind, each.namespace, each.name) == wanted for each in map(Reference.of, objects))


def _status_resources(objects: Iterable[Object], kept: Iterable[Object] = ()) -> list[Object]:
    """Entries of ``status.resources``, sorted; ``kept`` are earlier entries to keep."""
    entries = {Reference.of(entry): dict(entry) for entry in kept}
    for obj in objects:
        metadata = obj["metadata"]
        entry: Object = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"]}
        if metadata.get("namespace"):
            entry["namespace"] = metadata["namespace"]
        for field in ("labels", "annotations"):
            if metadata.get(field):
                entry[field] = metadata[field]
        entries[Reference.of(entry)] = entry
    return [entries[reference] for reference in sorted(entries)]


def _is_applied(entry: Object) -> bool:
    """Whether an entry of ``status.resources`` is of an object that was applied, not only announced."""
    return names.ORIGIN in (entry.get("annotations") or {})


def _announced(before: Iterable[Object], wanted: Iterable[Object], equivalences: Equivalences) -> list[Object]:
    """Entries of ``status.resources`` for the time in which objects are written.

    Entries of ``before`` stay, with the labels and annotations that may be written now. An entry of an object that was
    not applied before has no origin among its annotations until the object is written.
    """
    entries = {Reference.of(entry): entry for entry in before}
    known = {equivalences.identity(reference): entry for reference, entry in entries.items()}
    for entry in wanted:
        last = known.get(equivalences.identity(Reference.of(entry)))
        merged = dict(last or entry)
        for part in ("labels", "annotations"):
            values = {**(entry.get(part) or {}), **((last or {}).get(part) or {})}
            if last is None or not _is_applied(last):
                values.pop(names.ORIGIN, None)
            merged[part] = values
        entries[Reference.of(merged)] = merged
    return [entries[reference] for reference in sorted(entries)]


def _all_of(texts: Iterable[str]) -> str:
    """All texts in one, for a condition. Each is cut short if the whole would be too long for a status."""
    every = list(texts)
    longest = max(_LONGEST_MESSAGE // max(len(every), 1), _SHORTEST_TEXT)
    return "; ".join(text if len(text) <= longest else f"{text[: longest - 1]}…" for text in every)
