"""Heartbeats for activities that send none themselves.

A worker that is killed takes its activities with it; only a missing heartbeat tells Temporal before their
timeout. Every activity with a heartbeat timeout gets one, three in each timeout, from its first second on;
those that send their own keep their details.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

THROTTLE = timedelta(seconds=3)
"""For ``Worker(max_heartbeat_throttle_interval=THROTTLE)``: a cancellation reaches an activity as the answer to a
heartbeat, and by default the SDK sends one only after 80 % of its timeout."""


class Heartbeats(Interceptor):
    """Install with ``Worker(interceptors=[Heartbeats(), ...])``."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor) -> None:
        super().__init__(next)
        self._details: dict[bytes, tuple[Any, ...]] = {}

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self._details))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        timeout = activity.info().heartbeat_timeout
        if not timeout:
            return await super().execute_activity(input)
        token = activity.info().task_token
        beating = asyncio.create_task(self._beat(token, timeout.total_seconds() / 3))
        try:
            return await super().execute_activity(input)
        finally:
            beating.cancel()
            self._details.pop(token, None)

    async def _beat(self, token: bytes, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            activity.heartbeat(*self._details.get(token, ()))


class _Outbound(ActivityOutboundInterceptor):
    def __init__(self, next: ActivityOutboundInterceptor, details: dict[bytes, tuple[Any, ...]]) -> None:
        super().__init__(next)
        self._details = details

    def heartbeat(self, *details: Any) -> None:
        self._details[activity.info().task_token] = details
        super().heartbeat(*details)
