"""docs/tutorial.md, typed from top to bottom: people of a project and the operator, each with an own kubeconfig.

Two of them have certificates, and one the token of an OpenID Connect provider, which runs beside the landscape. A
command prints what the page shows. It is refused exactly where the page shows an error.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.walkthroughs import ROOT, Command, commands, pattern_of

PAGE = "docs/tutorial.md"
PROVIDER = "-m tests.oidc bob@example.org"
"""Arguments of Python with which the page starts the provider."""


@contextmanager
def provider(directory: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run the provider, as in a second shell; gives the variable that it asks to set."""
    argv = [sys.executable, *PROVIDER.split()]
    with subprocess.Popen(argv, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            name, _, value = running.stdout.readline().strip().removeprefix("export ").partition("=")
            yield {name: value}
        finally:
            running.kill()


@contextmanager
def shell(directory: Path, landscape: Landscape) -> Iterator[dict[str, str]]:
    """Environment of the shells of the page. The landscape trusts no provider afterwards."""
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "none.yaml").write_text("{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration}")
    path = {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **path, "GARDENER_LANDSCAPE": landscape.name}
    with provider(directory, environment) as variables:
        try:
            yield {**environment, **variables}
        finally:
            landscape.gardener("up", "--authentication-config", str(directory / "none.yaml"))


def typed(command: Command, directory: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and output of a command. A pipe fails if any of its programs does."""
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


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(420, func_only=True)
def test_each_person_gets_what_the_tutorial_shows(landscape: Landscape, tmp_path: Path) -> None:
    assert f"`python {PROVIDER}`" in (ROOT / PAGE).read_text()
    with shell(tmp_path, landscape) as environment:
        for command in commands(PAGE):
            status, said = typed(command, tmp_path, environment)
            refused = any(line.startswith("Error from server") for line in command.output)
            assert bool(status) is refused, f"{command}: {said}"
            if command.output:
                shown = [each for each in (" ".join(line.split()) for line in said.splitlines()) if each]
                assert len(shown) == len(command.output), said
                for line, seen in zip(command.output, shown, strict=True):
                    assert pattern_of(line).fullmatch(seen), f"{command}: {seen}"
