"""Holds that code under attack needs little memory."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def less_memory_than(limit: int) -> Iterator[None]:
    """Fails if the code within the context has allocated ``limit`` bytes or more at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
