"""Each field of these kinds has a row: code reads or writes it, or it is refused.

Admission refuses fields of kinds of the garden, and the API server of a seed those of its own kinds.

The rows are in ``fields/*.yaml``; docs/fields.md shows them. A row's key is a field; ``{a,b}`` stands for two fields.
Its value is one of these:

- ``module:name``: the code that reads (in the status: writes) the field, and has its name;
- ``whole: module:name``: the code passes on the field with all fields below it;
- ``refused: value``: the field is refused if it has this value, and the refusal names it, or the field ``under``;
  ``with`` are other fields that such an object needs;
- ``extension: reason``: extensions read it in the Cluster object;
- ``people: reason``: text for people;
- ``fixed: reason``: the API allows one value alone;
- ``unwritten: reason``: a field of the status that this version does not write.
"""

import ast
import itertools
import re
import types
import typing
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.druid.v1alpha1.etcd import Etcd
from api.druid.v1alpha1.etcd_copy_backups_task import EtcdCopyBackupsTask
from api.machine.v1alpha1.machine import Machine
from api.machine.v1alpha1.machine_class import MachineClass
from api.machine.v1alpha1.machine_deployment import MachineDeployment
from api.machine.v1alpha1.machine_set import MachineSet
from api.meta import KubeObject
from api.seedmanagement.v1alpha1.managed_seed import ManagedSeed
from api.validation import offered
from api.validation.garden import check_seed
from api.validation.pools import NO_SELF_HOSTED_SHOOTS
from api.validation.shoot import check_shoot
from tests.pages import check_table
from tests.unit.api.shoots import PROFILE, SEED, complete

ROOT = Path(__file__).parents[3]
OF_SEED: tuple[type[KubeObject], ...] = (
    Etcd,
    EtcdCopyBackupsTask,
    MachineDeployment,
    MachineSet,
    Machine,
    MachineClass,
)
"""Kinds whose fields the API server of a seed refuses."""
KINDS: tuple[type[KubeObject], ...] = (Shoot, Seed, Project, CloudProfile, ManagedSeed, *OF_SEED)
_PARTS = {"whole", "refused", "extension", "people", "fixed", "unwritten", "under", "with"}


def expanded(key: str) -> list[str]:
    """``a.{b,c}`` as ``a.b`` and ``a.c``."""
    parts = [part[1:-1].split(",") if part.startswith("{") else [part] for part in re.split(r"(\{[^}]*\})", key)]
    return ["".join(each) for each in itertools.product(*parts)]


def row_of(value: Any) -> dict[str, Any]:
    return {"reader": value} if isinstance(value, str) else dict(value)


@cache
def table(kind: type[KubeObject]) -> dict[str, dict[str, Any]]:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    rows = yaml.safe_load((Path(__file__).parent / "fields" / f"{name}.yaml").read_text())
    fields = [(field, row_of(value)) for key, value in rows.items() for field in expanded(key)]
    twice = [field for field, _ in fields if [each for each, _ in fields].count(field) > 1]
    assert not twice, f"fields with two rows: {twice}"
    return dict(fields)


def fields_of(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo, type[BaseModel] | None]]:
    """Each field below a model: its path, its definition, and its model if it has fields of its own."""
    for name, field in model.model_fields.items():
        below, items = _model_in(field.annotation)
        path = f"{above}.{field.alias or name}" if above else field.alias or name
        yield path, field, below
        if below is not None:
            yield from fields_of(below, path + items)


def _model_in(kind: Any) -> tuple[type[BaseModel] | None, str]:
    """The model in a field's type; ``[]`` if the field is a list."""
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and issubclass(kind, BaseModel):
        return kind, ""
    items = "[]" if typing.get_origin(kind) is list else ""
    for part in typing.get_args(kind):
        found, more = _model_in(part)
        if found is not None:
            return found, items + more
    return None, ""


@cache
def own_fields(kind: type[KubeObject]) -> dict[str, tuple[FieldInfo, type[BaseModel] | None]]:
    found = {path: (field, below) for path, field, below in fields_of(kind)}
    return {
        path: each for path, each in found.items() if path.partition(".")[0] not in ("apiVersion", "kind", "metadata")
    }


def is_below(field: str, row: str) -> bool:
    return field == row or field.startswith((f"{row}.", f"{row}[]."))


