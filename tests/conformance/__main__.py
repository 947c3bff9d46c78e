"""``make conformance``: Kubernetes' own conformance specs on a Shoot of two nodes.

Brings up a landscape of its own unless it is up, and takes down what it has brought up. Results are kept in
build/conformance: the next run goes on with the specs that have none. The exit code is 0 if all chosen specs passed,
1 if one failed, 2 if they could not run, and 3 if some did not run in the time.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from landscape import binaries
from landscape import plan as plans
from landscape.errors import LandscapeError
from landscape.progress import Progress
from tests.conformance import runner
from tests.conformance.cluster import NAME, cluster
from tests.conformance.results import PreparationFailed, Results
from tests.conformance.specs import UsageError, focused, shard
from tests.landscape.conftest import Landscape

DIRECTORY = Path("build/conformance")


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="run each N-th spec, beginning with the K-th")
    parser.add_argument("--minutes", type=float, default=120, help="time for the specs; then the run ends")
    parser.add_argument("--focus", default="", metavar="REGEX", help="run the specs whose names match")
    parser.add_argument("--processes", type=int, default=runner.PROCESSES, help="so many specs run at a time")
    parser.add_argument("--landscape", default=NAME, metavar="NAME", help="landscape to use, or to bring up")
    parser.add_argument("--keep", action="store_true", help="leave landscape and Shoot for the next run")
    parser.add_argument("--failed", action="store_true", help="run the specs again that failed before")
    parser.add_argument("--again", action="store_true", help="run all chosen specs again")
    parser.add_argument("--list", action="store_true", help="print the names of the chosen specs, and end")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    programs = asyncio.run(binaries.ensure((binaries.kubernetes_tests(),), Progress()))
    names = shard(focused(runner.listed(programs["e2e.test"]), options.focus), options.shard)
    if not names:
        raise UsageError(f"no conformance spec matches focus {options.focus!r} in shard {options.shard}")
    if options.list:
        print("\n".join(names))
        return 0
    results = Results(DIRECTORY / "results.json", binaries.KUBERNETES_VERSION)
    results.forget(names, ("passed", "failed", "skipped") if options.again else ("failed",) if options.failed else ())
    try:
        if results.missing(names):
            _run_missing(names, results, options)
    finally:
        DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)
        results.write_junit(DIRECTORY / "junit.xml", names)
        print(results.table(names), flush=True)
    return 1 if results.failed(names) else 3 if results.missing(names) else 0


def _run_missing(names: Sequence[str], results: Results, options: argparse.Namespace) -> None:
    seconds = options.minutes * 60
    with (
        _landscape(options.landscape, keep=options.keep) as landscape,
        tempfile.TemporaryDirectory() as directory,
        cluster(landscape, Path(directory), DIRECTORY, seconds, keep=options.keep) as suite,
    ):
        _say(f"{len(results.missing(names))} of {len(names)} specs to run, at most {options.minutes:g} minutes")
        runner.run_all(suite, names, results, seconds, _say, options.processes)


@contextmanager
def _landscape(name: str, *, keep: bool) -> Iterator[Landscape]:
    """The landscape; one that this run has brought up is taken down at the end."""
    landscape, was_up = Landscape(name), plans.load(name) is not None
    try:
        landscape.up()
        yield landscape
    finally:
        if not (was_up or keep):
            landscape.down()


def _say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    try:
        return run(options)
    except (LandscapeError, PreparationFailed, UsageError, pytest.fail.Exception) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("conformance: stopped; the next run goes on with the specs that have no result", file=sys.stderr)
        return 3


if __name__ == "__main__":
    # As Ctrl-C: ginkgo and the landscape end in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
