"""Columns of ``kubectl get``, short names and field selectors are those of docs/spec/api.md, as far as a CRD allows.

docs/columns.md lists each difference with its reason.
"""

import re
from pathlib import Path

import pytest

from api.crds import kinds
from api.meta import KubeObject
from tests.pages import check_table

_SPEC = (Path(__file__).parents[3] / "docs/spec/api.md").read_text()
_WIDE = "[w]"
_COMPUTED = "a column of a custom resource shows the value of one field"
_COUNT = "a column of a custom resource cannot count"
_OURS = "our own: where an operation is, and why it waits"

DIFFERENCES: dict[tuple[str, str], tuple[str, str]] = {
    ("Seed", "Status"): ("Ready", f"computed from four conditions, and {_COMPUTED}: condition GardenletReady"),
    ("Shoot", "Hibernation"): ("Hibernated", f"computed from spec and status, and {_COMPUTED}: `status.hibernated`"),
    ("Shoot", "Last Operation"): ("Last Operation, State, Progress", f"made of three fields, and {_COMPUTED}"),
    ("Shoot", "-"): ("[w]Step, [w]Last Error", _OURS),
    ("ControllerInstallation", "Cluster"): ("Seed", f"made of the kind and the name, and {_COMPUTED}"),
    ("ShootState", "Gardener Data"): ("", _COUNT),
    ("ShootState", "Extension States (counts)"): ("", _COUNT),
    ("InternalSecret", "Data"): ("", _COUNT),
    ("ManagedSeed", "Status"): ("Registered", f"a word for a condition, and {_COMPUTED}: condition SeedRegistered"),
    ("ManagedSeedSet", "Ready"): ("Ready, Desired", f"made of two fields, and {_COMPUTED}"),
}
"""By kind and Gardener's column: our columns in its place, and the reason. ``-``: columns that are ours alone."""
CELLS = (
    ("Shoot", "CloudProfile", "the name alone, also that of a NamespacedCloudProfile"),
    ("ControllerRegistration", "Resources", "kinds without their types"),
    ("Shoot, Seed, Project", "conditions, phases, states", "empty in place of `<unknown>` and `<pending>`"),
)
"""Columns whose cells differ: kind, column, what our cell shows."""


def split(cell: str) -> list[str]:
    """Entries of a cell of the table: commas in parentheses separate none."""
    return [each.strip() for each in re.split(r",(?![^(]*\))", cell) if each.strip()]


def column(text: str) -> str:
    """Name of a column without the notes in parentheses, which say what a cell holds; with the mark of wide ones."""
    plain = re.sub(r" \((?!counts)[^)]*\)(,…)?|,…", "", text).strip()
    return plain.replace("[w] ", _WIDE)


def rows() -> dict[tuple[str, str], list[str]]:
    """Wanted columns by side and kind, without the name of the object."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in _SPEC.partition("### 1.1")[2].partition("### 1.2")[0].splitlines():
        cells = [each.strip() for each in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "Kind (plural)":
            name = re.sub(r"\*\*[^*]*\*\*|…", "", cells[0]).split("(")[0].split("–")[0].strip()
            names = split(cells[4].rstrip("| ").replace("(suggested)", ""))
            found["garden", name] = [column(each) for each in names if each != "–"][1:]
    for line in _SPEC.partition("### 1.2")[2].partition("### 1.3")[0].splitlines():
        cells = re.split(r"\s*\|\s*", line.strip("| "))
        if not line.startswith("| ") or len(cells) != 4 or cells[0] == "Kind":
            continue
        bare = re.sub(r"\*\*[^*]*\*\*|\([^)]*\)|…", "", cells[0])
        for each in bare.split(","):
            wanted: list[str] = []
            wide = ""
            for part in split(cells[3]):
                wide = _WIDE if part.startswith(_WIDE) else wide
                name = column(part.removeprefix(_WIDE).strip())
                wanted += [f"{wide}{name}"] if name not in ("", "–") else []
            found["seed", each.split()[0]] = wanted
    return found


MODELS = [(side, model) for side in ("garden", "seed") for model in kinds(side) if (side, model.__name__) in rows()]


def served(model: type[KubeObject]) -> list[str]:
    return [f"{_WIDE if each.wide else ''}{each.name}" for each in model.definition.columns]


def test_the_table_has_each_kind_that_is_served():
    """A kind without a row would not be compared."""
    known = {name for _, name in rows()}
    ours = {model.__name__ for side in ("garden", "seed") for model in kinds(side)}
    assert ours <= known
    assert {name for _, name in rows()} - ours == {
        "AdminKubeconfigRequest, ViewerKubeconfigRequest",
        "OpenIDConnect",
    }


@pytest.mark.parametrize(("side", "model"), MODELS, ids=lambda each: getattr(each, "__name__", each))
def test_columns_are_those_of_gardener(side, model):
    kind = model.__name__
    wanted = []
    for each in rows()[side, kind]:
        ours, _ = DIFFERENCES.get((kind, each.removeprefix(_WIDE)), (each, ""))
        wanted += split(ours)
    extra = split(DIFFERENCES.get((kind, "-"), ("", ""))[0])
    assert [each for each in served(model) if each not in extra] == wanted
    assert set(extra) <= set(served(model))


def test_each_difference_is_of_a_column_that_gardener_has():
    for kind, name in DIFFERENCES:
        assert name == "-" or name in {each.removeprefix(_WIDE) for each in rows()["garden", kind]}


def selectors() -> dict[str, list[str]]:
    """Wanted field selectors by kind, as JSON paths."""
    text = _SPEC.partition("### 1.4")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for part in text.partition("CRD form")[0].split(";"):
        kind = re.findall(r"\b[A-Z]\w+", part.partition("`")[0])
        names = [alternative for each in re.findall(r"`([^`]*)`", part) for alternative in expanded(each)]
        if "the same" in part:
            names = [*found["BackupBucket"], *names]
        found[kind[-1]] = names
    return found


def expanded(name: str) -> list[str]:
    """``a.b|c`` is ``a.b`` and ``a.c``."""
    base, _, last = name.rpartition(".")
    return [f"{base}.{each}" if base else each for each in last.split("|")]


@pytest.mark.parametrize("kind", sorted(selectors()))
def test_field_selectors_are_those_of_gardener(kind):
    models = [model for model in kinds("garden") if model.__name__ == kind]
    if kind == "ManagedSeed" and not models:
        return
    # The names of fields: a selector of a custom resource is a JSON path.
    lower = {"spec.cloudProfile.Name": "spec.cloudProfile.name", "spec.cloudProfile.Kind": "spec.cloudProfile.kind"}
    wanted = {f".{lower.get(each, each)}" for each in selectors()[kind]}
    assert wanted
    assert {each for model in models for each in model.definition.selectable} == wanted


def test_the_page_lists_each_difference():
    rows_of_page = [
        [kind, "" if name == "-" else name, ours or "no column", why]
        for (kind, name), (ours, why) in DIFFERENCES.items()
    ]
    check_table("columns.md", "columns", rows_of_page)
    check_table("columns.md", "cells", CELLS)
