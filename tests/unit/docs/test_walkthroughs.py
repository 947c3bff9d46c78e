"""The commands that the documents show exist: their options, targets, files, chart values and annotations."""

import re
import subprocess
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.walkthroughs import ELSEWHERE, ON_A_LANDSCAPE, ROOT, Command, commands, documents, pattern_of, spans
from workers.cli.main import gardener

_SHOWN = [command for document in documents() for command in commands(document)]
_NAMED = [command for document in documents() for command in spans(document)]
_OURS = re.compile(r"((?:[\w-]+\.)*gardener\.cloud/[\w-]+)=")


def _programs(shown: Iterable[Command], name: str) -> list[Any]:
    return [
        pytest.param(program[1:], id=str(command))
        for command in shown
        for program in command.programs
        if program[0] == name
    ]


def _values(chart: str) -> Any:
    return yaml.safe_load((ROOT / chart / "values.yaml").read_text())


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> click.Group:
    """The ``gardener`` command, which parses its arguments and then does nothing."""
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return gardener


def _parse(parser: click.Group, arguments: list[str]) -> None:
    for each in arguments:
        if each.endswith((".yaml", ".key")):  # an option may demand that its file exists
            Path(each).touch()
    parser.main(arguments, "gardener", standalone_mode=False)


@pytest.mark.parametrize("arguments", _programs(_SHOWN, "gardener"))
def test_a_gardener_command_of_a_console_block_is_complete(arguments: list[str], parser: click.Group) -> None:
    _parse(parser, arguments)


@pytest.mark.parametrize("arguments", _programs(_NAMED, "gardener"))
def test_a_gardener_command_in_prose_has_its_subcommand_and_options(arguments: list[str], parser: click.Group) -> None:
    """Prose may leave out arguments, but not invent them."""
    try:
        _parse(parser, [each for each in arguments if each != "…"])
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return


def test_an_option_that_does_not_exist_is_found(parser: click.Group) -> None:
    with pytest.raises(click.NoSuchOption, match="--gently"):
        _parse(parser, ["flow", "retry", "garden-local/demo", "--gently"])


@pytest.mark.parametrize("arguments", _programs([*_SHOWN, *_NAMED], "make"))
def test_a_make_target_exists(arguments: list[str]) -> None:
    rules = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    assert arguments[0] in " ".join(rules).split()


@pytest.mark.parametrize("command", _SHOWN, ids=str)
def test_a_shell_reads_the_command_and_its_files_exist(command: Command) -> None:
    subprocess.run(["bash", "-n", "-c", command.text], check=True)
    rooms = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    for argument in (each for program in command.programs for each in program):
        file = argument.rpartition("=")[2]
        if "/" in file and file.partition("/")[0] in rooms:
            assert list(ROOT.glob(file)), file


@pytest.mark.parametrize("arguments", _programs(_SHOWN, "helm"))
def test_a_chart_has_the_values_that_a_helm_command_sets(arguments: list[str]) -> None:
    [chart] = [each for each in arguments if each.startswith("charts/")]
    settings = [value for option, value in pairwise(arguments) if option == "--set"]
    for setting in (each for every in settings for each in every.split(",")):
        values = _values(chart)
        for key in setting.partition("=")[0].split("."):
            assert key in values, f"{chart}/values.yaml has no {setting}"
            values = values[key]


@pytest.mark.parametrize("name", sorted({name for command in _SHOWN for name in _OURS.findall(command.text)}))
def test_an_annotation_or_label_of_a_command_is_known_to_the_api(name: str) -> None:
    prefix = f"{name.rpartition('/')[0]}/"
    sources = [path.read_text() for path in (ROOT / "api").rglob("*.py")]
    assert any(f'"{name}"' in text or f'"{prefix}"' in text for text in sources)


@pytest.mark.parametrize("command", _SHOWN, ids=str)
def test_a_command_is_run_by_a_walkthrough_or_tested_elsewhere(command: Command) -> None:
    run, elsewhere = ON_A_LANDSCAPE.get(command.document, ()), ELSEWHERE.get(command.document, {})
    found = [each for each in (*run, *elsewhere) if command.text.startswith(each)]
    assert len(found) == 1, f"name it in {'one' if found else 'a'} table of tests/walkthroughs.py"


def test_the_tables_of_walkthroughs_name_commands_and_tests_that_exist() -> None:
    for document, beginning in [
        *((document, each) for document, run in ON_A_LANDSCAPE.items() for each in run),
        *((document, each) for document, left in ELSEWHERE.items() for each in left),
    ]:
        assert any(command.text.startswith(beginning) for command in commands(document)), f"{document}: {beginning}"
    tests = {each for left in ELSEWHERE.values() for each in left.values()}
    assert [each for each in tests if not (ROOT / each).exists()] == []


def test_the_commands_are_found() -> None:
    """Without commands the tests above would check nothing."""
    by_document = {command.document for command in _SHOWN}
    assert {"README.md", "docs/credentials.md", "docs/operations/upgrade.md"} <= by_document
    assert len(_SHOWN) > 50
    assert len(_NAMED) > 40


def test_a_loop_with_a_redirection_is_split_into_its_programs() -> None:
    lines = [
        "for seed in a b; do",
        "  A=1 .venv/bin/gardener keys create $seed > o.key 2>&1 &",
        "  (sudo kubectl get pods)",
    ]
    assert Command("x.md", 1, "\n".join([*lines, "done"])).programs == [
        ["for", "seed", "in", "a", "b"],
        ["gardener", "keys", "create", "$seed"],
        ["kubectl", "get", "pods"],
    ]


@pytest.mark.parametrize(
    ("shown", "seen", "alike"),
    [
        ("alice   demo   seed-1   9s   in 59m", "alice demo seed-2 1m3s in 58m", True),
        ("alice   demo   seed-1   9s   in 59m", "bob demo seed-2 1m3s in 58m", False),
        ("5fc99295 2026-11-22T08:50:42+00:00 admin", "00000001 2027-01-01T00:00:00+00:00 admin", True),
        ("5fc99295 2026-11-22T08:50:42+00:00 admin", "00000001 yesterday admin", False),
        ("shoot--a--0f3c3a5e-...  5eed...  seed-1", "shoot--a--9c1d-77 bucket-1 seed-2", True),
        ("shoot--a--0f3c3a5e-...  5eed...  seed-1", "shoot--b--9c1d-77 bucket-1 seed-2", False),
    ],
)
def test_shown_output_is_a_pattern_for_what_differs_from_run_to_run(shown: str, seen: str, alike: bool) -> None:
    assert bool(pattern_of(shown).fullmatch(seen)) is alike
