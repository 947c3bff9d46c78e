"""Write the API reference: ``python docs/api/generate.py`` writes a page for each group of kinds from their models.

With ``--check`` it writes nothing, and exits 1 if a page is out of date.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from api.crds import Side, crd, kinds
from api.meta import KubeObject

HERE = Path(__file__).parent
SIDES: dict[Side, str] = {
    "garden": "in the garden",
    "seed": "in seeds",
    "autoscaled shoot": "in Shoots with a vertical pod autoscaler",
}
_RAW = "x-kubernetes-preserve-unknown-fields"


def pages() -> dict[str, str]:
    """Content of each page by its file name."""
    groups: dict[tuple[str, str], list[tuple[str, type[KubeObject]]]] = {}
    for side, where in SIDES.items():
        for model in kinds(side):
            served = model.definition
            groups.setdefault((served.group, served.version), []).append((where, model))
    made = {f"{group}-{version}.md": _page(group, version, found) for (group, version), found in groups.items()}
    return {"README.md": _index(groups), **made}


def _index(groups: dict[tuple[str, str], list[tuple[str, type[KubeObject]]]]) -> str:
    lines = [
        "# API reference",
        "",
        "`docs/api/generate.py` writes these pages from the models of the kinds, as the API servers serve them.",
        "[Fields](../fields.md) says what becomes of each field of Shoot, Seed, Project and CloudProfile.",
        "",
        "| group and version | kinds |",
        "| --- | --- |",
    ]
    for (group, version), found in sorted(groups.items()):
        page = f"{group}-{version}.md"
        links = ", ".join(
            f"[{model.__name__}]({page}#{model.__name__.lower()})" for _, model in sorted(found, key=_kind)
        )
        lines.append(f"| [{group}/{version}]({page}) | {links} |")
    return "\n".join(lines) + "\n"


def _kind(entry: tuple[str, type[KubeObject]]) -> str:
    return entry[1].__name__


def _page(group: str, version: str, found: list[tuple[str, type[KubeObject]]]) -> str:
    parts = [f"# {group}/{version}\n\n`docs/api/generate.py` writes this page.\n"]
    for where, model in sorted(found, key=_kind):
        parts.append("\n".join(_section(where, model)))
    return "\n".join(parts)


def _section(where: str, model: type[KubeObject]) -> Iterator[str]:
    definition = crd(model)["spec"]
    schema = definition["versions"][0]["schema"]["openAPIV3Schema"]
    names = definition["names"]
    short = f", short {', '.join(f'`{each}`' for each in names['shortNames'])}" if names["shortNames"] else ""
    scope = "in a namespace" if definition["scope"] == "Namespaced" else "of the whole cluster"
    yield f"## {names['kind']}\n"
    if text := schema.get("description"):
        yield f"{_prose(text)}\n"
    yield f"Resource `{names['plural']}`{short}, {scope}; served {where}.\n"
    yield "| field | type | meaning and rules |\n| --- | --- | --- |"
    for field, node, required in _fields(schema):
        yield f"| `{field}`{' (required)' if required else ''} | {_type(node)} | {_rules(node)} |"
    yield ""


def _fields(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    required = set(node.get("required", ()))
    for name, field in node.get("properties", {}).items():
        if not above and name in ("apiVersion", "kind", "metadata"):
            continue
        path = f"{above}.{name}" if above else name
        yield path, field, name in required
        inner, items = field, ""
        while True:
            if "items" in inner:
                inner, items = inner["items"], f"{items}[]"
            elif isinstance(inner.get("additionalProperties"), dict):
                inner, items = inner["additionalProperties"], f"{items}.*"
            else:
                break
        yield from _fields(inner, f"{path}{items}")


def _type(node: dict[str, Any]) -> str:
    if "items" in node:
        return f"list of {_type(node['items'])}"
    if isinstance(node.get("additionalProperties"), dict):
        return f"map of {_type(node['additionalProperties'])}"
    if node.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in node else "integer or string"
    if node.get(_RAW):
        return "any object" if node.get("type") == "object" else "any value"
    return str(node.get("type", "any value"))


def _rules(node: dict[str, Any]) -> str:
    found = [_prose(node["description"])] if node.get("description") else []
    if "default" in node:
        found.append(f"Default: `{json.dumps(node['default'])}`.")
    if "enum" in node:
        found.append(f"One of {', '.join(f'`{each}`' for each in node['enum'])}.")
    bounds = {"minimum": "at least", "maximum": "at most", "maxLength": "at most", "format": ""}
    for key, words in bounds.items():
        if key in node:
            unit = " characters" if key == "maxLength" else ""
            found.append(f"{f'{words} {node[key]}{unit}' if words else f'Format {node[key]}'}.".capitalize())
    found += [f"`{each['fieldPath'].removeprefix('.')}` is immutable." for each in _immutable(node)]
    return " ".join(found).replace("|", "\\|")


def _immutable(node: dict[str, Any]) -> list[dict[str, Any]]:
    rules = node.get("x-kubernetes-validations", ())
    return [each for each in rules if each.get("message") == "field is immutable"]


def _prose(text: str) -> str:
    """A docstring as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`").replace("<", "&lt;")


def main() -> int:
    wanted = pages()
    stale = sorted({path.name for path in HERE.glob("*.md")} - set(wanted))
    if "--check" in sys.argv:
        old = [name for name, text in wanted.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
        for name in [*old, *stale]:
            print(f"docs/api/{name} is out of date: run python docs/api/generate.py")
        return 1 if old or stale else 0
    for name in stale:
        (HERE / name).unlink()
    for name, text in wanted.items():
        (HERE / name).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
