"""A worker that is killed in the middle of each task that it meets for the first time; another process continues.

``python -m tests.workflow.dying_worker ADDRESS DIRECTORY JOURNAL``: the first directory gets a file for each task that
was met so; the second one has the worker's journal.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from api.contracts.operations import TaskResult, seed_queue
from tests.workflow.world import SEED
from workers.lib import journal

_TOGETHER_SECONDS = 0.1
"""Tasks that run at the same time die with it."""


class Mortal:
    """All activities of a seed."""

    def __init__(self, met: Path) -> None:
        self._met = met

    @activity.defn(dynamic=True)
    async def anything(self, _: Sequence[RawValue]) -> TaskResult:
        name = activity.info().activity_type
        try:
            (self._met / name).touch(exist_ok=False)
        except FileExistsError:
            return TaskResult(secrets=(f"secret-of-{name}",))
        await asyncio.sleep(_TOGETHER_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the process must have ended here")


async def work(address: str, met: Path, directory: Path) -> None:
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    noted = await journal.open_journal(directory, client)
    await Worker(client, task_queue=seed_queue(SEED), activities=[Mortal(met).anything], interceptors=noted).run()


def main(address: str, met: Path, directory: Path) -> None:
    """Work in one child after the other: what is imported is imported once."""
    journal.LONGEST_PAUSE = 0.1  # tasks that die with each of their neighbors would wait ever longer
    while True:
        child = os.fork()
        if child == 0:
            asyncio.run(work(address, met, directory))
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"a worker ended by itself: {status}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
