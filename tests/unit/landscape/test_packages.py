"""On a machine that can't be prepared, one learns what is missing and what to do."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "landscape" / "packages.sh"


@dataclass
class Bare:
    path: Path
    """Directory with all commands that are on the PATH."""

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = ["/bin/sh", str(SCRIPT), *arguments]
        return subprocess.run(command, env={"PATH": str(self.path)}, capture_output=True, text=True, check=False)


@pytest.fixture
def bare(tmp_path):
    """A PATH with next to nothing on it; the script itself adds the directories of administrators' commands."""
    for command in ("basename", "id"):
        (tmp_path / command).symlink_to(f"/usr/bin/{command}")

    return Bare(tmp_path)


def be(bare, user: int) -> None:
    (bare.path / "id").unlink()
    (bare.path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (bare.path / "id").chmod(0o755)


def test_without_apt_the_missing_packages_are_named(bare):
    be(bare, 0)

    done = bare()

    assert done.returncode == 1
    assert "containerd" in done.stderr
    assert "there is no apt-get here: install what corresponds to them" in done.stderr


def test_a_user_without_root_is_told_to_become_root(bare):
    be(bare, 1000)

    done = bare()

    assert done.returncode == 1
    assert "missing Debian packages: containerd" in done.stderr
    assert "run this as root" in done.stderr


def test_a_missing_python_is_a_package_like_any_other(bare):
    be(bare, 1000)

    done = bare("python")

    assert done.returncode == 1
    assert "missing Debian packages: python3 python3-venv" in done.stderr
