"""Flows that a gardenlet starts by itself: operations of the seed, and none of the Shoot."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.kube.controller import Requeue
from api.flows import Attempt, FlowInput, FlowOutcome, ShootFacts
from api.operations import GARDEN_QUEUE, ShootTask
from workflows import visibility
from workflows.flow import failed_outcome

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0

Run = Callable[[Any, FlowInput], Awaitable[FlowOutcome]]


class SeedFlows:
    """One attempt after the other, each going on where the last one failed."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal
        self._attempts: dict[str, Attempt] = {}
        """By workflow id, how the last one failed."""

    def has_failed(self, workflow_id: str) -> bool:
        """Whether the last attempt has, and none has succeeded since."""
        return workflow_id in self._attempts

    async def attempt(self, run: Run, task: ShootTask, workflow_id: str, summary: str) -> Requeue | None:
        """Start it, or find the one that runs; when to try again if it fails, None if it succeeds."""
        attempt = self._attempts.get(workflow_id, Attempt())
        handle = await self._temporal.start_workflow(
            run,
            FlowInput(task=task, facts=ShootFacts(), attempt=attempt),
            id=workflow_id,
            task_queue=GARDEN_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=visibility.of_shoot(task.shoot),
            static_summary=summary,
        )
        try:
            await handle.result()
        except WorkflowFailureError as error:
            log.warning("%s failed: %s", summary, error.cause)
            kept = failed_outcome(error.cause) or FlowOutcome()
            self._attempts[workflow_id] = Attempt(number=attempt.number + 1, kept=kept)
            return Requeue(RETRY_SECONDS)
        self._attempts.pop(workflow_id, None)
        log.info("%s: done", summary)
        return None
