"""Tell a Shoot's lifecycle workflow that there is something to look at."""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import Counter, Histogram
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from api import resources
from api.contracts.operations import GARDEN_QUEUE, ShootRef, lifecycle_id
from kube.cache import Caches, Key, key_of
from kube.client import WatchEvent
from kube.controller import Controller
from workers.lib.runtime import log_context
from workers.lib.tracing import Tracing, change_of
from workflows import visibility
from workflows.shoot.lifecycle import LifecycleInput, ShootLifecycle

log = logging.getLogger(__name__)

SIGNAL_METRIC = "gardener_shoot_signal_seconds"
SIGNALS = Counter("gardener_shoot_signals_total", "Events of Shoots passed on to their workflows.")
SIGNAL_SECONDS = Histogram(
    SIGNAL_METRIC,
    "Time from the arrival of a Shoot's event to the delivery of its signal.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)


class ShootWatcher:
    """Signals with start; losing an event, doubling one, or starting from nothing is harmless.

    The signal says "look again": the workflow reads the Shoot itself. What does not concern it, a
    change of status, is not passed on.
    """

    def __init__(self, garden: Caches, temporal: Client, tracing: Tracing | None = None) -> None:
        self._shoots = garden.of(resources.SHOOT)
        self._temporal = temporal
        self._tracing = tracing
        self._seen: dict[str, object] = {}
        self._arrived: dict[Key, float] = {}
        self._controller = Controller("shoots", self._signal, workers=8)
        self._controller.watch(self._shoots, when=self._concerns)

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._controller.run()

    def _concerns(self, event: WatchEvent) -> bool:
        shoot = event.object
        uid = shoot["metadata"]["uid"]
        if event.type == "DELETED":
            self._seen.pop(uid, None)
            return False
        concern = _concern(shoot)
        if self._seen.get(uid) == concern:
            return False
        self._seen[uid] = concern
        self._arrived.setdefault(key_of(shoot), time.monotonic())
        return True

    async def _signal(self, key: Key) -> None:
        shoot = self._shoots.get(key.name, key.namespace)
        arrived = self._arrived.pop(key, time.monotonic())
        if shoot is None:
            return
        ref = ShootRef.of(shoot)
        log_context.set({"shoot": str(ref)})
        try:
            await self._temporal.start_workflow(
                ShootLifecycle.run,
                LifecycleInput(shoot=ref),
                id=lifecycle_id(ref),
                task_queue=GARDEN_QUEUE,
                start_signal="wake",
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=visibility.of_shoot(ref),
                static_summary=f"Shoot {ref}",
            )
        except RPCError as error:
            self._arrived.setdefault(key, arrived)
            log.warning("signalling the workflow of Shoot %s: %s; trying again", ref, error.status.name)
            raise
        SIGNALS.inc()
        waited = time.monotonic() - arrived
        SIGNAL_SECONDS.observe(waited)
        if self._tracing and (change := change_of(shoot)):
            since = datetime.now(UTC) - timedelta(seconds=waited)
            self._tracing.changed(ref, shoot["metadata"]["generation"], since, **change)


def _concern(shoot: Mapping[str, Any]) -> object:
    """Fields by which a lifecycle decides; an annotation does not raise a custom resource's generation."""
    metadata, status = shoot["metadata"], shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    # An operator moves a control plane by writing these into the status.
    moved = (status.get("seedName"), last.get("state")) if last.get("type") == "Migrate" else None
    return (
        moved,
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        tuple(sorted((metadata.get("annotations") or {}).items())),
        tuple(metadata.get("finalizers") or ()),
        shoot["spec"].get("seedName"),
    )
