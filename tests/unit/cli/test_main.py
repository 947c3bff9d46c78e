"""The ``gardener`` command as a process: what it prints, and how it ends."""

import os
import subprocess
import sys

import pytest


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
