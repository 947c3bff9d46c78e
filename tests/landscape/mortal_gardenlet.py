"""A gardenlet that is killed at chosen points of the tasks of one Shoot, and starts again at once, for tests.

``python -m tests.landscape.mortal_gardenlet CONFIG DIRECTORY``: the directory has the record of the run, and a file
``shoot`` with the name of the Shoot.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from api.resources import EVENT, Resource
from kube.client import KubeClient
from tests.chaos.points import Moment, Record
from tests.chaos.worker import SEED, WRITES, Reaper
from workers.gardenlet import process
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.runtime import start

SHOOT = "shoot"
"""File with the name of the Shoot."""
_call = KubeClient._call


class _Fate:
    """Kills this process at the chosen points of the Shoot's tasks."""

    def __init__(self, directory: Path) -> None:
        self._shoot = directory / SHOOT
        self.reaper = Reaper(Record(directory), SEED)

    def task(self) -> str:
        """The task that runs now, if it is one of the Shoot; else empty."""
        if not activity.in_activity():
            return ""
        info = activity.info()
        return info.activity_id if f"/{self._shoot.read_text()}/" in (info.workflow_id or "") else ""


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, fate: _Fate) -> None:
        super().__init__(next)
        self._fate = fate

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if not (task := self._fate.task()):
            return await super().execute_activity(input)
        reaper, attempt = self._fate.reaper, activity.info().attempt
        reaper.note("started", task, attempt)
        reaper.at(task, Moment.BEFORE)
        answer = await super().execute_activity(input)
        reaper.at(task, Moment.AFTER)
        reaper.note("done", task, attempt)
        return answer


def _live(config: str, fate: _Fate) -> None:
    class Interceptor(ActivityInterceptor):
        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            return super().intercept_activity(_Inbound(next, fate))

    async def call(self: KubeClient, method: str, res: Resource, *args: Any, **kwargs: Any) -> Any:
        answer = await _call(self, method, res, *args, **kwargs)
        if method in WRITES and res != EVENT and (task := fate.task()):
            fate.reaper.note("wrote", task)
            fate.reaper.at(task, Moment.AMID)
        return answer

    process.ActivityInterceptor = Interceptor  # type: ignore[attr-defined]
    KubeClient._call = call  # type: ignore[method-assign]
    start("gardenlet", process.run, config)


def main(config: str, directory: str) -> None:
    """Live in one child after the other: what is imported is imported once."""
    while True:
        child = os.fork()
        if child == 0:
            _live(config, _Fate(Path(directory)))
            os._exit(0)

        def pass_on(number: int, _: FrameType | None, child: int = child) -> None:
            os.kill(child, number)

        signal.signal(signal.SIGTERM, pass_on)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
