"""What every activity of ours gets: log fields, metrics, and errors that are fit for a history."""

import logging
import time
from typing import Any

from prometheus_client import Counter, Histogram
from temporalio import activity
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from activities.errors import api_failure
from activities.kube.errors import ApiError
from api.operations import ShootTask
from workers.runtime import log_context

log = logging.getLogger("activities")

TASK_SECONDS = Histogram(
    "gardener_flow_task_duration_seconds",
    "Duration of one attempt of a flow's task.",
    ["task", "result"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
TASK_ERRORS = Counter("gardener_flow_task_errors_total", "Failed attempts of a flow's tasks.", ["task", "type"])


class ActivityInterceptor(Interceptor):
    """Install with ``Worker(interceptors=[ActivityInterceptor()])``."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        fields = {"task": info.activity_type, "workflow": info.workflow_id or "", "attempt": str(info.attempt)}
        subject = input.args[0] if input.args else None
        if isinstance(subject, ShootTask):
            fields["shoot"] = str(subject.shoot)
        log_context.set(fields)
        started = time.monotonic()
        result = "succeeded"
        try:
            return await super().execute_activity(input)
        except BaseException as error:
            result = "cancelled" if is_cancelled_exception(error) else "failed"
            failure = _failure(error)
            if result == "failed":
                TASK_ERRORS.labels(info.activity_type, failure_type(failure)).inc()
                log.warning("%s failed: %s", info.activity_type, failure)
            if failure is not error:
                # "from None": the text of every chained cause would be kept in the history.
                raise failure from None
            raise
        finally:
            TASK_SECONDS.labels(info.activity_type, result).observe(time.monotonic() - started)
            if result == "succeeded":
                log.info("%s done in %.3f s", info.activity_type, time.monotonic() - started)


def _failure(error: BaseException) -> BaseException:
    if isinstance(error, ApiError):
        return api_failure(error)
    if isinstance(error, TimeoutError):
        return ApplicationError(str(error) or "out of time", type="Timeout")
    return error


def failure_type(error: BaseException) -> str:
    """The type that lastErrors and metrics name."""
    return (error.type if isinstance(error, ApplicationError) else None) or type(error).__name__
