"""Results of conformance specs, kept in a file, so that the next run goes on where the last one ended."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from workers.cli.garden_tests import runner

Outcome = Literal["passed", "failed", "skipped"]
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_PREPARATION = ("BeforeSuite", "SynchronizedBeforeSuite")
_SUITE_TIMEOUT = "Suite Timeout Elapsed"


class PreparationFailed(Exception):
    """The suite failed before its first spec, for example because a node is not ready."""


@dataclass(frozen=True)
class Result:
    """Result of one spec."""

    outcome: Outcome
    seconds: float
    message: str = ""
    """Failure, or why the spec skipped itself."""


class Results:
    """Results by the specs' names, and the file in which they are kept."""

    def __init__(self, file: Path, release: str) -> None:
        """``release``: that of the specs; results of another release are forgotten."""
        self._file = file
        self._release = release
        self._by_name: dict[str, Result] = {}
        if file.exists():
            kept = json.loads(file.read_text())
            if kept["release"] == release:
                self._by_name = {name: Result(**result) for name, result in kept["specs"].items()}

    def __getitem__(self, name: str) -> Result:
        return self._by_name[name]

    def add(self, found: Mapping[str, Result]) -> None:
        self._by_name |= found
        specs = {name: asdict(result) for name, result in sorted(self._by_name.items())}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"release": self._release, "specs": specs}, indent=2) + "\n")
        unfinished.rename(self._file)

    def forget(self, names: Iterable[str], outcomes: Sequence[Outcome]) -> None:
        """Forget results with these outcomes, so that their specs run again."""
        for name in names:
            if name in self._by_name and self._by_name[name].outcome in outcomes:
                del self._by_name[name]

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self._by_name]

    def failed(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._by_name and self._by_name[name].outcome == "failed"]

    def table(self, names: Sequence[str]) -> str:
        """A line for each group of specs and one for all: how many passed, failed, skipped themselves, did not run."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(name.partition("]")[0].lstrip("["), []).append(name)
        heads = ("specs of", "specs", "passed", "failed", "skipped", "not run", "minutes")
        rows = [self._row(group, of_group) for group, of_group in sorted(groups.items())]
        lines = [heads, *rows, self._row("all", names)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        return "\n".join(
            "  ".join(cell.ljust(width) if not column else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        )  # fmt: skip

    def _row(self, group: str, names: Sequence[str]) -> tuple[str, ...]:
        found = [self._by_name[name] for name in names if name in self._by_name]
        counts = Counter(result.outcome for result in found)
        minutes = sum(result.seconds for result in found) / 60
        numbers = (len(names), counts["passed"], counts["failed"], counts["skipped"], len(names) - len(found))
        return (group, *map(str, numbers), f"{minutes:.1f}")

    def write_junit(self, file: Path, names: Sequence[str]) -> None:
        """Write the results of these specs as JUnit's XML."""
        found = [
            runner.Result(
                name=name, labels=(), outcome=runner.Outcome(known.outcome), seconds=known.seconds, text=known.message
            )
            for name in names
            if (known := self._by_name.get(name))
        ]
        file.write_text(runner.junit(found, f"Kubernetes {self._release} conformance"))


def read_report(report: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Result]:
    """Results of these specs in ginkgo's JSON report; specs that a stopped suite interrupted have none.

    Raises PreparationFailed if no spec could run.
    """
    found: dict[str, Result] = {}
    wanted = set(names)
    for suite in report:
        out_of_time = _SUITE_TIMEOUT in (suite.get("SpecialSuiteFailureReasons") or ())
        for spec in suite.get("SpecReports") or ():
            message = _COLOR.sub("", (spec.get("Failure") or {}).get("Message", ""))
            if spec["LeafNodeType"] in _PREPARATION and spec["State"] != "passed" and not out_of_time:
                raise PreparationFailed(f"the suite failed before its first spec: {message}")
            name = " ".join([*(spec.get("ContainerHierarchyTexts") or ()), spec["LeafNodeText"]])
            if name in wanted and (outcome := _outcome(spec["State"], message, out_of_time)):
                found[name] = Result(outcome, round(spec.get("RunTime", 0) / 1e9, 1), message)
    return found


def _outcome(state: str, message: str, out_of_time: bool) -> Outcome | None:
    match state:
        case "passed":
            return "passed"
        case "skipped" if message:  # without a message the spec had no turn
            return "skipped"
        case "failed" | "panicked":
            return "failed"
        case "timedout" if not out_of_time:  # a time limit of its own
            return "failed"
    return None
