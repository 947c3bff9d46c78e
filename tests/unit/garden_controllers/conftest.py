import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from api import resources
from kube.cache import Caches
from tests.unit.api.shoots import PROFILE, PROJECT, SEED, changed
from tests.unit.kube.api_server import ApiServer

CORE = "/apis/core.gardener.cloud/v1beta1"
SECURITY = "/apis/security.gardener.cloud/v1alpha1"


class Garden:
    """An API server with a cloud profile, a seed and a project, and caches on it."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.client = api.client()
        self.caches = Caches(self.client)
        self._put(resources.CLOUD_PROFILE, PROFILE)
        self._put(resources.SEED, SEED)
        self._put(resources.PROJECT, PROJECT)

    def _put(self, resource: resources.Resource, obj: dict[str, Any]) -> None:
        self.api.put(resource.path(), changed(obj))

    async def becomes(self, resource: resources.Resource, name: str, namespace: str | None, wanted: Any) -> Any:
        """Wait until ``wanted`` says yes to the object (None: it is gone)."""
        return await self.caches.of(resource).wait_for(name, namespace, wanted, 10)

    async def events(self, count: int) -> list[tuple[str, str]]:
        """Reasons and messages of events, once there are so many."""
        cache = self.caches.of(resources.EVENT)
        await cache.wait_until(lambda cache: len(cache.list()) >= count or None, 10)
        return sorted((each["reason"], each["message"]) for each in cache.list())

    @asynccontextmanager
    async def running(self, part: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        task = asyncio.create_task(part)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def garden():
    async with ApiServer().running() as api:
        garden = Garden(api)
        try:
            yield garden
        finally:
            await garden.caches.close()
            await garden.client.close()
