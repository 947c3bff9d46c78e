"""Start the workflow that a Seed needs: for each generation, on request by annotation, and for its deletion.

The gardenlet of a Seed requests a reconciliation at its own start. The tasks that touch the seed run in that gardenlet;
until it takes them, the workflow waits. A failed workflow is started again after a pause, or at once on request
(``reconcile`` or ``retry``); it keeps the finished tasks. The outcome of the last attempt is read from Temporal, so the
controller-manager remembers nothing that it needs after a restart.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from api import resources
from api.contracts.flows import Attempt, FlowOutcome, SeedFlowInput
from api.contracts.operations import GARDEN_QUEUE, OperationType, SeedTask
from api.decisions.seeds import is_asked, needed_operation
from api.times import micro_timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller
from workers.controller_manager.seed_flows import RETRY_SECONDS, Followed, Handle
from workflows import options, visibility
from workflows.flow import OUTCOME_MEMO, failed_outcome
from workflows.seed import BootstrapSeed, DeleteSeed, seed_workflow_id

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 15 * 60.0
_ABOUT = "about"
"""Memo of a workflow: operation, generation and number of the attempt."""


@dataclass
class _Running:
    handle: Handle
    deletes: bool
    canceled: bool = False


class SeedWatcher:
    """At most one workflow of a Seed runs at a time; what is asked meanwhile is done after it.

    A Seed that is deleted while it is reconciled does not wait for the end: the reconciliation is canceled, and ends
    between two tasks.
    """

    def __init__(self, garden: KubeClient, caches: Caches, temporal: Client) -> None:
        self._garden = garden
        self._temporal = temporal
        self._followed = Followed()
        self._running: dict[Key, _Running] = {}
        self._failures: dict[Key, tuple[tuple[bool, int], int, float]] = {}
        """By Seed: which operation and generation failed, how often in a row, and the earliest time of the next
        attempt, in monotonic seconds."""
        self._controller = Controller("seeds", self._reconcile, workers=4)
        self._controller.watch(caches.of(resources.SEED), when=_concerns)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            await self._controller.run()
        finally:
            await self._followed.close()

    async def _reconcile(self, key: Key) -> None:
        # A cache may not know yet what the last workflow wrote.
        seed = await self._garden.find(resources.SEED, key.name)
        needed = needed_operation(seed) if seed is not None else None
        if seed is None or needed is None:
            return
        deletes = needed is OperationType.DELETE
        if (running := self._running.get(key)) is not None:
            if deletes and not running.deletes and not running.canceled:
                log.info("seed %s is deleted: its reconciliation ends", key.name)
                await running.handle.cancel()
                running.canceled = True
            return  # the end of that workflow brings the Seed here again
        if not is_asked(seed) and (rest := self._rest(key, seed, deletes)) > 0:
            self._controller.enqueue(key, rest)
            return
        await self._start(key, seed, needed)

    def _rest(self, key: Key, seed: Object, deletes: bool) -> float:
        """Seconds until a failed operation of the same generation may start again."""
        failed, _, not_before = self._failures.get(key, ((deletes, -1), 0, 0.0))
        return not_before - time.monotonic() if failed == (deletes, seed["metadata"]["generation"]) else 0.0

    async def _start(self, key: Key, seed: Object, needed: OperationType) -> None:
        metadata, deletes = seed["metadata"], needed is OperationType.DELETE
        trigger = micro_timestamp()
        task = SeedTask(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            trigger=trigger,
            operation=needed,
        )
        workflow_id = seed_workflow_id(task)
        number, kept = await self._last(workflow_id, [str(needed), task.generation])
        attempt = Attempt(number=number + 1, trigger=trigger, kept=kept)
        handle: Any
        try:
            handle = await self._temporal.start_workflow(
                DeleteSeed.run if deletes else BootstrapSeed.run,
                SeedFlowInput(task=task, attempt=attempt),
                id=workflow_id,
                task_queue=GARDEN_QUEUE,
                task_timeout=options.WORKFLOW_TASK,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                search_attributes=visibility.of_seed(task.name),
                memo={_ABOUT: [str(needed), task.generation, attempt.number]},
                static_summary=f"{needed} Seed {task.name}, generation {task.generation}, attempt {attempt.number}",
            )
        except WorkflowAlreadyStartedError:
            # It may have begun before the present request: the Seed is looked at again when it has ended.
            handle = self._temporal.get_workflow_handle(workflow_id)
            deletes = (await handle.describe()).workflow_type == DeleteSeed.__name__
            self._controller.enqueue(key)

        def ended(failure: BaseException | None) -> None:
            del self._running[key]
            if failure is None:
                self._failures.pop(key, None)
                log.info("seed %s: workflow %s is done", key.name, workflow_id)
                self._controller.enqueue(key, 0.0)
            else:
                log.warning("seed %s: workflow %s: %s", key.name, workflow_id, _text(failure))
                about = (deletes, task.generation)
                before = self._failures.get(key)
                times = before[1] + 1 if before is not None and before[0] == about else 1
                pause = min(RETRY_SECONDS * 2 ** (times - 1), _LONGEST_PAUSE)
                self._failures[key] = (about, times, time.monotonic() + pause)
                self._controller.enqueue(key, 0.0)

        self._running[key] = _Running(handle, deletes)
        self._followed.follow(handle, ended)

    async def _last(self, workflow_id: str, about: list[Any]) -> tuple[int, FlowOutcome]:
        """Number and outcome of the last attempt, if it was one of the same operation and generation, and failed."""
        handle = self._temporal.get_workflow_handle(workflow_id)
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return 0, FlowOutcome()
            raise
        memo = await description.memo()
        *known, number = memo.get(_ABOUT) or ["", 0, 0]
        if known != about or description.status in (None, *_NO_FAILURE):
            return 0, FlowOutcome()
        if OUTCOME_MEMO in memo:  # a canceled flow left it
            return number, FlowOutcome.model_validate(memo[OUTCOME_MEMO])
        try:
            await self._temporal.get_workflow_handle(workflow_id, run_id=description.run_id).result()
        except WorkflowFailureError as error:
            return number, failed_outcome(error.cause) or FlowOutcome()
        return number, FlowOutcome()


_NO_FAILURE = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED)


def _text(failure: BaseException) -> str:
    return str(failure.cause if isinstance(failure, WorkflowFailureError) else failure)


def _concerns(event: WatchEvent) -> bool:
    return event.type != "DELETED" and needed_operation(event.object) is not None
