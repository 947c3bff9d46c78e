"""Interceptor of all activities: log fields, metrics, and errors whose texts may be stored in a history."""

import logging
import time
from contextlib import nullcontext
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from activities.clusters import clusters_read_once
from activities.errors import api_failure
from api.contracts.flows import FinishOperation
from api.contracts.operations import ShootTask
from kube.errors import ApiError
from kube.waits import record_waits
from workers.lib.metrics import flows
from workers.lib.runtime import log_context
from workers.lib.tracing import Tracing

log = logging.getLogger("activities")


class ActivityInterceptor(Interceptor):
    """Interceptor that wraps each activity: ``Worker(interceptors=[ActivityInterceptor()])``."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self._tracing)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, tracing: Tracing | None) -> None:
        super().__init__(next)
        self._tracing = tracing

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        fields = {"task": info.activity_type, "workflow": info.workflow_id or "", "attempt": str(info.attempt)}
        subject = input.args[0] if input.args else None
        if isinstance(subject, ShootTask):
            fields["shoot"] = str(subject.shoot)
        log_context.set(fields)
        record_waits()
        flows.taken(info)
        started = time.monotonic()
        result, fault = "succeeded", ""
        try:
            with self._tracing.task(info, subject) if self._tracing else nullcontext(), clusters_read_once():
                answer = await super().execute_activity(input)
        except BaseException as error:
            result = "cancelled" if is_cancelled_exception(error) else "failed"
            failure = _failure(error)
            if result == "failed":
                fault = failure_type(failure)
                log.warning("%s failed: %s", info.activity_type, failure)
            if failure is not error:
                # "from None": Temporal would store the text of every chained cause in the history.
                raise failure from None
            raise
        finally:
            flows.ended(info.activity_type, result, time.monotonic() - started, fault)
        log.info("%s done in %.3f s", info.activity_type, time.monotonic() - started)
        if isinstance(subject, FinishOperation):
            flows.operation_ended(subject)
            if self._tracing:
                self._tracing.operation_ended(subject)
        return answer


def _failure(error: BaseException) -> BaseException:
    if isinstance(error, ApiError):
        return api_failure(error)
    if isinstance(error, TimeoutError):
        return ApplicationError(str(error) or "out of time", type="Timeout")
    return error


def failure_type(error: BaseException) -> str:
    """Type of an error in ``lastErrors`` and in metrics."""
    return (error.type if isinstance(error, ApplicationError) else None) or type(error).__name__
