"""Values that Kubernetes refuses later, or that a component misreads: durations, quantities, names of labels.

``check_amounts`` walks a model by its types, so a new field of type Duration or Quantity is checked without a rule of
its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from api.durations import parse_duration
from api.meta import Duration, Quantity
from api.quantities import parse_quantity
from api.validation.field import Faults, Path

MAX_NAME = 63
"""Length of the name in a label's key, and of a label's value."""
_MAX_PREFIX = 253
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Names of DNS, of any length."""

_MAY_BE_NEGATIVE = frozenset({"priority", "evictionRateLimit"})
"""Numbers for which -1 has a meaning."""

_LARGEST_QUANTITY = 2**63
"""Kubernetes stores no larger quantities."""
_LARGEST = 2**31 - 1
"""Largest number that Kubernetes' configurations hold, whose type is int32."""


def name_fault(text: str) -> str:
    """Reason why a text is no qualified name without prefix, such as a label's value; empty if it is one."""
    if len(text) > MAX_NAME:
        return f"must not be longer than {MAX_NAME} characters"
    if not _NAME.fullmatch(text):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return ""


def key_fault(text: str) -> str:
    """Reason why a text is no key of a label, an annotation or a taint; empty if it is one."""
    prefix, slash, name = text.rpartition("/")
    if slash and (fault := domain_fault(prefix)):
        return f"the part in front of '/' {fault}"
    return name_fault(name)


def domain_fault(text: str) -> str:
    """Reason why a text is no DNS name in lower case; empty if it is one."""
    if len(text) > _MAX_PREFIX:
        return f"must not be longer than {_MAX_PREFIX} characters"
    if not all(len(label) <= MAX_NAME and _LABEL.fullmatch(label) for label in text.split(".")):
        return "must be a lower-case DNS name"
    return ""


def check_labels(labels: Mapping[str, str] | None, path: Path, faults: Faults) -> None:
    for key, value in (labels or {}).items():
        if fault := key_fault(key):
            faults.invalid(path, key, fault)
        if value and (fault := name_fault(value)):
            faults.invalid(path @ key, value, fault)


def check_annotations(annotations: Mapping[str, str] | None, path: Path, faults: Faults) -> None:
    for key in annotations or {}:
        if fault := key_fault(key):
            faults.invalid(path, key, fault)


def check_word(text: str | None, path: Path, faults: Faults) -> None:
    """Report a text that would not stay one value in a list of a command line, or one line of a file."""
    if text is not None and (not text or not text.isprintable() or any(each in text for each in " ,\"'\\")):
        faults.invalid(path, text, "must be one word, without blanks, commas, quotes and backslashes")


def check_amounts(model: BaseModel, path: Path, faults: Faults) -> None:
    """Report durations, quantities and numbers below zero, and durations and quantities that cannot be parsed."""
    for here, kind, value in amounts(model, path):
        try:
            if kind == "duration":
                negative = parse_duration(value).total_seconds() < 0
            else:
                amount = parse_quantity(value) if kind == "quantity" else value
                negative = amount < 0
                if kind == "quantity" and amount >= _LARGEST_QUANTITY:
                    raise ValueError(f"{value!r} is larger than a quantity can be")
        except ValueError as error:
            faults.invalid(here, value, str(error))
            continue
        if negative:
            faults.invalid(here, value, "must not be negative")
        elif kind == "number" and value > _LARGEST:
            faults.invalid(here, value, f"must not be greater than {_LARGEST}")


def amounts(model: BaseModel, path: Path) -> Iterator[tuple[Path, str, Any]]:
    """Set fields of a model that hold an amount: path, kind (``duration``, ``quantity`` or ``number``), value."""
    for name, wire, kind in _amount_fields(type(model)):
        value = getattr(model, name)
        if value is None or (kind == "number" and wire in _MAY_BE_NEGATIVE):
            continue
        here = path / wire
        if kind in ("duration", "quantity", "number"):
            if kind != "number" or not isinstance(value, bool | str):
                yield here, kind, value
        elif isinstance(value, BaseModel):
            yield from amounts(value, here)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                yield here @ key, "quantity", each
        elif isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, BaseModel):
                    yield from amounts(each, here @ index)


@cache
def _amount_fields(model: type[BaseModel]) -> tuple[tuple[str, str, str], ...]:
    """Fields of a model that are, or may contain, amounts: name, name on the wire, kind."""
    found = []
    for name, field in model.model_fields.items():
        hint = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        if kind := _kind(hint):
            found.append((name, field.alias or name, kind))
    return tuple(found)


def _kind(hint: Any) -> str:
    if hint == Duration:
        return "duration"
    if hint == Quantity:
        return "quantity"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in (Union, UnionType):
        return next((kind for each in arguments if each is not type(None) and (kind := _kind(each))), "")
    if origin is dict:
        return "quantities" if arguments[1] == Quantity else ""
    if origin is list:
        return "models" if _kind(arguments[0]) == "model" else ""
    if hint in (int, float):
        return "number"
    return "model" if isinstance(hint, type) and issubclass(hint, BaseModel) else ""
