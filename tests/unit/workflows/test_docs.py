"""The pages about flows are drawn from the code; an old picture is worse than none."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.flows import pictures

ROOT = Path(__file__).parents[3]
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs/flows").glob("*.md") if "## Tasks" in path.read_text()}


@dataclass
class Graph:
    """A graph of tasks, as pictures read it."""

    edges: dict[str, list[str]]

    def after(self, name: str) -> list[str]:
        return self.edges[name]

    def comes_after(self, later: str, earlier: str) -> bool:
        return any(each == earlier or self.comes_after(each, earlier) for each in self.edges[later])

    def title(self, name: str) -> str:
        return name.capitalize()

    def skipped(self, name: str) -> str:
        return "not wanted" if name == "skipped" else ""


CHAIN = Graph({"a": [], "b": ["a"], "c": ["a", "b"], "skipped": ["c"]})


def test_the_pictures_of_the_flows_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "docs/flows/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("page", PAGES)
def test_each_task_of_a_flow_is_in_the_picture_of_one_phase(page: str) -> None:
    drawn = re.findall(r'^    (\w+)\["', PAGES[page].partition("\n## ")[2], re.M)
    listed = re.findall(r"^\| (\w+) \| ", PAGES[page], re.M)
    assert drawn
    assert sorted(drawn) == sorted(listed)[1:], "the first row of the table is its header"


@pytest.mark.parametrize("page", PAGES)
def test_the_overview_names_each_phase_and_connects_it(page: str) -> None:
    overview, *sections = PAGES[page].split("\n## ")
    numbers = [each.partition(".")[0] for each in sections[:-1]]
    assert re.findall(r'^    p(\d+)\["\1\. ', overview, re.M) == numbers
    assert numbers
    assert set(re.findall(r"--> p(\d+)$", overview, re.M)) >= set(numbers[2:]), "a later phase waits for another"


def test_the_phases_of_the_code_are_those_of_the_pages() -> None:
    assert "\n## 1. Desired state, namespace and credentials" in PAGES["reconcile"]
    assert "\n## 1. Stop everything that could still act" in PAGES["forget"]


def test_a_picture_shows_no_arrow_that_follows_from_others() -> None:
    lines = pictures.drawn(CHAIN, {"All": ["a", "b", "c", "skipped"]})
    assert [each.strip() for each in lines if "-->" in each] == ["a --> b", "b --> c", "c --> skipped"]
    assert '    skipped["Skipped"]:::skipped' in lines


def test_a_picture_shows_tasks_of_other_phases_that_its_tasks_wait_for() -> None:
    lines = pictures.drawn(CHAIN, {"First: a and b": ["a", "b"], "Second": ["c"], "Third": ["skipped"]})
    overview, _, second, _ = "\n".join(lines).split("\n## ")
    assert overview.count("-->") == 2
    assert 'p1["1. First"]' in overview
    assert 'b(["B"]):::other' in second
    assert "a(" not in second


def test_a_picture_shows_one_arrow_for_a_task_after_everything() -> None:
    many: dict[str, list[str]] = {f"t{number}": [] for number in range(20)}
    lines = pictures.drawn(Graph({**many, "last": [*many]}), {"First": [*many], "Last": ["last"]})
    assert 'everything(["all tasks before"]):::other' in "\n".join(lines)
    assert sum("--> last" in each for each in lines) == 1
