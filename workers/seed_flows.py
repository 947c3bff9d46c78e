"""Runs operations of seeds, which are none of a Shoot: a few of each seed at a time, again after a failure.

A gardenlet asks for them, and the controller-manager starts them: a gardenlet may start no workflow.
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
from api.flows import Attempt, FlowInput, FlowOutcome
from api.operations import GARDEN_QUEUE
from kube.cache import Cache
from workers.project import BY_NAMESPACE, namespaces_of
from workflows import visibility
from workflows.flow import failed_outcome

log = logging.getLogger(__name__)

Run = Callable[[Any, FlowInput], Awaitable[FlowOutcome]]
Handle = WorkflowHandle[Any, Any]

RETRY_SECONDS = 60.0
AT_ONCE = 3
"""Flows of one seed that run side by side; where its gardenlet does not answer, they hold up no other seed."""


class Followed:
    """Workflows whose end is waited for in the background."""

    def __init__(self) -> None:
        self._waits: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._waits

    def __len__(self) -> int:
        return len(self._waits)

    def follow(self, handle: Handle, ended: Callable[[BaseException | None], None]) -> None:
        """Call ``ended`` once the workflow has ended, or Temporal could not be asked, with the failure or None.

        ``ended`` is called whatever the failure is: without it, the caller would never look at this workflow again.
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
        """Stop to wait; the workflows go on."""
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
    """Makes the flow's input of what the garden itself says right before the start; None: the flow may not run."""


class Refused(Exception):
    """The garden's own record does not bear out what a gardenlet asks for."""


class SeedFlows:
    """The flows of one seed; each attempt goes on where the last one failed."""

    def __init__(self, temporal: Client, look: Callable[[float], None]) -> None:
        self._temporal = temporal
        self._look = look
        """Has the caller offer its flows again, after so many seconds."""
        self._followed = Followed()
        self._attempts: dict[str, Attempt] = {}
        """By workflow id, how the last attempt failed."""
        self._not_before: dict[str, float] = {}
        """By workflow id, monotonic seconds."""

    def has_failed(self, workflow_id: str) -> bool:
        """Whether the last attempt failed, and none has succeeded since."""
        return workflow_id in self._attempts

    async def offer(self, flows: Sequence[SeedFlow]) -> None:
        """Start what is due of these flows; forget how others failed that are not wanted any more."""
        self._forget_others({each.id for each in flows})
        for flow in flows:
            if len(self._followed) >= AT_ONCE:
                return  # the end of one of them has the caller offer the rest again
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
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=visibility.of_shoot(request.task.shoot),
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
        """Not again at once: after a failure something must be mended, after a success the seed must tell of it."""
        self._not_before[workflow_id] = time.monotonic() + RETRY_SECONDS
        self._look(RETRY_SECONDS + 0.1)

    def _forget_others(self, wanted: Collection[str]) -> None:
        for known in (self._attempts, self._not_before):
            for each in [each for each in known if each not in wanted and each not in self._followed]:
                del known[each]


def told_once(told: dict[str, object], seed: str, refused: Mapping[str, str]) -> Iterable[str]:
    """Lines of a log about what was refused to a seed; none if ``told`` says that they were logged last time."""
    if told.get(seed) == refused:
        return []
    told[seed] = refused
    return [f"{what}: {why}" for what, why in refused.items()]


def project_of(namespace: str, namespaces: Cache, projects: Cache) -> str | None:
    """Name of the Project that a namespace belongs to, also of one that has gone before its namespace.

    ``api.server.projects.project_of`` answers for Projects that are there, and looks them up in the garden.
    """
    projects.index(BY_NAMESPACE, namespaces_of)
    for each in projects.by_index(BY_NAMESPACE, namespace):
        return str(each["metadata"]["name"])
    labels = ((namespaces.get(namespace) or {}).get("metadata") or {}).get("labels") or {}
    name = labels.get(PROJECT_NAME)
    return str(name) if name and projects.get(name) is None else None
