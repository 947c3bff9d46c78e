"""Metrics of operations and their tasks: duration, result and time in the queue."""

from datetime import UTC, datetime

from prometheus_client import Counter, Histogram
from temporalio import activity

from api.contracts.flows import FinishOperation

_TASK_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900)
_FLOW_BUCKETS = (1, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)

TASK_SECONDS = Histogram(
    "gardener_flow_task_duration_seconds",
    "Duration of one attempt of a flow's task.",
    ["task", "result"],
    buckets=_TASK_BUCKETS,
)
TASK_QUEUE_SECONDS = Histogram(
    "gardener_flow_task_queue_seconds",
    "Time from when a task could start until a worker took it from its queue.",
    ["queue"],
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30, 120),
)
TASK_RESULTS = Counter("gardener_flow_task_results_total", "Attempts of tasks that have ended.", ["task", "result"])
TASK_RETRIES = Counter("gardener_flow_task_retries_total", "Attempts of tasks beyond the first.", ["task"])
TASK_ERRORS = Counter("gardener_flow_task_errors_total", "Failed attempts of a flow's tasks.", ["task", "type"])
FLOW_SECONDS = Histogram(
    "gardener_flow_duration_seconds",
    "Duration of one attempt of an operation of a Shoot, from its start to the record of its end.",
    ["operation", "result"],
    buckets=_FLOW_BUCKETS,
)
FLOW_RESULTS = Counter("gardener_flow_results_total", "Ended attempts of operations.", ["operation", "result"])


def taken(info: activity.Info) -> None:
    """Count a task that a worker has taken from its queue."""
    waited = info.started_time - info.current_attempt_scheduled_time
    TASK_QUEUE_SECONDS.labels(info.task_queue).observe(max(waited.total_seconds(), 0.0))
    if info.attempt > 1:
        TASK_RETRIES.labels(info.activity_type).inc()


def ended(task: str, result: str, seconds: float, error: str = "") -> None:
    """Count an attempt of a task that has ended; ``result`` is ``succeeded``, ``failed`` or ``cancelled``."""
    TASK_SECONDS.labels(task, result).observe(seconds)
    TASK_RESULTS.labels(task, result).inc()
    if error:
        TASK_ERRORS.labels(task, error).inc()


def operation_ended(request: FinishOperation) -> None:
    """Count an operation whose end was recorded."""
    labels = str(request.task.operation), request.state
    FLOW_RESULTS.labels(*labels).inc()
    if request.task.trigger:
        started = datetime.fromisoformat(request.task.trigger)
        FLOW_SECONDS.labels(*labels).observe((datetime.now(UTC) - started).total_seconds())
