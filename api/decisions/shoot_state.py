"""Content of a ShootState, as pure functions. Source: spec/flows.md 7."""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from api import compression

SECRET = "secret"
MACHINE_STATE = "machine-state"
MACHINE_STATE_NAME = "machine-state"
LIMIT = int(1.5 * 2**20)
"""Maximum size of the whole object in bytes: etcd's limit for one request."""

Object = Mapping[str, Any]

REFERENCE_PREFIX = "ref-"
"""Prefix of copies of the objects in ``Shoot.spec.resources``. Each seed copies them from the garden."""

_SECRET_LABELS = frozenset(
    {
        "name",
        "managed-by",
        "manager-identity",
        "checksum-of-config",
        "checksum-of-signing-ca",
        "bundle-for",
        "persist",
        "last-rotation-initiation-time",
        "issued-at-time",
        "valid-until-time",
        "renew-after-validity-percentage",
    }
)
"""Labels of the secrets manager. Source: spec/credentials.md 2."""
_SECRET_TYPES = frozenset(
    {
        "Opaque",
        "kubernetes.io/basic-auth",
        "kubernetes.io/dockercfg",
        "kubernetes.io/dockerconfigjson",
        "kubernetes.io/ssh-auth",
        "kubernetes.io/tls",
    }
)
"""Types of Secrets that no controller of Kubernetes fills or reads: only their author writes their data."""
_CONTENT = {"Secret": ("type", "immutable", "data"), "ConfigMap": ("immutable", "data", "binaryData")}
"""Fields that are kept, by kind."""


class NotRestorable(Exception):
    """A seed must not write this object on behalf of a ShootState; the text names the object and the reason."""


class TooBig(Exception):
    """The ShootState is larger than etcd's limit; the text names its largest parts."""


def persisted_secrets(secrets: Iterable[Object]) -> list[dict[str, Any]]:
    """Items of ``spec.gardener`` for Secrets that cannot be generated again."""
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
    """``machineDeployments`` by name, of an item's data or of ``Worker.status.state``.

    Raises:
        api.compression.TooLarge: it unpacks to more than the limit.
        api.compression.Damaged: it is not gzip.
    """
    content = compression.unzip(base64.b64decode(data["state"]), compression.LIMIT)
    state: dict[str, Any] = json.loads(content)
    deployments: dict[str, Any] = state["machineDeployments"]
    return deployments


def restored_secret(item: Object, namespace: str) -> dict[str, Any]:
    """Secret made from an item of ``spec.gardener``: it has only the item's content and the secrets manager's labels.

    Raises NotRestorable if the secrets manager does not persist such a Secret.
    """
    name, labels = str(item["name"]), item.get("labels") or {}
    kept = {key: value for key, value in labels.items() if key in _SECRET_LABELS}
    if kept.get("managed-by") != "secrets-manager" or kept.get("persist") != "true":
        raise NotRestorable(f"Secret {name} has not the labels managed-by=secrets-manager and persist=true")
    stable = kept.get("name", "")
    if not stable or not (name == stable or name.startswith(f"{stable}-")):
        raise NotRestorable(f"Secret {name} does not begin with the name in its label name ({stable!r})")
    if (kind := item["data"].get("type", "Opaque")) != "Opaque":
        raise NotRestorable(f"Secret {name} has type {kind}, must be Opaque")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": kept},
        **{key: item["data"][key] for key in _CONTENT["Secret"] if key in item["data"]},
    }


def check_reference(reference: Object, kind: str, name: str) -> None:
    """Check that seeds may restore an object that an extension object refers to.

    An extension may keep v1 Secrets and ConfigMaps in the control-plane namespace. Their names begin with the kind in
    lower case and the name of the extension object, with or without a suffix (``worker-demo-keys``).

    Raises:
        NotRestorable: the object is of another kind, or has another name.
    """
    wanted, own = f"{reference['kind']} {reference['name']}", f"{kind.lower()}-{name}"
    if reference["apiVersion"] != "v1" or reference["kind"] not in _CONTENT:
        raise NotRestorable(
            f"{kind} {name} refers to {wanted} ({reference['apiVersion']}), which is no Secret or ConfigMap"
        )
    if reference["name"] != own and not str(reference["name"]).startswith(f"{own}-"):
        raise NotRestorable(f"{kind} {name} refers to {wanted}, which must be named {own} or {own}-<suffix>")


def is_copied(reference: Object) -> bool:
    """Whether each seed copies the object from the garden itself, so that a ShootState need not hold it."""
    return reference["apiVersion"] == "v1" and str(reference["name"]).startswith(REFERENCE_PREFIX)


def kept_content(found: Object, reference: Object) -> dict[str, Any]:
    """Fields of a Secret or ConfigMap that a ShootState keeps and a restore writes: content and name only.

    Controllers act on labels, annotations and owners, so these must not come from another seed.

    Raises:
        NotRestorable: the object is not the one that the reference names, or a Secret that a controller fills.
    """
    kind, name = str(reference["kind"]), str(reference["name"])
    same = (found.get("apiVersion", "v1"), found.get("kind", kind), found["metadata"]["name"]) == ("v1", kind, name)
    if not same:
        raise NotRestorable(f"{kind} {name} is another object: {found.get('kind')} {found['metadata']['name']}")
    if kind == "Secret" and (type_ := found.get("type", "Opaque")) not in _SECRET_TYPES:
        raise NotRestorable(f"Secret {name} has type {type_}")
    content = {key: found[key] for key in _CONTENT[kind] if key in found}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}


def extension_states(objects: Iterable[Object]) -> list[dict[str, Any]]:
    """``spec.extensions``: states that controllers of extensions need in the next seed."""
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
    """The spec of a ShootState that the same migration writes again: it keeps all items of the first time.

    Objects that were saved at the first time may have been deleted since.
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


def converted(spec: Object, convert: Callable[[Any, str], Any]) -> dict[str, Any]:
    """The spec of a ShootState with all contents converted; names stay as they are.

    ``convert`` gets the content, and the path of its item in the ShootState.
    """
    fields = {"gardener": "data", "extensions": "state", "resources": "data"}
    return {
        part: [
            {**each, field: convert(each[field], _item(part, each))} if field in each else dict(each)
            for each in spec.get(part) or ()
        ]
        for part, field in fields.items()
    }


def _item(part: str, each: Object) -> str:
    return "/".join([part, *(str(each.get(key, "")) for key in ("apiVersion", "kind", "type", "purpose", "name"))])


def refuse_too_big(shoot_state: Object) -> None:
    """Check the size.

    Raises:
        TooBig: it is above ``LIMIT``; the message names the largest parts.
    """
    size = size_of(shoot_state)
    if size <= LIMIT:
        return
    parts = [
        (size_of(each), f"{each.get('kind') or each.get('type')} {each.get('name')}")
        for part in ("gardener", "extensions", "resources")
        for each in shoot_state["spec"].get(part) or ()
    ]
    biggest = ", ".join(f"{name} {bytes_ / 2**20:.2f} MiB" for bytes_, name in sorted(parts, reverse=True)[:3])
    raise TooBig(f"it has {size / 2**20:.2f} MiB, {LIMIT / 2**20:.1f} MiB are possible; the biggest parts: {biggest}")


def size_of(item: Any) -> int:
    """Bytes of a value as JSON."""
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
