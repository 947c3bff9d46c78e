"""The kill matrix: an operation that is killed at every point, beside one that is not, and what the ledger finds."""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from api.contracts.operations import OperationType
from tests.chaos.ledger import Finding, compare
from tests.chaos.points import Entry, Point, points_of, resumed, writes_of
from tests.chaos.stage import Fall, Run, Stage, flow_of

OPERATIONS = (OperationType.CREATE, OperationType.DELETE)
BUDGET = 3600.0
"""Limit in seconds for one operation with all its kills: a busy machine needs some seconds for each."""


@dataclass
class Result:
    operation: str
    tasks: int
    """Tasks in the graph of the flow."""
    points: int
    killed: int
    missed: list[str]
    """Points at which no process was killed."""
    resumes: dict[Point, float]
    falls: list[Fall]
    effects: int
    """Effects of the undisturbed run."""
    findings: list[Finding]
    undisturbed_seconds: float
    seconds: float

    def by_moment(self) -> dict[str, tuple[int, float | None, float | None]]:
        """Number of kills, and median and longest resume, by the moment of the kill."""
        found: dict[str, list[float]] = {}
        for point, seconds in self.resumes.items():
            found.setdefault(str(point.moment), []).append(seconds)
        return {each: (len(all_), percentile(all_, 50), percentile(all_, 100)) for each, all_ in found.items()}

    def row(self) -> dict[str, Any]:
        found = sorted(self.resumes.values())
        return {
            "operation": self.operation,
            "tasks": self.tasks,
            "points": self.points,
            "kills": self.killed,
            "missed": self.missed,
            "effects": self.effects,
            "resumes": {str(point): round(seconds, 2) for point, seconds in sorted(self.resumes.items())},
            "resumeP50Seconds": percentile(found, 50),
            "resumeP95Seconds": percentile(found, 95),
            "falls": [
                {"server": each.server, "task": each.task, "answersAfterSeconds": round(each.answers, 2),
                 "resumedAfterSeconds": round(each.resumed, 2)} for each in self.falls
            ],
            "findings": [str(each) for each in self.findings],
            "undisturbedSeconds": round(self.undisturbed_seconds, 1),
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


def percentile(values: list[float], percent: int) -> float | None:
    if not values:
        return None
    return round(sorted(values)[math.ceil(len(values) * percent / 100) - 1], 2)


def all_points(operation: OperationType, undisturbed: Run) -> list[Point]:
    """Points of all activities of an operation: those of its graph, and those that its workflow runs beside them.

    An activity that ends only with its workflow has no point at its end.
    """
    graph = flow_of(operation)
    started = {each.subject for each in undisturbed.entries if each.what == "started"}
    done = [each.subject for each in undisturbed.entries if each.what == "done"]
    tasks = [each for each in graph.names if not graph.skipped(each)]
    assert started >= set(tasks), "the undisturbed run has not run each task"
    last = max(done.index(each) for each in tasks)
    ended = set(done[: last + 1])
    return points_of([*tasks, *sorted(started - set(tasks))], writes_of(undisturbed.entries), ended)


@dataclass
class Killer:
    """Kills servers, each once a task has begun, and starts them again."""

    stage: Stage
    plan: dict[str, str]
    """Names of servers by activity."""
    falls: list[Fall] = field(default_factory=list)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            begun = {each.subject for each in self.stage.record.entries() if each.what == "started"}
            for task in [each for each in self.plan if each in begun]:
                server = self.plan.pop(task)
                self.falls.append(await self.stage.fell(server, task))
            await asyncio.sleep(0.05)  # the clock of a poll


def falls_of(operation: OperationType, servers: Iterable[str]) -> dict[str, str]:
    """Each server falls in another part of a flow."""
    names, wanted = flow_of(operation).names, list(servers)
    step = len(names) / (len(wanted) + 1)
    return {names[round(step * (number + 1))]: server for number, server in enumerate(wanted)}


async def matrix(
    stage: Stage, operation: OperationType, undisturbed: Run, points: Iterable[Point], falls: dict[str, str]
) -> Result:
    """Run an operation with these kills, and compare it with the undisturbed one. The workers run."""
    chosen = list(points)
    killer = Killer(stage, dict(falls))
    killing = asyncio.create_task(killer.run())
    try:
        run = await stage.operate(operation, chosen, BUDGET)
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    for each in killer.falls:
        each.resumed = _next(run.entries, each.at + each.answers)
    return Result(
        operation=str(operation),
        tasks=len(flow_of(operation).names),
        points=len(chosen),
        killed=len(run.met),
        missed=sorted(map(str, set(chosen) - run.met)),
        resumes=resumed(run.entries),
        falls=killer.falls,
        effects=undisturbed.ledger.effects,
        findings=compare(undisturbed.ledger, run.ledger),
        undisturbed_seconds=undisturbed.seconds,
        seconds=run.seconds,
    )


def _next(entries: Iterable[Entry], since: float) -> float:
    return min((each.at - since for each in entries if each.at >= since and each.what != "up"), default=0.0)
