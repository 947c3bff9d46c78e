"""The commands of the documents, typed as a reader types them: in a shell, in their order, for the Shoot of the tests.

A command must succeed and print what its document shows. Some commands make sense in another situation than that of a
Shoot without faults: those must be refused, with the right reason.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.landscape.bastions import KEY, KIND, NAME, left_in_cloud, names
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import Shoot, eventually
from tests.walkthroughs import ON_A_LANDSCAPE, ROOT, Command, commands, pattern_of

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

SEED = "seed-2"
"""Seed for the documents' seed-1: test_own_credentials annotates seed-1 meanwhile."""
IN_A_SEED = ("kubectl -n garden ", "kubectl -n shoot--")
REFUSED = {
    "gardener flow retry": "nothing to retry: no operation of Shoot garden-local/[a-z]+ has failed",
    "gardener credentials complete": "no rotation of the .* is under way",
}
"""Beginnings of commands that a Shoot without faults and rotations refuses, and the reason."""
_END = "\x1e"


class Reader:
    """A reader's shell in a directory with the files that the documents mention."""

    def __init__(self, shoot: Shoot, directory: Path) -> None:
        self.shoot = shoot
        self.directory = directory
        shutil.copy(shoot.kubeconfig, directory / "shoot.kubeconfig")
        (directory / ".venv").symlink_to(sys.prefix)
        (directory / "manifests.yaml").write_text(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: walkthrough, namespace: default}}\n"
        )
        shutil.copytree(ROOT / "examples", directory / "examples")
        for file in (directory / "examples").glob("*.yaml"):
            text = self.translated(file.read_text())
            file.write_text(re.sub(r"ssh-ed25519 \S+EXAMPLE .*", KEY, text))
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(Path.home()), "GARDENER_LANDSCAPE": shoot.landscape.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()

    def translated(self, text: str) -> str:
        """The text with the Shoot of the tests for the documents' Shoot, and one seed for theirs."""
        return re.sub(r"\bdemo\b", self.shoot.name, text).replace("seed-1", SEED)

    def type(self, command: Command) -> tuple[int, str]:
        """Exit status and output of a command."""
        cluster = "garden"
        if command.text.startswith(IN_A_SEED):
            cluster = self.shoot.seed if "shoot--" in command.text else SEED
        kubeconfig = self.shoot.landscape.directory / f"kubeconfigs/{cluster}.yaml"
        text = self.translated(command.text)
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f"export KUBECONFIG={kubeconfig}\n{{ {text}\n}} < /dev/null\necho {_END}$?\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            said, end, status = line.partition(_END)
            lines.append(said)
            if end:
                print(f"{command}: $ {text}\n{''.join(lines)}")
                return int(status), "".join(lines)
        raise AssertionError(f"{command}: the shell ended")


@pytest.fixture
def reader(shoot: Shoot, tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        reader = Reader(shoot, tmp_path)
        stack.callback(reader.close)
        yield reader


def _until_maintained(shoot: Shoot) -> None:
    def maintained() -> bool:
        return bool((shoot.get()["status"].get("lastMaintenance") or {}).get("state") == "Succeeded")

    eventually(maintained, "the maintenance has succeeded", 60)


BEFORE: dict[str, Callable[[Shoot], None]] = {
    "kubectl -n garden-local get shoot demo -o jsonpath='{.status.lastMaintenance}'": _until_maintained,
}
"""Actions before a command, by other actors than the reader."""


def _bastion(shoot: Shoot, stack: ExitStack) -> None:
    def remove() -> None:
        shoot.garden("delete", KIND, NAME, "--ignore-not-found")
        eventually(lambda: not names(shoot, KIND), "no Bastion is left", 30)
        assert left_in_cloud(shoot) == []

    stack.callback(remove)


def _maintenance(shoot: Shoot, stack: ExitStack) -> None:
    stack.callback(lambda: shoot.wait_until_reconciled(120))


def _secret_of_manifests(shoot: Shoot, stack: ExitStack) -> None:
    remove = ("-n", "garden", "delete", "secret", "baseline", "--ignore-not-found")
    stack.callback(lambda: shoot.landscape.kubectl(SEED, *remove))
    stack.callback(lambda: eventually(lambda: not _is_asked(shoot.landscape), f"{SEED} is reconciled", 60))


def _is_asked(landscape: Landscape) -> bool:
    path = r"jsonpath={.metadata.annotations.gardener\.cloud/operation}"
    return bool(landscape.kubectl("garden", "get", "seed", SEED, "-o", path))


AROUND: dict[str, Callable[[Shoot, ExitStack], None]] = {
    "docs/operations/bastions.md": _bastion,
    "docs/operations/schedules.md": _maintenance,
    "docs/operations/seed.md": _secret_of_manifests,
}
"""Preconditions of a document, and clean-up after its commands."""


@pytest.mark.parametrize("document", ON_A_LANDSCAPE)
def test_the_commands_of_a_document_do_what_it_says(document: str, reader: Reader) -> None:
    seen = ""
    with ExitStack() as stack:
        if document in AROUND:
            AROUND[document](reader.shoot, stack)
        for command in commands(document):
            if not command.text.startswith(ON_A_LANDSCAPE[document]):
                continue
            for beginning, happens in BEFORE.items():
                if command.text.startswith(beginning):
                    happens(reader.shoot)
            if "5fc99295" in command.text:  # the document's kubeconfig: the last one that is listed
                [*_, number] = re.findall(r"^([0-9a-f]{8}) ", seen, re.M)
                command.text = command.text.replace("5fc99295", number)
            status, seen = reader.type(command)
            _check(command, status, seen, reader)


def _check(command: Command, status: int, seen: str, reader: Reader) -> None:
    for beginning, reason in REFUSED.items():
        if command.text.startswith(beginning):
            assert status, f"{command} succeeded: {seen}"
            assert re.search(reason, seen), f"{command}: {seen}"
            return
    assert status == 0, f"{command}: {seen}"
    lines = [" ".join(line.split()) for line in seen.splitlines()]
    for shown in command.output:
        pattern = pattern_of(reader.translated(shown))
        assert any(pattern.fullmatch(line) for line in lines), f"{command}: no line is like {shown!r}: {seen}"
