"""Controller for extension objects of all kinds: the part of the extension contract that does not depend on the kind.

Source: spec/extensions.md 1.2, 1.3 and 1.5.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from enum import StrEnum
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.extension import Actuator, Extension, control_plane_namespace, load_extension
from api import constants
from api.errors import ErrorCode
from api.labels import is_true
from api.resources import CLUSTER
from api.times import timestamp
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read, retry_on_conflict
from kube.errors import ApiError, NotFound
from workers.extension.ownership import Ownership, elsewhere

_log = logging.getLogger(__name__)

_WORKERS = 10
_INTERRUPTIBLE_WORKERS = 100
"""Number of workers for kinds whose runs only wait."""


class Operation(StrEnum):
    """Operation that a run executes."""

    RECONCILE = "reconcile"
    DELETE = "delete"
    MIGRATE = "migrate"
    RESTORE = "restore"


_TRIGGERS = frozenset({Operation.RECONCILE, Operation.MIGRATE, Operation.RESTORE})


class OwnershipLost(Exception):
    """A run has ended, and wrote nothing, because another seed may have the control plane."""


class RunFailed(Exception):
    """A run has failed, its error is in the object's status, and a retry may succeed."""


class ExtensionController:
    """Runs one actuator for the objects of its kind, type and class.

    ``interruptible``: the actuator waits for a long time, and a newer request ends its run.
    """

    def __init__(self, seed: KubeClient, caches: Caches, actuator: Actuator, *, interruptible: bool = False) -> None:
        self._seed = seed
        self._actuator = actuator
        self._interruptible = interruptible
        self._resource = actuator.resource
        self._cache = caches.of(actuator.resource)
        self._clusters = caches.of(CLUSTER)
        self._ownership = Ownership(caches)
        self._held_back: set[Key] = set()
        """Objects with a pending operation that do not run, because their Shoot is Failed or in another seed."""
        self._controller = Controller(
            self._resource.kind, self._reconcile, workers=_INTERRUPTIBLE_WORKERS if interruptible else _WORKERS
        )
        self._finalizer = f"{constants.EXTENSIONS}/{self._resource.kind.lower()}"

    def __str__(self) -> str:
        return f"{self._resource.kind} of type {self._actuator.type}"

    async def run(self) -> None:
        """Run until cancelled."""
        self._controller.watch(self._cache, when=self._calls_for_run)
        if self._resource.namespaced:
            self._controller.watch(self._clusters, keys=self._released)
            self._ownership.watch(self._retry_held_back)
        try:
            await self._controller.run()
        finally:
            self._ownership.close()

    def _calls_for_run(self, event: WatchEvent) -> bool:
        return self._is_ours(event.object) and calls_for_run(event)

    def _is_ours(self, found: Mapping[str, Any]) -> bool:
        spec = found.get("spec") or {}
        return spec.get("type") == self._actuator.type and spec.get("class") != "garden"

    def _released(self, event: WatchEvent) -> list[Key]:
        """Objects to reconcile because their Shoot is no longer Failed, or is in this seed again."""
        if event.type == "DELETED" or _is_failed(event.object):
            return []
        namespaces = (event.object["metadata"]["name"], control_plane_namespace(event.object))
        released = [key for key in self._held_back if key.namespace in namespaces]
        self._held_back.difference_update(released)
        return released

    def _retry_held_back(self) -> None:
        for key in self._held_back:
            self._controller.enqueue(key)

    async def _reconcile(self, key: Key) -> Requeue | None:
        extension = await load_extension(self._seed, self._resource, key.namespace or "", key.name)
        if extension is None or not self._is_ours(extension.object):
            self._held_back.discard(key)
            return None
        operation = decide(extension.object, self._finalizer)
        if operation is None:
            return None
        if extension.cluster is not None and _is_failed(extension.cluster):
            self._held_back.add(key)
            return None
        if loss := self._loss(extension, operation):
            _log.warning("%s of %s does not run: %s", operation, extension, loss)
            self._held_back.add(key)
            return None
        self._held_back.discard(key)
        try:
            await self._run(extension, operation)
        except OwnershipLost as error:
            _log.warning("%s of %s has stopped: %s", operation, extension, error)
            self._held_back.add(key)
            return None
        except NotFound:
            # Another client has deleted the object and removed its finalizers during the run.
            if await self._seed.find(self._resource, key.name, key.namespace) is None:
                return None
            raise
        return None

    async def _run(self, extension: Extension, operation: Operation) -> None:
        type_ = operation_type(extension.status.get("lastOperation"), operation)
        if operation is Operation.RECONCILE:
            extension = await self._accept(extension)
        elif operation is Operation.RESTORE:
            extension = await self._edit(extension, finalizer=True)
        await self._report(extension, type_, "Processing", 1, f"{operation} of {extension} is running", {})
        try:
            result = await self._work(extension, operation)
        except (ApplicationError, ApiError, TimeoutError) as error:
            await self._failed(extension, type_, error)
            return
        if result is None:
            return  # a newer request is waiting
        await self._succeeded(extension, operation, type_, result)

    async def _work(self, extension: Extension, operation: Operation) -> dict[str, Any] | None:
        """Fields that the actuator adds to the status; None if a newer request has ended its run."""
        work = self._while_owned(extension, operation)
        if not self._interruptible:
            return await work
        return await self._until_superseded(extension, operation, work)

    def _loss(self, extension: Extension, operation: Operation) -> str:
        """Reason why an operation must not run, because another seed may have the control plane.

        A migration may run: it releases what the other seed has, and nothing outside of the seed changes.
        """
        if extension.cluster is None or operation is Operation.MIGRATE:
            return ""
        if other := elsewhere(extension.cluster):
            return f"seed {other} has the control plane"
        return self._ownership.loss(extension.namespace)

    async def _while_owned(self, extension: Extension, operation: Operation) -> dict[str, Any]:
        """Run the actuator, and cancel it when another seed may have the control plane. Raises OwnershipLost."""
        if extension.cluster is None or operation is Operation.MIGRATE:
            return await self._actuate(extension, operation)
        working = asyncio.ensure_future(self._actuate(extension, operation))
        losing = asyncio.ensure_future(self._ownership.until_lost(extension.namespace))
        try:
            await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                raise OwnershipLost(losing.result())
            return working.result()
        finally:
            for task in (working, losing):
                task.cancel()
            await asyncio.gather(working, losing, return_exceptions=True)

    async def _actuate(self, extension: Extension, operation: Operation) -> dict[str, Any]:
        match operation:
            case Operation.MIGRATE:
                return await self._actuator.migrate(extension)
            case Operation.RESTORE:
                return await self._actuator.restore(extension)
            case Operation.RECONCILE:
                return await self._actuator.reconcile(extension)
            case Operation.DELETE if _is_force_deleted(extension):
                await self._actuator.force_delete(extension)
            case Operation.DELETE:
                await self._actuator.delete(extension)
        return {}

    async def _until_superseded(
        self, extension: Extension, operation: Operation, work: Coroutine[Any, Any, dict[str, Any]]
    ) -> dict[str, Any] | None:
        superseded = asyncio.Event()
        key = key_of(dict(extension.object))

        def look(event: WatchEvent) -> None:
            if key_of(event.object) == key and supersedes(event.object, extension, operation):
                superseded.set()

        unsubscribe = self._cache.subscribe(look)
        working = asyncio.ensure_future(work)
        waiting = asyncio.ensure_future(superseded.wait())
        try:
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                _log.info("%s of %s stops for a newer request", operation, extension)
                self._controller.enqueue(key)
                return None
            return working.result()
        finally:
            unsubscribe()
            for task in (working, waiting):
                task.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)

    async def _accept(self, extension: Extension) -> Extension:
        """Remove the operation annotation before the run: an annotation set during the run then stays."""
        return await self._edit(extension, finalizer=True, drop_trigger=True)

    async def _edit(self, extension: Extension, *, finalizer: bool, drop_trigger: bool = False) -> Extension:
        """Set or remove our finalizer, and remove the operation annotation, in one request at most.

        Raises Conflict if the object changed since it was read.
        """
        metadata = extension.object["metadata"]
        patch: dict[str, Any] = {}
        finalizers = list(metadata.get("finalizers") or [])
        if finalizer and self._finalizer not in finalizers:
            patch["finalizers"] = [*finalizers, self._finalizer]
        elif not finalizer and self._finalizer in finalizers:
            patch["finalizers"] = [each for each in finalizers if each != self._finalizer]
        if drop_trigger and constants.OPERATION in (metadata.get("annotations") or {}):
            patch["annotations"] = {constants.OPERATION: None}
        if not patch:
            return extension
        written = await patch_as_read(self._seed, self._resource, extension.object, {"metadata": patch})
        return Extension(extension.resource, written, extension.cluster)

    async def _report(
        self, extension: Extension, type_: str, state: str, progress: int, description: str, status: Mapping[str, Any]
    ) -> None:
        last = {
            "type": type_,
            "state": state,
            "progress": progress,
            "description": description,
            "lastUpdateTime": timestamp(),
        }
        await self._patch(extension, {"status": {**status, "lastOperation": last}}, subresource="status")

    async def _failed(self, extension: Extension, type_: str, error: Exception) -> None:
        message, codes, final = describe(error)
        _log.warning("%s of %s failed: %s", type_, extension, message)
        last_error = {"description": message, "codes": codes, "lastUpdateTime": timestamp()}
        await self._report(
            extension,
            type_,
            "Error",
            50,
            message,
            {"lastError": last_error, "observedGeneration": extension.object["metadata"]["generation"]},
        )
        if not final:
            raise RunFailed(message) from None

    async def _succeeded(self, extension: Extension, operation: Operation, type_: str, result: dict[str, Any]) -> None:
        if operation is Operation.DELETE:
            await self._release(extension, drop_trigger=False)
            return
        await self._report(
            extension,
            type_,
            "Succeeded",
            100,
            f"{operation} of {extension} succeeded",
            {**result, "lastError": None, "observedGeneration": extension.object["metadata"]["generation"]},
        )
        if operation is Operation.MIGRATE:
            await self._release(extension, drop_trigger=True)
        elif operation is Operation.RESTORE:
            await self._finish_restore(extension)

    async def _release(self, extension: Extension, *, drop_trigger: bool) -> None:
        """Remove the finalizer. The object is read again, because this run's status writes have changed its version."""

        async def release() -> None:
            live = await self._seed.find(self._resource, extension.name, extension.namespace or None)
            if live is not None and live["metadata"]["uid"] == extension.uid:
                current = Extension(extension.resource, live, extension.cluster)
                await self._edit(current, finalizer=False, drop_trigger=drop_trigger)

        with contextlib.suppress(NotFound):
            await retry_on_conflict(f"releasing {extension}", release)

    async def _finish_restore(self, extension: Extension) -> None:
        live = await self._seed.get(self._resource, extension.name, extension.namespace or None)
        annotations = live["metadata"].get("annotations") or {}
        if annotations.get(constants.OPERATION) == Operation.RESTORE:
            current = Extension(extension.resource, live, extension.cluster)
            await self._edit(current, finalizer=True, drop_trigger=True)

    async def _patch(self, extension: Extension, patch: Mapping[str, Any], subresource: str = "") -> Object:
        return await self._seed.patch(
            self._resource, extension.name, extension.namespace or None, patch, subresource=subresource
        )


