"""Parts of raw objects that many modules write."""

from collections.abc import Mapping
from typing import Any

from api.resources import Resource, resource_of
from kube.client import Object


def label_selector(labels: Mapping[str, str]) -> str:
    """A label selector, as list requests take it, for objects with all of these labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def selector_of(selector: Mapping[str, Any]) -> str:
    """A label selector, as list requests take it, for a LabelSelector of a spec. Empty: it selects all objects.

    Raises ValueError if an operator is unknown.
    """
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        key, operator, values = each["key"], each["operator"], ",".join(each.get("values") or ())
        match operator:
            case "In" | "NotIn":
                parts.append(f"{key} {operator.lower()} ({values})")
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
            case _:
                raise ValueError(f"a label selector has the unknown operator {operator!r} for label {key}")
    return ",".join(parts)


def has_taint(node: Mapping[str, Any], key: str) -> bool:
    """Whether a Node has a taint of this key, whatever its value and effect."""
    return any(each["key"] == key for each in node["spec"].get("taints") or ())


def ip_families(service: Mapping[str, Any]) -> list[str]:
    """Families of the addresses of a Service, the primary one first."""
    return list(service["spec"].get("ipFamilies") or ["IPv4"])


def ip_family(address: str) -> str:
    """Family of an address or a network: those of IPv6 have colons."""
    return "IPv6" if ":" in address else "IPv4"


def owner_reference(resource: Resource, name: str, uid: str, *, controller: bool = True) -> Object:
    """An entry of ``ownerReferences``: the object is deleted once all of its owners are gone.

    ``controller``: the owner manages the object; an object has one such owner at most.
    """
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name,
        "uid": uid,
        **({"controller": True} if controller else {}),
        "blockOwnerDeletion": False,
    }


def controller_reference(owner: Mapping[str, Any]) -> Object:
    """Reference to the object that manages another one, and whose foreground deletion waits until that one is gone."""
    resource, metadata = resource_of(owner["apiVersion"], owner["kind"]), owner["metadata"]
    return owner_reference(resource, metadata["name"], metadata["uid"]) | {"blockOwnerDeletion": True}
