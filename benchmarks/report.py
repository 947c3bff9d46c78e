"""Report of a benchmark: what all of them print, as a table or as JSON, and what ``benchmarks.compare`` reads.

A figure may have a baseline, which the benchmark measures in the same runs on the same machine. Their ratio depends
less on the machine than the figure itself, so ratios of two machines or revisions can be compared.
"""

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import click
from pydantic import Field, FiniteFloat, ValidationError, model_validator

from api.model import ApiModel

VERSION = 1
"""Version of the format."""
ROOT = Path(__file__).parents[1]

output_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print a table, or a report for `python -m benchmarks.compare`.",
)


class Better(StrEnum):
    """Which of two values of a figure is the better one."""

    LOWER = "lower"
    HIGHER = "higher"


class Spread(ApiModel):
    """Values of all runs."""

    median: FiniteFloat
    min: FiniteFloat
    max: FiniteFloat

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Spread of at least one value."""
        low, middle, high = map(_rounded, (min(values), statistics.median(values), max(values)))
        return cls(median=middle, min=low, max=high)


class Figure(ApiModel):
    """One measured quantity of a benchmark."""

    name: str = Field(min_length=1)
    unit: str
    better: Better = Better.LOWER
    ours: Spread
    baseline: Spread | None = None
    """Values that the benchmark compares those of our code with."""
    ratio: FiniteFloat | None = Field(default=None, gt=0)
    """Quality relative to the baseline, median over the runs: 2 is twice as good, 0.5 half as good.

    None without a baseline, and where either of them is zero.
    """
    limit: FiniteFloat | None = None
    """The worst median that is accepted."""

    @property
    def exceeds_limit(self) -> bool:
        if self.limit is None:
            return False
        return self.ours.median > self.limit if self.better is Better.LOWER else self.ours.median < self.limit


def figure(
    name: str,
    unit: str,
    ours: Sequence[float],
    baseline: Sequence[float] | None = None,
    *,
    better: Better = Better.LOWER,
    limit: float | None = None,
) -> Figure:
    """A figure with one value of each run. ``baseline`` has the values of the same runs, in the same order.

    Raises ValueError if the two differ in length: a ratio needs values that were measured beside each other.
    """
    ratio = None
    if baseline is not None:
        pairs = list(zip(ours, baseline, strict=True))
        if all(value > 0 for pair in pairs for value in pair):
            gains = [other / own if better is Better.LOWER else own / other for own, other in pairs]
            ratio = _rounded(statistics.median(gains))
    return Figure(
        name=name,
        unit=unit,
        better=better,
        ours=Spread.of(ours),
        baseline=None if baseline is None else Spread.of(baseline),
        ratio=ratio,
        limit=limit,
    )


class Machine(ApiModel):
    """Machine that ran the benchmark."""

    cores: int = Field(ge=1)
    memory_mib: int = Field(ge=1)
    kernel: str
    cpu: str
    """Model of the processor; its architecture where the kernel does not tell the model."""

    @classmethod
    def here(cls) -> Self:
        return cls(
            cores=os.cpu_count() or 1,
            memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
            kernel=platform.release(),
            cpu=_cpu_model(Path("/proc/cpuinfo").read_text()) or platform.machine(),
        )


class Report(ApiModel):
    """One execution of a benchmark."""

    version: int = VERSION
    name: str = Field(min_length=1)
    """Name of the benchmark's module."""
    machine: Machine
    revision: str
    """Commit of the project; with ``-dirty`` if files other than documents differed from it, ``unknown`` outside of a
    checkout."""
    date: datetime
    runs: int = Field(ge=1)
    """Values behind each median."""
    settings: dict[str, int | float | str] = Field(default_factory=dict)
    """Options of this execution. Reports with different settings cannot be compared."""
    figures: tuple[Figure, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [each.name for each in self.figures]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"more than one figure has the name {', '.join(twice)}")
        return self

    @property
    def exceeded(self) -> tuple[Figure, ...]:
        """Figures that are worse than their limit."""
        return tuple(each for each in self.figures if each.exceeds_limit)


class InvalidReport(click.ClickException):
    """A file is no report of a benchmark."""

    exit_code = 2


def report_of(name: str, runs: int, figures: Sequence[Figure], settings: Mapping[str, int | float | str]) -> Report:
    """Report of a benchmark that has just run on this machine."""
    return Report(
        name=name,
        machine=Machine.here(),
        revision=revision(ROOT),
        date=datetime.now(UTC).replace(microsecond=0),
        runs=runs,
        settings=dict(settings),
        figures=tuple(figures),
    )


def load(path: Path) -> Report:
    """Report in a file. Raises InvalidReport, which names the file, the field and what is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidReport(f"reading the report {path}: {error.strerror}") from None
    try:
        found = Report.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidReport(
            f"{path} is no report of a benchmark: {place}: {first['msg']}; write one by `--output json`"
        ) from None
    if found.version != VERSION:
        raise InvalidReport(f"{path} has version {found.version} of the format, must be {VERSION}: run it again")
    return found


@contextmanager
def other_output_on_stderr() -> Iterator[None]:
    """Send what this process and its children write to standard output to standard error.

    A Temporal server and Temporal's SDK write lines of their own, between which a report could not be read.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def emit(made: Report, output: str) -> None:
    """Print a report. Raises SystemExit with status 1 if a figure is worse than its limit."""
    if output == "json":
        click.echo(made.model_dump_json(indent=2))
    else:
        click.echo(table(made))
    for each in made.exceeded:
        sign = ">" if each.better is Better.LOWER else "<"
        click.echo(f"{each.name}: {each.ours.median:g} {each.unit} {sign} limit {each.limit:g}", err=True)
    if made.exceeded:
        raise SystemExit(1)


def table(made: Report) -> str:
    """Two lines for the report, and one for each figure: median, and in brackets the smallest and the largest value."""
    rows = [("figure", "ours", "baseline", "ratio", "limit")]
    rows += map(cells, made.figures)
    machine = made.machine
    return "\n".join(
        [
            f"{made.name} at {made.revision[:12]}, {made.date:%Y-%m-%d %H:%M} UTC, runs: {made.runs}",
            f"{machine.cores} cores, {machine.memory_mib} MiB, {machine.cpu}, kernel {machine.kernel}",
            *columns(rows),
        ]
    )


def cells(each: Figure) -> tuple[str, str, str, str, str]:
    """Name, our values, those of the baseline, ratio and limit of a figure, as a table has them."""
    ratio = "-" if each.ratio is None else f"{each.ratio:.2f}"
    limit = "-" if each.limit is None else f"{each.limit:.4g}"
    return each.name, _shown(each.ours, each.unit), _shown(each.baseline, each.unit), ratio, limit


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; the first column is aligned on the left, the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def revision(checkout: Path) -> str:
    """Commit of a checkout, see ``Report.revision``."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "-C", checkout, *arguments), check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        commit = git("rev-parse", "--verify", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)docs")
        return f"{commit}-dirty" if changed else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _shown(spread: Spread | None, unit: str) -> str:
    """Median, and in brackets the smallest and the largest value if they differ."""
    if spread is None:
        return "-"
    around = f" ({_short(spread.min)} to {_short(spread.max)})" if spread.min < spread.max else ""
    return f"{_short(spread.median)} {unit}{around}"


def _rounded(value: float) -> float:
    """Six significant digits, so that small values do not become zero."""
    return float(f"{value:.6g}")


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cpu_model(cpuinfo: str) -> str | None:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None
