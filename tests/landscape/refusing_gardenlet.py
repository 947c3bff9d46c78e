"""A gardenlet in which one task of a move fails for good after it is done, for tests.

``python -m tests.landscape.refusing_gardenlet CONFIG FILE``: the file, while it is there, names the task.
"""

import sys
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from workers.gardenlet import process
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.runtime import start

_FILE = Path(sys.argv[2])


class _Refusing(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        answer = await super().execute_activity(input)
        if _named() == activity.info().activity_id:
            raise ApplicationError("a test's", type="LiveMigrationUnavailable", non_retryable=True)
        return answer


def _named() -> str:
    return _FILE.read_text() if _FILE.exists() else ""


class _Interceptor(ActivityInterceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return super().intercept_activity(_Refusing(next))


if __name__ == "__main__":
    process.ActivityInterceptor = _Interceptor  # type: ignore[attr-defined]
    start("gardenlet", process.run, sys.argv[1])
