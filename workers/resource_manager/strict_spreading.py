"""Reviews workloads again when a cluster gets its second node, or loses it. Source: spec/resource-manager.md 5.

The webhook for high availability spreads pods strictly over nodes only where there are two nodes. It is called when a
workload is written, but not when a node comes or goes. So this controller patches the workloads by nothing: the API
server then calls the webhook, and stores the workload only if the webhook changes it.
"""

import logging
from collections.abc import Sequence

from activities.components.resource_manager_webhooks import HIGH_AVAILABILITY_CONFIG, selectors
from api.resources import DEPLOYMENT, NAMESPACE, STATEFUL_SET, Resource
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, TryAgain, comes_or_goes
from kube.errors import NotFound
from workers.resource_manager.webhooks.high_availability import Place, is_spread

_log = logging.getLogger(__name__)

_ALL = Key(None, "all workloads")
_TRIES = 8
"""Number of reviews after which a workload that the webhook does not change stays as it is, about 50 s later. A webhook
of another replica may see the node some time after this process."""


class StrictSpreading:
    """Lets the webhook add or remove the strict constraint over nodes, once after each change."""

    def __init__(
        self, target: KubeClient, nodes: Cache, namespaces: Sequence[str | None] = (None,), *, shoot: bool = False
    ) -> None:
        """``namespaces``: those of the target cluster that are served; None: all. ``shoot``: whether it is a Shoot."""
        self._target = target
        self._nodes = nodes
        self._served = namespaces
        self._of_namespaces, self._of_workloads = selectors(HIGH_AVAILABILITY_CONFIG, shoot=shoot)
        self._reviewed: bool | None = None
        """Whether there were several nodes at the last review; None before the first one."""
        self._tries = 0

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("strict-spreading", self._reconcile, workers=1, first_delay=0.2, longest_delay=60.0)
        await self._nodes.synced()
        controller.watch(self._nodes, keys=lambda _: [_ALL], when=comes_or_goes)
        controller.enqueue(_ALL)
        await controller.run()

    async def _reconcile(self, _: Key) -> None:
        """Review each workload whose constraint does not fit the number of nodes.

        A second run finds the constraints as the webhook has set them, and writes nothing.
        """
        nodes = len(self._nodes.list())
        if (nodes > 1) == self._reviewed:
            return
        found = await self._target.list(NAMESPACE, labels=self._of_namespaces)
        places = {
            each["metadata"]["name"]: Place.of(each)
            for each in found
            if None in self._served or each["metadata"]["name"] in self._served
        }
        left = [
            f"{kind.kind} {key}"
            for kind in (DEPLOYMENT, STATEFUL_SET)
            for key in await self._to_review(kind, places, nodes)
            if not await self._review(kind, key, places, nodes)
        ]
        self._tries += 1
        if left and self._tries < _TRIES:
            raise TryAgain(f"the webhook has not spread pods over {nodes} nodes: {', '.join(left)}")
        if left:
            _log.warning("the webhook does not spread pods over %d nodes: %s", nodes, ", ".join(left))
        self._reviewed, self._tries = nodes > 1, 0

    async def _to_review(self, kind: Resource, places: dict[str, Place], nodes: int) -> list[Key]:
        def keep(workload: Object) -> Object | None:
            """The metadata of a workload to review; of the others nothing stays in memory."""
            place = places.get(workload["metadata"]["namespace"])
            deleting = workload["metadata"].get("deletionTimestamp")
            if place is None or deleting or is_spread(workload, place, nodes=nodes):
                return None
            return {"metadata": {name: workload["metadata"][name] for name in ("name", "namespace")}}

        found = await self._target.list(kind, labels=self._of_workloads, keep=keep)
        return [Key(each["metadata"]["namespace"], each["metadata"]["name"]) for each in found]

    async def _review(self, kind: Resource, key: Key, places: dict[str, Place], nodes: int) -> bool:
        """Whether the constraint of the workload fits now."""
        try:
            reviewed = await self._target.patch(kind, key.name, key.namespace, {})
        except NotFound:
            return True
        return is_spread(reviewed, places[str(key.namespace)], nodes=nodes)
