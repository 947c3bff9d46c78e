"""The exhibits of this folder, as their source names them: faults that other systems had."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.pages import TESTS, marked

_FOLDER = TESTS / "museum"
_NOT_ROOMS = {"test_page.py"}
_THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)#(?P<number>\d+)")


@dataclass(frozen=True)
class Exhibit:
    """One fault of another system, and the test that shows that it cannot happen here."""

    threads: tuple[str, ...]
    """Public threads, ``owner/repository#number``; the test is named after the first one."""
    happened: str
    here: str
    file: str
    """Below the folder of all tests."""
    test: str

    @property
    def links(self) -> str:
        return ", ".join(f"[{name(each)}]({url(each)})" for each in self.threads)


@dataclass(frozen=True)
class Room:
    """The exhibits of one file."""

    name: str
    title: str
    """First line of the file's docstring."""
    exhibits: tuple[Exhibit, ...]


def rooms() -> Iterator[Room]:
    """All rooms by name. Raises ValueError for a marker that is not complete."""
    for file in sorted(_FOLDER.glob("test_*.py")):
        if file.name not in _NOT_ROOMS:
            yield Room(file.stem.removeprefix("test_"), _title(file), tuple(_exhibits_of(file)))


def name(thread: str) -> str:
    """``repository#number``, without its owner."""
    return thread.partition("/")[2]


def url(thread: str) -> str:
    """Address of a thread. GitHub redirects to a pull request if the number is one."""
    found = _THREAD.fullmatch(thread)
    if found is None:
        raise ValueError(f"thread {thread} is not of the form owner/repository#number")
    return f"https://github.com/{found['repository']}/issues/{found['number']}"


def prefix_of_test(thread: str) -> str:
    """Beginning of the name of the test that shows the exhibit of a thread."""
    return "test_" + re.sub(r"[^a-z0-9]", "_", name(thread).lower())


def _title(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


def _exhibits_of(file: Path) -> Iterator[Exhibit]:
    for each in marked(file, "exhibit", {"threads", "happened", "here"}):
        threads = tuple(each.said["threads"])
        yield Exhibit(threads, each.said["happened"], each.said["here"], each.file, each.test)
