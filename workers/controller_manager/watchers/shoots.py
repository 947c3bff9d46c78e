"""Signals the lifecycle workflow of a Shoot when the Shoot or an object that it waits for has changed."""

import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import Counter, Histogram
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from activities.garden.shoots import seed_fault
from api import resources
from api.constants import OPERATION, OPERATION_FORCE_IN_PLACE_UPDATE
from api.contracts.operations import GARDEN_QUEUE, MIGRATIONS, ShootRef, lifecycle_id
from api.decisions.in_place_updates import pending_of
from kube.cache import Caches, Key, key_of
from kube.client import WatchEvent
from kube.controller import Controller
from workers.lib.runtime import log_context
from workers.lib.tracing import Tracing, change_of
from workflows import fairness, options, visibility
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

    Operations wait for a Seed that is not ready, deletions and moves for Bastions: Shoots are signalled when their Seed
    gets ready, and when one of their Bastions is deleted.
    """

    def __init__(self, garden: Caches, temporal: Client, tracing: Tracing | None = None) -> None:
        self._shoots = garden.of(resources.SHOOT)
        self._temporal = temporal
        self._tracing = tracing
        self._seen: dict[str, object] = {}
        self._arrived: dict[Key, float] = {}
        self._controller = Controller("shoots", self._signal, workers=8)
        self._controller.watch(self._shoots, when=self._concerns)
        self._shoots.index(_BY_SEED, _seeds)
        self._ready: set[str] = set()
        """Seeds that accept operations."""
        self._controller.watch(garden.of(resources.SEED), keys=self._waiting_for_seed)
        self._controller.watch(garden.of(resources.OPERATIONS_BASTION), keys=_shoot_of, when=_is_deletion)

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

    def _waiting_for_seed(self, event: WatchEvent) -> list[Key]:
        """Shoots that may wait for a Seed, if the Seed has just got ready.

        The lastOperation of a Shoot that waits is in state Error or Pending. Until the lifecycle has written that, the
        Shoot shows another reason for an operation.
        """
        name = event.object["metadata"]["name"]
        if event.type == "DELETED" or seed_fault(event.object):
            self._ready.discard(name)
            return []
        if name in self._ready:
            return []
        self._ready.add(name)
        return [key_of(each) for each in self._shoots.by_index(_BY_SEED, name) if not _is_settled(each)]

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
                task_timeout=options.WORKFLOW_TASK,
                start_signal="wake",
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=visibility.of_shoot(ref),
                priority=fairness.of_shoot(ref),
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


_BY_SEED = "seeds"
"""Index of Shoots by the seed of the control plane and the seed that it is to be in."""


def _seeds(shoot: Mapping[str, Any]) -> Iterable[str]:
    return {each for each in (shoot["spec"].get("seedName"), (shoot.get("status") or {}).get("seedName")) if each}


def _is_settled(shoot: Mapping[str, Any]) -> bool:
    """Whether the last operation has succeeded and no other one is due, except for a regular one."""
    metadata, status = shoot["metadata"], shoot.get("status") or {}
    return (
        (status.get("lastOperation") or {}).get("state") == "Succeeded"
        and status.get("observedGeneration") == metadata["generation"]
        and status.get("seedName") == shoot["spec"].get("seedName")
        and "deletionTimestamp" not in metadata
        and OPERATION not in (metadata.get("annotations") or {})
    )


def _is_deletion(event: WatchEvent) -> bool:
    return event.type == "DELETED"


def _shoot_of(event: WatchEvent) -> list[Key]:
    bastion = event.object
    return [Key(bastion["metadata"]["namespace"], bastion["spec"]["shootRef"]["name"])]


def _concern(shoot: Mapping[str, Any]) -> object:
    """Fields by which a lifecycle decides; an annotation does not raise a custom resource's generation."""
    metadata, status = shoot["metadata"], shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    # An operator moves a control plane by writing these into the status.
    moved = (status.get("seedName"), last.get("state")) if last.get("type") in MIGRATIONS else None
    # Once none is pending, the operation that forces changes of pending pools is over.
    forced = OPERATION_FORCE_IN_PLACE_UPDATE in (metadata.get("annotations") or {}).get(OPERATION, "").split(";")
    return (
        moved,
        forced and any(pending_of(shoot).values()),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        tuple(sorted((metadata.get("annotations") or {}).items())),
        tuple(metadata.get("finalizers") or ()),
        shoot["spec"].get("seedName"),
    )
