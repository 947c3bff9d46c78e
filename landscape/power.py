"""Power failure and pause of a whole seed, or of one of its nodes.

Their pods are among it, whose processes the landscape did not start.
"""

import asyncio
import signal
from functools import partial

from landscape import cgroups, residue
from landscape.errors import LandscapeError
from landscape.plan import Plan
from landscape.processes import Processes, Running, start_time
from landscape.processes import send as send_signal


async def off(plan: Plan, name: str, processes: Processes) -> int:
    """Kill all processes and pods of a seed or node, without a restart by the keeper; returns the number of processes.

    Disks keep their data, so the next ``up`` starts from the same state as a machine after a power failure.
    """
    running = _of(plan, name, processes)
    await asyncio.to_thread(partial(processes.stop, running, politely=False))
    await asyncio.to_thread(residue.kill_pods, plan.nodes_of(name))
    return len(running)


def send(plan: Plan, name: str, processes: Processes, number: signal.Signals) -> int:
    """Signal all processes of a seed or node, including those of its pods; returns their number."""
    nodes = plan.nodes_of(name)
    sent = sum(processes.send(each, number) for each in _of(plan, name, processes))
    pods = (pid for node in nodes for pid in cgroups.processes(node.cgroup))
    pids = [*residue.shims(nodes), *((pid, start_time(pid) or 0) for pid in pods)]
    return sent + sum(send_signal(pid, started, number) for pid, started in pids)


def _of(plan: Plan, name: str, processes: Processes) -> list[Running]:
    places = {name, *(node.name for node in plan.nodes_of(name))}
    found = [each for each in processes.all() if each.spec.name.partition("/")[0] in places]
    if not found:
        raise LandscapeError(f"no process of {name} runs: `gardener landscape up` starts it")
    return found
