"""Add and remove finalizers, with the resource version that was read: the list may hold finalizers of others."""

from collections.abc import Mapping
from typing import Any

from api.resources import Resource
from kube.client import KubeClient, Object
from kube.edit import patch_as_read
from kube.errors import NotFound


def has_finalizer(obj: Mapping[str, Any], finalizer: str) -> bool:
    return finalizer in (obj["metadata"].get("finalizers") or ())


async def ensure_finalizer(client: KubeClient, resource: Resource, obj: Object, finalizer: str) -> Object:
    """Add the finalizer if the object lacks it; returns the object with it. Raises Conflict if the object is newer."""
    if has_finalizer(obj, finalizer):
        return obj
    finalizers = [*(obj["metadata"].get("finalizers") or ()), finalizer]
    return await patch_as_read(client, resource, obj, {"metadata": {"finalizers": finalizers}})


async def remove_finalizer(client: KubeClient, resource: Resource, obj: Object, finalizer: str) -> None:
    """Remove the finalizer if the object has it. Raises Conflict if the object is newer, and nothing if it is gone."""
    if not has_finalizer(obj, finalizer):
        return
    finalizers = [each for each in obj["metadata"]["finalizers"] if each != finalizer]
    try:
        await patch_as_read(client, resource, obj, {"metadata": {"finalizers": finalizers}})
    except NotFound:
        return
