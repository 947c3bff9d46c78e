"""A small controller: a queue of object keys, workers, and retries with backoff."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from kube import liveness
from kube.cache import Cache, Key, key_of
from kube.client import WatchEvent
from kube.errors import ApiError, Conflict

_log = logging.getLogger(__name__)

_EXPECTED_IN_A_ROW = 5
"""The log warns when this many reconciles of an object in a row have failed, also by ``TryAgain`` or ``Conflict``."""
_CONFLICT_SECONDS = 0.1
"""Delay of the first retry after a conflict: the retry reads the object as the other writer left it."""
_STALLED_SECONDS = 30 * 60.0
"""A controller fails the liveness of its process if keys wait for a worker for so long.

The longest reconciles copy whole backups.
"""


@dataclass(frozen=True)
class Requeue:
    """Reconcile this object again after some seconds, although nothing failed."""

    after: float


class TryAgain(Exception):
    """An expected obstacle that may be gone at a later reconcile, like an object that is still being deleted.

    The log shows this exception at level DEBUG, and as a warning once several reconciles of the object in a row have
    failed.
    """

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after
        """Seconds until the next reconcile; None: the controller's backoff."""


class Queue:
    """Keys to reconcile: each at most once in the queue, and never with two workers at a time.

    A key has at most one pending delay, as with client-go's ``AddAfter``: the earlier one wins. A worker that takes the
    key drops the delay: the reconcile reads the present state and returns itself when the next reconcile is due.
    """

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._delayed: dict[Key, asyncio.TimerHandle] = {}
        self._taken = 0.0
        """Time of the event loop in seconds: when keys began to wait, or when a worker took the last key."""

    def add(self, key: Key, after: float = 0.0) -> None:
        """Queue a key now, or after some seconds unless an earlier time is pending.

        A key that a worker is reconciling is queued once that worker is done.
        """
        if after > 0:
            self._delay(key, after)
        elif key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            if not self._waiting:
                self._taken = asyncio.get_running_loop().time()
            self._waiting.add(key)
            self._ready.put_nowait(key)

    @property
    def running(self) -> Collection[Key]:
        """Keys that workers are reconciling."""
        return self._running

    def stalled(self) -> float:
        """Seconds for which keys have waited without a worker taking one; 0 if no key waits."""
        return asyncio.get_running_loop().time() - self._taken if self._waiting else 0.0

    async def take(self) -> Key:
        key = await self._ready.get()
        self._waiting.discard(key)
        self._taken = asyncio.get_running_loop().time()
        self._running.add(key)
        if (delayed := self._delayed.pop(key, None)) is not None:
            delayed.cancel()
        return key

    def done(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        for delayed in self._delayed.values():
            delayed.cancel()
        self._delayed.clear()

    def _delay(self, key: Key, after: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + after
        pending = self._delayed.get(key)
        if pending is not None:
            if pending.when() <= due:
                return
            pending.cancel()
        self._delayed[key] = loop.call_at(due, self._expire, key)

    def _expire(self, key: Key) -> None:
        del self._delayed[key]
        self.add(key)


Reconcile = Callable[[Key], Awaitable[Requeue | None]]


class Controller:
    """Calls ``reconcile`` for every key that was enqueued, and again after a failure.

    ``reconcile`` reads the present state itself: a key names an object, not the event that happened. It need not handle
    ``kube.errors.Conflict``: a conflict is an expected obstacle like ``TryAgain``, and its first retry comes soon.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 5,
        first_delay: float = 0.5,
        longest_delay: float = 60.0,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._workers = workers
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._queue = Queue()
        self._started = 0.0
        self._failures: dict[Key, int] = {}
        self._unsubscribe: list[Callable[[], None]] = []

    def enqueue(self, key: Key, after: float = 0.0) -> None:
        """Reconcile a key soon, or after some seconds: see ``Queue``."""
        self._queue.add(key, after)

    def watch(
        self,
        cache: Cache,
        keys: Callable[[WatchEvent], Iterable[Key]] | None = None,
        when: Callable[[WatchEvent], bool] | None = None,
    ) -> None:
        """Enqueue keys on events of a cache: the key of the object, or the keys that ``keys`` returns for the event."""

        def handler(event: WatchEvent) -> None:
            if when is not None and not when(event):
                return
            for key in keys(event) if keys is not None else (key_of(event.object),):
                self._queue.add(key)

        self._unsubscribe.append(cache.subscribe(handler))

    async def run(self) -> None:
        """Reconcile until cancelled."""
        self._started = asyncio.get_running_loop().time()
        try:
            with liveness.running(self):
                await self._run_workers()
        finally:
            for unsubscribe in self._unsubscribe:
                unsubscribe()
            self._queue.close()

    def fault(self) -> str | None:
        """Why the controller makes no progress: all its workers reconcile for too long. None while it works."""
        stalled = min(self._queue.stalled(), asyncio.get_running_loop().time() - self._started)
        if stalled <= _STALLED_SECONDS:
            return None
        keys = ", ".join(sorted(map(str, self._queue.running))[:3])
        return f"controller {self.name}: no worker is free for {stalled:.0f} s; they reconcile {keys}"

    async def _run_workers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name} {number}")

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                again = await self._reconcile(key)
            except Exception as error:
                self._queue.add(key, self._failed(key, error))
            else:
                self._failures.pop(key, None)
                if again is not None:
                    self._queue.add(key, again.after)
            finally:
                self._queue.done(key)

    def _failed(self, key: Key, error: Exception) -> float:
        """Count and log a failure; returns the seconds until the retry."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        quiet = isinstance(error, TryAgain | Conflict) and failures < _EXPECTED_IN_A_ROW
        expected = isinstance(error, ApiError | TryAgain)
        level = logging.DEBUG if quiet else logging.WARNING
        _log.log(level, "%s: %s failed (%d): %s", self.name, key, failures, error, exc_info=not expected)
        if isinstance(error, TryAgain) and error.after is not None:
            return error.after
        first = min(self._first_delay, _CONFLICT_SECONDS) if isinstance(error, Conflict) else self._first_delay
        delay = min(first * 2.0 ** min(failures - 1, 16), self._longest_delay)
        return delay * random.uniform(0.7, 1.3)


def comes_or_goes(event: WatchEvent) -> bool:
    """Whether an event is about an object that was created or deleted, for ``Controller.watch``."""
    return event.type == "DELETED" or event.old is None
