"""A small controller: a queue of object keys, workers, and another try with backoff."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from kube import liveness
from kube.cache import Cache, Key, key_of
from kube.client import WatchEvent
from kube.errors import ApiError

_log = logging.getLogger(__name__)

_EXPECTED_IN_A_ROW = 5
"""Reconciles in a row that may end with ``TryAgain`` before the log warns."""
_STALLED_SECONDS = 30 * 60.0
"""Keys that wait for a worker for so long fail the process's liveness; the longest reconciles copy whole backups."""


@dataclass(frozen=True)
class Requeue:
    """Look at this object again after some seconds, though nothing failed."""

    after: float


class TryAgain(Exception):
    """An expected obstacle that a later reconcile may find gone, like a conflict of two writers.

    The log shows it at level DEBUG, and as a warning once it has stopped several reconciles of the object in a row.
    """

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after
        """Seconds until then; None: the controller's backoff."""


class Queue:
    """Keys to reconcile: each at most once in the queue, and never with two workers at a time.

    A key has at most one pending delay, as with client-go's ``AddAfter``: the earlier one wins. A worker that takes the
    key drops the delay: its reconcile sees the present state, and says itself when the next one is due.
    """

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._delayed: dict[Key, asyncio.TimerHandle] = {}
        self._taken = 0.0
        """Seconds of the event loop: when keys began to wait, or when a worker took the last one."""

    def add(self, key: Key, after: float = 0.0) -> None:
        """Queue a key now, or after some seconds unless an earlier time is pending.

        A key that a worker has is queued once that worker is done.
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
        """Keys that workers have."""
        return self._running

    def stalled(self) -> float:
        """Seconds in which keys have waited and no worker has taken one; 0 if none waits."""
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
    """Calls ``reconcile`` for every key that was enqueued, again after a failure.

    ``reconcile`` looks at the world itself; a key says where, not what happened.
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
        """Enqueue on events of a cache: the object itself, or the keys that ``keys`` makes of it."""

        def handler(event: WatchEvent) -> None:
            if when is not None and not when(event):
                return
            for key in keys(event) if keys is not None else (key_of(event.object),):
                self._queue.add(key)

        self._unsubscribe.append(cache.subscribe(handler))

    async def run(self) -> None:
        """Work until cancelled."""
        self._started = asyncio.get_running_loop().time()
        try:
            with liveness.running(self):
                await self._run_workers()
        finally:
            for unsubscribe in self._unsubscribe:
                unsubscribe()
            self._queue.close()

    def fault(self) -> str | None:
        """Why the controller stands still: all its workers are in a reconcile for too long."""
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
        """Seconds until the next try."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        quiet = isinstance(error, TryAgain) and failures < _EXPECTED_IN_A_ROW
        expected = isinstance(error, ApiError | TryAgain)
        level = logging.DEBUG if quiet else logging.WARNING
        _log.log(level, "%s: %s failed (%d): %s", self.name, key, failures, error, exc_info=not expected)
        if isinstance(error, TryAgain) and error.after is not None:
            return error.after
        delay = min(self._first_delay * 2.0 ** min(failures - 1, 16), self._longest_delay)
        return delay * random.uniform(0.7, 1.3)
