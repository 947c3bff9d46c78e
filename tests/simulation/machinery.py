"""Time that passes at once, and machines whose processes are paused, killed and cut off in it.

All runs in one event loop whose clock jumps to the next event. Blocking code runs as it is, in a thread of its own: the
loop stands still while it does, so one thing happens at a time, and a seed repeats everything.
"""

import asyncio
import contextvars
import selectors
import threading
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from workers.etcd.snapshotter import SnapshotError

EPOCH = 1_800_000_000
_HUNG_SECONDS = 10.0
"""Seconds after which a request without an answer times out."""

here: contextvars.ContextVar["Container"] = contextvars.ContextVar("here")
"""Container whose code runs."""


class Killed(BaseException):
    """This process has been killed."""


class CutOff(Exception):
    """No answer came."""


class Loop(asyncio.SelectorEventLoop):
    """Never waits: its clock jumps."""

    def __init__(self) -> None:
        super().__init__(_Jump(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left to happen")
        self._loop.now += max(timeout, 0.0)
        return []


class Fiber:
    """Blocking code of a container; the loop waits while it runs, and it waits for the loop."""

    def __init__(self, container: "Container", target: Callable[[], object]) -> None:
        self._container = container
        self._target = target
        self._loop = container.machine.loop
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._waits: asyncio.Task[Any] | None = None
        self.ended = self._loop.create_future()
        threading.Thread(target=self._run, daemon=True).start()
        self._loop.call_soon(self._resume)

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """In the thread: what the coroutine returns or raises."""
        if self._container.dead:
            coroutine.close()
            raise Killed
        self._waits = waits = self._loop.create_task(coroutine)
        waits.add_done_callback(lambda _: self._resume())
        self._back.release()
        self._go.acquire()
        if self._container.dead or waits.cancelled():
            if not waits.cancelled():
                waits.exception()
            raise Killed
        return waits.result()

    def kill(self) -> None:
        if self._waits is not None:
            self._waits.cancel()

    def _resume(self) -> None:
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        here.set(self._container)
        self._container.machine.current.fiber = self
        try:
            if not self._container.dead:
                self._target()
        except (Killed, SystemExit):
            pass
        except BaseException as error:  # a bug of the simulation or of the tested code ends the run
            self._loop.call_soon(self._container.machine.fail, error)
        finally:
            self._loop.call_soon(self._end)
            self._back.release()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Machine:
    """One seed: its clocks, what it reaches, and its containers."""

    def __init__(
        self, name: str, loop: Loop, random: Random, rate: float, fail: Callable[[BaseException], None]
    ) -> None:
        """``rate``: seconds of its clock in one second."""
        self.name = name
        self.loop = loop
        self.random = random
        self.rate = rate
        self.fail = fail
        self.current = threading.local()
        self.skew = 0.0
        """Offset of the machine's wall clock, which may be set at any time."""
        self.cut: set[str] = set()
        """Services that the machine does not reach."""
        self.refused = False
        """Whether it hears so at once."""
        self.containers: list[Container] = []
        self.off = False
        self._changed = asyncio.Event()

    def clock(self) -> float:
        """Runs at the machine's own rate, from a time of its own, and counts pauses."""
        return 1000.0 + self.loop.now * self.rate

    def wall(self) -> float:
        return EPOCH + self.loop.now * self.rate + self.skew

    def change(self) -> None:
        """Have waiters check their condition again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


class Container:
    """Processes that are paused and killed together. ``wakes`` counts from its last pause."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name
        self.dead = False
        self.paused = False
        self.woken = -1e9
        self.idle = 0.0
        """Seconds that it was paused."""
        self._paused_at = 0.0
        self._fibers: list[Fiber] = []
        self._tasks: list[asyncio.Task[Any]] = []
        machine.containers.append(self)

    def run(self, target: Callable[[], object]) -> Fiber:
        fiber = Fiber(self, target)
        self._fibers.append(fiber)
        return fiber

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(here.set, self)
        task = context.run(self.machine.loop.create_task, coroutine)
        task.add_done_callback(self._look_for_bugs)
        self._tasks.append(task)
        return task

    def _look_for_bugs(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SnapshotError):
            self.machine.fail(error)

    def pause(self) -> None:
        if not self.paused:
            self.paused, self._paused_at = True, self.machine.loop.now

    def resume(self) -> None:
        if self.paused:
            self.paused, self.woken = False, self.machine.loop.now
            self.idle += self.machine.loop.now - self._paused_at
            self.machine.change()

    def kill(self) -> None:
        self.dead, self.paused = True, False
        for fiber in self._fibers:
            fiber.kill()
        for task in self._tasks:
            task.cancel()
        self.machine.containers.remove(self)
        self.machine.change()

    async def gate(self) -> None:
        """Pass while we run."""
        await self.machine.until(lambda: not self.paused)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.machine.rate)
        await self.gate()

    async def pass_to(self, place: str, timeout: float = _HUNG_SECONDS) -> None:
        """One way of a request. Raises CutOff."""
        await self.gate()
        random = self.machine.random
        await asyncio.sleep(random.uniform(0.2, 1.5) if random.random() < 0.03 else random.uniform(0.002, 0.03))
        if place in self.machine.cut and self.machine.refused:
            raise CutOff
        try:
            async with asyncio.timeout(timeout):
                await self.machine.until(lambda: place not in self.machine.cut)
        except TimeoutError:
            raise CutOff from None

    async def ask(self, place: str, answer: Callable[[], Any], timeout: float = _HUNG_SECONDS) -> Any:
        """Answer with the state at the arrival of the question; the answer may be lost. Raises CutOff."""
        await self.pass_to(place, timeout)
        found = answer()
        await self.pass_to(place, timeout)
        await self.gate()
        return found


def blocking(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In blocking code: wait for it."""
    return here.get().machine.current.fiber.wait(coroutine)
