"""A whole seed at once: it loses its power, or it stands still. Pods are part of it, whose processes are not ours."""

import asyncio
import signal
from functools import partial

from landscape import cgroups, residue
from landscape.errors import LandscapeError
from landscape.plan import ClusterPlan, Plan
from landscape.processes import Processes, Running, start_time
from landscape.processes import send as send_signal


async def off(plan: Plan, seed: str, processes: Processes) -> int:
    """Kill all processes and pods of the seed, which nobody starts again; how many processes there were.

    Disks keep what is on them, so the next ``up`` finds what a machine finds after its power has failed.
    """
    cluster = plan.cluster(seed)
    running = _of(cluster, processes)
    await asyncio.to_thread(partial(processes.stop, running, politely=False))
    await asyncio.to_thread(residue.kill_pods, [cluster])
    return len(running)


def send(plan: Plan, seed: str, processes: Processes, number: signal.Signals) -> int:
    """Signal all processes of the seed, those of its pods, too; how many there were."""
    cluster = plan.cluster(seed)
    sent = sum(processes.send(each, number) for each in _of(cluster, processes))
    pids = [*residue.shims([cluster]), *((pid, start_time(pid) or 0) for pid in cgroups.processes(cluster.cgroup))]
    return sent + sum(send_signal(pid, started, number) for pid, started in pids)


def _of(cluster: ClusterPlan, processes: Processes) -> list[Running]:
    found = [each for each in processes.all() if each.spec.name.startswith(f"{cluster.name}/")]
    if not found:
        raise LandscapeError(f"nothing of {cluster.name} runs: `gardener landscape up` starts it")
    return found
