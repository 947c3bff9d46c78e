"""The actuator of type ``gvisor``: a RuntimeClass in each Shoot with a pool that asks for gVisor."""

from collections.abc import Mapping
from typing import Any

from api.constants import CONTAINER_RUNTIME_PREFIX
from api.resources import CONTAINER_RUNTIME, MANAGED_RESOURCE, RUNTIME_CLASS, SECRET
from kube.cache import Caches
from kube.client import KubeClient
from workers.extension import (
    Actuator,
    Extension,
    apply_managed_resource,
    delete_managed_resource,
    delete_quietly,
)

NAME = "runtime-gvisor"
"""Default name of the ControllerRegistration, and field manager."""
TYPE = "gvisor"
HANDLER = "runsc"
"""Name of the runtime in containerd's configuration; also in charts/runtime-gvisor."""
MANAGED_RESOURCE_NAME = f"extension-{NAME}"


class GvisorActuator(Actuator):
    """Every method may run twice. A Shoot has one ContainerRuntime for each pool, and they share one RuntimeClass."""

    resource = CONTAINER_RUNTIME
    type = TYPE

    def __init__(self, seed: KubeClient, caches: Caches) -> None:
        super().__init__(seed)
        self._caches = caches

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        await apply_managed_resource(
            self._seed, extension.namespace, MANAGED_RESOURCE_NAME, [runtime_class()], manager=NAME
        )
        return {}

    async def delete(self, extension: Extension) -> None:
        """Delete the RuntimeClass with the last ContainerRuntime of the Shoot."""
        await self._delete(extension, keep_objects=False)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        """Leave the RuntimeClass in the shoot: pods there use it."""
        await self._delete(extension, keep_objects=True)
        return {}

    async def force_delete(self, extension: Extension) -> None:
        """Delete only the objects in the seed: the shoot cannot be reached any more."""
        if not await self._is_last(extension):
            return
        for kind, name in (
            (MANAGED_RESOURCE, MANAGED_RESOURCE_NAME),
            (SECRET, f"managedresource-{MANAGED_RESOURCE_NAME}"),
        ):
            await delete_quietly(self._seed, kind, name, extension.namespace)

    async def _delete(self, extension: Extension, *, keep_objects: bool) -> None:
        if await self._is_last(extension):
            await delete_managed_resource(
                self._seed, self._caches, extension.namespace, MANAGED_RESOURCE_NAME, keep_objects=keep_objects
            )

    async def _is_last(self, extension: Extension) -> bool:
        """Whether no other pool of the Shoot asks for gVisor. ContainerRuntimes that are leaving do not count."""
        found = await self._seed.list(CONTAINER_RUNTIME, extension.namespace)
        return not any(each["metadata"]["name"] != extension.name and _stays(each) for each in found)


def _stays(found: Mapping[str, Any]) -> bool:
    """Whether a ContainerRuntime needs the RuntimeClass: it is not being deleted, and does not move to another seed."""
    metadata = found["metadata"]
    operation = (metadata.get("annotations") or {}).get("gardener.cloud/operation")
    last = ((found.get("status") or {}).get("lastOperation") or {}).get("type")
    leaves = "deletionTimestamp" in metadata or operation == "migrate" or last == "Migrate"
    return found["spec"]["type"] == TYPE and not leaves


def runtime_class() -> dict[str, Any]:
    """The RuntimeClass: its pods are scheduled to nodes of pools with gVisor only."""
    return {
        "apiVersion": RUNTIME_CLASS.api_version,
        "kind": RUNTIME_CLASS.kind,
        "metadata": {"name": TYPE},
        "handler": HANDLER,
        "scheduling": {"nodeSelector": {f"{CONTAINER_RUNTIME_PREFIX}{TYPE}": "true"}},
    }
