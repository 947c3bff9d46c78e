"""Cleans up what this seed has of Shoots whose control planes were taken over while it was lost.

They are found when the seed is back: their Shoots say that another seed is responsible, and has restored them.
Source: spec/flows.md 8.
"""

import logging
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.kube.cache import Key
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller, Requeue
from api import constants, resources
from api.flows import Attempt, FlowInput, FlowOutcome, ShootFacts
from api.operations import GARDEN_QUEUE, OperationType, ShootRef, ShootTask
from api.times import micro_timestamp
from workflows import visibility
from workflows.flow import failed_outcome
from workflows.shoot.forget import ForgetShoot, forget_id

log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0


class RemainsController:
    """One per gardenlet."""

    def __init__(self, clusters: Clusters, temporal: Client) -> None:
        self._clusters = clusters
        self._temporal = temporal
        self._shoots = clusters.garden_caches.of(resources.SHOOT)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._attempts: dict[Key, Attempt] = {}
        """How the last one failed: the next goes on from there."""

    async def run(self) -> None:
        """Until cancelled."""
        await self._namespaces.synced()
        controller = Controller("remains", self._reconcile, workers=2)
        controller.watch(self._shoots)
        await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        shoot = self._shoots.get(key.name, key.namespace)
        if shoot is None or not is_elsewhere(shoot, self._clusters.seed_name):
            return None
        namespace = self._namespaces.get(shoot["status"]["technicalID"])
        if (
            namespace is None
            or (namespace["metadata"].get("annotations") or {}).get(constants.SHOOT_UID) != shoot["metadata"]["uid"]
        ):
            return None
        task = ShootTask(
            shoot=ShootRef.of(shoot),
            technical_id=shoot["status"]["technicalID"],
            seed=self._clusters.seed_name,
            generation=shoot["metadata"]["generation"],
            operation=OperationType.MIGRATE,
            destination=shoot["status"]["seedName"],
            trigger=micro_timestamp(),
        )
        log.warning("Shoot %s is in seed %s now; cleaning up what is left of it here", task.shoot, task.destination)
        handle = await self._temporal.start_workflow(
            ForgetShoot.run,
            FlowInput(task=task, facts=ShootFacts(), attempt=self._attempts.get(key, Attempt())),
            id=forget_id(task.shoot, task.seed),
            task_queue=GARDEN_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=visibility.of_shoot(task.shoot),
            static_summary=f"Forget {task.shoot} in {task.seed}",
        )
        try:
            await handle.result()
        except WorkflowFailureError as error:
            log.warning("Shoot %s: what is left of it here is not cleaned up: %s", task.shoot, error.cause)
            number = self._attempts.get(key, Attempt()).number + 1
            self._attempts[key] = Attempt(number=number, kept=failed_outcome(error.cause) or FlowOutcome())
            return Requeue(_RETRY_SECONDS)
        self._attempts.pop(key, None)
        log.info("Shoot %s: nothing is left of it here", task.shoot)
        return None


def is_elsewhere(shoot: Mapping[str, Any], seed: str) -> bool:
    """Whether another seed than this one is responsible for a Shoot, and has its control plane whole."""
    status = shoot.get("status") or {}
    responsible, last = status.get("seedName"), status.get("lastOperation") or {}
    if not responsible or not status.get("technicalID") or seed in (responsible, shoot["spec"].get("seedName")):
        return False
    unfinished = last.get("type") == "Migrate" or (last.get("type") == "Restore" and last.get("state") != "Succeeded")
    return not unfinished
