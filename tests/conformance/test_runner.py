"""Runs of ginkgo: how it is called, and how a run ends."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.results import PreparationFailed, Result, Results
from tests.conformance.runner import Suite, run_all, slow_last

NAMES = [f"[sig-a] {number:02} [Conformance]" for number in range(70)]
GINKGO = """#!/usr/bin/python3 -I
import json, os, re, signal, sys, time
options = dict(each.lstrip("-").split("=", 1) for each in sys.argv if "=" in each)
def report(*_):
    path = os.path.join(options["output-dir"], options["json-report"])
    expression = re.compile(options["focus"])
    names = [f"[sig-a] {number:02} [Conformance]" for number in range(70)]
    specs = [
        {"ContainerHierarchyTexts": ["[sig-a]"], "LeafNodeText": name[8:], "LeafNodeType": "It", "RunTime": 1e9,
         "State": "passed" if expression.search("Kubernetes e2e suite " + name) else "skipped"}
        for name in names
    ]
    with open(path, "w") as file:
        json.dump([{"SpecReports": specs}], file)
    sys.exit(1)
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Suite]:
    def made(end: str) -> Suite:
        program = tmp_path / "ginkgo"
        program.write_text(GINKGO + end)
        program.chmod(0o755)
        (tmp_path / "unshare").write_text('#!/bin/sh\nshift 5\nexec "$@"\n')  # which needs root
        (tmp_path / "unshare").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        kubeconfig, hosts = tmp_path / "kubeconfig", tmp_path / "hosts"
        return Suite("/bin/e2e.test", str(program), "/bin/kubectl", kubeconfig, hosts, tmp_path / "output", 2)

    return made


def test_all_specs_get_a_result_some_at_a_time(suite: Callable[[str], Suite], tmp_path: Path) -> None:
    said: list[str] = []
    results = Results(tmp_path / "results.json", "1.37.1")

    run_all(suite("report()"), NAMES, results, 600, said.append)

    assert results.missing(NAMES) == []
    assert [line.partition(" specs")[0] for line in said] == ["60 of 70", "70 of 70"]


def test_specs_that_have_a_result_do_not_run_again(suite: Callable[[str], Suite], tmp_path: Path) -> None:
    said: list[str] = []
    results = Results(tmp_path / "results.json", "1.37.1")
    results.add({name: Result("passed", 1) for name in NAMES[:68]})

    run_all(suite("report()"), NAMES, results, 600, said.append)

    assert len(said) == 1
    assert results.missing(NAMES) == []
    assert results[NAMES[0]].seconds == 1


def test_slow_specs_come_last() -> None:
    """One that waits for minutes would else be in the first batch of each run."""
    assert slow_last(["a [Slow]", "b", "c [Slow] [Other]", "d"]) == ["b", "d", "a [Slow]", "c [Slow] [Other]"]


def test_with_little_time_left_no_specs_start(suite: Callable[[str], Suite], tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", "1.37.1")

    run_all(suite("report()"), NAMES, results, 30, print)

    assert results.missing(NAMES) == NAMES


def test_a_ginkgo_that_writes_no_report_is_an_error(suite: Callable[[str], Suite], tmp_path: Path) -> None:
    """A report of the run before must not be taken for it."""
    broken = suite("sys.exit(7)")
    broken.output.mkdir()
    (broken.output / "report.json").write_text(json.dumps([]))

    with pytest.raises(PreparationFailed, match=r"exit status 7: see .*output\.log"):
        broken.run(NAMES, 60)


def test_a_run_without_any_result_does_not_repeat_itself(suite: Callable[[str], Suite], tmp_path: Path) -> None:
    nothing = suite('options["focus"] = "nothing"\nreport()')

    with pytest.raises(PreparationFailed, match="none of 60 specs has a result"):
        run_all(nothing, NAMES, Results(tmp_path / "results.json", "1.37.1"), 600, print)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts its background processes so that they ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ginkgo_is_interrupted_with_its_run_and_writes_its_report(
    suite: Callable[[str], Suite], tmp_path: Path
) -> None:
    """It removes what its specs have made in the cluster. A run that is stopped by Ctrl-C or SIGTERM ends in order."""
    ready = tmp_path / "ready"
    waiting = suite(f'signal.signal(signal.SIGINT, report)\nopen("{ready}", "w").close()\nsignal.pause()')

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)  # the clock of a poll
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        waiting.run(NAMES, 60)

    assert (waiting.output / "report.json").exists()


def test_the_users_own_kubeconfig_is_not_passed_on(
    suite: Callable[[str], Suite], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubectl would use it in specs that name none."""
    monkeypatch.setenv("KUBECONFIG", "/home/user/.kube/config")
    looking = suite('print(os.environ.get("KUBECONFIG"))\nsys.stdout.flush()\nreport()')

    looking.run(NAMES, 60)

    assert (looking.output / "output.log").read_text() == "None\n"
