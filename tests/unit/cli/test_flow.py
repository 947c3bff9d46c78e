"""Output of ``gardener flow``."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from temporalio.client import WorkflowExecutionStatus

from api.contracts.flows import TaskState
from workers.cli import flow as flow_commands
from workers.cli import flow_repair
from workers.cli.explain import explain
from workers.cli.flow import _console, _list, _render, _table, flow
from workers.cli.flow_view import FlowView, TaskView
from workers.cli.operations import chosen_operation

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_task_is_one_line_of_a_pipe_however_long_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A user that greps for a task wants to find its error."""
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

    query = ""

    async def list_workflows(self, query: str) -> AsyncIterator[Any]:
        self.query = query
        for day, number, run in ((1, "1-1", "r-1"), (3, "1-1", "r-3"), (2, "1-1", "r-2"), (0, "0-1", "r-0")):
            begun = NOW + timedelta(days=day)
            yield SimpleNamespace(
                id=f"shoot/a/b/u/reconcile/{number}",
                run_id=run,
                start_time=begun,
                close_time=begun,
                status=WorkflowExecutionStatus.COMPLETED,
                search_attributes={"GardenerOperation": ["Reconcile"], "GardenerShoot": ["a/b"]},
            )

    async def connect(self) -> "Client":
        return self


async def test_each_run_of_an_id_is_listed_by_what_chooses_it() -> None:
    client: Any = Client()
    ids = _table(await _list(client, "a/b")).columns[-1].cells

    chosen = [await chosen_operation(client, "a/b", str(each)) for each in ids]

    assert [run for _, run in chosen] == ["r-3", "r-2", "r-1", "r-0"]
    assert await chosen_operation(client, "a/b", None) == ("shoot/a/b/u/reconcile/1-1", "r-3")


async def test_without_a_name_the_operations_that_run_are_listed_with_their_shoots() -> None:
    client: Any = Client()
    rows = await _list(client, None)

    assert client.query == 'GardenerOperation != "" AND ExecutionStatus = "Running"'
    assert {each["shoot"] for each in rows} == {"a/b"}
    assert [str(each) for each in _table(rows).columns[0].cells] == ["a/b"] * 4


class NothingThere(Client):
    """Temporal has no workflow of the Shoot."""

    async def list_workflows(self, query: str) -> AsyncIterator[Any]:
        nothing: tuple[Any, ...] = ()
        for each in nothing:
            yield each


@pytest.mark.parametrize("name", ["list", "show", "explain", "retry", "pause"])
def test_a_command_about_an_unknown_shoot_ends_with_status_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (flow_commands, flow_repair):
        monkeypatch.setattr(module, "connection_of", lambda **_: NothingThere())
    more = ["--reason", "x"] if name == "pause" else []

    assert CliRunner().invoke(flow, [name, "a/unknown", *more]).exit_code == 1


def test_a_shoot_that_is_gone_is_not_unknown() -> None:
    """Its operations are recorded: the name is right."""
    view = FlowView(shoot="a/b", workflow_id="flow", run_id="run", operation="Delete", started=NOW, state="Completed")

    assert not explain("a/b", view, None, NOW).is_unknown
    assert explain("a/b", None, None, NOW).is_unknown
