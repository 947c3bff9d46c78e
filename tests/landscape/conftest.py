"""Helpers of tests on a landscape; the fixtures are in tests/conftest.py."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

BIN = Path(sys.executable).parent
_UP_SECONDS = 25 * 60
"""From nothing: Kubernetes is compiled."""


@dataclass(frozen=True)
class Landscape:
    """A landscape, used with the commands that a user has."""

    name: str
    bin: Path = BIN
    """Directory of the commands; those of an earlier version make a landscape of that version."""

    def gardener(self, *arguments: str, timeout: float = 120) -> str:
        """Output of ``gardener landscape ... --name``; fails the test with all it said if it fails."""
        return run(self.bin / "gardener", "landscape", *arguments, "--name", self.name, timeout=timeout)

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
        """Address of its API server; a seed's gateway has it, too."""
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
