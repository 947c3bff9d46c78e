"""What a ShootState holds, as pure functions. Source: spec/flows.md 7."""

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SECRET = "secret"
MACHINE_STATE = "machine-state"
MACHINE_STATE_NAME = "machine-state"
LIMIT = int(1.5 * 2**20)
"""Bytes of the whole object: what etcd takes in one request."""

Object = Mapping[str, Any]


class TooBig(Exception):
    """A ShootState that the garden would not take; the text says what of it is big."""


def persisted_secrets(secrets: Iterable[Object]) -> list[dict[str, Any]]:
    """Items of ``spec.gardener`` for Secrets that cannot be made anew."""
    return [
        {
            "name": secret["metadata"]["name"],
            "type": SECRET,
            "labels": dict(secret["metadata"].get("labels") or {}),
            "data": {key: secret[key] for key in ("data", "immutable", "type") if key in secret},
        }
        for secret in sorted(secrets, key=_name)
        if (secret["metadata"].get("labels") or {}).get("persist") == "true"
    ]


def machine_state(
    deployments: Iterable[Object], sets: Sequence[Object], machines: Sequence[Object], node_label: str = "node"
) -> dict[str, Any] | None:
    """Item of ``spec.gardener`` with all machines that exist in the cloud; None if there is no deployment."""
    state = {}
    for deployment in sorted(deployments, key=_name):
        of_deployment = [each for each in sets if _owner(each) == deployment["metadata"]["uid"]]
        uids = {each["metadata"]["uid"] for each in of_deployment}
        state[_name(deployment)] = {
            "replicas": deployment["spec"].get("replicas", 0),
            "machineSets": [_bare(each) for each in sorted(of_deployment, key=_name)],
            "machines": [
                _bare(each) | {"machineSet": _owner_name(each)}
                for each in sorted(machines, key=_name)
                if _owner(each) in uids
                and (node_label in (each["metadata"].get("labels") or {}) or each["spec"].get("providerID"))
            ],
        }
    if not state:
        return None
    return _packed(state)


def _packed(deployments: Object) -> dict[str, Any]:
    content = json.dumps({"machineDeployments": deployments}, sort_keys=True).encode()
    packed = base64.b64encode(gzip.compress(content, mtime=0)).decode()
    return {"name": MACHINE_STATE_NAME, "type": MACHINE_STATE, "data": {"state": packed}}


def unpacked_machine_state(data: Object) -> dict[str, Any]:
    """``machineDeployments`` by name, of an item's data or of ``Worker.status.state``."""
    state: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data["state"])))
    deployments: dict[str, Any] = state["machineDeployments"]
    return deployments


def extension_states(objects: Iterable[Object]) -> list[dict[str, Any]]:
    """``spec.extensions``: what controllers need to go on elsewhere."""
    states = []
    for found in sorted(objects, key=lambda each: (each["kind"], _name(each))):
        status = found.get("status") or {}
        if "deletionTimestamp" in found["metadata"] or not (status.get("state") or status.get("resources")):
            continue
        purpose = found["spec"].get("purpose")
        states.append(
            {
                "kind": found["kind"],
                "name": _name(found),
                **({"purpose": purpose} if purpose else {}),
                **({"state": status["state"]} if status.get("state") else {}),
                **({"resources": status["resources"]} if status.get("resources") else {}),
            }
        )
    return states


def merged(old: Object, new: Object) -> dict[str, Any]:
    """The spec after another look by the same migration: nothing that the first one saw is dropped.

    Between the two, what it saved may have begun to go.
    """
    result = dict(new)
    for part, key in (
        ("gardener", ("type", "name")),
        ("extensions", ("kind", "name")),
        ("resources", ("kind", "name")),
    ):
        items = {tuple(each.get(field) for field in key): each for each in old.get(part) or ()}
        for each in new.get(part) or ():
            identity = tuple(each.get(field) for field in key)
            before = items.get(identity)
            items[identity] = _merged_machines(before, each) if before and each.get("type") == MACHINE_STATE else each
        result[part] = list(items.values())
    return result


def _merged_machines(old: Object, new: Object) -> dict[str, Any]:
    before, after = (unpacked_machine_state(each["data"]) for each in (old, new))
    for name, deployment in before.items():
        seen = after.setdefault(name, deployment)
        for part in ("machineSets", "machines"):
            names = {_name(each) for each in seen[part]}
            seen[part] += [each for each in deployment[part] if _name(each) not in names]
    return _packed(after)


def refuse_too_big(shoot_state: Object) -> None:
    """Raises TooBig, with the biggest parts by name."""
    size = _size(shoot_state)
    if size <= LIMIT:
        return
    parts = [
        (_size(each), f"{each.get('kind') or each.get('type')} {each.get('name')}")
        for part in ("gardener", "extensions", "resources")
        for each in shoot_state["spec"].get(part) or ()
    ]
    biggest = ", ".join(f"{name} {bytes_ / 2**20:.2f} MiB" for bytes_, name in sorted(parts, reverse=True)[:3])
    raise TooBig(f"it has {size / 2**20:.2f} MiB, {LIMIT / 2**20:.1f} MiB are possible; the biggest parts: {biggest}")


def _size(item: Object) -> int:
    return len(json.dumps(item, separators=(",", ":")))


def _bare(found: Object) -> dict[str, Any]:
    """An object without status and bookkeeping."""
    metadata = found["metadata"]
    return {
        "metadata": {key: metadata[key] for key in ("name", "labels", "annotations") if metadata.get(key)},
        "spec": found["spec"],
    }


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _controller(found: Object) -> Object:
    return next((each for each in found["metadata"].get("ownerReferences") or () if each.get("controller")), {})


def _owner(found: Object) -> str:
    return str(_controller(found).get("uid", ""))


def _owner_name(found: Object) -> str:
    return str(_controller(found).get("name", ""))
