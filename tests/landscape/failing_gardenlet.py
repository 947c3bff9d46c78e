"""A gardenlet whose tasks each fail for good when they are run first, for tests.

``python -m tests.landscape.failing_gardenlet CONFIG LOG``: the log gets a line for each run of a task, which says the
workflow's type, the task, and ``failed`` or ``done``.
"""

import sys
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.errors import permanent
from api.errors import ErrorCode
from workers.gardenlet import process
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.runtime import start
from workflows.shoot.delete import DeleteShoot
from workflows.shoot.reconcile import ReconcileShoot

_FLOWS = {ReconcileShoot.__name__, DeleteShoot.__name__}
_failed: set[tuple[str, str]] = set()


class _Failing(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        task = info.workflow_type or "", info.activity_id
        if task[0] in _FLOWS and task not in _failed:
            _failed.add(task)
            _tell(*task, "failed")
            raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"{task[1]} fails when it is run first")
        answer = await super().execute_activity(input)
        _tell(*task, "done")
        return answer


def _tell(*words: str) -> None:
    with Path(sys.argv[2]).open("a") as log:
        log.write(" ".join(words) + "\n")


class _Interceptor(ActivityInterceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return super().intercept_activity(_Failing(next))


if __name__ == "__main__":
    process.ActivityInterceptor = _Interceptor  # type: ignore[misc]
    start("gardenlet", process.run, sys.argv[1])
