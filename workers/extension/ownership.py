"""Tells an extension whether its seed still has a control plane, so that it stops when another seed has it.

A seed may be cut off while another seed takes over its control planes. Its extensions still reach the cloud, and would
change machines and networks that the other seed's extensions manage. Two signs say that they must stop:

- The Cluster of the Shoot names another seed. The gardenlet writes that as soon as it reads it in the garden.
- The gardenlet has not renewed Lease ``garden/gardenlet-ownership``: it has not reached the garden for longer than the
  Lease's duration, and so does not know whether another seed has taken over.

Source: GEP-17, "Extension Controller Watchdogs"; docs/decisions/0019-extensions-stop-without-ownership.md.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from api.constants import GARDEN_NAMESPACE, OWNERSHIP_LEASE
from api.resources import CLUSTER, LEASE
from kube.cache import Caches
from kube.client import WatchEvent


class Ownership:
    """Knowledge of a seed's extensions about the control planes in their seed. One for each process of an extension.

    ``clock``: seconds that only grow.
    """

    def __init__(self, caches: Caches, clock: Callable[[], float] = time.monotonic) -> None:
        self._clusters = caches.of(CLUSTER)
        self._leases = caches.of(LEASE, GARDEN_NAMESPACE, fields=f"metadata.name={OWNERSHIP_LEASE}")
        self._clock = clock
        self._renewal = ""
        self._renewed = 0.0
        """When this process saw the last renewal, by its own clock."""
        self._subscriptions = [self._leases.subscribe(self._observe)]

    def watch(self, renewed: Callable[[], None]) -> None:
        """Call ``renewed`` after each renewal of the Lease."""

        def call(_: WatchEvent) -> None:
            renewed()

        self._subscriptions.append(self._leases.subscribe(call))

    def close(self) -> None:
        for unsubscribe in self._subscriptions:
            unsubscribe()

    def loss(self, namespace: str) -> str:
        """Reason why this seed may not have the control plane of a namespace; empty if it has it.

        A seed whose gardenlet writes no Lease, because it is of an earlier version, has all control planes in it. The
        same holds for a namespace without a Cluster, which is no control plane.
        """
        cluster = self._clusters.get(namespace)
        if cluster is None:
            return ""
        if other := elsewhere(cluster):
            return f"seed {other} has the control plane"
        lease = self._leases.get(OWNERSHIP_LEASE, GARDEN_NAMESPACE)
        if lease is None or (left := self._left(lease)) > 0:
            return ""
        return f"the gardenlet has not reached the garden in time, for {-left:.0f} s too long"

    async def until_lost(self, namespace: str) -> str:
        """Wait until this seed may not have the control plane any more; returns the reason."""
        changed = asyncio.Event()
        unsubscribe = [each.subscribe(lambda _: changed.set()) for each in (self._clusters, self._leases)]
        try:
            while not (reason := self.loss(namespace)):
                changed.clear()
                lease = self._leases.get(OWNERSHIP_LEASE, GARDEN_NAMESPACE)
                left = None if lease is None else max(self._left(lease), 0.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()
            return reason
        finally:
            for each in unsubscribe:
                each()

    def _observe(self, event: WatchEvent) -> None:
        self._left(event.object)

    def _left(self, lease: Mapping[str, Any]) -> float:
        """Seconds for which the last renewal of the Lease counts.

        Clocks of two machines differ, so a renewal counts from the moment when this process sees it. Only the age of
        the first one that it sees is taken from its own clock: else each restart of the process would extend it.
        """
        spec = lease["spec"]
        now, renewal = self._clock(), str(spec["renewTime"])
        if renewal != self._renewal:
            age = (datetime.now(UTC) - datetime.fromisoformat(renewal)).total_seconds() if not self._renewal else 0.0
            self._renewal, self._renewed = renewal, now - max(age, 0.0)
        return float(self._renewed + int(spec["leaseDurationSeconds"]) - now)


def elsewhere(cluster: Mapping[str, Any]) -> str:
    """Seed that has the control plane, if the Shoot in a Cluster is in another seed than the Cluster; else empty.

    While a control plane moves, both seeds may work on it: one releases what the other one will have.
    """
    spec = cluster.get("spec") or {}
    here = ((spec.get("seed") or {}).get("metadata") or {}).get("name")
    shoot = spec.get("shoot") or {}
    home = (shoot.get("status") or {}).get("seedName")
    goal = (shoot.get("spec") or {}).get("seedName")
    return str(home) if here and home and here not in (home, goal) else ""
