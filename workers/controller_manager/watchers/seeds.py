"""Start the workflow that makes a Seed ready: for each generation, and whenever ``reconcile`` is asked of the Seed.

The gardenlet of a Seed asks so at its own start. The workflow's activities run in that gardenlet; it writes the Seed's
status and takes the request off. Until a gardenlet takes them, the workflow waits.
"""

import logging
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from api import resources
from api.constants import OPERATION, OPERATION_RECONCILE
from api.contracts.operations import GARDEN_QUEUE, SeedTask
from api.times import micro_timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller
from workers.controller_manager.seed_flows import RETRY_SECONDS, Followed
from workflows.seed import ReconcileSeed, seed_workflow_id

log = logging.getLogger(__name__)


class SeedWatcher:
    """At most one workflow of a Seed runs at a time; what is asked meanwhile is done after it."""

    def __init__(self, garden: KubeClient, caches: Caches, temporal: Client) -> None:
        self._garden = garden
        self._temporal = temporal
        self._followed = Followed()
        self._running: dict[Key, str] = {}
        """By Seed, id of its workflow."""
        self._controller = Controller("seeds", self._reconcile, workers=4)
        self._controller.watch(caches.of(resources.SEED), when=_concerns)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            await self._controller.run()
        finally:
            await self._followed.close()

    async def _reconcile(self, key: Key) -> None:
        if key in self._running:
            return  # the end of that workflow brings the Seed here again
        # A cache may not know yet what the last workflow wrote.
        seed = await self._garden.find(resources.SEED, key.name)
        if seed is None or not needs_reconciliation(seed):
            return
        metadata = seed["metadata"]
        task = SeedTask(
            name=metadata["name"], uid=metadata["uid"], generation=metadata["generation"], trigger=micro_timestamp()
        )
        workflow_id = seed_workflow_id(task)
        try:
            handle: Any = await self._temporal.start_workflow(
                ReconcileSeed.run,
                task,
                id=workflow_id,
                task_queue=GARDEN_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=f"Seed {task.name}",
            )
        except WorkflowAlreadyStartedError:
            # It may have begun before the present request: the Seed is looked at again when it has ended.
            handle = self._temporal.get_workflow_handle(workflow_id)

        def ended(failure: BaseException | None) -> None:
            del self._running[key]
            if failure is None:
                log.info("seed %s: workflow %s is done", key.name, workflow_id)
            else:
                log.warning("seed %s: workflow %s: %s", key.name, workflow_id, failure)
            self._controller.enqueue(key, RETRY_SECONDS if failure else 0.0)

        self._running[key] = workflow_id
        self._followed.follow(handle, ended)


def needs_reconciliation(seed: dict[str, Any]) -> bool:
    """Whether a Seed's present generation has not been reconciled, or its reconciliation is asked for."""
    metadata, status = seed["metadata"], seed.get("status") or {}
    if "deletionTimestamp" in metadata:
        return False
    done = (status.get("observedGeneration"), (status.get("lastOperation") or {}).get("state"))
    asked = (metadata.get("annotations") or {}).get(OPERATION) == OPERATION_RECONCILE
    return asked or done != (metadata["generation"], "Succeeded")


def _concerns(event: WatchEvent) -> bool:
    return event.type != "DELETED" and needs_reconciliation(event.object)
