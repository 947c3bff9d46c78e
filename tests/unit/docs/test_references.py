"""Documents are found where code and other documents name them.

A reference in code is a file below ``docs/`` and the number of a section: ``spec/flows.md 1.3``.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = (
    "activities",
    "api",
    "benchmarks",
    "charts",
    "etcd",
    "examples",
    "kube",
    "landscape",
    "temporal-server",
    "tests",
    "workers",
    "workflows",
)
"""Folders with code. Documents are looked through, too."""

_TEXTS = {".py", ".md", ".go", ".yaml", ".tpl", ".toml"}
_SPEC = re.compile(r"\bspec/(?P<file>[a-z-]+\.md)(?P<sections>(?:,? (?:to |and )?\d+(?:\.\d+)*)*)")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Reference(NamedTuple):
    place: str
    """File and line that has the reference."""
    file: str
    section: str


def texts() -> Iterator[tuple[Path, str]]:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*")]
    code = [path for room in ROOMS for path in (ROOT / room).rglob("*")]
    for path in sorted({*documents, *code}):
        if path.suffix in _TEXTS and path.is_file():
            yield path, path.read_text()


def references(text: str, place: str) -> Iterator[Reference]:
    for line, content in enumerate(text.splitlines(), start=1):
        for match in _SPEC.finditer(content):
            for section in _NUMBER.findall(match["sections"]) or [""]:
                yield Reference(f"{place}:{line}", match["file"], section)


def sections(document: str) -> set[str]:
    """Numbers of all numbered headings."""
    numbers = (_NUMBER.match(heading["text"]) for heading in _HEADING.finditer(document))
    return {number.group() for number in numbers if number}


def anchors(document: str) -> set[str]:
    """Anchors of all headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", heading["text"].lower()) for heading in _HEADING.finditer(document))
    return {each.strip().replace(" ", "-") for each in plain}


def test_a_reference_names_its_file_and_all_its_sections() -> None:
    found = list(references("Source: spec/flows.md 1.1 to 1.3, spec/credentials.md 4.", "a"))

    assert [(each.file, each.section) for each in found] == [
        ("flows.md", "1.1"),
        ("flows.md", "1.3"),
        ("credentials.md", "4"),
    ]


def test_each_section_of_a_specification_that_code_names_exists() -> None:
    specifications = {path.name: sections(path.read_text()) for path in (ROOT / "docs" / "spec").glob("*.md")}
    named = [each for path, text in texts() for each in references(text, str(path.relative_to(ROOT)))]

    assert len(named) > 150, "the references are not found any more"
    missing = [
        each
        for each in named
        if each.file not in specifications or (each.section and each.section not in specifications[each.file])
    ]
    assert missing == []


@pytest.mark.parametrize(
    "document", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_each_link_of_a_document_has_a_target(document: Path) -> None:
    broken = []
    for link in _LINK.finditer(document.read_text()):
        target, _, anchor = link["target"].partition("#")
        if "://" in target:
            continue
        path = (document.parent / target).resolve() if target else document
        if not path.exists():
            broken.append(f"{link['target']}: no such file")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
            broken.append(f"{link['target']}: no such heading")
    assert broken == []
