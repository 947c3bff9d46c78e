"""Gardenlets of a test in place of the landscape's own, or none."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from landscape.lifecycle import processes_of, require
from tests.landscape.conftest import Landscape


@contextmanager
def replaced(landscape: Landscape, module: str, path: Path) -> Iterator[None]:
    """``python -m MODULE CONFIG PATH`` in both seeds; the landscape's own are back in the end, however far it came."""
    processes = processes_of(require(landscape.name))
    own = [processes.get(f"{seed}/gardenlet").spec for seed in ("seed-1", "seed-2")]
    try:
        for each in own:
            argv = (sys.executable, "-m", module, each.argv[-1], str(path))
            processes.start(replace(each, argv=argv, directory=str(Path(__file__).parents[2])))
        yield
    finally:
        for each in own:
            processes.start(each)


@contextmanager
def silent(landscape: Landscape, seed: str) -> Iterator[None]:
    """A seed whose gardenlet is killed and not started again before the end."""
    processes = processes_of(require(landscape.name))
    own = processes.get(f"{seed}/gardenlet")
    processes.stop([own], politely=False)
    try:
        yield
    finally:
        processes.start(own.spec)
