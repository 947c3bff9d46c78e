"""Heartbeats of activities that wait: they carry cancellation in, and a dead worker out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity

T = TypeVar("T")


async def heartbeating(awaitable: Awaitable[T], interval: float = 2.0, details: Callable[[], str] | None = None) -> T:
    """Await something long, with a heartbeat at once and every ``interval`` seconds.

    ``details`` gives one short line, without secrets, for the Temporal UI. When the activity is
    cancelled, so is the awaitable, and its own clean-up is awaited.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        while not task.done():
            if activity.in_activity():
                activity.heartbeat(*([details()] if details else []))
            await asyncio.wait({task}, timeout=interval)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()
