"""Roots of containerd: copied as a whole or not at all, and filled though containerd collects its garbage meanwhile."""

import json
from pathlib import Path

import pytest

from landscape import containerd
from landscape.errors import LandscapeError
from landscape.plan import Plan
from landscape.processes import Processes, ProcessSpec

_DATABASE = "io.containerd.metadata.v1.bolt/meta.db"
_BLOB = "io.containerd.content.v1.content/blobs/sha256/1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "prepared"
    for name in (_DATABASE, _BLOB):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("content")
    return root


async def test_a_copy_shares_blobs_and_no_database(root, tmp_path):
    await containerd.copy(root, tmp_path / "copy")

    assert (tmp_path / "copy" / _BLOB).samefile(root / _BLOB)
    assert not (tmp_path / "copy" / _DATABASE).samefile(root / _DATABASE)
    assert (tmp_path / "copy" / _DATABASE).read_text() == "content"


async def test_a_copy_that_was_interrupted_is_not_taken_for_one(root, tmp_path, monkeypatch):
    """A containerd on the prepared root's own database would spoil it for all clusters to come."""
    with monkeypatch.context() as patched:
        patched.setattr(containerd, "_unlink_databases", _killed)
        with pytest.raises(KeyboardInterrupt):
            await containerd.copy(root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()

    await containerd.copy(root, tmp_path / "copy")
    assert not (tmp_path / "copy" / _DATABASE).samefile(root / _DATABASE)


async def test_the_next_run_ends_the_containerd_of_a_killed_one(tmp_path, monkeypatch):
    monkeypatch.setattr(containerd, "_PREPARED", tmp_path / "prepared")
    monkeypatch.setattr(containerd, "RUN_HOME", tmp_path / "run")
    scratch, sockets = tmp_path / "prepared/.cloud-killed", tmp_path / "run/.prepare-1-cloud-killed"
    for directory in (scratch, sockets):
        directory.mkdir(parents=True)
    processes = Processes(scratch / "processes", scratch)
    left = processes.start(ProcessSpec("containerd", ("sleep", "300")))

    async def imported(root: Path, *_: object) -> list[str]:
        return []

    monkeypatch.setattr(containerd, "_import_offline", imported)
    await containerd.prepare("cloud", [])

    assert not left.alive
    assert not scratch.exists()
    assert not sockets.exists()


def test_machines_alone_have_addresses_of_both_families():
    plan = Plan("default", 0, "1.37.1")
    machines, pods = (
        json.loads(containerd.cni_config(cluster.nodes[0], enforces=False))["plugins"][0]["ipam"]
        for cluster in (plan.cloud, plan.seeds[0])
    )

    assert machines["ranges"] == [[{"subnet": "198.18.8.0/22"}], [{"subnet": "2001:2:0:8::/64"}]]
    assert machines["routes"] == [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    assert pods["ranges"] == [[{"subnet": "100.96.1.0/24"}]]
    assert pods["routes"] == [{"dst": "0.0.0.0/0"}]


def _killed(_: Path) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def ctr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A ctr that fails the given number of times, and records its calls."""

    def behaving(failures: int, message: str) -> Path:
        calls = tmp_path / "calls"
        calls.touch()
        program = tmp_path / "bin/ctr"
        program.parent.mkdir()
        program.write_text(
            f"#!/bin/sh\necho >> {calls}\n"
            f'if [ "$(wc -l < {calls})" -le {failures} ]; then echo "{message}" >&2; exit 1; fi\n'
            "echo unpacking an.example/image:1\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return calls

    return behaving


async def test_an_import_that_lost_a_layer_to_the_garbage_collection_is_repeated(ctr, tmp_path):
    calls = ctr(2, "parent snapshot sha256:1 does not exist: not found")
    archive = tmp_path / "images.tar"
    archive.write_text("archive")

    assert await containerd._import(tmp_path, tmp_path / "socket", [archive]) == ["images.tar"]
    assert len(calls.read_text().splitlines()) == 3
    assert containerd.imported(tmp_path)[str(archive)].images == ("an.example/image:1",)


@pytest.mark.parametrize(
    ("failures", "message", "attempts"),
    [(9, "parent snapshot sha256:1 does not exist: not found", 3), (9, "no space left on device", 1)],
)
async def test_an_import_that_cannot_work_says_why(ctr, tmp_path, failures, message, attempts):
    calls = ctr(failures, message)
    archive = tmp_path / "images.tar"
    archive.write_text("archive")

    with pytest.raises(LandscapeError, match=message):
        await containerd._import(tmp_path, tmp_path / "socket", [archive])
    assert len(calls.read_text().splitlines()) == attempts
