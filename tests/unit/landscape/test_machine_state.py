"""Changes of a landscape on the machine, and their removal: control groups, kernel limits, links, files."""

import os

import pytest

from landscape import cgroups, containerd, kernel, network, residue
from landscape.files import write_if_changed
from landscape.plan import Plan


@pytest.fixture
def hierarchies(tmp_path):
    """Version 1 as the kernel shows it: a cpuset that knows its CPUs, and a link for a joined hierarchy."""
    for name in ("cpuset", "memory", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0")
    (tmp_path / "cpu").symlink_to("memory")
    return tmp_path


def test_a_node_gets_its_cgroup_in_every_hierarchy(hierarchies):
    cgroups.create("/gardener-a-seed-1", hierarchies)
    cgroups.create("/gardener-a-seed-1", hierarchies)

    assert (hierarchies / "memory" / "gardener-a-seed-1").is_dir()
    assert (hierarchies / "pids" / "gardener-a-seed-1").is_dir()


def test_a_new_cpuset_may_use_the_cpus_of_the_machine(hierarchies):
    """In an empty cpuset no process can run: the kubelet fails with a message about something else."""
    cgroups.create("/gardener-a-seed-1", hierarchies)

    assert (hierarchies / "cpuset" / "gardener-a-seed-1" / "cpuset.cpus").read_text() == "0-1"
    assert (hierarchies / "cpuset" / "gardener-a-seed-1" / "cpuset.mems").read_text() == "0"


def test_pods_of_a_node_outweigh_single_processes(hierarchies):
    """Otherwise control planes get hardly any time while ``up`` starts dozens of processes."""
    (hierarchies / "cpu" / "cpu.shares").write_text("1024")

    cgroups.create("/gardener-a-seed-1", hierarchies)

    assert int((hierarchies / "cpu" / "gardener-a-seed-1" / "cpu.shares").read_text()) > 4 * 1024
    assert not (hierarchies / "pids" / "gardener-a-seed-1" / "cpu.shares").exists()


def test_cgroups_of_others_stay(hierarchies):
    cgroups.create("/gardener-a-seed-1", hierarchies)
    (hierarchies / "memory" / "gardener-a-seed-1" / "kubepods" / "pod1").mkdir(parents=True)
    (hierarchies / "memory" / "gardener-a-seed-10").mkdir()

    cgroups.remove("/gardener-a-seed-1", hierarchies)

    assert not (hierarchies / "memory" / "gardener-a-seed-1").exists()
    assert (hierarchies / "memory" / "gardener-a-seed-10").is_dir()


def test_processes_of_all_hierarchies_are_found(hierarchies):
    for name, pids in (("memory", "10\n11\n"), ("pids", "11\n12\n0\n")):
        (hierarchies / name / "gardener-a" / "pod").mkdir(parents=True)
        (hierarchies / name / "gardener-a" / "pod" / "cgroup.procs").write_text(pids)

    assert cgroups.processes("/gardener-a", hierarchies) == {10, 11, 12}


@pytest.fixture
def system(tmp_path):
    directory = tmp_path / "sys/fs/inotify"
    directory.mkdir(parents=True)
    (directory / "max_user_instances").write_text("128\n")
    (directory / "max_user_watches").write_text("1000000\n")
    return tmp_path / "sys"


def test_limits_are_raised_and_put_back(system, tmp_path):
    record = tmp_path / "record.json"
    kernel.raise_limits(record, system)
    kernel.raise_limits(record, system)  # a second landscape
    assert (system / "fs/inotify/max_user_instances").read_text() == "8192"
    assert (system / "fs/inotify/max_user_watches").read_text() == "1000000\n", "high enough already"

    kernel.restore_limits(record, system)

    assert (system / "fs/inotify/max_user_instances").read_text() == "128"
    assert not record.exists()


def test_a_limit_that_an_administrator_changed_meanwhile_stays(system, tmp_path):
    kernel.raise_limits(tmp_path / "record.json", system)
    (system / "fs/inotify/max_user_instances").write_text("65536")

    kernel.restore_limits(tmp_path / "record.json", system)

    assert (system / "fs/inotify/max_user_instances").read_text() == "65536"


def test_a_copied_containerd_root_shares_layers_and_owns_its_databases(tmp_path):
    """Two containerds that write to one database destroy it."""
    import asyncio

    prepared = tmp_path / "prepared"
    blob = prepared / "io.containerd.content.v1.content" / "blobs" / "b"
    for file in (
        blob,
        prepared / "io.containerd.metadata.v1.bolt" / "meta.db",
        prepared / "io.containerd.snapshotter.v1.overlayfs" / "metadata.db",
        prepared / "imported.json",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")

    asyncio.run(containerd.copy(prepared, tmp_path / "copy"))

    def shared(name: str) -> bool:
        return os.path.samefile(prepared / name, tmp_path / "copy" / name)

    assert shared("io.containerd.content.v1.content/blobs/b")
    assert not shared("io.containerd.metadata.v1.bolt/meta.db")
    assert not shared("io.containerd.snapshotter.v1.overlayfs/metadata.db")
    assert not shared("imported.json")


def test_containerd_writes_only_into_the_landscape(tmp_path, monkeypatch):
    monkeypatch.setattr(containerd, "cni_plugins", lambda: "/usr/lib/cni")
    plan = Plan("a", 1, "1.37.1", state_home=tmp_path)
    seed = plan.cluster("seed-1")

    text = containerd.config(seed.directory / "containerd", seed.run_directory, seed.directory / "cni", tmp_path)

    paths = [line.split('"')[1] for line in text.splitlines() if '= "/' in line and "bin_dir" not in line]
    assert len(paths) >= 5
    assert all(path.startswith((str(plan.directory), "/run/gardener/a/")) for path in paths), paths


def test_results_of_cni_go_with_their_cluster_only(tmp_path, monkeypatch):
    monkeypatch.setattr(residue, "_CNI_RESULTS", tmp_path)
    for name in (
        "gardener-a-seed-1-s1-eth0",
        "cni-loopback-s1-lo",
        "gardener-b-seed-1-s2-eth0",
        "cni-loopback-s2-lo",
    ):
        (tmp_path / name).touch()

    residue._remove_cni_results(Plan("a", 1, "1.37.1", state_home=tmp_path).cluster("seed-1").nodes[0])

    assert sorted(file.name for file in tmp_path.iterdir()) == ["cni-loopback-s2-lo", "gardener-b-seed-1-s2-eth0"]


def test_a_seed_that_never_was_is_not_called_cut(tmp_path):
    assert network.is_cut(Plan("a", 15, "1.37.1", state_home=tmp_path), "seed-1") is False


def test_a_file_that_has_its_content_is_not_touched(tmp_path):
    """kube-proxy ends when its configuration is written, changed or not."""
    file = tmp_path / "config"
    write_if_changed(file, "same")
    os.utime(file, ns=(1, 1))

    write_if_changed(file, "same")
    assert file.stat().st_mtime_ns == 1
    write_if_changed(file, "other")

    assert file.read_text() == "other"
