"""Run conformance specs against a cluster, some at a time, by ginkgo in several processes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.results import PreparationFailed, Result, Results, read_report
from tests.conformance.specs import conformance_specs, exactly

PROCESSES = 4
"""Specs mostly wait for pods, so more of them run than the machine has cores."""
_BATCH = 60
"""Specs of one run of ginkgo. Results are kept after each; near its end, processes wait for the slowest spec."""
_LEAST_SECONDS = 60
"""With less time left no further batch starts: pods alone take some seconds."""
_GRACE_SECONDS = 90
"""Time that ginkgo has to clean up after it was interrupted."""


@dataclass(frozen=True)
class Suite:
    """The programs of Kubernetes' end-to-end tests, and a cluster for them."""

    e2e: str
    ginkgo: str
    kubectl: str
    kubeconfig: Path
    hosts: Path
    """Names of API servers, for these programs alone: a file like /etc/hosts."""
    output: Path
    """Directory for output and reports."""
    nodes: int

    def run(self, names: Sequence[str], seconds: float, processes: int = PROCESSES) -> dict[str, Result]:
        """Run these specs for at most so many seconds; returns the results of those that finished.

        Raises PreparationFailed if no spec could run.
        """
        self.output.mkdir(mode=0o700, parents=True, exist_ok=True)
        report, log = self.output / "report.json", self.output / "output.log"
        report.unlink(missing_ok=True)
        with log.open("a") as written:
            command = self._command(names, seconds, processes, report)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, env=self._environment()
            )
            try:
                process.wait(seconds + _GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pass  # ginkgo's own limit had no effect
            finally:
                _stop(process)
        if not report.exists():
            raise PreparationFailed(f"ginkgo wrote no report, exit status {process.returncode}: see {log}")
        return read_report(json.loads(report.read_text()), names)

    def _command(self, names: Sequence[str], seconds: float, processes: int, report: Path) -> list[str]:
        return [
            # A mount namespace of its own, so that this machine's /etc/hosts stays as it is.
            "unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self.hosts),
            self.ginkgo, "run", f"--procs={processes}", f"--timeout={seconds:.0f}s", "--no-color",
            f"--json-report={report.name}", f"--output-dir={report.parent.resolve()}", f"--focus={exactly(names)}",
            self.e2e, "--", f"--kubeconfig={self.kubeconfig}", f"--kubectl-path={self.kubectl}", "--provider=skeleton",
            f"--num-nodes={self.nodes}", "--disable-log-dump", "--dump-logs-on-failure=false",
        ]  # fmt: skip

    def _environment(self) -> Mapping[str, str]:
        """Without a kubeconfig of the person who runs the tests: kubectl would read it."""
        return {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt ginkgo if it runs; it removes what its specs have made and writes its report."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listed(e2e: str) -> list[str]:
    """Names of the conformance specs of a release."""
    done = subprocess.run([e2e, "--list-tests"], capture_output=True, text=True, timeout=300, check=True)
    return conformance_specs(done.stdout)


def slow_last(names: Sequence[str]) -> list[str]:
    """Slow specs take up to half an hour: they would keep a run of some minutes from all others."""
    return sorted(names, key=lambda name: "[Slow]" in name)


def run_all(
    suite: Suite, names: Sequence[str], results: Results, seconds: float, say: Callable[[str], None],
    processes: int = PROCESSES,
) -> None:  # fmt: skip
    """Run the specs that have no result yet until all have one, or the time is up."""
    deadline = time.monotonic() + seconds
    while (missing := results.missing(names)) and (left := deadline - time.monotonic()) >= _LEAST_SECONDS:
        batch = slow_last(missing)[:_BATCH]
        begun = time.monotonic()
        found = suite.run(batch, left, processes)
        results.add(found)
        for name in results.failed(found):
            say(f"failed: {name}: {next(iter(results[name].message.splitlines()), '')}")
        done, took = len(names) - len(results.missing(names)), time.monotonic() - begun
        say(f"{done} of {len(names)} specs have a result, {len(results.failed(names))} failed ({took:.0f} s)")
        if not found and deadline - time.monotonic() >= _LEAST_SECONDS:
            raise PreparationFailed(f"none of {len(batch)} specs has a result: see {suite.output}/output.log")
