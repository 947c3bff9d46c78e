"""docs/resource-manager.md lists what the resource manager does, row by row, with the test that tries each row."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import check_table

_TESTS = Path(__file__).parents[2]
_FOLDERS = ("unit/resource_manager", "unit/components", "unit/api", "unit/seed")
TABLES = (
    "configuration",
    "ManagedResource",
    "merge",
    "hostile",
    "health",
    "garbage collector",
    "token requestor",
    "token invalidator",
    "certificate requests",
    "network policies",
    "node-agent delays",
    "node-agent access",
    "node critical components",
    "webhooks",
    "high availability",
    "deletion protection",
    "extension validation",
)


def _rows() -> Iterator[tuple[str, str, str, str]]:
    """Table, text, file and name of each test with a marker ``row``."""
    for file in sorted(path for folder in _FOLDERS for path in (_TESTS / folder).glob("test_*.py")):
        source = file.read_text()
        if "pytest.mark.row(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.row":
                    table, says = (ast.literal_eval(each) for each in decorator.args)
                    yield table, says, str(file.relative_to(_TESTS)), node.name


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_a_row_for_each_rule_with_its_test(table: str) -> None:
    """A rule without a test does not appear there, so the page promises nothing that no test tries."""
    rows = [
        [says, f"[{name.removeprefix('test_').replace('_', ' ')}](../tests/{file})"]
        for found, says, file, name in sorted(_rows())
        if found == table
    ]

    assert rows
    check_table("resource-manager.md", table, rows)


def test_each_row_is_in_a_table_of_the_page() -> None:
    assert {table for table, *_ in _rows()} == set(TABLES)
