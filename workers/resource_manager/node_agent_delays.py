"""Spreads updates of the configuration over the nodes of a shoot: one node after the other, not all at the same time.

An annotation of each Node holds the time that its node agent waits before it changes anything.
Source: spec/resource-manager.md (Node-agent delay), spec/extensions.md 7, step 7.
"""

import asyncio
from collections.abc import Iterable

from api.constants import NODE_AGENT_DELAY
from api.resources import NODE
from kube.cache import Caches, Key
from kube.client import KubeClient
from kube.controller import Controller, Requeue, comes_or_goes
from kube.errors import NotFound

_ALL = Key(None, "all nodes")


class NodeAgentDelays:
    """Writes the annotation of all Nodes when a Node is added or deleted."""

    def __init__(
        self, target: KubeClient, caches: Caches, shortest: float, longest: float, *, resync: float = 86400.0
    ) -> None:
        """``resync``: seconds after which the annotations are checked again, also if no Node comes or goes."""
        self._target = target
        self._resync = resync
        self._shortest, self._longest = shortest, longest
        self._nodes = caches.of(NODE)

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("node-agent-delays", self._reconcile, workers=1, first_delay=0.2, longest_delay=15.0)
        await self._nodes.synced()
        controller.watch(self._nodes, keys=lambda _: [_ALL], when=comes_or_goes)
        await controller.run()

    async def _reconcile(self, _: Key) -> Requeue:
        live = {node["metadata"]["name"]: node["metadata"].get("annotations") or {} for node in self._nodes.list()}
        wanted = delays(live, self._shortest, self._longest)
        changes = {name: delay for name, delay in wanted.items() if live[name].get(NODE_AGENT_DELAY) != delay}
        await asyncio.gather(*(self._write(name, delay) for name, delay in changes.items()))
        return Requeue(self._resync)

    async def _write(self, name: str, delay: str) -> None:
        try:
            await self._target.patch(NODE, name, None, {"metadata": {"annotations": {NODE_AGENT_DELAY: delay}}})
        except NotFound:
            return


def delays(nodes: Iterable[str], shortest: float, longest: float) -> dict[str, str]:
    """Delay of each node: evenly spread from ``shortest`` up to ``longest``, in the order of the nodes' names."""
    names = sorted(nodes)
    step = (longest - shortest) / max(len(names), 1)
    return {name: f"{shortest + index * step:.3f}".rstrip("0").rstrip(".") + "s" for index, name in enumerate(names)}