ROWS = [(kind, field, row) for kind in KINDS for field, row in table(kind).items()]
IDS = [f"{kind.__name__}-{field}" for kind, field, _ in ROWS]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_field_has_a_row(kind: type[KubeObject]) -> None:
    """A new field that no code reads would be accepted in silence."""
    rows, fields = table(kind), own_fields(kind)
    missing = [
        path for path, (_, below) in fields.items() if below is None and not any(is_below(path, row) for row in rows)
    ]
    assert missing == [], "add a row to tests/unit/api/fields, or refuse the field in api/validation/offered.py"


@pytest.mark.parametrize(("kind", "field", "row"), ROWS, ids=IDS)
def test_a_row_names_a_field_and_one_treatment(kind: type[KubeObject], field: str, row: dict[str, Any]) -> None:
    path = field.removesuffix("[]")
    assert path in own_fields(kind), "the API has no such field"
    _, below = own_fields(kind)[path]
    if "reader" in row:
        assert below is None, "this field has fields of its own: name each of them, or say `whole`"
    assert len(row.keys() - {"under", "with"}) == 1
    assert row.keys() <= {"reader", *_PARTS}
    assert "unwritten" not in row or field.startswith("status"), "refuse a field of the spec that no code reads"


@cache
def source(name: str) -> str:
    """Code of ``module:name``, or of a whole module."""
    module, _, inner = name.partition(":")
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    if not inner:
        return text
    node: ast.AST = ast.parse(text)
    for part in inner.split("."):
        node = next(each for each in ast.iter_child_nodes(node) if part in _names(each))
    found = ast.get_source_segment(text, node)
    assert found is not None
    return found


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    return [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else []


def _spelled(kind: type[KubeObject], field: str) -> set[str]:
    """A field's name in the API and in Python."""
    *above, last = field.removesuffix("[]").split(".")
    model: type[BaseModel] = kind
    for part in above:
        of_part = next(
            each for name, each in model.model_fields.items() if (each.alias or name) == part.removesuffix("[]")
        )
        below, _ = _model_in(of_part.annotation)
        assert below is not None
        model = below
    return {last, *(name for name, each in model.model_fields.items() if (each.alias or name) == last)}


CODE = [each for each in ROWS if "reader" in each[2] or "whole" in each[2]]


@pytest.mark.parametrize(("kind", "field", "row"), CODE, ids=[f"{kind.__name__}-{field}" for kind, field, _ in CODE])
def test_the_code_of_a_row_has_the_name_of_the_field(kind: type[KubeObject], field: str, row: dict[str, Any]) -> None:
    code = _code(row.get("reader") or row["whole"])
    names = "|".join(map(re.escape, _spelled(kind, field)))
    assert re.search(rf"(?<!\w)(?:{names})(?!\w)", code), f"this code does not name {field}"


@cache
def _code(name: str) -> str:
    """``source`` without comments and docstrings: those mention fields that the code does not read."""
    return ast.unparse(_without_docstrings(ast.parse(_dedented(source(name)))))


def _dedented(code: str) -> str:
    """Code of a method: its first line has no indentation, but its other lines do."""
    first, *rest = code.split("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest if line.strip()]
    extra = (min(indents) - 4) if indents and first.startswith(("def ", "async def ", "class ")) else 0
    return "\n".join([first, *(line[max(extra, 0) :] for line in rest)])


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ] or [ast.Pass()]
    return tree


REFUSED = [each for each in ROWS if "refused" in each[2] and each[0] not in OF_SEED]
REFUSED_BY_API_SERVER = [each for each in ROWS if "refused" in each[2] and each[0] in OF_SEED]


def with_value(kind: type[KubeObject], field: str, row: dict[str, Any]) -> KubeObject:
    """The smallest valid object, but with this value."""
    base = {Shoot: complete(bound=True).to_wire(), Seed: SEED, CloudProfile: PROFILE}[kind]
    return kind.of(changed(base, field, row))


def changed(base: dict[str, Any], field: str, row: dict[str, Any]) -> dict[str, Any]:
    """A copy of an object with the value that a row refuses."""
    obj = deepcopy(base)
    for path, value in {**row.get("with", {}), field: row["refused"]}.items():
        here: Any = obj
        *above, last = path.split(".")
        for part in above:
            name = part.removesuffix("[]")
            here = here.setdefault(name, [{"type": "aws"}] if part.endswith("[]") else {})
            here = here[0] if part.endswith("[]") else here
        here[last] = value
    return obj


def refusal(obj: KubeObject, old: KubeObject | None) -> str:
    if isinstance(obj, Shoot):
        return str(check_shoot(obj, old if isinstance(old, Shoot) else None, "local"))
    assert isinstance(obj, Seed)
    return str(check_seed(obj, old if isinstance(old, Seed) else None))


@pytest.mark.parametrize(
    ("kind", "field", "row"), REFUSED, ids=[f"{kind.__name__}-{field}" for kind, field, _ in REFUSED]
)
def test_a_refused_field_is_named_by_the_refusal(kind: type[KubeObject], field: str, row: dict[str, Any]) -> None:
    shown = row.get("under", field).replace("[]", "[0]")
    message = refusal(with_value(kind, field, row), None)

    assert re.search(rf"(?<![\w.]){re.escape(shown)}: ", message), message


def rule_of(kind: type[KubeObject], field: str, row: dict[str, Any]) -> dict[str, str]:
    """The rule in the CustomResourceDefinition that refuses a field."""
    schema: Any = own_fields(kind)[row.get("under", field)][0].json_schema_extra
    [rule] = schema["x-kubernetes-validations"]
    return dict(rule)


@pytest.mark.parametrize(
    ("kind", "field", "row"),
    REFUSED_BY_API_SERVER,
    ids=[f"{kind.__name__}-{field}" for kind, field, _ in REFUSED_BY_API_SERVER],
)
def test_a_field_that_a_seed_refuses_has_a_rule_with_its_reason(
    kind: type[KubeObject], field: str, row: dict[str, Any]
) -> None:
    assert rule_of(kind, field, row)["message"].startswith("not supported: ")


OFFERED = [
    (kind, field, row)
    for kind, field, row in REFUSED
    if any(is_below(field, each) for each in offered.TABLES.get(kind, {}))
]


@pytest.mark.parametrize(
    ("kind", "field", "row"), OFFERED, ids=[f"{kind.__name__}-{field}" for kind, field, _ in OFFERED]
)
def test_an_object_with_a_value_from_before_can_still_be_changed(
    kind: type[KubeObject], field: str, row: dict[str, Any]
) -> None:
    obj = with_value(kind, field, row)

    assert "not supported: " not in refusal(obj, obj)


def test_each_refusal_has_a_row() -> None:
    unknown = [
        (kind.__name__, each)
        for kind, refusals in offered.TABLES.items()
        for each in refusals
        if not any(is_below(field, each) for of_kind, field, _ in REFUSED if of_kind is kind)
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind, field, row in ROWS if "fixed" in row],
)
def test_a_fixed_field_allows_one_value(kind: type[KubeObject], field: str) -> None:
    definition, _ = own_fields(kind)[field]
    assert len(typing.get_args(definition.annotation)) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_page_lists_each_field(kind: type[KubeObject]) -> None:
    rows = yaml_rows(kind)
    check_table("fields.md", kind.__name__, ([f"`{field}`", shown(kind, field, row)] for field, row in rows))


