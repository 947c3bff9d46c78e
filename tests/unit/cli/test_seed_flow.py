"""``gardener seed show`` and ``skip``: the newest operation of a Seed."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import click
import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from api.contracts.repair import Action, Repair
from workers.cli.seed_flow import _newest, _skip

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SKIP = Repair(action=Action.SKIP, task="delete_seed_gateway", reason="it is lost", by="ann")


class Client:
    """Has two operations of a Seed, and is the handle on both."""

    def __init__(self, status: WorkflowExecutionStatus = WorkflowExecutionStatus.RUNNING) -> None:
        self.status = status
        self.sent: list[tuple[str, Any]] = []
        self.refusal = ""
        self.query = ""

    async def connect(self) -> "Client":
        return self

    async def list_workflows(self, query: str) -> AsyncIterator[Any]:
        self.query = query
        for day in (1, 2):
            yield SimpleNamespace(
                id="seed/seed-1/5eed", run_id=f"run-{day}", start_time=NOW + timedelta(days=day), status=self.status
            )

    def get_workflow_handle(self, workflow_id: str, *, run_id: str) -> "Client":
        self.run = run_id
        return self

    async def execute_update(self, name: str, request: Any) -> None:
        if self.refusal:
            raise WorkflowUpdateFailedError(ApplicationError(self.refusal))
        self.sent.append((name, request))


async def test_the_newest_operation_of_the_seed_is_chosen() -> None:
    client: Any = Client()
    assert (await _newest(client, "seed-1")).run_id == "run-2"
    assert client.query == 'WorkflowId STARTS_WITH "seed/seed-1/"', "and not those of seed-10"


async def test_a_task_of_the_running_operation_is_skipped() -> None:
    client: Any = Client()
    assert "delete_seed_gateway" in await _skip(client, "seed-1", SKIP)
    assert client.sent == [("repair", SKIP)]
    assert client.run == "run-2"


async def test_a_refused_repair_says_why() -> None:
    client: Any = Client()
    client.refusal = "Delete has no task 'x'"
    with pytest.raises(click.ClickException, match="refused: Delete has no task 'x'"):
        await _skip(client, "seed-1", SKIP)


async def test_an_operation_that_has_ended_is_not_repaired() -> None:
    client: Any = Client(WorkflowExecutionStatus.FAILED)
    with pytest.raises(click.ClickException, match="no operation of Seed seed-1 runs"):
        await _skip(client, "seed-1", SKIP)
    assert client.sent == []
