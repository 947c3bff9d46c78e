"""Control groups of the landscape's nodes: one root per node, in every hierarchy."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from landscape.processes import start_time, stop

_ROOT = Path("/sys/fs/cgroup")
_LEAF = "init"
"""Child cgroup for the container's own processes; container engines find them by process, not by name."""
SHARES = 8 * 1024
"""Weight of all pods of a node when processes wait for the CPUs. A process outside all cgroups has 1024, and ``up``
runs dozens of these while the pods of control planes serve. In version 2 such processes have a cgroup of their own."""


def create(cgroup: str, root: Path = _ROOT) -> None:
    """Create the cgroup of a node before its kubelet starts: a kubelet creates none at the top level."""
    name = cgroup.lstrip("/")
    if (root / "cgroup.controllers").exists():  # version 2 alone
        directory = root / name
        directory.mkdir(exist_ok=True)
        _clear(root)
        for parent in (root, directory):
            for controller in (parent / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):  # some may be refused: cpu, where there are realtime processes
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    for hierarchy in _hierarchies(root):
        directory = hierarchy / name
        directory.mkdir(exist_ok=True)
        if (hierarchy / "cpuset.cpus").exists():  # empty in a new cpuset: nothing could run in it
            for file in ("cpuset.cpus", "cpuset.mems"):
                (directory / file).write_text((hierarchy / file).read_text())
        if (hierarchy / "cpu.shares").exists():
            (directory / "cpu.shares").write_text(str(SHARES))


def _clear(root: Path) -> None:
    """Move the processes of a container's root cgroup to a child: a cgroup with processes cannot delegate controllers.

    The root cgroup of the machine, which has no type, is exempt from that rule.
    """
    if not (root / "cgroup.type").exists():
        return
    leaf = root / _LEAF
    for _ in range(20):  # they may fork meanwhile
        # 0 stands for processes that this container doesn't see.
        found = [pid for pid in (root / "cgroup.procs").read_text().split() if pid != "0"]
        if not found:
            return
        leaf.mkdir(exist_ok=True)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)


def processes(cgroup: str, root: Path = _ROOT) -> set[int]:
    """Pids of all processes in the cgroup and below it."""
    pids: set[int] = set()
    for directory in _directories(cgroup, root):
        with contextlib.suppress(FileNotFoundError):
            pids |= {int(pid) for pid in (directory / "cgroup.procs").read_text().split()}
    return pids - {0}


def kill(cgroup: str, root: Path = _ROOT) -> None:
    """Kill all processes in the cgroup, including those that are forked during the call."""
    for _ in range(20):
        found = [(pid, started) for pid in processes(cgroup, root) if (started := start_time(pid)) is not None]
        if not found:
            return
        stop(found, grace=2.0, signals=(signal.SIGKILL,))


def remove(cgroup: str, root: Path = _ROOT) -> None:
    """Remove the cgroup and its descendants; cgroups with processes stay."""
    for directory in _directories(cgroup, root):
        with contextlib.suppress(OSError):
            directory.rmdir()


def _directories(cgroup: str, root: Path) -> Iterator[Path]:
    """The cgroup's directories in every hierarchy, children before parents."""
    hierarchies = [root] if (root / "cgroup.controllers").exists() else list(_hierarchies(root))
    for hierarchy in hierarchies:
        top = hierarchy / cgroup.lstrip("/")
        if top.is_dir():
            yield from sorted((path for path in top.rglob("*") if path.is_dir()), key=_depth, reverse=True)
            yield top


def _depth(path: Path) -> int:
    return len(path.parts)


def _hierarchies(root: Path) -> Iterator[Path]:
    """Mount points of cgroup version 1 and version 2; linked controllers (cpu -> cpu,cpuacct) only once."""
    for entry in sorted(root.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and (entry / "cgroup.procs").exists():
            yield entry
