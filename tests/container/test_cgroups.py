"""Control groups of version 2 in a container, where the root has a rule that a machine's own does not."""

from pathlib import Path

import pytest

from landscape import cgroups

NODE = "gardener-a-cloud"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """As the kernel shows it in a container: the root has a type, and processes, one of which is not visible there."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.procs").write_text("12\n0\n")
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / NODE).mkdir()
    (tmp_path / NODE / "cgroup.controllers").write_text("memory\n")
    return tmp_path


def test_a_containers_processes_make_room_for_nodes(root):
    """With a process in the root no controller is handed down, and no kubelet starts."""
    cgroups.create(f"/{NODE}", root)

    assert (root / "init/cgroup.procs").read_text() == "12"
    assert (root / NODE / "cgroup.subtree_control").read_text() == "+memory"


def test_a_machines_own_processes_stay_where_they_are(root):
    (root / "cgroup.type").unlink()

    cgroups.create(f"/{NODE}", root)

    assert not (root / "init").exists()
