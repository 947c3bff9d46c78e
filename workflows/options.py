"""Timeouts and retries by kind of work, each with its source."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from api.operations import GARDEN_QUEUE

HEARTBEAT = timedelta(seconds=10)
"""A dead worker is noticed within this. Waits send a heartbeat every 2 s (activities/heartbeat.py), every other
activity of a worker of ours one every 3 s (workers/heartbeats.py)."""

UNANSWERED = timedelta(seconds=30)
"""When a seed whose queue nobody polls is named in lastOperation: longer than a gardenlet takes to start."""

RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.6, maximum_interval=timedelta(seconds=30)
)
"""Until the operation's deadline (``retryDuration``, 12 h, spec/flows.md 1.4), so without a maximum of attempts.
Gardener repeats a step every 5 s (spec/flows.md 1.5); we begin sooner and end slower."""


def garden_call(summary: str) -> ActivityConfig:
    """A look or a write in the garden, by a worker beside it."""
    return ActivityConfig(
        task_queue=GARDEN_QUEUE,
        summary=summary,
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def bounded(config: ActivityConfig, minutes: float) -> ActivityConfig:
    """The same, given up after this time with all its attempts."""
    return ActivityConfig(**config, schedule_to_close_timeout=timedelta(minutes=minutes))


def seed_call(minutes: float = 2) -> ActivityConfig:
    """Requests to a seed's or shoot's API server, in one go.

    2 min: the longest step that is not a wait has 2 min in Gardener (client initialisation, spec/flows.md 2).
    """
    return ActivityConfig(
        start_to_close_timeout=timedelta(minutes=minutes),
        schedule_to_start_timeout=UNANSWERED,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def survey(queue: str) -> ActivityConfig:
    """A look at a seed before a flow has tasks; it waits for the seed as long as it takes."""
    return ActivityConfig(
        task_queue=queue,
        activity_id="survey",
        summary="Look at what is there",
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def look(queue: str, summary: str) -> ActivityConfig:
    """A look at a seed and its shoot beside their operations; it waits for the seed as long as it takes."""
    return ActivityConfig(
        task_queue=queue,
        summary=summary,
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def wait(minutes: float) -> ActivityConfig:
    """Waiting for an object of a seed or shoot on the worker's cache; minutes by spec/flows.md 2 and 3.

    The wait itself ends a little sooner than its activity, with what it saw last.
    """
    return ActivityConfig(
        start_to_close_timeout=timedelta(minutes=minutes, seconds=30),
        schedule_to_start_timeout=UNANSWERED,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )


def follow(summary: str, days: float = 30) -> ActivityConfig:
    """An activity that accompanies a flow, lives as long as it, and goes on in another worker."""
    return ActivityConfig(
        task_queue=GARDEN_QUEUE,
        summary=summary,
        start_to_close_timeout=timedelta(days=days),
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RETRY,
    )
