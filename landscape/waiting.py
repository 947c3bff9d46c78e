"""Waits by polling, for conditions outside of this process that cannot be watched."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from landscape.errors import LandscapeError

_INTERVAL = 0.05
"""Seconds between two polls: short compared with the start of a process, long compared with the poll itself."""


async def answers(url: str) -> bool:
    """Whether a process is ready by its readiness check; without such a check, whether it answers."""
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session, session.get(url) as answer:
            return answer.status < 500
    except (aiohttp.ClientError, TimeoutError):
        return False


async def until(
    condition: Callable[[], Awaitable[bool]],
    what: str,
    timeout: float,
    failed: Callable[[], str | None] = lambda: None,
) -> None:
    """Poll until the condition holds.

    Raises LandscapeError after ``timeout`` seconds, or as soon as ``failed`` gives a reason why it never will.
    """
    deadline = time.monotonic() + timeout
    while not await condition():
        if reason := failed():
            raise LandscapeError(f"{what}: {reason}")
        if time.monotonic() > deadline:
            raise LandscapeError(f"{what} is not ready after {timeout:.0f} s")
        await asyncio.sleep(_INTERVAL)
