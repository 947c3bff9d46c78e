"""Controllers that run in tests as in one process."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kube.cache import Caches


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, None], caches: tuple[Caches, ...]) -> AsyncIterator[None]:
    """Run the loops of controllers; in the end they are cancelled, and their caches closed."""
    tasks = [asyncio.create_task(each) for each in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in caches:
            await each.close()
