"""The caller's side of the extension contract: apply, trigger, wait, delete.

Source: spec/extensions.md 1.2 to 1.5.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from activities.errors import permanent
from activities.heartbeat import heartbeating
from api.constants import (
    CONFIRMATION_DELETION,
    INPUTS_DIGEST,
    OPERATION,
    OPERATION_MIGRATE,
    OPERATION_RECONCILE,
    OPERATION_RESTORE,
    OPERATION_WAIT_FOR_STATE,
    TIMESTAMP,
)
from api.contracts.operations import Wait
from api.errors import ErrorCode
from api.resources import WORKER, Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import NotFound
from kube.unchanged import applied_fields

MANAGER = "gardenlet"

_CACHE_LAG_SECONDS = 1.0
"""Time between two questions to the API server for an object that the cache does not have."""


@dataclass(frozen=True)
class ExtensionObject:
    """One object of the extension API as a flow wants it; ``namespace`` is None if the object is cluster-scoped."""

    resource: Resource
    name: str
    namespace: str | None
    spec: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    inputs: str = ""
    """Digest of the other data that the controller reads; with the same data and spec the object is left unchanged."""

    @property
    def digest(self) -> str:
        """Digest of all data that the controller acts on; empty if they are not known."""
        if not self.inputs:
            return ""
        wanted = json.dumps([self.inputs, self.spec, self.labels], sort_keys=True)
        return hashlib.sha256(wanted.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource.kind} {place}{self.name}"


async def apply_extension(
    seed: KubeClient, wanted: ExtensionObject, trigger: str, *, only_on_change: bool = False
) -> None:
    """Apply the object and request a reconciliation, unless its controller has reconciled the same inputs successfully.

    A second run of the same operation finds the timestamp that the first one wrote, and does nothing: one request
    writes both spec and timestamp.

    Args:
        trigger: RFC 3339 time of the operation, which is the timestamp.
        only_on_change: do nothing if the object has this spec and its last operation succeeded
            (Infrastructure and DNSRecord, spec/extensions.md 2).
    """
    live = await seed.find(wanted.resource, wanted.name, wanted.namespace)
    if live is not None:
        annotations = live["metadata"].get("annotations", {})
        if annotations.get(TIMESTAMP) == trigger:
            return
        same = only_on_change or (wanted.digest and annotations.get(INPUTS_DIGEST) == wanted.digest)
        if same and _has_spec(live, wanted.spec) and fault_of(live) is None:
            return
        await _forget_error(seed, wanted.resource, live)
    digest = {INPUTS_DIGEST: wanted.digest} if wanted.digest else {}
    annotations = {OPERATION: OPERATION_RECONCILE, TIMESTAMP: trigger, **digest}
    await seed.apply_blindly(_manifest(wanted, annotations), manager=MANAGER)


async def restore_extension(
    seed: KubeClient, wanted: ExtensionObject, trigger: str, state: Mapping[str, Any] | None
) -> None:
    """Apply the object with the state that the source has saved, and ask its controller to restore from that state.

    The controller waits until the state is written. A second run finds the timestamp of the last step and does
    nothing. If the first run was interrupted before that step, the second one does all steps again. A state that the
    object has already stays.

    Args:
        state: ``state`` and ``resources`` for the object's status; None if there are none.
    """
    live = await seed.find(wanted.resource, wanted.name, wanted.namespace)
    if live is not None:
        if live["metadata"].get("annotations", {}).get(TIMESTAMP) == trigger:
            return
        await _forget_error(seed, wanted.resource, live)
    await seed.apply_blindly(_manifest(wanted, {OPERATION: OPERATION_WAIT_FOR_STATE}), manager=MANAGER)
    kept = {key: state[key] for key in ("state", "resources") if state.get(key)} if state else {}
    if kept and not ((live or {}).get("status") or {}).get("state"):
        await seed.patch(wanted.resource, wanted.name, wanted.namespace, {"status": kept}, subresource="status")
    await seed.apply_blindly(_manifest(wanted, {OPERATION: OPERATION_RESTORE, TIMESTAMP: trigger}), manager=MANAGER)


async def migrate_extension(
    seed: KubeClient, resource: Resource, name: str, namespace: str | None, trigger: str
) -> None:
    """Ask the object's controller to release the object (operation ``migrate``).

    Do nothing if the object is gone or released, or has the timestamp of this operation already.
    """
    live = await seed.find(resource, name, namespace)
    if live is None or is_migrated(live) or live["metadata"].get("annotations", {}).get(TIMESTAMP) == trigger:
        return
    await _forget_error(seed, resource, live)
    annotations = {OPERATION: OPERATION_MIGRATE, TIMESTAMP: trigger}
    try:
        await seed.patch(resource, name, namespace, {"metadata": {"annotations": annotations}})
    except NotFound:
        return


async def wait_extension_migrated(
    caches: Caches, resource: Resource, name: str, namespace: str | None, wait: Wait, trigger: str
) -> None:
    """Wait until the object's controller has released the object, or the object is gone.

    Raises:
        ApplicationError: as ``wait_extension_ready``.
    """
    cache = caches.of(resource)
    started = datetime.now(UTC)

    def migrated(live: dict[str, Any] | None) -> bool | None:
        if live is None or is_migrated(live):
            return True
        _raise_if_permanent(live, trigger)
        return None

    try:
        await heartbeating(cache.wait_for(name, namespace, migrated, wait.timeout.total_seconds()))
    except TimeoutError:
        live = cache.get(name, namespace)
        fault = (live and fault_of(live, trigger)) or "its controller has not released it"
        raise _not_ready(resource, name, namespace, fault, started, live) from None


def is_migrated(live: Mapping[str, Any]) -> bool:
    """Whether the controller has released the object: its deletion then deletes nothing outside of the seed."""
    operation = _operation(live)
    asked = (live["metadata"].get("annotations") or {}).get(OPERATION)
    return not asked and (operation.get("type"), operation.get("state")) == ("Migrate", "Succeeded")


async def asked_at(seed: KubeClient, resource: Resource, name: str, namespace: str | None) -> str | None:
    """Timestamp of the operation that wrote the object last: a task that waits for the object waits for that operation.

    Read from the API server: the cache may lag behind, and would show the error of an earlier operation.
    """
    live = await seed.get(resource, name, namespace)
    return (live["metadata"].get("annotations") or {}).get(TIMESTAMP)


async def wait_extension_ready(
    caches: Caches, resource: Resource, name: str, namespace: str | None, wait: Wait, *, trigger: str | None
) -> dict[str, Any]:
    """Wait until the object's controller reports success for our last write; return the object.

    Args:
        trigger: timestamp that the operation wrote; None if the operation may not have written the object.

    Raises:
        ApplicationError: final, with the reported code, as soon as the controller reports an error that
            only a user can fix; retryable if it reports another error after ``wait.severe_after``,
            or if the object is not ready after ``wait.timeout``.
    """
    cache = caches.of(resource)
    started = datetime.now(UTC)
    last_fault = "it does not exist"

    def ready(live: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal last_fault
        if live is None:
            last_fault = "it does not exist"
            return None
        fault = fault_of(live, trigger)
        if fault is None:
            return live
        last_fault = fault
        _raise_if_permanent(live, trigger)
        return None

    severe = min(wait.severe_after, wait.timeout).total_seconds()
    try:
        return await heartbeating(cache.wait_for(name, namespace, ready, severe), details=lambda: last_fault)
    except TimeoutError:
        live = cache.get(name, namespace)
        if live is not None and _reported_error(live, trigger):
            raise _not_ready(resource, name, namespace, last_fault, started, live) from None
    try:
        rest = wait.timeout.total_seconds() - severe
        return await heartbeating(cache.wait_for(name, namespace, ready, rest), details=lambda: last_fault)
    except TimeoutError:
        raise _not_ready(resource, name, namespace, last_fault, started, cache.get(name, namespace)) from None


async def wait_machine_deployments(caches: Caches, name: str, namespace: str, wait: Wait, trigger: str) -> None:
    """Wait until the status of a Worker names the MachineDeployments for the spec that we wrote last.

    Raises:
        ApplicationError: as ``wait_extension_ready``.
    """
    started = datetime.now(UTC)

    def written(live: dict[str, Any] | None) -> bool | None:
        if live is None or live["metadata"].get("annotations", {}).get(TIMESTAMP) != trigger:
            return None
        if _seconds(live.get("status", {}).get("machineDeploymentsLastUpdateTime")) >= _seconds(trigger):
            return True
        _raise_if_permanent(live, trigger)
        return fault_of(live, trigger) is None or None

    cache = caches.of(WORKER)
    try:
        await heartbeating(cache.wait_for(name, namespace, written, wait.timeout.total_seconds()))
    except TimeoutError:
        live = cache.get(name, namespace)
        fault = "its controller has written no machine deployments" + (
            f": {text}" if live and (text := _error_text(live)) else ""
        )
        raise _not_ready(WORKER, name, namespace, fault, started, live) from None


async def delete_extension(
    seed: KubeClient, resource: Resource, name: str, namespace: str | None, trigger: str
) -> None:
    """Confirm and request the deletion; do nothing if the object is gone, or is being deleted with this timestamp.

    An object that an earlier attempt has deleted gets the new timestamp, so that its controller tries again.
    """
    live = await seed.find(resource, name, namespace)
    if live is None:
        return
    going = "deletionTimestamp" in live["metadata"]
    if going and live["metadata"].get("annotations", {}).get(TIMESTAMP) == trigger:
        return
    await _forget_error(seed, resource, live)
    annotations = {CONFIRMATION_DELETION: "true", TIMESTAMP: trigger}
    try:
        await seed.patch(resource, name, namespace, {"metadata": {"annotations": annotations}})
    except NotFound:
        return
    if not going:
        await seed.delete(resource, name, namespace, uid=live["metadata"]["uid"])


async def wait_extension_deleted(
    seed: KubeClient,
    caches: Caches,
    resource: Resource,
    name: str,
    namespace: str | None,
    wait: Wait,
    trigger: str,
) -> None:
    """Wait until the object is gone. Ignore errors from before ``trigger``: they belong to earlier attempts.

    A cache that has not seen a new object yet looks as if the object were gone: the API server has the last word.

    Raises:
        ApplicationError: as ``wait_extension_ready``, for errors that the controller reports during the deletion.
    """
    cache = caches.of(resource)
    started = datetime.now(UTC)

    def gone(live: dict[str, Any] | None) -> bool | None:
        if live is None:
            return True
        if _operation(live).get("type") == "Delete":
            _raise_if_permanent(live, trigger)
        return None

    async def wait_until_gone() -> None:
        async with asyncio.timeout(wait.timeout.total_seconds()):
            while True:
                await cache.wait_for(name, namespace, gone, None)
                if await seed.find(resource, name, namespace) is None:
                    return
                with contextlib.suppress(TimeoutError):
                    await cache.wait_for(name, namespace, lambda live: live is not None, _CACHE_LAG_SECONDS)

    try:
        await heartbeating(wait_until_gone())
    except TimeoutError:
        live = cache.get(name, namespace)
        fault = "it still exists" + (f": {text}" if live and (text := _error_text(live)) else "")
        raise _not_ready(resource, name, namespace, fault, started, live) from None


async def _forget_error(seed: KubeClient, resource: Resource, live: Mapping[str, Any]) -> None:
    """Remove the error in the status before the next request.

    Times in the status have whole seconds: an error in the second of the request could be older or newer than it.
    """
    if live.get("status", {}).get("lastError"):
        metadata = live["metadata"]
        patch = {"status": {"lastError": None}}
        with contextlib.suppress(NotFound):
            await seed.patch(resource, metadata["name"], metadata.get("namespace"), patch, subresource="status")


def _manifest(wanted: ExtensionObject, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": wanted.resource.api_version,
        "kind": wanted.resource.kind,
        "metadata": {
            "name": wanted.name,
            **({"namespace": wanted.namespace} if wanted.namespace else {}),
            "labels": dict(wanted.labels),
            "annotations": dict(annotations),
        },
        "spec": dict(wanted.spec),
    }


def _operation(live: Mapping[str, Any]) -> dict[str, Any]:
    return dict(live.get("status", {}).get("lastOperation") or {})


def _error_text(live: Mapping[str, Any]) -> str:
    return str((live.get("status", {}).get("lastError") or {}).get("description", ""))


def fault_of(live: Mapping[str, Any], trigger: str | None = None) -> str | None:
    """Reason why the object is not ready, or None if it is; with a trigger, after the write with that timestamp."""
    metadata, status = live["metadata"], live.get("status", {})
    annotations = metadata.get("annotations", {})
    if trigger is not None and annotations.get(TIMESTAMP) != trigger:
        return "the change of this operation is not visible yet"
    if annotations.get(OPERATION):
        return "its controller has not picked it up"
    if status.get("lastError"):
        return f"its controller reports: {_error_text(live)}"
    operation = _operation(live)
    if operation.get("state") == "Processing" and _seconds(operation.get("lastUpdateTime")) >= _seconds(trigger):
        return f"its controller is at work: {operation.get('description') or 'it tells no more'}"
    if status.get("observedGeneration") != metadata.get("generation"):
        return "its controller has not seen the newest version"
    if operation.get("state") != "Succeeded":
        return f"its last operation is {operation.get('state', 'missing')}"
    if trigger is not None and _seconds(operation.get("lastUpdateTime")) < _seconds(trigger):
        return "its last operation is older than this one"
    return None


def _reported_error(live: Mapping[str, Any], trigger: str | None) -> bool:
    """Whether the controller reports an error of the operation that we requested, and not of an earlier one."""
    annotations = live["metadata"].get("annotations", {})
    if annotations.get(OPERATION) or (trigger is not None and annotations.get(TIMESTAMP) != trigger):
        return False
    # A controller removes the annotation before it writes the status: until then the status is of an earlier operation.
    if trigger is not None and _seconds(_operation(live).get("lastUpdateTime")) < _seconds(trigger):
        return False
    return bool(live.get("status", {}).get("lastError")) and (
        _operation(live).get("state") != "Processing"
        or live.get("status", {}).get("observedGeneration") == live["metadata"].get("generation")
    )


def _codes(live: Mapping[str, Any]) -> list[ErrorCode]:
    codes = (live.get("status", {}).get("lastError") or {}).get("codes") or []
    return [ErrorCode(code) for code in codes if code in ErrorCode.__members__.values()]


def _raise_if_permanent(live: Mapping[str, Any], trigger: str | None) -> None:
    if _operation(live).get("state") == "Processing" or not _reported_error(live, trigger):
        return
    if final := next((code for code in _codes(live) if not code.retryable), None):
        raise permanent(final, f"{_named(live)} failed: {_error_text(live)}")


def _named(live: Mapping[str, Any]) -> str:
    namespace = live["metadata"].get("namespace")
    return f"{live['kind']} {namespace + '/' if namespace else ''}{live['metadata']['name']}"


def _not_ready(
    resource: Resource,
    name: str,
    namespace: str | None,
    fault: str,
    started: datetime,
    live: Mapping[str, Any] | None,
) -> Exception:
    from temporalio.exceptions import ApplicationError

    waited = (datetime.now(UTC) - started).total_seconds()
    codes = _codes(live) if live else []
    return ApplicationError(
        f"{resource.kind} {namespace + '/' if namespace else ''}{name} is not done after {waited:.0f} s: {fault}",
        type=codes[0] if codes else "NotReady",
    )


def _seconds(time: str | None) -> datetime:
    """Parse an RFC 3339 time and cut it to whole seconds, in which the contract compares times."""
    if not time:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.strptime(time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)


def _has_spec(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the spec has all wanted fields, and no field that we applied earlier and do not want any more."""
    return applied_fields(live, "spec", MANAGER) <= wanted.keys() and _has(live.get("spec"), wanted)


def _has(live: Any, wanted: Any) -> bool:
    """Whether ``live`` holds all of ``wanted``; the API server may have added defaults."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(_has(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(_has, live, wanted))
    return bool(live == wanted)
