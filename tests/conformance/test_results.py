"""Results of specs: read from ginkgo's report, kept, and shown."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conformance.results import PreparationFailed, Result, Results, read_report

ONE, TWO, THREE = "[sig-a] one [Conformance]", "[sig-a] two [Conformance]", "[sig-b] three [Conformance]"


def spec(name: str, state: str, message: str = "", seconds: float = 2) -> dict[str, Any]:
    group, _, text = name.partition("] ")
    failure = {"Failure": {"Message": message}} if message else {}
    hierarchy = {"ContainerHierarchyTexts": [f"{group}]"], "LeafNodeText": text, "LeafNodeType": "It"}
    return {**hierarchy, "State": state, "RunTime": seconds * 1e9, **failure}


def suite(*specs: dict[str, Any], reasons: list[str] | None = None) -> dict[str, Any]:
    return {"SpecReports": list(specs), "SpecialSuiteFailureReasons": reasons}


@pytest.mark.parametrize(
    ("state", "message", "outcome"),
    [
        ("passed", "", "passed"),
        ("failed", "expected 1", "failed"),
        ("panicked", "nil pointer", "failed"),
        ("timedout", "a limit of 5 s", "failed"),
        ("skipped", "needs more nodes", "skipped"),
    ],
)
def test_a_spec_that_ended_has_a_result(state: str, message: str, outcome: str) -> None:
    found = read_report([suite(spec(ONE, state, message))], [ONE])

    assert found[ONE].outcome == outcome
    assert found[ONE].message == message
    assert found[ONE].seconds == 2


@pytest.mark.parametrize("state", ["skipped", "interrupted", "aborted", "pending"])
def test_a_spec_that_had_no_turn_has_no_result(state: str) -> None:
    """The next run must run it."""
    assert read_report([suite(spec(ONE, state))], [ONE]) == {}


def test_specs_that_ran_at_the_end_of_the_time_have_no_result() -> None:
    report = [suite(spec(ONE, "timedout", "interrupted"), spec(TWO, "passed"), reasons=["Suite Timeout Elapsed"])]

    assert list(read_report(report, [ONE, TWO])) == [TWO]


def test_specs_that_were_not_asked_for_are_ignored() -> None:
    assert read_report([suite(spec(ONE, "passed"), spec(TWO, "passed"))], [TWO]).keys() == {TWO}


@pytest.mark.parametrize("kind", ["BeforeSuite", "SynchronizedBeforeSuite"])
def test_a_suite_that_could_not_begin_is_an_error(kind: str) -> None:
    """All specs would else count as not run, without a reason."""
    before = {"LeafNodeType": kind, "LeafNodeText": "", "State": "failed", "Failure": {"Message": "node-1 not ready"}}

    with pytest.raises(PreparationFailed, match="node-1 not ready"):
        read_report([suite(before)], [ONE])


def test_a_suite_whose_time_was_up_before_its_first_spec_is_no_error() -> None:
    """Results of earlier batches count; the next run goes on."""
    before = {"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "timedout"}

    assert read_report([suite(before, reasons=["Suite Timeout Elapsed"])], [ONE]) == {}


def test_results_are_kept_for_the_next_run_of_the_same_release(tmp_path: Path) -> None:
    file = tmp_path / "made/results.json"
    Results(file, "1.37.1").add({ONE: Result("passed", 1), TWO: Result("failed", 2, "why")})

    kept = Results(file, "1.37.1")

    assert kept.missing([ONE, TWO, THREE]) == [THREE]
    assert kept.failed([ONE, TWO, THREE]) == [TWO]
    assert kept[TWO].message == "why"
    assert Results(file, "1.38.0").missing([ONE, TWO]) == [ONE, TWO]


def test_failed_specs_can_run_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", "1.37.1")
    results.add({ONE: Result("passed", 1), TWO: Result("failed", 2)})

    results.forget([ONE, TWO], ("failed",))

    assert results.missing([ONE, TWO]) == [TWO]


def test_the_table_counts_by_group(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", "1.37.1")
    results.add({ONE: Result("passed", 90), TWO: Result("failed", 30)})

    lines = [line.split() for line in results.table([ONE, TWO, THREE]).splitlines()]

    assert lines[1:] == [
        ["sig-a", "2", "1", "1", "0", "0", "2.0"],
        ["sig-b", "1", "0", "0", "0", "1", "0.0"],
        ["all", "3", "1", "1", "0", "1", "2.0"],
    ]


def test_junit_says_which_specs_failed_and_why(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", "1.37.1")
    results.add(
        {ONE: Result("passed", 1), TWO: Result("failed", 2, "saw \x1b[31m<1>"), THREE: Result("skipped", 0, "no")}
    )

    results.write_junit(tmp_path / "junit.xml", [ONE, TWO, THREE])

    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("3", "1", "1")
    [failure] = root.iter("failure")
    assert failure.get("message") == "saw ?[31m<1>"
    [skipped] = root.iter("skipped")
    assert skipped.get("message") == "no"
