"""A shoot in memory, whose API server is not trusted: its clients keep a part of each object; and its cloud."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from api.resources import Resource
from kube.client import Keep, Objects
from tests.unit.kube.fake_cluster import FakeCluster

NAMESPACE = "infra-shoot--dev--one"
"""Namespace of the shoot in the cloud."""


class Controllers(Protocol):
    """Controllers that use the cloud for a shoot."""

    def run(self) -> Coroutine[Any, Any, None]: ...


class ShootCluster(FakeCluster):
    """Lists the parts of objects that a cache keeps."""

    async def list_with_version(
        self, res: Resource, namespace: str | None = None, *, keep: Keep | None = None, **rest: Any
    ) -> tuple[Objects, str]:
        found, version = await super().list_with_version(res, namespace, **rest)
        if keep is None:
            return found, version
        return [small for each in found if (small := keep(each)) is not None], version


@asynccontextmanager
async def cloud_with(
    controllers: Callable[[ShootCluster, FakeCluster, str], Controllers], shoot: ShootCluster
) -> AsyncIterator[FakeCluster]:
    """The cloud, with the controllers that use it. A test does itself what the cloud does."""
    cloud = FakeCluster()
    running = asyncio.create_task(controllers(shoot, cloud, NAMESPACE).run())
    yield cloud
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
