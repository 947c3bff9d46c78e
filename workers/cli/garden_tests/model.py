"""A test, its labels, and the selection of tests by labels. Source: GEP-9."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.cli.garden_tests.context import Context


class Label(StrEnum):
    """Labels in their order."""

    DEFAULT = "default"
    """Quick, and changes nothing that other users of the Shoot notice."""
    BETA = "beta"
    """Takes minutes, or changes the Shoot."""
    RELEASE = "release"
    """Needed before a release."""
    SERIAL = "serial"
    """Needs a Shoot that has no other operation meanwhile."""
    DISRUPTIVE = "disruptive"
    """Takes away machines, with the pods on them."""


LEVELS = (Label.DEFAULT, Label.BETA, Label.RELEASE)
"""Importance. A level includes the levels before it."""
TRAITS = (Label.SERIAL, Label.DISRUPTIVE)
"""Behaviour. A test runs only if each of its traits is asked for."""


class TestFailed(Exception):
    """A test has found a fault; the text says what was expected, and what was found."""

    __test__ = False  # for pytest


class TestSkipped(Exception):
    """A test cannot run here; the text says what it needs."""

    __test__ = False  # for pytest


Body = Callable[["Context"], Awaitable[None]]


@dataclass(frozen=True)
class GardenTest:
    """A test of a garden."""

    name: str
    body: Body
    labels: frozenset[Label]
    """One level, and any traits."""
    timeout: float
    """Seconds."""

    @property
    def level(self) -> Label:
        [level] = [each for each in LEVELS if each in self.labels]
        return level

    @property
    def traits(self) -> frozenset[Label]:
        return self.labels & frozenset(TRAITS)

    def __str__(self) -> str:
        shown = "".join(f"[{each}] " for each in Label if each in self.labels)
        return f"{shown}{self.name}"


def garden_test(name: str, *labels: Label, timeout: float) -> Callable[[Body], GardenTest]:
    """Make a test of a function. ``timeout`` is in seconds.

    Raises ValueError if the labels do not name exactly one level.
    """

    def make(body: Body) -> GardenTest:
        if sum(each in LEVELS for each in labels) != 1:
            raise ValueError(f"test {name!r} needs exactly one of the labels {', '.join(LEVELS)}")
        return GardenTest(name, body, frozenset(labels), timeout)

    return make


def selected(tests: Iterable[GardenTest], labels: Sequence[Label]) -> list[GardenTest]:
    """Tests for these labels, in the order in which they run: disruptive ones last.

    A level selects its tests and those of the levels before it, if all of their traits are asked for. Traits without a
    level select the tests of each level that have one of these traits and no other.
    """
    asked = frozenset(labels)
    highest = max((LEVELS.index(each) for each in asked if each in LEVELS), default=None)
    found = [
        each
        for each in tests
        if each.traits <= asked and (bool(each.traits) if highest is None else LEVELS.index(each.level) <= highest)
    ]
    return sorted(found, key=lambda each: sorted(TRAITS.index(trait) for trait in each.traits)[-1:] or [-1])
