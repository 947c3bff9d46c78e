"""The ``gardener`` command as a process: what it prints, and how it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from workers.cli.main import gardener as gardener_command


def gardener(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from workers.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("--help",), 0), (("flow", "list", "--help"), 0), (("flow", "show"), 2), (("nonsense",), 2)],
)
def test_the_command_ends_with_the_status_of_click(arguments: tuple[str, ...], status: int) -> None:
    assert gardener(*arguments).returncode == status


def test_output_is_flushed_before_a_fast_exit() -> None:
    """It leaves without the interpreter's finalization, which would have written the buffers out."""
    assert "landscape" in gardener("--help").stdout


def test_a_shell_completes_commands() -> None:
    """The documentation tells users to source what ``_GARDENER_COMPLETE=bash_source gardener`` prints."""
    completing = {"_GARDENER_COMPLETE": "bash_complete", "COMP_WORDS": "gardener shoot cr", "COMP_CWORD": "2"}
    code = "import sys; sys.argv[0] = 'gardener'; from workers.cli.main import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **completing},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout == "plain,create\n"


FOR_OPERATORS_OF_PROCESSES = {
    "demo",
    "garden admission-files",
    "keys add",
    "keys create",
    "keys derive",
    "keys promote",
    "landscape cut",
    "landscape down",
    "landscape gvisor",
    "landscape images",
    "landscape heal",
    "landscape kill",
    "landscape logs",
    "landscape node-logs",
    "landscape pause",
    "landscape prepare",
    "landscape resume",
    "landscape temporal-certificates",
    "seed bootstrap-kubeconfig",
    "shoot token create",
    "worker",
}
"""Commands that write files or run processes, or that print a file: their output is no data."""


def commands(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*above, name))
        else:
            yield " ".join((*above, name)), found


def test_programs_can_read_what_each_command_prints() -> None:
    def has_json(command: click.Command) -> bool:
        return any("--output" in each.opts and "json" in getattr(each.type, "choices", ()) for each in command.params)

    assert {name for name, command in commands(gardener_command) if not has_json(command)} == FOR_OPERATORS_OF_PROCESSES
