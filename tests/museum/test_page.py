"""docs/museum.md lists each exhibit with its thread and its test."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.museum.exhibits import Exhibit, Room, prefix_of_test, rooms
from tests.pages import TESTS, check_table

ROOMS = tuple(rooms())
EXHIBITS = tuple(each for room in ROOMS for each in room.exhibits)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_page_lists_the_exhibits_of_a_room(room: Room) -> None:
    check_table("museum.md", room.name, ([each.links, each.happened, each.here, _link(each)] for each in room.exhibits))


def test_page_has_each_room_under_its_title_and_no_other_one() -> None:
    lines = (TESTS.parent / "docs/museum.md").read_text().splitlines()

    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == [
        room.title.removesuffix(".") for room in ROOMS
    ]


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.test)
def test_an_exhibit_is_named_after_its_thread_and_told_in_a_sentence_each(exhibit: Exhibit) -> None:
    assert exhibit.test.startswith(prefix_of_test(exhibit.threads[0]) + "_")
    for said in (exhibit.happened, exhibit.here):
        assert said.endswith(".")
        assert ". " not in said, "two sentences for an exhibit: what happened, and why not here"
        assert "|" not in said


def test_a_thread_has_one_exhibit() -> None:
    counted = Counter(thread for each in EXHIBITS for thread in each.threads)

    assert [thread for thread, count in counted.items() if count > 1] == []


def test_each_test_of_a_room_is_an_exhibit() -> None:
    exhibits = {(each.file, each.test) for each in EXHIBITS}

    assert {each for room in ROOMS for each in _tests_of(f"museum/test_{room.name}.py")} == exhibits


def _tests_of(file: str) -> set[tuple[str, str]]:
    body = ast.parse((TESTS / file).read_text()).body
    functions = (each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return {(file, each.name) for each in functions if each.name.startswith("test_")}


def _link(exhibit: Exhibit) -> str:
    return f"[{Path(exhibit.file).name}](../tests/{exhibit.file})"
