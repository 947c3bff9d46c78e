"""What a Temporal cluster costs and what it brings: the landscape's dev server beside that of ``docker-compose.yaml``.

    python -m benchmarks.temporal [--runs 5] [--flows 30] [--cluster HOST:PORT]

Without an address, the cluster is brought up for as long as this takes; its images are made where they are missing.
Both are asked in turns by one worker process: for a workflow of activities one after the other, and for many flows
of 90 tasks at once (``benchmarks.flow_overhead``). Printed are medians.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client

with workflow.unsafe.imports_passed_through():
    from benchmarks.flow_overhead import LAYERS, QUEUE, TASK, WIDTH, ByFlow, connected, dev_server, no_op
    from workers.setup import TemporalSetup, set_up_temporal

ROOT = Path(__file__).parents[1]
SEQUENTIAL = 50
_SERVICES = [f"temporal-{name}" for name in ("frontend", "history", "matching", "worker")]


@workflow.defn
class OneByOne:
    """Activities one after the other: the median of their times is what one task of a flow waits at least."""

    @workflow.run
    async def run(self) -> None:
        for _ in range(SEQUENTIAL):
            await workflow.execute_activity(no_op, TASK, start_to_close_timeout=timedelta(minutes=2))


async def latency(client: Client) -> float:
    """Milliseconds for one activity."""
    started = time.perf_counter()
    await client.execute_workflow(OneByOne.run, id=f"sequence-{uuid.uuid4()}", task_queue=QUEUE)
    return (time.perf_counter() - started) / SEQUENTIAL * 1000


async def throughput(client: Client, flows: int) -> float:
    """Flows per hour."""
    started = time.perf_counter()
    await asyncio.gather(
        *(client.execute_workflow(ByFlow.run, id=f"flow-{uuid.uuid4()}", task_queue=QUEUE) for _ in range(flows))
    )
    return flows / (time.perf_counter() - started) * 3600


async def measure(cluster: str, runs: int, flows: int) -> dict[str, object]:
    await set_up_temporal(TemporalSetup(address=cluster))
    async with (
        dev_server() as target,
        connected(target, OneByOne, ByFlow) as dev,
        connected(cluster, OneByOne, ByFlow) as large,
    ):
        clients = {"devServer": dev, "cluster": large}
        times: dict[str, list[float]] = {name: [] for name in clients}
        rates: dict[str, list[float]] = {name: [] for name in clients}
        for number in range(runs + 1):
            for name, client in clients.items():
                took, rate = await latency(client), await throughput(client, flows)
                if number:  # the first one warms up
                    times[name].append(took)
                    rates[name].append(rate)
    return {
        "tasks": LAYERS * WIDTH,
        "flowsAtOnce": flows,
        "runs": runs,
        **{
            name: {
                "activityMilliseconds": round(statistics.median(times[name]), 1),
                "flowsPerHour": round(statistics.median(rates[name])),
            }
            for name in clients
        },
    }


@contextmanager
def composed() -> Iterator[str]:
    """Address of the cluster, brought up."""
    from tests.compose.engine import Compose, docker, engine
    from tests.landscape.conftest import BIN, run

    os.environ |= {"COMPOSE_PROJECT_NAME": "gardener-benchmark", "POSTGRES_PASSWORD": "not-a-secret"}
    with engine():
        docker("load", "--input", run(BIN / "gardener", "landscape", "images", timeout=900).strip())
        with Compose(ROOT, wait=False, services=_SERVICES):
            yield "127.0.0.1:7233"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--flows", type=int, default=30)
    parser.add_argument("--cluster", metavar="HOST:PORT")
    arguments = parser.parse_args()
    with nullcontext(arguments.cluster) if arguments.cluster else composed() as cluster:
        print(json.dumps(asyncio.run(measure(cluster, arguments.runs, arguments.flows)), indent=2))


if __name__ == "__main__":
    main()
