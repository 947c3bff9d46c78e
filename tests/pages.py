"""Tables of pages that are the rows of tests: ``GARDENER_WRITE_DOCS=1`` writes them, every other run compares them."""

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
_DOCS = TESTS.parent / "docs"
_END = "<!-- end of rows -->\n"


def check_table(page: str, name: str, rows: Iterable[Iterable[str]]) -> None:
    """The table below the comment ``<!-- rows: NAME -->`` of a page, without its header, consists of these rows."""
    path, begin = _DOCS / page, f"<!-- rows: {name} -->\n"
    before, found, rest = path.read_text().partition(begin)
    assert found, f"docs/{page} has no line {begin}"
    table, _, after = rest.partition(_END)
    header = "".join(table.splitlines(keepends=True)[:3])  # an empty line, names, dashes
    wanted = header + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"
    if os.environ.get("GARDENER_WRITE_DOCS"):
        path.write_text(before + begin + wanted + _END + after)
        return
    assert table == wanted, f"docs/{page} is not what the test has: run it with GARDENER_WRITE_DOCS=1"


@dataclass(frozen=True)
class Marked:
    """One test with a marker that a page lists."""

    said: dict[str, Any]
    """Arguments of the marker."""
    file: str
    """Below the folder of all tests."""
    test: str


def marked(file: Path, marker: str, arguments: set[str]) -> Iterator[Marked]:
    """Tests of a file with this marker, as the source has them. Raises ValueError for other arguments than these."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != f"pytest.mark.{marker}":
                continue
            said = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in decorator.keywords}
            if said.keys() != arguments:
                raise ValueError(f"{file.name}: {node.name}: marker {marker} has the arguments {sorted(arguments)}")
            yield Marked(said, str(file.relative_to(TESTS)), node.name)