def calls_for_run(event: WatchEvent) -> bool:
    """Whether a change starts a run, by the rules of spec/extensions.md 1.3.

    A change of the spec alone does not: the author of the change sets an annotation when it is complete.
    """
    if event.type == "DELETED":
        return False
    metadata, status = event.object["metadata"], event.object.get("status") or {}
    trigger = (metadata.get("annotations") or {}).get(constants.OPERATION)
    if trigger in _TRIGGERS:
        return True
    if trigger == constants.OPERATION_WAIT_FOR_STATE:
        return False
    deleting = bool(metadata.get("deletionTimestamp"))
    if event.old is None:
        return deleting or (status.get("lastOperation") or {}).get("state") != "Succeeded"
    if not deleting:
        return False
    newly = not event.old["metadata"].get("deletionTimestamp")
    return newly or (event.old.get("status") or {}) == status


def decide(found: Mapping[str, Any], finalizer: str) -> Operation | None:
    """The operation that an object needs now; None if it needs none."""
    metadata, status = found["metadata"], found.get("status") or {}
    trigger = (metadata.get("annotations") or {}).get(constants.OPERATION)
    if trigger == constants.OPERATION_WAIT_FOR_STATE:
        return None
    if trigger == Operation.MIGRATE:
        return Operation.MIGRATE
    last = status.get("lastOperation") or {}
    migrated = last.get("type") == "Migrate" and last.get("state") == "Succeeded"
    if migrated and trigger != Operation.RESTORE:
        return None
    if metadata.get("deletionTimestamp"):
        return Operation.DELETE if finalizer in (metadata.get("finalizers") or []) else None
    if trigger == Operation.RESTORE:
        return Operation.RESTORE
    if trigger == Operation.RECONCILE or last.get("state") != "Succeeded":
        return Operation.RECONCILE
    return None


