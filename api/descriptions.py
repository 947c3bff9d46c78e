"""Descriptions for ``kubectl explain``: the docstrings below fields of the models.

They are read from the source, and only when CustomResourceDefinitions are generated: other processes need no source.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel


def describe_fields(model: type[BaseModel], document: dict[str, Any]) -> None:
    """Add descriptions to a JSON schema document of ``model``: of the kind, and of fields with a docstring."""
    document.setdefault("description", inspect.cleandoc(getattr(inspect.getmodule(model), "__doc__", None) or ""))
    for part in _parts(model, set()):
        node = document if part is model else document.get("$defs", {}).get(part.__name__, {})
        texts = {name: text for base in reversed(part.__mro__) for name, text in _texts(base).items()}
        for name, field in part.model_fields.items():
            property_ = node.get("properties", {}).get(field.alias or name)
            if property_ is not None and name in texts:
                property_["description"] = texts[name]


def _parts(model: type[BaseModel], seen: set[type]) -> Iterator[type[BaseModel]]:
    """A model and all models within it."""
    seen.add(model)
    yield model
    for field in model.model_fields.values():
        for part in _models_in(field.annotation):
            if part not in seen:
                yield from _parts(part, seen)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


@cache
def _texts(model: type) -> dict[str, str]:
    """Docstrings of the fields of a class, by name of the field."""
    if not issubclass(model, BaseModel) or model is BaseModel:
        return {}
    body = _classes(inspect.getmodule(model)).get(model.__name__, [])
    texts = {}
    for field, follower in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(follower, ast.Expr):
            value = follower.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[field.target.id] = inspect.cleandoc(value.value)
    return texts


@cache
def _classes(module: Any) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
