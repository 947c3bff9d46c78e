"""Stores the objects of kinds with several versions in the current version, after an upgrade that changed it.

The API server converts an object of an older version each time it reads it. Once all objects are stored in the current
version, a later release can drop the older version from the kind.
"""

import contextlib
import logging
from functools import partial

from api import resources
from api.access import CONVERTED
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller
from kube.errors import Conflict, NotFound

log = logging.getLogger(__name__)


async def run_storage_version_controller(client: KubeClient) -> None:
    """Run until cancelled."""
    controller = Controller("storage versions", partial(_reconcile, client), workers=1)
    async with contextlib.AsyncExitStack() as stack:
        for name in CONVERTED:
            one = Cache(client, resources.CUSTOM_RESOURCE_DEFINITION, fields=f"metadata.name={name}")
            controller.watch(await stack.enter_async_context(one))
        await controller.run()


async def _reconcile(client: KubeClient, key: Key) -> None:
    definition = await client.find(resources.CUSTOM_RESOURCE_DEFINITION, key.name)
    if definition is None:
        return
    spec = definition["spec"]
    [current] = [each["name"] for each in spec["versions"] if each["storage"]]
    stored = (definition.get("status") or {}).get("storedVersions") or []
    if stored in ([], [current]):
        return
    resource = resources.resource_of(f"{spec['group']}/{current}", spec["names"]["kind"])
    objects = await client.list(resource)
    for each in objects:
        await _store(client, each)
    # The resource version makes sure that no other version has been stored in the meantime.
    patch = {
        "metadata": {"resourceVersion": definition["metadata"]["resourceVersion"]},
        "status": {"storedVersions": [current]},
    }
    await client.patch(resources.CUSTOM_RESOURCE_DEFINITION, key.name, None, patch, subresource="status")
    log.info("%d objects of %s are stored in %s", len(objects), key.name, current)


async def _store(client: KubeClient, obj: Object) -> None:
    """Write an object as it is: the API server stores it in the current version, even if nothing else changes."""
    # After a conflict, another writer has stored it.
    with contextlib.suppress(Conflict, NotFound):
        await client.replace(obj)
