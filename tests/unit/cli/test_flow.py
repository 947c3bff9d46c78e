"""What ``gardener flow`` prints."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from api.contracts.flows import TaskState
from workers.cli.flow import _console, _list, _render, _table
from workers.cli.flow_view import FlowView, TaskView
from workers.cli.operations import chosen_operation

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_task_is_one_line_of_a_pipe_however_long_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever greps for a task wants to find its error."""
    error = "making namespace shoot in the cloud: " + "not permitted, " * 20
    task = TaskView(
        name="wait_infrastructure", title="Wait", state=TaskState.FAILED, started=NOW, ended=NOW, error=error
    )
    view = FlowView(shoot="garden-local/demo", workflow_id="flow", run_id="run", started=NOW, ended=NOW, tasks=(task,))

    _console().print(_render(view))

    [line] = [line for line in capsys.readouterr().out.splitlines() if "wait_infrastructure" in line]
    assert error.strip() in line


class Client:
    """Has three operations: a creation, its first sync, and the sync after that."""

    async def list_workflows(self, _query: str) -> AsyncIterator[Any]:
        for day, number, run in ((1, "1-1", "r-1"), (3, "1-1", "r-3"), (2, "1-1", "r-2"), (0, "0-1", "r-0")):
            begun = NOW + timedelta(days=day)
            yield SimpleNamespace(
                id=f"shoot/a/b/u/reconcile/{number}",
                run_id=run,
                start_time=begun,
                close_time=begun,
                status=WorkflowExecutionStatus.COMPLETED,
                search_attributes={"GardenerOperation": ["Reconcile"]},
            )

    async def connect(self) -> "Client":
        return self


async def test_each_run_of_an_id_is_listed_by_what_chooses_it() -> None:
    client: Any = Client()
    ids = _table(await _list(client, "a/b")).columns[-1].cells

    chosen = [await chosen_operation(client, "a/b", str(each)) for each in ids]

    assert [run for _, run in chosen] == ["r-3", "r-2", "r-1", "r-0"]
    assert await chosen_operation(client, "a/b", None) == ("shoot/a/b/u/reconcile/1-1", "r-3")
