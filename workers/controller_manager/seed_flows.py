"""Runs flows that a seed needs and that belong to no Shoot's lifecycle: a few per seed at a time, with retries.

The controller-manager starts them on request of a gardenlet, because a gardenlet may not start workflows.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from api.constants import PROJECT_NAME
from api.contracts.flows import Attempt, FlowInput, FlowOutcome
from api.contracts.operations import GARDEN_QUEUE
from kube.cache import Cache
from workers.controller_manager.project import BY_NAMESPACE, namespaces_of
from workflows import fairness, options, visibility
from workflows.flow import failed_outcome

log = logging.getLogger(__name__)

Run = Callable[[Any, FlowInput], Awaitable[FlowOutcome]]
Handle = WorkflowHandle[Any, Any]

RETRY_SECONDS = 60.0
AT_ONCE = 3
"""Maximum number of concurrent flows of one seed. A seed whose gardenlet does not answer delays no other seed."""


class Followed:
    """Waits in the background for the end of workflows."""

    def __init__(self) -> None:
        self._waits: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._waits

    def __len__(self) -> int:
        return len(self._waits)

    def follow(self, handle: Handle, ended: Callable[[BaseException | None], None]) -> None:
        """Call ``ended`` when the workflow has ended, or the call to Temporal has failed; with the failure or None.

        ``ended`` is called whatever the failure is. Otherwise the caller would never handle this workflow again.
        """

        async def wait() -> None:
            failure: BaseException | None = None
            try:
                await handle.result()
            except Exception as error:
                failure = error
            del self._waits[handle.id]
            ended(failure)

        self._waits[handle.id] = asyncio.create_task(wait(), name=f"end of {handle.id}")

    async def close(self) -> None:
        """Stop waiting. The workflows go on."""
        waits = list(self._waits.values())
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@dataclass(frozen=True)
class SeedFlow:
    """A flow that a seed needs."""

    id: str
    run: Run
    summary: str
    request: Callable[[], Awaitable[FlowInput | None]]
    """Builds the flow's input from objects of the garden, right before the start. None: the flow may not run."""


class Refused(Exception):
    """The request of a gardenlet contradicts the objects of the garden."""


class SeedFlows:
    """The flows of one seed. Each attempt keeps the finished tasks of the last one."""

    def __init__(self, temporal: Client, look: Callable[[float], None]) -> None:
        self._temporal = temporal
        self._look = look
        """Function that makes the caller offer its flows again, after the given number of seconds."""
        self._followed = Followed()
        self._attempts: dict[str, Attempt] = {}
        """Next attempt by workflow id, with the outcome of the failed one."""
        self._not_before: dict[str, float] = {}
        """Earliest time of the next start by workflow id, in monotonic seconds."""

    def has_failed(self, workflow_id: str) -> bool:
        """Whether the last attempt failed, and none has succeeded since."""
        return workflow_id in self._attempts

    async def offer(self, flows: Sequence[SeedFlow]) -> None:
        """Start those of these flows that are due. Drop the attempts of flows that are no longer needed."""
        self._forget_others({each.id for each in flows})
        for flow in flows:
            if len(self._followed) >= AT_ONCE:
                return  # when one of them ends, the caller offers the rest again
            if flow.id in self._followed:
                continue
            if (rest := self._not_before.get(flow.id, 0.0) - time.monotonic()) > 0:
                self._look(rest + 0.1)  # this reconcile has dropped the delay that was pending
                continue
            request = await flow.request()
            if request is None:
                self._rest(flow.id)
            else:
                await self._start(flow, request)

    async def close(self) -> None:
        await self._followed.close()

    async def _start(self, flow: SeedFlow, request: FlowInput) -> None:
        attempt = self._attempts.get(flow.id, Attempt())
        log.info("%s: attempt %d", flow.summary, attempt.number)
        handle = await self._temporal.start_workflow(
            flow.run,
            request.model_copy(update={"attempt": attempt}),
            id=flow.id,
            task_queue=GARDEN_QUEUE,
            task_timeout=options.WORKFLOW_TASK,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=visibility.of_shoot(request.task.shoot),
            priority=fairness.of_shoot(request.task.shoot),
            static_summary=flow.summary,
        )

        def ended(failure: BaseException | None) -> None:
            if isinstance(failure, WorkflowFailureError):
                log.warning("%s failed: %s", flow.summary, failure.cause)
                kept = failed_outcome(failure.cause) or FlowOutcome()
                self._attempts[flow.id] = Attempt(number=attempt.number + 1, kept=kept)
            elif failure is not None:
                log.warning("%s: waiting for its end: %s", flow.summary, failure)
            else:
                self._attempts.pop(flow.id, None)
                log.info("%s: done", flow.summary)
            self._rest(flow.id)
            self._look(0.0)

        self._followed.follow(handle, ended)

    def _rest(self, workflow_id: str) -> None:
        """Delay the next start: a failure must be repaired first, and a success must reach the seed's status."""
        self._not_before[workflow_id] = time.monotonic() + RETRY_SECONDS
        self._look(RETRY_SECONDS + 0.1)

    def _forget_others(self, wanted: Collection[str]) -> None:
        for known in (self._attempts, self._not_before):
            for each in [each for each in known if each not in wanted and each not in self._followed]:
                del known[each]


def told_once(told: dict[str, object], seed: str, refused: Mapping[str, str]) -> Iterable[str]:
    """Log lines about refused requests of a seed; none if ``told`` says that the same lines were logged last time."""
    if told.get(seed) == refused:
        return []
    told[seed] = refused
    return [f"{what}: {why}" for what, why in refused.items()]


def project_of(namespace: str, namespaces: Cache, projects: Cache) -> str | None:
    """Name of the Project that a namespace belongs to, also if the Project was deleted before its namespace.

    ``workers.admission.projects.project_of`` is for Projects that exist; it reads them from the garden.
    """
    projects.index(BY_NAMESPACE, namespaces_of)
    for each in projects.by_index(BY_NAMESPACE, namespace):
        return str(each["metadata"]["name"])
    labels = ((namespaces.get(namespace) or {}).get("metadata") or {}).get("labels") or {}
    name = labels.get(PROJECT_NAME)
    return str(name) if name and projects.get(name) is None else None
