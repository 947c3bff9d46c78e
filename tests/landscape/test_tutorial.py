"""docs/tutorial.md, typed from top to bottom: people of a project and the operator, each with an own kubeconfig.

A command prints what the page shows. It is refused exactly where the page shows an error.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.walkthroughs import ROOT, Command, commands, pattern_of

PAGE = "docs/tutorial.md"


def typed(command: Command, directory: Path, landscape: Landscape) -> tuple[int, str]:
    """Exit status and output of a command. A pipe fails if any of its programs does."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "GARDENER_LANDSCAPE": landscape.name}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.text],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    print(f"{command}: $ {command.text}\n{done.stdout}")
    return done.returncode, done.stdout


@pytest.mark.timeout(420, func_only=True)
def test_each_person_gets_what_the_tutorial_shows(landscape: Landscape, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in commands(PAGE):
        status, said = typed(command, tmp_path, landscape)
        refused = any(line.startswith("Error from server") for line in command.output)
        assert bool(status) is refused, f"{command}: {said}"
        if command.output:
            shown = [each for each in (" ".join(line.split()) for line in said.splitlines()) if each]
            assert len(shown) == len(command.output), said
            for line, seen in zip(command.output, shown, strict=True):
                assert pattern_of(line).fullmatch(seen), f"{command}: {seen}"