def yaml_rows(kind: type[KubeObject]) -> list[tuple[str, dict[str, Any]]]:
    """Rows in the order of the API."""
    order = list(own_fields(kind))
    return sorted(table(kind).items(), key=lambda each: order.index(each[0].removesuffix("[]")))


def shown(kind: type[KubeObject], field: str, row: dict[str, Any]) -> str:
    if name := row.get("reader") or row.get("whole"):
        module, _, inner = name.partition(":")
        path = f"{module.replace('.', '/')}.py"
        return f"[{inner.rpartition('.')[2] or path}](../{path})"
    if "refused" in row and kind in OF_SEED:
        rule = rule_of(kind, field, row)
        condition = rule["rule"].replace("|", r"\|")  # a bare one would end the cell
        but = f" unless `{condition}`" if condition != "false" else ""
        return f"refused{but}: {rule['message'].removeprefix('not supported: ')}"
    if "refused" in row:
        found = next(
            (each.reason for path, each in offered.TABLES.get(kind, {}).items() if is_below(field, path)), None
        )
        accepted = next(
            (each.accepted for path, each in offered.TABLES.get(kind, {}).items() if is_below(field, path)), ()
        )
        but = f" but `{accepted[0] if isinstance(accepted[0], str) else ', '.join(accepted[0])}`" if accepted else ""
        return f"refused{but}: {found or NO_SELF_HOSTED_SHOOTS}"
    ((treatment, reason),) = ((key, value) for key, value in row.items())
    words = {
        "extension": "for extensions",
        "people": "for people",
        "fixed": "one value",
        "unwritten": "not written",
    }
    return f"{words[treatment]}: {reason}"
