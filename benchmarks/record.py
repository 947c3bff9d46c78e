"""Run benchmarks one after the other, and keep their reports, tables and plots in ``docs/benchmarks``.

    .venv/bin/python -m benchmarks.record [NAME ...]

Landscape ``benchmark`` is brought up for the benchmarks that need one, and removed in the end. A benchmark that misses
a limit has a report like any other one. The report of one that fails stays as it was; then the exit status is 1.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from benchmarks.page import REPORTS, write
from benchmarks.report import ROOT

LANDSCAPE = "benchmark"
_GARDENER = str(Path(sys.executable).parent / "gardener")


class Needs(StrEnum):
    """Command of ``gardener`` that must have run before a benchmark."""

    NOTHING = ""
    LANDSCAPE = "landscape up"
    SHOOT = "demo --kubeconfig build/benchmark.kubeconfig"


@dataclass(frozen=True)
class Recorded:
    """One benchmark, and its options."""

    name: str
    options: tuple[str, ...] = ()
    needs: Needs = Needs.NOTHING

    @property
    def command(self) -> tuple[str, ...]:
        here = ("--landscape", LANDSCAPE) if self.needs else ()
        return (sys.executable, "-m", f"benchmarks.{self.name}", *self.options, *here, "--output", "json")


ALL = (
    Recorded("admission"),
    Recorded("flow_overhead"),
    Recorded("temporal", ("--without-cluster",)),
    Recorded("resource_manager"),
    Recorded("scale"),
    Recorded("shoot", ("--runs", "3"), Needs.LANDSCAPE),
    Recorded("operations", ("--runs", "1"), Needs.LANDSCAPE),
    Recorded("signal", (), Needs.LANDSCAPE),
    Recorded("front_door", (), Needs.LANDSCAPE),
    Recorded("gardenlet", ("--minutes", "5"), Needs.SHOOT),
)
"""In the order in which they run: the Shoot that the last one needs would disturb others."""


def run(benchmark: Recorded, reports: Path) -> bool:
    """Whether a benchmark has printed a report, which is written to ``reports``."""
    done = subprocess.run(benchmark.command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        return False
    (reports / f"{benchmark.name}.json").write_text(done.stdout)
    return True


@contextmanager
def _landscape(benchmarks: list[Recorded]) -> Iterator[None]:
    """Removes the landscape at the end, if one of these benchmarks needs it."""
    try:
        yield
    finally:
        if any(each.needs for each in benchmarks):
            subprocess.run((_GARDENER, "landscape", "down", "--name", LANDSCAPE), stdout=sys.stderr, check=True)


@click.command(help="Run these benchmarks, by default all, and write reports, tables and plots to docs/benchmarks.")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=click.Choice([each.name for each in ALL]))
def main(names: tuple[str, ...]) -> None:
    chosen = [each for each in ALL if each.name in names or not names]
    failed = []
    (ROOT / "build").mkdir(exist_ok=True)
    with _landscape(chosen):
        for each in chosen:
            click.echo(f"== {each.name}", err=True)
            if each.needs:
                up = (_GARDENER, *each.needs.split(), "--name", LANDSCAPE)
                subprocess.run(up, cwd=ROOT, stdout=sys.stderr, check=True)
            if not run(each, REPORTS):
                failed.append(each.name)
            write(REPORTS)
    if failed:
        raise click.ClickException(f"no report of {', '.join(failed)}: see above")


if __name__ == "__main__":
    main()
