"""The end of manual in-place updates: users decide about it, long after the Worker was reconciled."""

from collections.abc import Mapping
from typing import Any

from activities.extension import load_extension
from activities.provider_local.operations import wanted_of, write_update_hashes
from activities.provider_local.provider import PROVIDER_TYPE
from api.resources import MACHINE_DEPLOYMENT, WORKER
from kube.cache import Cache, Caches, Key, key_of
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller


class ManualUpdates:
    """Writes the hash of a manual update into the status of its Worker, once all machines of the pool have it.

    It looks at the Workers of type ``local`` that have such pools, whenever their MachineDeployments change. A second
    run finds the hash.
    """

    def __init__(self, seed: KubeClient, caches: Caches) -> None:
        self._seed = seed
        self._caches = caches
        self._workers = caches.of(WORKER)
        self._followed: dict[str, Cache] = {}
        """Cache of the MachineDeployments, by namespace. It is another one if a control plane comes back."""
        self._controller = Controller("manual in-place updates", self._reconcile, workers=2, longest_delay=60.0)
        self._controller.watch(self._workers)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _of_namespace(self, event: WatchEvent) -> list[Key]:
        return [key_of(each) for each in self._workers.list(event.object["metadata"]["namespace"])]

    async def _reconcile(self, key: Key) -> None:
        found, namespace = self._workers.get(key.name, key.namespace or ""), key.namespace or ""
        if found is None or not _is_concerned(found):
            return
        deployments = self._caches.of(MACHINE_DEPLOYMENT, namespace)
        if self._followed.get(namespace) is not deployments:
            self._followed[namespace] = deployments
            self._controller.watch(deployments, keys=self._of_namespace)
        worker = await load_extension(self._seed, WORKER, namespace, key.name)
        if worker is not None and _is_idle(worker.object):
            await write_update_hashes(self._seed, worker, wanted_of(worker), automatic=False)


def _is_concerned(worker: Mapping[str, Any]) -> bool:
    pools = worker["spec"].get("pools") or ()
    manual = any(pool.get("updateStrategy") == "ManualInPlaceUpdate" for pool in pools)
    return manual and worker["spec"].get("type") == PROVIDER_TYPE and not worker["metadata"].get("deletionTimestamp")


def _is_idle(worker: Mapping[str, Any]) -> bool:
    """Whether nothing is changing the machines of a Worker: its reconciliation writes the hashes itself."""
    status = worker.get("status") or {}
    last = status.get("lastOperation") or {}
    return (
        last.get("state") == "Succeeded"
        and last.get("type") not in ("Migrate", "Delete")
        and status.get("observedGeneration") == worker["metadata"].get("generation")
    )
