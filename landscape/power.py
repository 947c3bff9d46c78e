"""Power failure and pause of a whole seed, including its pods, whose processes the landscape did not start."""

import asyncio
import signal
from functools import partial

from landscape import cgroups, residue
from landscape.errors import LandscapeError
from landscape.plan import ClusterPlan, Plan
from landscape.processes import Processes, Running, start_time
from landscape.processes import send as send_signal


async def off(plan: Plan, seed: str, processes: Processes) -> int:
    """Kill all processes and pods of the seed, without a restart by the keeper; returns the number of processes.

    Disks keep their data, so the next ``up`` starts from the same state as a machine after a power failure.
    """
    cluster = plan.cluster(seed)
    running = _of(cluster, processes)
    await asyncio.to_thread(partial(processes.stop, running, politely=False))
    await asyncio.to_thread(residue.kill_pods, [cluster])
    return len(running)


def send(plan: Plan, seed: str, processes: Processes, number: signal.Signals) -> int:
    """Signal all processes of the seed, including those of its pods; returns their number."""
    cluster = plan.cluster(seed)
    sent = sum(processes.send(each, number) for each in _of(cluster, processes))
    pids = [*residue.shims([cluster]), *((pid, start_time(pid) or 0) for pid in cgroups.processes(cluster.cgroup))]
    return sent + sum(send_signal(pid, started, number) for pid, started in pids)


def _of(cluster: ClusterPlan, processes: Processes) -> list[Running]:
    found = [each for each in processes.all() if each.spec.name.startswith(f"{cluster.name}/")]
    if not found:
        raise LandscapeError(f"no process of {cluster.name} runs: `gardener landscape up` starts it")
    return found