def operation_type(last: Mapping[str, Any] | None, operation: Operation) -> str:
    """``lastOperation.type`` of a run; an unfinished Create, Migrate or Restore keeps its type."""
    if operation is not Operation.RECONCILE:
        return str(operation).capitalize()
    if not last:
        return "Create"
    if last.get("type") in ("Create", "Migrate", "Restore") and last.get("state") != "Succeeded":
        return str(last["type"])
    return "Reconcile"


def supersedes(found: Mapping[str, Any], running: Extension, operation: Operation) -> bool:
    """Whether an object requests an operation newer than the one that is running for it."""
    metadata = found["metadata"]
    if metadata["uid"] != running.uid:
        return True
    deleting = bool(metadata.get("deletionTimestamp"))
    if deleting and operation is not Operation.DELETE:
        return True
    annotations = metadata.get("annotations") or {}
    # A repeated delete may follow a repair, or a force-deletion: then the run starts again instead of waiting on.
    if annotations.get(constants.OPERATION) not in _TRIGGERS and not deleting:
        return False
    # If the operation annotation stays until the end of a run, only a new timestamp shows a new request.
    before = running.object["metadata"].get("annotations") or {}
    keys = (constants.OPERATION, constants.TIMESTAMP)
    newer = int(metadata["resourceVersion"]) > int(running.object["metadata"]["resourceVersion"])
    return newer and [annotations.get(key) for key in keys] != [before.get(key) for key in keys]


def describe(error: BaseException) -> tuple[str, list[str], bool]:
    """Description and codes of a failure, and whether it is final."""
    if isinstance(error, ApplicationError):
        codes = [error.type] if error.type in set(ErrorCode) else []
        final = bool(codes) and not ErrorCode(codes[0]).retryable
        return error.message, [code for code in codes if code], final
    return str(error) or type(error).__name__, [], False


def _is_failed(cluster: Mapping[str, Any]) -> bool:
    """Whether the Shoot's last operation is Failed and its spec has not changed since."""
    shoot = (cluster.get("spec") or {}).get("shoot") or {}
    status = shoot.get("status") or {}
    given_up = (status.get("lastOperation") or {}).get("state") == "Failed"
    return given_up and status.get("observedGeneration") == shoot["metadata"].get("generation")


def _is_force_deleted(extension: Extension) -> bool:
    if extension.cluster is None:
        return False
    annotations = extension.shoot["metadata"].get("annotations") or {}
    return is_true(annotations.get(constants.CONFIRMATION_FORCE_DELETION))
