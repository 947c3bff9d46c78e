"""Names of the objects that a task waits for, so that a report of its progress can name them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_WAITS: ContextVar[list[str] | None] = ContextVar("waits", default=None)


def record_waits() -> None:
    """Record the waits of this asyncio task and of each task that it starts from now on. Other tasks record none."""
    _WAITS.set([])


def recorded_waits() -> Sequence[str] | None:
    """Objects that this task and its child tasks wait for now, without repetitions. None: nothing is recorded."""
    waits = _WAITS.get()
    return None if waits is None else list(dict.fromkeys(waits))


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Record that this task waits for an object, until the ``with`` block ends."""
    waits = _WAITS.get()
    if waits is None:
        yield
        return
    waits.append(what)
    try:
        yield
    finally:
        waits.remove(what)
