"""Processes of a landscape: detached, with a log file each, and known by pid *and* start time.

A pid alone may belong to another process after a reboot or a wrap-around; together with the start time it identifies
one process. So this module never signals a process that the landscape did not start.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from landscape.errors import LandscapeError

_HOPELESS = 4
"""Number of starts after which a process counts as broken."""
_AMPLE_MEMORY = 7 * 2**30
"""Bytes. A landscape with one Shoot needs 4.6 GiB with ``_HEAP_GROWTH``, and 0.6 GiB less without."""
_HEAP_GROWTH = 150
_KEPT_ENVIRONMENT = ("PATH", "HOME", "LANG", "TZ")


def go_environment(heap_growth: int) -> dict[str, str]:
    """Environment of a program in Go: by how many percent its heap grows until it collects garbage. Go's own is 100.

    With more it needs less CPU time and more memory. ``heap_growth`` is for machines with little memory. If GOGC is set
    in our environment, that is taken on all machines.
    """
    chosen = _HEAP_GROWTH if _memory() >= _AMPLE_MEMORY else heap_growth
    return {"GOGC": os.environ.get("GOGC", str(chosen))}


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class ProcessSpec:
    """A process to run. Its name is ``<cluster>/<component>``, or one word for a service of the host."""

    name: str
    argv: tuple[str, ...]
    netns: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"

    @property
    def file_name(self) -> str:
        return self.name.replace("/", "-")


@dataclass(frozen=True)
class Running:
    """A started process."""

    spec: ProcessSpec
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""
    starts: int = 1
    """Number of starts, to recognize a process that ends again and again."""

    @property
    def alive(self) -> bool:
        state = _state(self.pid)
        return state is not None and state[1] == self.start_time and state[0] != "Z"

    @property
    def stopped(self) -> bool:
        """Whether it is paused (SIGSTOP)."""
        state = _state(self.pid)
        return state is not None and state[1] == self.start_time and state[0] == "T"


class Processes:
    """Processes of one landscape; ``directory`` has one file for each process that was started."""

    def __init__(self, directory: Path, logs: Path) -> None:
        self._directory = directory
        self._logs = logs

    def start(self, spec: ProcessSpec) -> Running:
        """Start the process unless it runs; a process whose arguments have changed is replaced."""
        with self._locked(spec.name):
            known = self.find(spec.name)
            if known is not None and known.alive:
                if known.spec == spec:
                    return known
                stop([(known.pid, known.start_time)], grace=10.0)
            return self._launch(spec, starts=1)

    def restart(self, dead: Running) -> None:
        """Restart a process that has ended, unless another command has restarted it or stopped it on purpose."""
        with self._locked(dead.spec.name):
            if self.find(dead.spec.name) == dead and not dead.alive:
                self._launch(dead.spec, starts=dead.starts + 1)

    def _launch(self, spec: ProcessSpec, starts: int) -> Running:
        self._logs.mkdir(parents=True, exist_ok=True)
        argv = list(spec.argv)
        if spec.netns is not None:
            # Not "ip netns exec": that mounts a new /sys, in which the cgroup mounts are gone.
            argv = ["nsenter", f"--net=/run/netns/{spec.netns}", "--", *argv]
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        with self.log(spec.name).open("ab") as log:
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=spec.directory,
                    env=environment | dict(spec.environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise LandscapeError(f"starting {spec.name}: {error.strerror}: {argv[0]}") from None
        state = _state(child.pid)
        # init reaps the process after we have ended; Popen must not warn about a child that outlives it.
        child.returncode = 0
        running = Running(spec=spec, pid=child.pid, start_time=state[1] if state else 0, starts=starts)
        file = self._file(spec.name)
        scratch = file.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(running)))
        scratch.replace(file)
        return running

    def find(self, name: str) -> Running | None:
        try:
            content = json.loads(self._file(name).read_text())
        except FileNotFoundError:
            return None
        spec = content.pop("spec")
        spec["argv"] = tuple(spec["argv"])
        return Running(spec=ProcessSpec(**spec), **content)

    def all(self) -> Iterator[Running]:
        """All processes that were started, including those that have ended."""
        if not self._directory.is_dir():
            return
        for file in sorted(self._directory.glob("*.json")):
            name = json.loads(file.read_text())["spec"]["name"]
            if running := self.find(name):
                yield running

    def get(self, name: str) -> Running:
        running = self.find(name)
        if running is None:
            known = ", ".join(known.spec.name for known in self.all())
            raise LandscapeError(f"no process {name!r}: there are {known or 'none'}")
        return running

    def log(self, name: str) -> Path:
        return self._logs / f"{name.replace('/', '-')}.log"

    def send(self, running: Running, number: signal.Signals) -> bool:
        """Signal the process; ``False`` if it has ended."""
        return send(running.pid, running.start_time, number)

    def stop(self, processes: Sequence[Running], grace: float = 5.0, *, politely: bool = True) -> None:
        """Stop processes by SIGTERM, after ``grace`` seconds by SIGKILL, and remove their files."""
        for running in processes:
            with self._locked(running.spec.name):
                self._file(running.spec.name).unlink(missing_ok=True)
        signals = (signal.SIGTERM, signal.SIGKILL) if politely else (signal.SIGKILL,)
        stop([(running.pid, running.start_time) for running in processes], grace, signals)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Lock of starts: commands and the keeper start processes one at a time, so that none is started twice."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._file(name).with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def hopeless(self, name: str) -> str | None:
        """Reason for which a process will not become ready: it ends again and again. ``None`` if it may."""
        running = self.find(name)
        if running is None or running.alive or running.starts < _HOPELESS:
            return None
        lines = self.log(name).read_text(errors="replace").strip().splitlines()
        return f"{name} ended {running.starts} times, see {self.log(name)}: {' / '.join(lines[-3:])[-600:]}"

    def _file(self, name: str) -> Path:
        return self._directory / f"{name.replace('/', '-')}.json"


def stop(
    processes: Sequence[tuple[int, int]],
    grace: float,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
) -> None:
    """Stop processes, given by pid and start time: a signal, a wait of at most ``grace`` seconds, the next signal."""
    for number in signals:
        for pid, start_time in processes:
            if send(pid, start_time, number) and number is signal.SIGTERM:
                # A paused process handles signals only after it is resumed.
                send(pid, start_time, signal.SIGCONT)
        deadline = time.monotonic() + grace
        while processes and time.monotonic() < deadline:
            processes = [process for process in processes if _runs(*process)]
            if processes:
                _await_any_exit(processes, deadline)


def start_time(pid: int) -> int | None:
    """Start time of a process; ``None`` if no process has this pid."""
    state = _state(pid)
    return state[1] if state else None


def _await_any_exit(processes: Sequence[tuple[int, int]], deadline: float) -> None:
    """Block until one of the processes ends or the deadline passes."""
    poller = select.poll()
    descriptors = []
    try:
        for pid, _ in processes:
            with contextlib.suppress(ProcessLookupError):
                descriptors.append(os.pidfd_open(pid))
                poller.register(descriptors[-1], select.POLLIN)
        if len(descriptors) == len(processes):
            poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    for pid, _ in processes:
        # Our own ended children stay zombies until we wait for them; for other processes the call is an error.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def send(pid: int, started: int, number: signal.Signals) -> bool:
    """Signal the process, given by pid and start time; ``False`` if it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor refers to one process: check after the open whether that is the process that we started.
        if not _runs(pid, started):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _runs(pid: int, started: int) -> bool:
    state = _state(pid)
    return state is not None and state[1] == started and state[0] != "Z"


def _state(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name, in parentheses, may itself hold spaces and parentheses.
    fields = content[content.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])
