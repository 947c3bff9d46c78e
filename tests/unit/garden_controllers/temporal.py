"""A Temporal in memory: it keeps what is started, and a workflow ends when a test ends it."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from api.contracts.flows import FlowOutcome


@dataclass
class Workflow:
    """One run, and the handle on it."""

    id: str
    type: str
    request: Any
    memory: dict[str, Any] = field(default_factory=dict)
    canceled: bool = False
    end: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def result(self) -> None:
        await asyncio.shield(self.end)

    async def describe(self) -> "Workflow":
        return self

    async def memo(self) -> dict[str, Any]:
        return self.memory

    @property
    def workflow_type(self) -> str:
        return self.type

    @property
    def run_id(self) -> str:
        return str(id(self))

    @property
    def status(self) -> WorkflowExecutionStatus:
        if not self.end.done():
            return WorkflowExecutionStatus.RUNNING
        return WorkflowExecutionStatus.FAILED if self.end.exception() else WorkflowExecutionStatus.COMPLETED

    async def cancel(self) -> None:
        self.canceled = True

    def succeed(self) -> None:
        self.end.set_result(None)

    def fail(self, outcome: FlowOutcome | None = None) -> None:
        details = (outcome or FlowOutcome()).model_dump(mode="json")
        self.end.set_exception(WorkflowFailureError(cause=ApplicationError("it failed", details, type="FlowFailed")))


TASK_LIMIT = timedelta(seconds=4)
"""A workflow whose worker is killed in the middle of a task must continue within 5 s."""


class Temporal:
    """As much of a client as watchers use."""

    def __init__(self) -> None:
        self.started: list[Workflow] = []

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.started]

    async def start_workflow(self, run: Any, request: Any, **options: Any) -> Workflow:
        assert options["task_timeout"] == TASK_LIMIT
        if hasattr(request, "task") and hasattr(request.task, "shoot"):
            assert options["priority"].fairness_key == request.task.shoot.namespace
        running = [each for each in self.started if each.id == options["id"] and not each.end.done()]
        if running and options["id_conflict_policy"] is WorkflowIDConflictPolicy.FAIL:
            raise WorkflowAlreadyStartedError(options["id"], "Some")
        if running:
            return running[0]
        workflow = Workflow(options["id"], run.__qualname__.partition(".")[0], request, options.get("memo") or {})
        self.started.append(workflow)
        return workflow

    def get_workflow_handle(self, workflow_id: str, *, run_id: str | None = None) -> "Workflow | Unknown":
        found = (each for each in reversed(self.started) if each.id == workflow_id and run_id in (None, each.run_id))
        return next(found, Unknown())


class Unknown:
    """Handle on a workflow that does not exist."""

    async def describe(self) -> Workflow:
        raise RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")
