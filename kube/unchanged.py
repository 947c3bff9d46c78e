"""Decide from the live object alone whether a server-side apply would change anything.

An apply that changes nothing is still a write request: it is authorised, admitted and audited.
``metadata.managedFields`` holds the fields that a manager applied last, as a tree that also shows how lists are merged.
This tree and the live values are enough for the decision. In doubt the answer is that something would change: then
the client sends the request, and the API server decides.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Fields for which server-side apply records no owner.
_UNOWNED = frozenset({"apiVersion", "kind"})
_UNOWNED_METADATA = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
)


def unchanged(live: Mapping[str, Any], wanted: Mapping[str, Any], manager: str) -> bool:
    """Whether ``manager`` applied exactly the fields of ``wanted`` last, and all of these fields keep their values."""
    if live.get("apiVersion") != wanted.get("apiVersion"):
        return False
    owned = _owned_by(live, manager)
    if owned is None or owned.get("apiVersion") != wanted.get("apiVersion"):
        return False
    fields = {key: value for key, value in (owned.get("fieldsV1") or {}).items() if key != "."}
    body: dict[str, Any] = {key: value for key, value in wanted.items() if key not in _UNOWNED}
    metadata = {key: value for key, value in wanted["metadata"].items() if key not in _UNOWNED_METADATA}
    body["metadata"] = metadata
    # If metadata is empty, it is no field of its own.
    if not metadata and "f:metadata" not in fields:
        del body["metadata"]
    return _same(fields, body, live)


def applied_fields(live: Mapping[str, Any], part: str, manager: str) -> set[str]:
    """Names of the fields of ``part``, such as ``spec``, that ``manager`` applied last."""
    owned = _owned_by(live, manager) or {}
    fields = (owned.get("fieldsV1") or {}).get(f"f:{part}") or {}
    return {name.removeprefix("f:") for name in fields if name.startswith("f:")}


def _owned_by(live: Mapping[str, Any], manager: str) -> Mapping[str, Any] | None:
    for entry in live["metadata"].get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation")) == (manager, "Apply") and not entry.get("subresource"):
            return dict(entry)
    return None


def _same(fields: Mapping[str, Any], wanted: Any, live: Any) -> bool:
    inner = {key: value for key, value in fields.items() if key != "."}
    if not inner:
        return _equal(wanted, live)
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return {f"f:{key}" for key in wanted} == inner.keys() and all(
            key in live and _same(inner[f"f:{key}"], value, live[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return _same_list(inner, wanted, live)
    return False


def _equal(wanted: Any, live: Any) -> bool:
    """Compare two values as JSON: 1 and true differ."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return wanted.keys() == live.keys() and all(_equal(value, live[key]) for key, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        return len(wanted) == len(live) and all(map(_equal, wanted, live))
    return isinstance(wanted, bool) == isinstance(live, bool) and bool(wanted == live) and wanted is not None


def _same_list(fields: Mapping[str, Any], wanted: Sequence[Any], live: Sequence[Any]) -> bool:
    """Compare list items by key or by value.

    The items must have the order of the live list, because an apply would bring the live list into the wanted order.
    """
    if len(fields) != len(wanted):
        return False
    places = []
    for item in wanted:
        found = _owned_item(fields, item)
        if found is None:
            return False
        key, below = found
        place = next((index for index, each in enumerate(live) if _is_item(key, each)), None)
        if place is None or not (key.startswith("v:") or _same(below, item, live[place])):
            return False
        places.append(place)
    return places == sorted(set(places))


def _owned_item(fields: Mapping[str, Any], item: Any) -> tuple[str, Mapping[str, Any]] | None:
    found = [(key, below) for key, below in fields.items() if _is_item(key, item, defaulted=True)]
    return found[0] if len(found) == 1 else None


def _is_item(key: str, item: Any, *, defaulted: bool = False) -> bool:
    """``defaulted``: the item may lack a part of its key, such as a port's protocol."""
    if key.startswith("v:"):
        return _equal(json.loads(key[2:]), item)
    if not key.startswith("k:") or not isinstance(item, Mapping):
        return False
    parts: dict[str, Any] = json.loads(key[2:])
    given = {part: value for part, value in parts.items() if part in item or not defaulted}
    return bool(given) and all(part in item and _equal(value, item[part]) for part, value in given.items())
