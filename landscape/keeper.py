"""Keeper of the landscape: restarts processes that have ended, as a kubelet or systemd does.

It finds the processes by the files that ``Processes`` writes. A process without a file was stopped on purpose.
"""

import contextlib
import os
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from landscape.code import code_digest
from landscape.processes import Processes, ProcessSpec, Running

NAME = "keeper"
_SEARCH_SECONDS = 0.5
"""Seconds between two searches for processes that other commands have started."""
_SHORTEST, _LONGEST = 0.5, 20.0
"""Shortest and longest delay of a restart in seconds: doubled each time, reset after a run of at least a minute."""
_STABLE = 60.0


def process(processes_directory: Path, logs: Path) -> ProcessSpec:
    argv = (sys.executable, "-m", "landscape.keeper", str(processes_directory), str(logs))
    return ProcessSpec(NAME, argv, environment={"GARDENER_VERSION": code_digest("landscape")})


@dataclass
class Watched:
    """State of one process in the keeper."""

    running: Running
    descriptor: int | None
    """File descriptor that becomes readable when the process ends; ``None`` if it has ended."""
    since: float
    restart_at: float = 0.0


@dataclass
class Keeper:
    """Watches the processes of one landscape."""

    processes: Processes
    _watched: dict[str, Watched] = field(default_factory=dict)
    _delays: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        while True:
            self._discover()
            self._wait()
            self._restart()

    def _discover(self) -> None:
        """Watch processes that were started, and no longer those that were stopped."""
        found = {running.spec.name: running for running in self.processes.all() if running.spec.name != NAME}
        for name in [name for name, watched in self._watched.items() if found.get(name) != watched.running]:
            self._release(self._watched.pop(name))
        for name in found.keys() - self._watched.keys():
            running = found[name]
            descriptor = None
            with contextlib.suppress(ProcessLookupError):
                if running.alive:
                    descriptor = os.pidfd_open(running.pid)
            self._watched[name] = Watched(running, descriptor, time.monotonic())
            if descriptor is None:
                self._schedule(self._watched[name])

    def _wait(self) -> None:
        """Sleep until a process ends, a restart is due, or the next search for new processes is due."""
        poller = select.poll()
        names = {}
        pause = _SEARCH_SECONDS
        for name, watched in self._watched.items():
            if watched.descriptor is not None:
                poller.register(watched.descriptor, select.POLLIN)
                names[watched.descriptor] = name
            else:
                pause = min(pause, max(0.0, watched.restart_at - time.monotonic()))
        for descriptor, _ in poller.poll(pause * 1000):
            watched = self._watched[names[descriptor]]
            self._release(watched)
            self._schedule(watched)

    def _schedule(self, watched: Watched) -> None:
        name, now = watched.running.spec.name, time.monotonic()
        last = self._delays.get(name, 0.0) if now - watched.since < _STABLE else 0.0
        delay = min(_LONGEST, last * 2) if last else _SHORTEST
        self._delays[name] = delay
        watched.restart_at = now + delay
        print(f"{name} (pid {watched.running.pid}) has ended, starting it again in {delay:.1f} s", flush=True)

    def _restart(self) -> None:
        for name, watched in list(self._watched.items()):
            if watched.descriptor is None and watched.restart_at <= time.monotonic():
                del self._watched[name]
                self.processes.restart(watched.running)

    @staticmethod
    def _release(watched: Watched) -> None:
        if watched.descriptor is not None:
            os.close(watched.descriptor)
            watched.descriptor = None
        with contextlib.suppress(ChildProcessError):  # reap what the keeper itself had started
            os.waitpid(watched.running.pid, os.WNOHANG)


if __name__ == "__main__":
    Keeper(Processes(Path(sys.argv[1]), Path(sys.argv[2]))).run()
