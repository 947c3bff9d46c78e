"""Draw the packages: ``python docs/packages/generate.py`` writes the picture in docs/architecture.md.

A box is a layer of the import rules in pyproject.toml. An arrow is an import in the code; it is left out where a
longer way of arrows leads to the same box. With ``--check`` the script writes nothing, and exits 1 if the picture is
out of date.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
_PICTURE = re.compile(r"(?<=<!-- docs/packages/generate.py writes this picture -->\n).*?(?=<!-- end -->)", re.DOTALL)
_LINE_LENGTH = 60

Arrows = dict[str, set[str]]
"""Boxes that each box imports, by name."""


def boxes(linter: Mapping[str, Any]) -> dict[str, list[str]]:
    """Modules of each box, by its name: a top package without layers of its own, or a layer of a package."""
    layers: dict[str, list[str]] = {}
    for contract in linter["contracts"]:
        for container in contract.get("containers", ()):
            for number, layer in enumerate(contract["layers"], start=1):
                names = [each.strip(" ()") for each in re.split("[|:]", layer)]
                layers[f"{container}{number}"] = [f"{container}.{name}" for name in names]
    inner = {name.rstrip("0123456789") for name in layers}
    return layers | {package: [package] for package in linter["root_packages"] if package not in inner}


def arrows(graph: grimp.ImportGraph, boxes: Mapping[str, Iterable[str]]) -> Arrows:
    """Imports between modules of different boxes."""
    box_of = {module: box for box, modules in boxes.items() for module in modules}

    def find(module: str) -> str | None:
        first, *rest = module.split(".")
        return box_of.get(first) or box_of.get(".".join([first, *rest[:1]]))

    found: Arrows = {box: set() for box in boxes}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importer, target = find(module), find(imported)
            if importer and target and importer != target:
                found[importer].add(target)
    return found


def reduced(arrows: Arrows) -> Arrows:
    """The arrows without those from a box to another one that a longer way reaches, too."""
    reachable: Arrows = {}

    def reach(box: str) -> set[str]:
        if box not in reachable:
            reachable[box] = set(arrows[box]).union(*(reach(each) for each in arrows[box]))
        return reachable[box]

    return {box: {each for each in to if not any(each in reach(other) for other in to)} for box, to in arrows.items()}


def picture() -> str:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    graph = grimp.build_graph(*linter["root_packages"])
    existing = {
        box: [module for module in modules if module in graph.modules] for box, modules in boxes(linter).items()
    }
    drawn = reduced(arrows(graph, existing))
    lines = ["```mermaid", "flowchart TD"]
    for package in linter["root_packages"]:
        own = [box for box in existing if box.rstrip("0123456789") == package]
        if own == [package]:
            lines.append(f"    {package}[{package}/]")
            continue
        lines.append(f'    subgraph {package}["{package}/"]')
        lines += [f'        {box}["{_label(existing[box])}"]' for box in own]
        lines.append("    end")
    lines += [f"    {box} --> {each}" for box in sorted(drawn) for each in sorted(drawn[box])]
    return "\n".join([*lines, "```", ""])


def _label(modules: Iterable[str]) -> str:
    lines = [""]
    for name in (module.split(".")[1] for module in modules):
        if len(lines[-1]) > _LINE_LENGTH:
            lines.append("")
        lines[-1] += f"{name}, "
    return "<br/>".join(line.strip() for line in lines).rstrip(",")


def main() -> None:
    text = PAGE.read_text()
    new = _PICTURE.sub(lambda _: picture(), text)
    if new == text:
        return
    if "--check" in sys.argv:
        raise SystemExit("docs/architecture.md is out of date; run python docs/packages/generate.py")
    PAGE.write_text(new)
    print(PAGE)


if __name__ == "__main__":
    main()
