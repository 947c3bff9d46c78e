"""Timeouts and retries of activities, by kind of activity, each with its source."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from api.contracts.operations import GARDEN_QUEUE

HEARTBEAT = timedelta(seconds=10)
"""Time after which Temporal retries an activity whose worker was lost with its machine. If the worker's process is
started again on the same machine, it reports its activities earlier (workers/lib/journal.py). Activities that wait send
a heartbeat every 2 s (activities/heartbeat.py), all others every 3 s (workers/lib/heartbeats.py)."""

_REPORT_HEARTBEAT = timedelta(minutes=2)
"""Like ``HEARTBEAT``, for the activity that reports a flow's progress: each running flow has one, and each heartbeat is
a transaction of Temporal's database. Nothing waits for a report. If a controller-manager is lost with its machine, the
Shoot's status shows old progress for so long."""

WORKFLOW_TASK = timedelta(seconds=4)
"""Time after which Temporal gives a task of a workflow to another worker, because its worker died or is too slow. The
worker sends no heartbeat for it. 4 s: a workflow whose worker is killed in the middle of a task continues within 5 s
(docs/reliability.md). A late task is repeated and does nothing twice. Temporal's default is 10 s."""

UNANSWERED = timedelta(seconds=30)
"""Time after which lastOperation names a task queue that no worker polls: longer than a gardenlet takes to start."""

RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.6, maximum_interval=timedelta(minutes=2)
)
"""Retries end at the operation's deadline (``retryDuration``, 12 h, spec/flows.md 1.4), so the number of attempts has
no limit. Gardener retries a step every 5 s (spec/flows.md 1.5); our first retries come sooner, later ones slower: after
five minutes one comes every 2 min, because each is a transaction of Temporal's database, and many Shoots may fail at
once. ``gardener flow reset`` to the task starts it at once."""


def garden_call(summary: str) -> ActivityConfig:
    """Requests to the garden's API server, by a worker of the garden."""
    return ActivityConfig(
        task_queue=GARDEN_QUEUE,
        summary=summary,
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def garden_wait(summary: str, minutes: float) -> ActivityConfig:
    """Waits for an object of the garden, by a worker of the garden."""
    return ActivityConfig(
        task_queue=GARDEN_QUEUE,
        summary=summary,
        start_to_close_timeout=timedelta(minutes=minutes, seconds=30),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def bounded(config: ActivityConfig, minutes: float) -> ActivityConfig:
    """The same options, with a limit of time for all attempts together."""
    return ActivityConfig(**config, schedule_to_close_timeout=timedelta(minutes=minutes))


def seed_call(minutes: float = 2) -> ActivityConfig:
    """Requests to the API server of a seed or shoot, without waiting for an effect.

    2 min: Gardener's longest step that does not wait has 2 min (client initialisation, spec/flows.md 2).
    """
    return ActivityConfig(
        start_to_close_timeout=timedelta(minutes=minutes),
        schedule_to_start_timeout=UNANSWERED,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def survey(queue: str) -> ActivityConfig:
    """Reads the state of a seed before a flow has tasks; it waits for the gardenlet of the seed without limit."""
    return ActivityConfig(
        task_queue=queue,
        activity_id="survey",
        summary="Read the state of the seed",
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def seed_query(queue: str, summary: str) -> ActivityConfig:
    """Reads from a seed and its shoot, independent of their operations; it waits for the gardenlet without limit."""
    return ActivityConfig(
        task_queue=queue,
        summary=summary,
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def wait(minutes: float) -> ActivityConfig:
    """Waits for an object of a seed or shoot, in the watch cache of the worker; minutes by spec/flows.md 2 and 3.

    The wait itself ends a little before the timeout of its activity, with an error that describes the object.
    """
    return ActivityConfig(
        start_to_close_timeout=timedelta(minutes=minutes, seconds=30),
        schedule_to_start_timeout=UNANSWERED,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def background(summary: str, days: float = 30) -> ActivityConfig:
    """An activity that runs beside a flow until the flow ends; if its worker dies, another one continues it."""
    return ActivityConfig(
        task_queue=GARDEN_QUEUE,
        summary=summary,
        start_to_close_timeout=timedelta(days=days),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def report(summary: str) -> ActivityConfig:
    """An activity that reports the progress of a flow until the flow ends."""
    config = background(summary)
    config["heartbeat_timeout"] = _REPORT_HEARTBEAT
    return config


def on_machine(minutes: float) -> ActivityConfig:
    """A step of a machine of a self-hosted Shoot, by the process that also runs the flow."""
    return ActivityConfig(
        start_to_close_timeout=timedelta(minutes=minutes), heartbeat_timeout=HEARTBEAT, retry_policy=RETRY
    )
