"""The cloud of provider-local in memory."""

from collections.abc import Mapping

from activities.provider_local.cloud import Clouds, read_kubeconfig
from kube.cache import Caches
from tests.unit.kube.fake_cluster import FakeCluster


class OneCloud(Clouds):
    """Checks credentials as ever, then hands out a cluster in memory."""

    def __init__(self, cloud: FakeCluster) -> None:
        super().__init__()
        self._cloud, self._own = cloud, Caches(cloud)

    async def connect(self, secret: Mapping[str, str], where: str) -> FakeCluster:
        read_kubeconfig(secret, where)
        return self._cloud

    async def caches(self, secret: Mapping[str, str], where: str) -> Caches:
        await self.connect(secret, where)
        return self._own

    async def close(self) -> None:
        await self._own.close()
