"""Functions that the controllers of Machines, MachineSets and MachineDeployments share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from api.constants import FINALIZER_MACHINE_CONTROLLER_MANAGER
from api.durations import parse_duration
from api.machine.objects import is_deleting, owner_uid, phase_of
from api.resources import Resource
from kube.client import KubeClient, Object
from kube.errors import NotFound
from kube.finalizers import ensure_finalizer, remove_finalizer
from kube.objects import label_selector

T = TypeVar("T")
R = TypeVar("R")


def age_of(timestamp: str) -> timedelta:
    """Time that has passed since a Kubernetes timestamp."""
    return datetime.now(UTC) - datetime.fromisoformat(timestamp)


def duration(text: str | None, default: timedelta) -> timedelta:
    """A Go duration like ``1h30m`` or ``10m0s``, as MachineConfiguration holds it."""
    return parse_duration(text) if text else default


BY_OWNER = "owner"
"""Index of objects by the uid of their controller, made by ``owners_of``."""
_PARALLEL_WRITES = 10


def owners_of(found: Object) -> tuple[str, ...]:
    return (owner_uid(found),)


def is_active(machine: Mapping[str, Any]) -> bool:
    """Whether a machine counts for its set: it is not being deleted, and does not have to be replaced."""
    return not is_deleting(machine) and phase_of(machine) != "Failed"


def selector_of(found: Mapping[str, Any]) -> str:
    """The selector of a MachineSet or MachineDeployment, for a list request."""
    return label_selector((found["spec"].get("selector") or {}).get("matchLabels") or {})


async def in_batches(write: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Call ``write`` for all items, at most 10 at a time; returns the results in order.

    If a call fails, the calls of its batch end, no further batch begins, and the first error is raised: when a quota is
    exhausted, hundreds of requests would only fail alike.
    """
    results: list[R] = []
    for start in range(0, len(items), _PARALLEL_WRITES):
        batch = items[start : start + _PARALLEL_WRITES]
        for result in await asyncio.gather(*map(write, batch), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results


async def hold(client: KubeClient, resource: Resource, found: Object) -> Object:
    """Add our finalizer to an object, before anything is created for it. Raises Conflict if the object has changed."""
    return await ensure_finalizer(client, resource, found, FINALIZER_MACHINE_CONTROLLER_MANAGER)


async def release(client: KubeClient, resource: Resource, found: Object) -> None:
    """Remove our finalizer from an object. Raises Conflict if the object has changed."""
    await remove_finalizer(client, resource, found, FINALIZER_MACHINE_CONTROLLER_MANAGER)


async def write_status(client: KubeClient, resource: Resource, found: Object, status: Mapping[str, Any]) -> None:
    """Write the fields of ``status`` that differ. It is no error if the object is gone."""
    live = found.get("status") or {}
    changed = {key: value for key, value in status.items() if live.get(key) != value}
    if not changed:
        return
    metadata = found["metadata"]
    try:
        await client.patch(resource, metadata["name"], metadata["namespace"], {"status": changed}, subresource="status")
    except NotFound:
        return


def replacing(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch that turns ``live`` into ``wanted``: fields that are not wanted are removed."""
    patch: dict[str, Any] = {}
    for key in live.keys() | wanted.keys():
        if key not in wanted:
            patch[key] = None
        elif isinstance(wanted[key], Mapping) and isinstance(live.get(key), Mapping):
            if inner := replacing(live[key], wanted[key]):
                patch[key] = inner
        elif live.get(key) != wanted[key]:
            patch[key] = wanted[key]
    return patch
