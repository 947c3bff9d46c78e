"""Threads of tests that do the same again and again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LAST_SECONDS = 60.0
"""Limit for the call that runs at the end of a block."""


@contextmanager
def repeating(act: Callable[[], object], period: float) -> Iterator[None]:
    """Call a function in a thread of its own until the end of the block, with a pause of ``period`` seconds."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(period):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_SECONDS)
