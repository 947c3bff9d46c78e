"""Tables of pages that are the rows of tests: ``GARDENER_WRITE_DOCS=1`` writes them, every other run compares them."""

import os
from collections.abc import Iterable
from pathlib import Path

_DOCS = Path(__file__).parents[1] / "docs"
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
