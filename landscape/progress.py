"""Progress of a long command: one line per step, with the time since the start."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click


class Progress:
    """Prints progress to stderr; stdout is for results."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._started = time.monotonic()
        self._quiet = quiet

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def say(self, message: str) -> None:
        if not self._quiet:
            click.echo(f"{self.elapsed:7.1f} s  {message}", err=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print the end of the step and its duration."""
        started = time.monotonic()
        yield
        self.say(f"{name} ({time.monotonic() - started:.1f} s)")
