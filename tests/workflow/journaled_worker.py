"""A worker with a journal that is killed in the first attempt of its activity.

``python -m tests.workflow.journaled_worker ADDRESS KEY_FILE DIRECTORY``: the directory has the journal, gets a file
``attempt-<n>`` when an attempt begins, and is searched for ``go`` by attempts after the first.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from api.contracts.operations import seed_queue
from workers.lib.codec import data_converter
from workers.lib.journal import open_journal

QUEUE = seed_queue("journaled")


class Steps:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @activity.defn
    async def step(self, deadly: bool) -> list[Any]:
        """Number of this attempt, and the last heartbeat of the one before; ``deadly``: the first attempt is killed."""
        info = activity.info()
        if info.attempt == 1:
            activity.heartbeat("half done")
        (self._directory / f"attempt-{info.attempt}").touch()
        if info.attempt == 1 and deadly:
            await asyncio.sleep(0.5)  # the SDK sends the heartbeat meanwhile
            os.kill(os.getpid(), signal.SIGKILL)
        while not (self._directory / "go").exists():  # noqa: ASYNC110 -- another process makes it
            await asyncio.sleep(0.05)
        return [info.attempt, list(info.heartbeat_details)]


async def work(address: str, key: Path, directory: Path) -> None:
    client = await Client.connect(address, data_converter=data_converter(key, QUEUE))
    journal = await open_journal(directory / "journal", client)
    await Worker(client, task_queue=QUEUE, activities=[Steps(directory).step], interceptors=journal).run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
