"""A ManagedResource and the Secret with its manifests, which the resource manager applies to a cluster."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from activities.managed_resources import data_key
from api.constants import SHOOT_NO_CLEANUP
from api.resources import MANAGED_RESOURCE, SECRET, Resource

ORIGIN_LABEL = "origin"
ORIGIN = "gardener"
"""Label and value that distinguish our ManagedResources from those of extensions."""


def managed_resource(
    name: str,
    namespace: str,
    objects: Iterable[Mapping[str, Any]],
    *,
    clazz: str = "",
    labels: Mapping[str, str] | None = None,
    keep: bool = False,
) -> list[dict[str, Any]]:
    """The Secret ``managedresource-<name>`` and the ManagedResource that refers to it, in the order to apply.

    ``clazz``: empty for objects of the shoot, ``seed`` for objects of the seed. ``keep``: the objects stay when the
    ManagedResource is deleted.
    """
    secret_name = _secret_name(name)
    common = {ORIGIN_LABEL: ORIGIN, **(labels or {})}
    data = {data_key(item): base64.b64encode(_canonical(item)).decode() for item in objects}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret_name, "namespace": namespace, "labels": common},
            "type": "Opaque",
            "data": data,
        },
        managed_secrets(name, namespace, [secret_name], clazz=clazz, labels=labels, keep=keep),
    ]


def managed_secrets(
    name: str,
    namespace: str,
    secrets: Iterable[str],
    *,
    clazz: str = "",
    labels: Mapping[str, str] | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """Only the ManagedResource, for Secrets that another component has written."""
    spec: dict[str, Any] = {"secretRefs": [{"name": each} for each in secrets], "keepObjects": keep}
    if clazz:
        spec["class"] = clazz
    else:
        spec["injectLabels"] = {SHOOT_NO_CLEANUP: "true"}
    return {
        "apiVersion": "resources.gardener.cloud/v1alpha1",
        "kind": "ManagedResource",
        "metadata": {"name": name, "namespace": namespace, "labels": {ORIGIN_LABEL: ORIGIN, **(labels or {})}},
        "spec": spec,
    }


def managed_resource_parts(name: str) -> list[tuple[Resource, str]]:
    """Kind and name of the ManagedResource and of its Secret, for their deletion.

    The Secret may be deleted at once: the resource manager knows without it which objects it has applied.
    """
    return [(MANAGED_RESOURCE, name), (SECRET, _secret_name(name))]


def _secret_name(name: str) -> str:
    return f"managedresource-{name}"


def _canonical(item: Mapping[str, Any]) -> bytes:
    # JSON is YAML. The keys are sorted, so that the same objects always give the same bytes.
    return json.dumps(item, sort_keys=True, separators=(",", ":")).encode()
