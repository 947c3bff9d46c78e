"""A shoot in memory, whose API server is not trusted: its clients keep a part of each object."""

from typing import Any

from api.resources import Resource
from kube.client import Keep, Objects
from tests.unit.kube.fake_cluster import FakeCluster


class ShootCluster(FakeCluster):
    """Lists the parts of objects that a cache keeps."""

    async def list_with_version(
        self, res: Resource, namespace: str | None = None, *, keep: Keep | None = None, **rest: Any
    ) -> tuple[Objects, str]:
        found, version = await super().list_with_version(res, namespace, **rest)
        if keep is None:
            return found, version
        return [small for each in found if (small := keep(each)) is not None], version
