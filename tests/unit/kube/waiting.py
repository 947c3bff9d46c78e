"""Waiting in tests for conditions without an event."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], timeout: float = 20) -> Any:
    """The condition's answer, plain or awaitable, as soon as it is truthy."""
    async with asyncio.timeout(timeout):
        while True:
            answer = condition()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer:
                return answer
            await asyncio.sleep(0.002)
