"""Prints what a command does while it works."""

import json
import time

import click


class Narrator:
    """Prints each event with the seconds since the start, as a line of text or as a JSON object."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._started, 1)

    def say(self, text: str, *, phase: str, **more: str) -> None:
        if self.as_json:
            click.echo(json.dumps({"seconds": self.seconds, **more, "phase": phase, "text": text}))
        else:
            click.echo(f"{self.seconds:7.1f} s  {''.join(f'{each} ' for each in more.values())}{phase}: {text}")
