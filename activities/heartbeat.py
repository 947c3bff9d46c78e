"""Heartbeats of activities that wait: they bring cancellation to the activity, and reveal a dead worker to Temporal.

A heartbeat names the objects that the activity waits for, and their state: the Temporal UI shows it, and
``gardener flow explain`` reads it.
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
    """Await a long operation; send a heartbeat at once and then every ``interval`` seconds.

    A heartbeat has two details: the names of the objects that are waited for, and the result of ``details``, which is
    one short line without secrets. A third detail, the result of ``position``, is for the next attempt, which reads it
    by ``last_position``. If the activity is cancelled, the awaitable is cancelled, too, and its clean-up is awaited.
    """
    if recorded_waits() is None:
        record_waits()
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)  # the task starts, so that the first heartbeat names what it waits for
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
    """Position in the last heartbeat of the previous attempt; None if there was none."""
    told: Sequence[Any] = activity.info().heartbeat_details if activity.in_activity() else ()
    return told[2] if len(told) > 2 else None
