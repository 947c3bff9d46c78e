"""The command ``python -m tests.conformance``: its options, and how its exit codes come about."""

import shlex
from pathlib import Path

import pytest

from landscape import binaries
from tests.conformance import __main__ as command
from tests.conformance import runner
from tests.conformance.results import PreparationFailed, Result, Results
from tests.walkthroughs import commands

NAMES = ["[sig-a] one [Conformance]", "[sig-a] two [Conformance]", "[sig-b] three [Conformance]"]


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Specs without the programs that run them; returns the directory of the results."""

    async def ensure(*_: object) -> dict[str, str]:
        return {"e2e.test": "e2e.test"}

    monkeypatch.setattr(binaries, "ensure", ensure)
    monkeypatch.setattr(runner, "listed", lambda _: list(NAMES))
    monkeypatch.setattr(command, "DIRECTORY", tmp_path)
    return tmp_path


def known(directory: Path, **outcomes: str) -> None:
    """Results of an earlier run."""
    names = dict(zip(("one", "two", "three"), NAMES, strict=True))
    results = Results(directory / "results.json", binaries.KUBERNETES_VERSION)
    results.add({names[each]: Result(outcome, 1) for each, outcome in outcomes.items()})  # type: ignore[arg-type]


def test_the_documents_show_options_that_exist() -> None:
    shown = [each.text.partition("#")[0] for each in commands("docs/conformance.md") if "ARGS=" in each.text]

    assert len(shown) == 3
    for each in shown:
        [arguments] = [part.removeprefix("ARGS=") for part in shlex.split(each) if part.startswith("ARGS=")]
        command.parsed(shlex.split(arguments))


def test_specs_that_all_have_passed_need_no_cluster(made: Path) -> None:
    known(made, one="passed", two="passed", three="skipped")

    assert command.main([]) == 0
    assert (made / "junit.xml").exists()


def test_a_failed_spec_is_exit_code_1(made: Path) -> None:
    known(made, one="passed", two="failed", three="passed")

    assert command.main([]) == 1
    assert command.main(["--focus", "three"]) == 0


def test_specs_without_a_result_are_exit_code_3(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_run_missing", lambda names, results, options: known(made, one="passed"))

    assert command.main([]) == 3


@pytest.mark.parametrize("arguments", [["--shard", "5/4"], ["--focus", "nothing of this name"], ["--focus", "("]])
def test_a_choice_without_specs_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert capsys.readouterr().err.startswith("conformance: ")


def test_a_suite_that_cannot_begin_is_exit_code_2_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise PreparationFailed("node-1 is not ready")

    monkeypatch.setattr(command, "_run_missing", fail)

    assert command.main([]) == 2
    assert "node-1 is not ready" in capsys.readouterr().err


def test_failed_specs_run_again_on_request_and_others_do_not(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(made, one="passed", two="failed", three="passed")
    ran: list[str] = []
    monkeypatch.setattr(command, "_run_missing", lambda names, results, options: ran.extend(results.missing(names)))

    command.main(["--failed"])
    assert ran == [NAMES[1]]
    ran.clear()
    command.main(["--again"])
    assert ran == NAMES
