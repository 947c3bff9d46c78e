"""A landscape for the tests: brought up once for all of them, and taken down after the last.

``GARDENER_TEST_LANDSCAPE=NAME`` uses one that is up already, and leaves it up: for those who write tests.
``GARDENER_TEST_KEEP=1`` leaves the Shoot of the tests, too; the next run finds it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from tests.landscape.shoots import Shoot

BIN = Path(sys.executable).parent
_UP_SECONDS = 25 * 60
"""From nothing: Kubernetes is compiled."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time limits here are of the tests alone: the first of them waits until the landscape is up."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@dataclass(frozen=True)
class Landscape:
    """What tests do with a landscape, by the commands that a user has."""

    name: str

    def gardener(self, *arguments: str, timeout: float = 120) -> str:
        """Output of ``gardener landscape ... --name``; fails the test with all it said if it fails."""
        return run(BIN / "gardener", "landscape", *arguments, "--name", self.name, timeout=timeout)

    def kubectl(self, cluster: str, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        return run(*self.argv(cluster, *arguments), stdin=stdin, timeout=timeout)

    def argv(self, cluster: str, *arguments: str) -> list[str]:
        """Command line of kubectl in one of its clusters."""
        return [str(BIN / "kubectl"), f"--kubeconfig={self.directory}/kubeconfigs/{cluster}.yaml", *arguments]

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.gardener("status", "-o", "json"))
        return status

    @property
    def pids(self) -> dict[str, int]:
        return {name: process["pid"] for name, process in self.status["processes"].items()}

    @property
    def directory(self) -> Path:
        """Where it keeps its state."""
        return Path.home() / f".local/state/gardener/landscapes/{self.name}"

    @property
    def facts(self) -> dict[str, Any]:
        """Addresses and files, as programs find them."""
        facts: dict[str, Any] = json.loads((self.directory / "landscape.json").read_text())
        return facts

    def address(self, cluster: str) -> str:
        """Of its API server; a seed's gateway has it, too."""
        server: str = self.facts["clusters"][cluster]["server"]
        return urlsplit(server).hostname or ""

    def up(self) -> None:
        self.gardener("up", timeout=_UP_SECONDS)

    def down(self) -> None:
        self.gardener("down", timeout=300)


def run(*argv: str | Path, stdin: str | None = None, timeout: float = 60) -> str:
    done = subprocess.run(
        [str(part) for part in argv], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, argv))}\nexit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@pytest.fixture(scope="session")
def landscape() -> Iterator[Landscape]:
    """A landscape that is up. Whoever breaks something in it mends it."""
    if name := os.environ.get("GARDENER_TEST_LANDSCAPE"):
        yield Landscape(name)
        return
    landscape = Landscape("test")
    landscape.up()
    yield landscape
    landscape.down()


@pytest.fixture(scope="session")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Shoot]":
    """The Shoot with two machines that tests share, created. Its deletion is the last of the tests in test_shoot."""
    from tests.landscape.shoots import CREATION, Shoot

    shoot = Shoot(landscape, "tests", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest(machines=2))
    shoot.wait_for_state("Succeeded", CREATION)
    yield shoot
    if not os.environ.get("GARDENER_TEST_KEEP"):
        shoot.remove()
