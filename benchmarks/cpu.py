"""CPU seconds of the programs on this machine, from one moment to another, and their memory. Source: proc(5)."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
ENDED = "processes that have ended"


@dataclass(frozen=True)
class Moment:
    """CPU seconds that each process has used since it started, and the whole machine since it was booted."""

    processes: dict[tuple[int, str], float]
    """By process id and program."""
    machine: float

    @classmethod
    def now(cls) -> "Moment":
        processes = {}
        for directory in _PROC.iterdir():
            if directory.name.isdigit():
                try:
                    processes[int(directory.name), _program(directory)] = used(int(directory.name))
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
        return cls(processes, _machine())

    def since(self, start: "Moment") -> dict[str, float]:
        """CPU seconds of each program.

        Programs that started meanwhile are called new. What no process of now has used is that of ``ENDED``.
        """
        programs: defaultdict[str, float] = defaultdict(float)
        for (pid, program), seconds in self.processes.items():
            before = start.processes.get((pid, program))
            programs[f"{program} (new)" if before is None else program] += seconds - (before or 0)
        programs[ENDED] = max(self.machine - start.machine - sum(programs.values()), 0)
        return dict(programs)


def used(pid: int) -> float:
    """CPU seconds that a process has used. Raises FileNotFoundError or ProcessLookupError if it has ended."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    [line] = [each for each in (_PROC / str(pid) / "status").read_text().splitlines() if each.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def _program(directory: Path) -> str:
    """Name of the program; of our own processes the subcommand, too; one name for all threads of the kernel."""
    arguments = (directory / "cmdline").read_text().split("\0")[:-1]
    if not arguments:
        return "kernel"
    for place, argument in enumerate(arguments[:-2]):
        if Path(argument).name == "gardener":
            return " ".join(["gardener", *arguments[place + 1 : place + 3]])
    return Path(arguments[0]).name


def _machine() -> float:
    user, nice, system, _, _, irq, softirq = map(int, (_PROC / "stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS
