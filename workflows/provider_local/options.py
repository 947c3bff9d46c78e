"""Timeouts and retries of the activities of provider-local."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=30))


WORKFLOW_TASK = timedelta(seconds=4)
"""As ``workflows.options.WORKFLOW_TASK``."""


def queue(seed: str) -> str:
    """Task queue of provider-local in one seed."""
    return f"provider-local-{seed}"


def step(summary: str) -> ActivityConfig:
    """A few requests; retried for 3 min, as long as Gardener waits for an extension's controller."""
    return ActivityConfig(
        summary=summary,
        start_to_close_timeout=timedelta(minutes=1),
        schedule_to_close_timeout=timedelta(minutes=3),
        retry_policy=_RETRY,
    )


def wait(summary: str, at_most: timedelta) -> ActivityConfig:
    """Waits on the watch cache, with heartbeats. The activity ends itself at ``at_most``, with error ``Timeout``."""
    return ActivityConfig(
        summary=summary,
        start_to_close_timeout=at_most + timedelta(seconds=30),
        schedule_to_close_timeout=2 * at_most,
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(milliseconds=500),
            maximum_interval=timedelta(seconds=30),
            non_retryable_error_types=["Timeout"],
        ),
    )
