"""Objects for the shoot, applied by its resource manager."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from activities.errors import transient
from activities.extension.actuator import delete_quietly
from activities.managed_resources import data_key
from api.errors import ErrorCode
from api.resources import MANAGED_RESOURCE, SECRET
from kube.cache import Caches
from kube.client import KubeClient

_DELETION_SECONDS = 120.0


async def apply_managed_resource(
    seed: KubeClient, namespace: str, name: str, objects: Iterable[Mapping[str, Any]], *, manager: str
) -> None:
    """Apply a ManagedResource for the shoot, and the Secret with its manifests.

    ``manager``: name of the extension. It is the field manager, and label ``origin``, which distinguishes the
    ManagedResources of extensions from Gardener's own.
    """
    data = {data_key(each): base64.b64encode(json.dumps(each, sort_keys=True).encode()).decode() for each in objects}
    metadata = {"namespace": namespace, "labels": {"origin": manager}}
    await seed.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, "name": _secret(name)},
            "type": "Opaque",
            "data": data,
        },
        manager=manager,
    )
    await seed.apply(
        {
            "apiVersion": MANAGED_RESOURCE.api_version,
            "kind": MANAGED_RESOURCE.kind,
            "metadata": {**metadata, "name": name},
            "spec": {
                "secretRefs": [{"name": _secret(name)}],
                "keepObjects": False,
                "injectLabels": {"shoot.gardener.cloud/no-cleanup": "true"},
            },
        },
        manager=manager,
    )


async def delete_managed_resource(
    seed: KubeClient, caches: Caches, namespace: str, name: str, *, keep_objects: bool
) -> None:
    """Delete a ManagedResource, wait until the resource manager has released it, then delete its Secret.

    A second run waits for the deletion that the first one requested. ``keep_objects``: the objects of the
    ManagedResource stay in the shoot. Raises an error that is retried if the ManagedResource stays for 120 s.
    """
    live = await seed.find(MANAGED_RESOURCE, name, namespace)
    if live is not None:
        if keep_objects:
            await seed.patch(MANAGED_RESOURCE, name, namespace, {"spec": {"keepObjects": True}})
        await seed.delete(MANAGED_RESOURCE, name, namespace)
        uid = live["metadata"]["uid"]
        try:
            await caches.of(MANAGED_RESOURCE, namespace).wait_for(
                name, namespace, lambda found: found is None or found["metadata"]["uid"] != uid, _DELETION_SECONDS
            )
        except TimeoutError:
            raise transient(
                ErrorCode.CLEANUP_CLUSTER_RESOURCES,
                f"ManagedResource {namespace}/{name} is not gone after {_DELETION_SECONDS:.0f} s; read its conditions",
            ) from None
    await delete_quietly(seed, SECRET, _secret(name), namespace)


def _secret(name: str) -> str:
    return f"managedresource-{name}"
