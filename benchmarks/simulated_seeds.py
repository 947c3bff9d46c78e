"""Gardenlets of a benchmark: each task of theirs ends at once, and those of one Project never succeed.

``python -P benchmarks/simulated_seeds.py ADDRESS DIRECTORY POISONED SEED ...``: a process that serves the task queues
of seeds at a Temporal server. DIRECTORY has a key file ``SEED.key`` of each, and POISONED is the Project's namespace.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from api.contracts.flows import Survey
from api.contracts.operations import ShootTask, TaskResult, seed_queue
from workers.lib.heartbeats import Heartbeats
from workers.lib.temporal import TemporalConnection, connect

FAULT = "the cloud refuses this project"


class Gardenlet:
    """Tasks of one seed. ``poisoned``: namespace of the Project whose Shoots fail."""

    def __init__(self, poisoned: str) -> None:
        self._poisoned = poisoned

    @activity.defn
    async def survey(self, task: ShootTask) -> Survey:
        return Survey(
            namespace=True, cluster=True, control_plane=True, controller_manager=True, api_server=True, backups=True
        )

    @activity.defn(dynamic=True)
    async def anything(self, args: Sequence[RawValue]) -> TaskResult:
        if f"/{self._poisoned}/" in (activity.info().workflow_id or ""):
            raise ApplicationError(FAULT, type="CloudRefuses")
        return TaskResult(secrets=(activity.info().activity_type,))


async def run(address: str, keys: Path, poisoned: str, seeds: Sequence[str]) -> None:
    """Serve until killed."""
    gardenlet = Gardenlet(poisoned)
    async with AsyncExitStack() as stack:
        for seed in seeds:
            queue, connection = (
                seed_queue(seed),
                TemporalConnection(address=address, codec_key_file=keys / f"{seed}.key"),
            )
            await stack.enter_async_context(
                Worker(
                    await connect(connection, queue),
                    task_queue=queue,
                    activities=[gardenlet.survey, gardenlet.anything],
                    interceptors=[Heartbeats()],
                )
            )
        await asyncio.Event().wait()


if __name__ == "__main__":
    _, to, directory, failing, *names = sys.argv
    asyncio.run(run(to, Path(directory), failing, names))
