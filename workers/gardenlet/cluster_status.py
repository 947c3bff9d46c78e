"""Tells extensions how the operation of their Shoot has ended, by the Cluster objects of the seed.

The first task of a flow pins the wanted state in the Cluster; the controller here changes only the Shoot's status in
it. Source: spec/extensions.md 1; spec/flows.md 1.
"""

from typing import Any

from activities.clusters import Clusters
from api import resources
from api.resources import Object
from kube.cache import Key
from kube.client import WatchEvent
from kube.controller import Controller
from kube.edit import patch_as_read
from workers.gardenlet.garden_caches import shoots_here

_TOLD = ("lastOperation", "lastErrors", "observedGeneration")
"""Fields of a Shoot's status from which extensions learn whether its operation has ended, and how."""


class ClusterStatusController:
    """Writes the end of each Shoot's operation, and the start of the next one, into the Shoot's Cluster.

    One per gardenlet. A second run writes the same.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._seed = clusters.seed
        self._shoots = shoots_here(clusters)
        self._controller = Controller("cluster status", self._tell, workers=2)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._shoots.synced()
        self._controller.watch(self._shoots, when=_has_news)
        await self._controller.run()

    async def _tell(self, key: Key) -> None:
        shoot = self._shoots.get(key.name, key.namespace)
        technical_id = ((shoot or {}).get("status") or {}).get("technicalID")
        if shoot is None or technical_id is None:
            return
        cluster = await self._seed.find(resources.CLUSTER, technical_id)
        pinned = ((cluster or {}).get("spec") or {}).get("shoot") or {}
        if cluster is None or (pinned.get("metadata") or {}).get("uid") != shoot["metadata"]["uid"]:
            return  # the technical ID proves nothing: the Cluster may be of another Shoot
        if _news(pinned) == _news(shoot):
            return
        status = shoot.get("status") or {}
        change = {"shoot": {"status": {field: status.get(field) for field in _TOLD}}}
        await patch_as_read(self._seed, resources.CLUSTER, cluster, {"spec": change})


def _has_news(event: WatchEvent) -> bool:
    """Whether the operation of a Shoot has another state. Its progress does not count."""
    return event.type != "DELETED" and (event.old is None or _news(event.old) != _news(event.object))


def _news(shoot: Object) -> tuple[Any, ...]:
    status = shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    return last.get("type"), last.get("state"), status.get("observedGeneration")
