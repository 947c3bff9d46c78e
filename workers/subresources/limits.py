"""Limits of one user's requests, so that no user takes the server from the others."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Counter as Metric
from prometheus_client import Gauge
from pydantic import Field

from api.model import ApiModel
from workers.subresources.refusals import Refusal

log = logging.getLogger(__name__)

REFUSED = Metric(
    "gardener_subresource_limited_requests_total", "Requests to subresources that got status 429.", ["reason"]
)
IN_PROGRESS = Gauge("gardener_subresource_requests_in_progress", "Requests to subresources by authenticated users.")

_USERS = 10_000
"""Maximum number of users that are remembered. A further one takes the place of the user that asked least recently."""
_LOG_SECONDS = 10.0
_ROUNDING = 1e-6
"""Seconds that sums of many small times may be wrong by."""
_SERVICE_ACCOUNT = re.compile(r"(system:serviceaccount:[^:]+):.*", re.DOTALL)


class UserLimits(ApiModel):
    """Limits of one user at one replica. The ServiceAccounts of a namespace count as one user."""

    requests_per_second: float = Field(default=5, gt=0)
    """Requests that a user may make in the long run. Further requests get status 429."""
    burst: int = Field(default=50, ge=1)
    """Requests that a user may make at once after a pause."""
    at_once: int = Field(default=8, ge=1)
    """Concurrent requests of a user. Further requests get status 429."""


@dataclass
class Users:
    """Requests of each user so far. The memory holds at most 10,000 users, and no user's name."""

    limits: UserLimits
    clock: Callable[[], float] = time.monotonic
    _rested: dict[bytes, float] = field(default_factory=dict)
    """Time at which a user has its whole burst again, by user; the user that asked least recently is first."""
    _running: Counter[bytes] = field(default_factory=Counter)
    _logged: float = -math.inf
    """Time of the last line in the log about a refused request."""

    @contextlib.contextmanager
    def request(self, name: str) -> Iterator[None]:
        """One request of a user. Raises Refusal (429) beyond the limits."""
        user = _key(name)
        try:
            self._count(user)
            if self._running[user] >= self.limits.at_once:
                raise limited(
                    "user-at-once", f"you have {self.limits.at_once} requests in progress: wait for their answers"
                )
        except Refusal:
            self._log(name)
            raise
        self._running[user] += 1
        try:
            with IN_PROGRESS.track_inprogress():
                yield
        finally:
            self._running[user] -= 1
            if not self._running[user]:
                del self._running[user]

    def _count(self, user: bytes) -> None:
        now, limits = self.clock(), self.limits
        rested = max(self._rested.get(user, now), now)
        wait = rested - now - (limits.burst - 1) / limits.requests_per_second
        if wait > _ROUNDING:
            raise limited(
                "user-rate",
                f"you have made more than {limits.burst} requests, and more than {limits.requests_per_second:g} a "
                "second: wait, and ask for a new kubeconfig only when the last one expires",
                math.ceil(wait),
            )
        self._rested.pop(user, None)
        self._rested[user] = rested + 1 / limits.requests_per_second
        self._forget(now)

    def _log(self, name: str) -> None:
        """Name the user in the log, in at most one line in 10 s: a user who asks in a loop must not fill the log."""
        now = self.clock()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning("user %r gets status 429: more requests than limitsOfUsers allows", name[:512])

    def _forget(self, now: float) -> None:
        while self._rested and (len(self._rested) > _USERS or self._rested[next(iter(self._rested))] <= now):
            del self._rested[next(iter(self._rested))]


def limited(reason: str, message: str, retry_after: int = 1) -> Refusal:
    """Refusal of a request beyond a limit, which the metric counts."""
    REFUSED.labels(reason).inc()
    return Refusal(429, message, retry_after=retry_after)


def _key(name: str) -> bytes:
    """Key of a user: of the same size for each name. Members of a Project make as many ServiceAccounts as they want."""
    account = _SERVICE_ACCOUNT.fullmatch(name)
    return hashlib.sha256((account[1] if account else name).encode()).digest()
