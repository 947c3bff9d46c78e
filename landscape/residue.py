"""Cleanup after the processes of a node: containers, shims, mounts, control groups, and files of CNI and kubelet."""

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from landscape import cgroups
from landscape.plan import NodePlan, Plan
from landscape.processes import start_time, stop

_MNT_DETACH = 2
_CNI_RESULTS = Path("/var/lib/cni/results")
_CONTAINER_LOGS = Path("/var/log/containers")
_FIXED = (
    *(_CNI_RESULTS, _CNI_RESULTS.parent, _CONTAINER_LOGS),
    *map(Path, ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet", "/run/containerd/s", "/run/containerd")),
)
"""Directories that containerd, CNI and kubelet create at fixed paths, innermost first."""


def remove_pods(plan: Plan) -> None:
    """Kill all containers of the landscape, and remove their mounts, cgroups and files."""
    nodes = [node for cluster in plan.clusters for node in cluster.nodes]
    kill_pods(nodes)
    sockets = [socket for node in nodes for socket in _shim_sockets(node)]
    unmount_below(plan.directory, plan.run_directory)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for node in nodes:
        cgroups.remove(node.cgroup)
        _remove_cni_results(node)
    _remove_log_links(plan)
    for directory in _FIXED:
        with contextlib.suppress(OSError):
            directory.rmdir()  # only if it is empty


def kill_pods(nodes: Sequence[NodePlan]) -> None:
    """Kill all containers of the nodes, without further cleanup."""
    # Shims before containers: a shim that sees its container end would write to its containerd.
    stop(shims(nodes), grace=3.0, signals=(signal.SIGKILL,))
    for node in nodes:
        cgroups.kill(node.cgroup)


def unmount_below(*directories: Path) -> None:
    """Detach every mount at or below the directories, deepest first."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in sorted(_mount_points(*directories), key=len, reverse=True):
        if libc.umount2(os.fsencode(point), _MNT_DETACH) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.ENOENT):  # gone meanwhile, with what it was mounted on
                raise OSError(code, f"unmounting {point}: {os.strerror(code)}")


def _mount_points(*directories: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if any(Path(point).is_relative_to(directory) for directory in directories):
            yield point


def shims(nodes: Sequence[NodePlan]) -> list[tuple[int, int]]:
    """Pids and start times of our shims. The command line of a shim contains the socket of its containerd."""
    sockets = {os.fsencode(node.containerd_socket) for node in nodes}
    ours = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in arguments[0] and sockets & set(arguments):
                    ours.append((int(entry.name), start_time(int(entry.name)) or 0))
    return ours


def _shim_sockets(node: NodePlan) -> Iterator[Path]:
    """Sockets of the shims, which are outside of our directories; the bundle of each task names its socket."""
    tasks = node.run_directory / "containerd" / "io.containerd.runtime.v2.task"
    for file in tasks.glob("*/*/address"):
        yield Path(file.read_text().removeprefix("unix://"))


def _remove_cni_results(node: NodePlan) -> None:
    """Remove results of CNI: one directory has them all, named by network and sandbox, including loopback networks."""
    prefix, suffix = f"{node.netns}-", "-eth0"
    for file in _CNI_RESULTS.glob(f"{prefix}*{suffix}"):
        sandbox = file.name.removeprefix(prefix).removesuffix(suffix)
        file.unlink(missing_ok=True)
        (_CNI_RESULTS / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)


def _remove_log_links(plan: Plan) -> None:
    """Remove links to logs: the kubelets create one for each container in one directory."""
    if not _CONTAINER_LOGS.is_dir():
        return
    for link in _CONTAINER_LOGS.iterdir():
        if link.is_symlink() and Path(os.readlink(link)).is_relative_to(plan.directory):
            link.unlink(missing_ok=True)
