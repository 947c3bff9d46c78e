"""Heartbeats of activities that wait: they carry cancellation in, and a dead worker out.

A heartbeat says what is waited for, and what is seen of it: the Temporal UI shows it, and ``gardener flow explain``
reads it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio import activity

from kube.waits import record_waits, recorded_waits

T = TypeVar("T")


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
    if recorded_waits() is None:
        record_waits()
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)  # then the first heartbeat knows what is waited for
    try:
        while not task.done():
            if activity.in_activity():
                told = ("; ".join(recorded_waits() or ()), details() if details else "")
                reached = (position(),) if position else ()
                activity.heartbeat(*((*told, *reached) if reached or any(told) else ()))
            await asyncio.wait({task}, timeout=interval)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()


def last_position() -> Any:
    """Position of the attempt before this one, as its last heartbeat says; None if there was none."""
    told: Sequence[Any] = activity.info().heartbeat_details if activity.in_activity() else ()
    return told[2] if len(told) > 2 else None
