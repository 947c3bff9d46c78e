"""Heartbeats of activities that wait: they carry cancellation in, and a dead worker out.

A heartbeat says what is waited for, and what is seen of it: the Temporal UI shows it, and ``gardener flow explain``
reads it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

_WAITS: dict[bytes, list[str]] = {}
"""What each running activity waits for. No context variable: ``gather`` starts things before it is awaited."""


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Name an object that is waited for now, in the heartbeats of the activity."""
    activity = _activity()
    if activity is None:
        yield
        return
    token = activity.info().task_token
    waits = _WAITS.setdefault(token, [])
    waits.append(what)
    try:
        yield
    finally:
        waits.remove(what)
        if not waits:
            _WAITS.pop(token, None)


async def heartbeating(
    awaitable: Awaitable[T],
    interval: float = 2.0,
    details: Callable[[], str] | None = None,
    position: Callable[[], Any] | None = None,
) -> T:
    """Await something long, with a heartbeat at once and every ``interval`` seconds.

    A heartbeat has two details: the objects that are waited for, and what ``details`` gives: one short line, without
    secrets. A third one, of ``position``, is for the next attempt, which finds it by ``last_position``. When the
    activity is cancelled, so is the awaitable, and its own clean-up is awaited.
    """
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)  # then the first heartbeat knows what is waited for
    try:
        while not task.done():
            if activity := _activity():
                waits = "; ".join(dict.fromkeys(_WAITS.get(activity.info().task_token, ())))
                told = (waits, details() if details else "")
                reached = (position(),) if position else ()
                activity.heartbeat(*((*told, *reached) if reached or any(told) else ()))
            await asyncio.wait({task}, timeout=interval)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()


def last_position() -> Any:
    """Where the attempt before this one was, as its last heartbeat says; None if there was none."""
    activity = _activity()
    told: Sequence[Any] = activity.info().heartbeat_details if activity is not None else ()
    return told[2] if len(told) > 2 else None


def _activity() -> ModuleType | None:
    """Temporal's functions for the activity that runs here, if one does.

    Processes beside a control plane and on nodes wait for objects, too. They run no activities, and users wait for
    them to start: they never load Temporal's library.
    """
    activity = sys.modules.get("temporalio.activity")
    return activity if activity is not None and activity.in_activity() else None
