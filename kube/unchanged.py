"""Whether a server-side apply would change anything, told by reading alone.

An apply that changes nothing is a write request all the same: it is authorised, admitted and audited. What a
manager applied last stands in ``metadata.managedFields``, as a tree that also tells how its lists are merged; with the
live values beside it that is enough to know. In doubt the answer is no: then the request is sent, and decides.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Of these server-side apply keeps no owners.
_UNOWNED = frozenset({"apiVersion", "kind"})
_UNOWNED_METADATA = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
)


def unchanged(live: Mapping[str, Any], wanted: Mapping[str, Any], manager: str) -> bool:
    """Whether ``manager`` applied exactly the fields of ``wanted`` last, and all of them still have these values."""
    if live.get("apiVersion") != wanted.get("apiVersion"):
        return False
    owned = _owned_by(live, manager)
    if owned is None or owned.get("apiVersion") != wanted.get("apiVersion"):
        return False
    fields = {key: value for key, value in (owned.get("fieldsV1") or {}).items() if key != "."}
    body: dict[str, Any] = {key: value for key, value in wanted.items() if key not in _UNOWNED}
    metadata = {key: value for key, value in wanted["metadata"].items() if key not in _UNOWNED_METADATA}
    body["metadata"] = metadata
    # Empty, metadata is no field of its own.
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
    """As JSON: 1 is not true."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return wanted.keys() == live.keys() and all(_equal(value, live[key]) for key, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        return len(wanted) == len(live) and all(map(_equal, wanted, live))
    return isinstance(wanted, bool) == isinstance(live, bool) and bool(wanted == live) and wanted is not None


def _same_list(fields: Mapping[str, Any], wanted: Sequence[Any], live: Sequence[Any]) -> bool:
    """Items by key or by value; in the order of the live list, for apply would bring them into ours."""
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
