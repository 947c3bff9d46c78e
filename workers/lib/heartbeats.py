"""Heartbeats for activities that send none themselves.

If a worker is killed, Temporal learns it from a missing heartbeat, long before the activity's own timeout. This
interceptor sends three heartbeats per heartbeat timeout for every activity that has such a timeout. It repeats the
details of heartbeats that the activity sends itself.
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
"""For ``Worker(max_heartbeat_throttle_interval=THROTTLE)``. A cancellation reaches an activity as the answer to a
heartbeat. By default the SDK sends a heartbeat only after 80 % of the heartbeat timeout."""


class Heartbeats(Interceptor):
    """Interceptor that sends heartbeats: ``Worker(interceptors=[Heartbeats(), ...])``."""

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
