"""Points at which processes are killed, made from the graph of a flow, and the record of a run."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class Moment(StrEnum):
    """Moment in the run of an activity."""

    BEFORE = "before"
    """The worker has taken the activity, and has written nothing."""
    AMID = "amid"
    """The first of several writes is done, and no code has seen the answer."""
    AFTER = "after"
    """All effects are there, and Temporal does not know that the activity has ended."""
    BETWEEN = "between"
    """Temporal knows that the activity has ended, and the worker of the workflow is dead."""


@dataclass(frozen=True, order=True)
class Point:
    activity: str
    moment: Moment

    def __str__(self) -> str:
        return f"{self.activity}.{self.moment}"

    @classmethod
    def parse(cls, text: str) -> "Point":
        activity, _, moment = text.rpartition(".")
        return cls(activity, Moment(moment))


@dataclass(frozen=True)
class Entry:
    """One line of the record."""

    what: str
    """``started``, ``wrote``, ``done``, ``killed``, ``decided`` or ``up``."""
    subject: str
    """Activity, point, workflow or process."""
    role: str
    at: float
    """Unix seconds."""
    attempt: int = 0


class Record:
    """A directory that all processes of one run share: chosen points, points that were met, and a log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "record"

    def choose(self, points: Iterable[Point]) -> None:
        """Begin a run with these points."""
        met = self.directory / "met"
        met.mkdir(exist_ok=True)
        for each in met.iterdir():
            each.unlink()
        self._log.write_text("")
        (self.directory / "points").write_text("\n".join(map(str, points)))

    def chosen(self) -> frozenset[Point]:
        return frozenset(map(Point.parse, (self.directory / "points").read_text().split()))

    def meet(self, point: Point) -> bool:
        """Whether a process is to be killed here: true once for each chosen point."""
        if point not in self.chosen():
            return False
        try:
            (self.directory / "met" / str(point)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def met(self) -> frozenset[Point]:
        return frozenset(Point.parse(each.name) for each in (self.directory / "met").iterdir())

    def note(self, what: str, subject: str, role: str, attempt: int = 0) -> None:
        """Append an entry; a process that dies afterwards does not lose it."""
        line = json.dumps(asdict(Entry(what, subject, role, time.time(), attempt))) + "\n"
        file = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def entries(self) -> list[Entry]:
        return [Entry(**json.loads(line)) for line in self._log.read_text().splitlines()]

    def pid_file(self, role: str) -> Path:
        return self.directory / f"{role}.pid"


def points_of(activities: Iterable[str], writes: dict[str, int], done: set[str]) -> list[Point]:
    """All points of activities.

    ``writes``: number of writes of each activity in an undisturbed run; ``done``: activities that end by themselves.
    """
    at_the_end = (Moment.AFTER, Moment.BETWEEN)
    return [
        Point(name, moment)
        for name in activities
        for moment in Moment
        if (moment is not Moment.AMID or writes.get(name, 0) > 1) and (moment not in at_the_end or name in done)
    ]


def resumed(entries: list[Entry]) -> dict[Point, float]:
    """Seconds from each kill to the next progress.

    That is the next attempt of the killed activity; between two tasks the next decision of the workflow.
    """
    found = {}
    for number, entry in enumerate(entries):
        if entry.what != "killed":
            continue
        point = Point.parse(entry.subject)
        for later in entries[number + 1 :]:
            goes_on = later.what == "decided" if point.moment is Moment.BETWEEN else (
                later.what == "started" and later.subject == point.activity
            )  # fmt: skip
            if goes_on:
                found[point] = later.at - entry.at
                break
    return found


def struck_by_others(entries: list[Entry]) -> frozenset[str]:
    """Activities that ran when the process was killed at a point of another one.

    The writes of such an attempt may be done though the record has none of them. The next attempt does not repeat
    them, so it may never come to a point of its own.
    """
    running: set[str] = set()
    found: set[str] = set()
    for entry in entries:
        if entry.what == "started":
            running.add(entry.subject)
        elif entry.what == "done":
            running.discard(entry.subject)
        elif entry.what == "killed":
            found |= running - {Point.parse(entry.subject).activity}
            running.clear()
    return frozenset(found)


def writes_of(entries: list[Entry]) -> dict[str, int]:
    """Number of writes of each activity."""
    found: dict[str, int] = {}
    for entry in entries:
        if entry.what == "wrote":
            found[entry.subject] = found.get(entry.subject, 0) + 1
    return found
