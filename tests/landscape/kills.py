"""Ends of processes of a landscape by SIGKILL, which no process can react to; its keeper starts them again."""

import signal
from functools import partial

from landscape.lifecycle import processes_of, require
from landscape.plan import SEEDS
from landscape.processes import Processes
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import eventually

CONTROLLER_MANAGER = "garden/controller-manager"
GARDENLETS = tuple(f"{seed}/gardenlet" for seed in SEEDS)
_RESTART_SECONDS = 45.0
"""Limit for a process to run again. The keeper waits up to 20 s if the process was killed before."""


def kill(landscape: Landscape, *names: str) -> None:
    """Kill processes of the landscape, each by its pid, once it runs."""
    processes = processes_of(require(landscape.name))
    for each in names:
        eventually(partial(_runs, processes, each), f"{each} runs", _RESTART_SECONDS)
        assert processes.send(processes.get(each), signal.SIGKILL), f"{each} was not killed"


def _runs(processes: Processes, name: str) -> bool:
    return processes.get(name).alive
