"""Completes the deletion of pods whose node no longer exists.

A workload is gone only after its pods (foreground deletion), and a pod only after its kubelet has confirmed that its
containers have ended. In a cluster that is being deleted, the nodes go first. The kube-controller-manager deletes such
pods, too, but first waits 40 s and more for the node to come back.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from api.resources import NODE, POD
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller

_BY_NODE = "nodeName"
"""Index of pods by the name of their node."""


class LostPods:
    """Watches pods and nodes only while a ManagedResource waits for the deletion of workloads."""

    def __init__(self, target: KubeClient) -> None:
        self._target = target
        self._waiting: dict[Key, frozenset[str]] = {}
        self._watched: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def begin(self, waiter: Key, namespaces: Iterable[str]) -> None:
        """Start to watch: ManagedResource ``waiter`` waits for the deletion of workloads in these namespaces."""
        self._waiting[waiter] = frozenset(namespaces)
        self._adapt()

    def end(self, waiter: Key) -> None:
        if self._waiting.pop(waiter, None) is not None:
            self._adapt()

    async def close(self) -> None:
        self._waiting.clear()
        task = self._task
        self._adapt()
        if task is not None:
            await asyncio.wait({task})

    def _adapt(self) -> None:
        wanted: frozenset[str] = frozenset().union(*self._waiting.values())
        if wanted and wanted <= self._watched:
            return
        if self._task is not None:
            self._task.cancel()
        self._watched = wanted
        self._task = asyncio.create_task(self._run(wanted)) if wanted else None

    async def _run(self, namespaces: Iterable[str]) -> None:
        caches = Caches(self._target)
        nodes = caches.of(NODE)
        pods = {namespace: caches.of(POD, namespace) for namespace in namespaces}
        for cache in pods.values():
            cache.index(_BY_NODE, _nodes_of)

        async def reconcile(key: Key) -> None:
            pod = pods[str(key.namespace)].get(key.name)
            if pod is not None and _is_ending(pod) and nodes.get(pod["spec"]["nodeName"]) is None:
                uid = pod["metadata"]["uid"]
                await self._target.delete(POD, key.name, key.namespace, uid=uid, grace_seconds=0)

        def on_node(event: WatchEvent) -> list[Key]:
            name = event.object["metadata"]["name"]
            return [key_of(pod) for cache in pods.values() for pod in cache.by_index(_BY_NODE, name)]

        controller = Controller("lost-pods", reconcile, workers=4)
        try:
            await asyncio.gather(nodes.synced(), *(cache.synced() for cache in pods.values()))
            for cache in pods.values():
                controller.watch(cache, when=lambda event: event.type != "DELETED" and _is_ending(event.object))
            controller.watch(nodes, keys=on_node, when=lambda event: event.type == "DELETED")
            await controller.run()
        finally:
            await caches.close()


def _node_of(pod: Object) -> Any:
    return (pod.get("spec") or {}).get("nodeName")


def _nodes_of(pod: Object) -> Iterable[str]:
    name = _node_of(pod)
    return (name,) if name else ()


def _is_ending(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) and bool(_node_of(pod))
