"""A gardenlet that stands still in one task of a move, for tests: what the task does is done, and not told.

``python -m tests.landscape.held_gardenlet CONFIG DIRECTORY``: the file ``task`` in the directory names the task, for as
long as it is to be held; the file ``held`` appears once it is.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from workers.gardenlet import process
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.runtime import start
from workflows.shoot.migrate import MigrateShoot


class _Holding(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, directory: Path) -> None:
        super().__init__(next)
        self._directory = directory

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        answer = await super().execute_activity(input)
        info = activity.info()
        if info.workflow_type == MigrateShoot.__name__:
            await self._hold(info.activity_id)
        return answer

    async def _hold(self, task: str) -> None:
        """Until a cancellation comes with the answer to a heartbeat, or the test wants no more."""
        wanted = self._directory / "task"
        while wanted.exists() and wanted.read_text() == task:
            (self._directory / "held").touch()
            await asyncio.sleep(0.1)  # the clock of a poll


class _Interceptor(ActivityInterceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return super().intercept_activity(_Holding(next, Path(sys.argv[2])))


if __name__ == "__main__":
    process.ActivityInterceptor = _Interceptor  # type: ignore[misc]
    start("gardenlet", process.run, sys.argv[1])
