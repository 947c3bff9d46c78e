"""Real files, loop devices and file systems of disks, on this machine: it needs root, as a landscape does."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from landscape import residue
from landscape.disks import Files

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(60)]

MEBIBYTE = 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    residue.unmount_below(tmp_path)


def disk(size: str, name: str = "pvc-1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "infra", "uid": f"uid-{name}"}, "spec": {"size": size}}


def capacity(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_blocks * found.f_frsize


def fill(file: Path, mebibytes: int) -> None:
    with file.open("wb", buffering=0) as written:
        for _ in range(mebibytes):
            written.write(bytes(MEBIBYTE))


def left(root: Path) -> list[Path]:
    return [each for each in root.rglob("*") if each.is_file() or each.is_mount()]


def devices(root: Path) -> str:
    """Loop devices of files below a directory."""
    listed = subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in listed.splitlines() if str(root) in line)


async def test_a_disk_keeps_its_content_from_machine_to_machine_grows_in_use_and_leaves_nothing(root: Path) -> None:
    files = Files(root)
    assert await files.ensure(disk("400Mi")) == 400 * MEBIBYTE
    await files.attach(disk("400Mi"), "m1")
    await files.attach(disk("400Mi"), "m1")
    [place] = files.mounts(disk("400Mi"))
    assert files.of_machine("infra", "m1") == ["pvc-1"]
    assert capacity(place) < 400 * MEBIBYTE
    (place / "file").write_text("kept")

    assert await files.ensure(disk("1Gi")) == 1024 * MEBIBYTE
    assert capacity(place) > 900 * MEBIBYTE
    assert (place / "file").read_text() == "kept"
    await files.detach(place)
    assert not devices(root), "a disk that no machine has takes no device"

    assert await files.ensure(disk("2Gi")) == 2048 * MEBIBYTE
    await files.attach(disk("2Gi"), "m2")
    [place] = files.mounts(disk("2Gi"))
    assert place.parent.name == "m2"
    assert (place / "file").read_text() == "kept"
    assert capacity(place) > 1900 * MEBIBYTE, "grown while no machine had it"

    await files.delete(disk("2Gi"))
    files.forget_machine("infra", "m2")
    assert not devices(root)
    assert not left(root)


async def test_a_disk_is_no_larger_than_its_size(root: Path) -> None:
    files = Files(root)
    await files.ensure(disk("1Mi"))
    await files.attach(disk("1Mi"), "m1")
    [place] = files.mounts(disk("1Mi"))

    with pytest.raises(OSError, match="No space left"):
        fill(place / "file", 300)
    await files.delete(disk("1Mi"))


async def test_the_disk_of_a_dead_machine_is_shared_with_the_next_one_and_not_mounted_twice(root: Path) -> None:
    """Two file systems on one file would destroy each other."""
    files = Files(root)
    await files.ensure(disk("300Mi"))
    await files.attach(disk("300Mi"), "m1")
    await files.attach(disk("300Mi"), "m2")
    one, two = files.mounts(disk("300Mi"))

    (one / "file").write_text("seen")

    assert (two / "file").read_text() == "seen"
    assert len(devices(root).splitlines()) == 1
    await files.delete(disk("300Mi"))
