"""What ``gardener flow`` prints."""

from datetime import UTC, datetime

import pytest

from api.flows import TaskState
from workers.cli.flow import _console, _render
from workers.cli.flow_view import FlowView, TaskView

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
