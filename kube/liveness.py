"""Faults of the caches and controllers of this process, for its liveness probe.

A part has a fault if only a restart of the process can make it work again. An API server that does not answer is no
fault, because a restarted process would not reach it either.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Part(Protocol):
    """Something that runs for as long as its process does."""

    def fault(self) -> str | None:
        """Why the part makes no progress; None while it works."""


_PARTS: dict[int, Part] = {}


@contextmanager
def running(part: Part) -> Iterator[None]:
    """Inside the ``with`` block, the part counts for the liveness of the process."""
    _PARTS[id(part)] = part
    try:
        yield
    finally:
        _PARTS.pop(id(part), None)


def fault() -> str | None:
    """Faults of all parts that run, in one text; None if there are none."""
    return "; ".join(text for part in list(_PARTS.values()) if (text := part.fault())) or None
