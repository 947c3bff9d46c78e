"""ControlPlane: what provider-local needs in a shoot to serve its volumes and load balancers.

The controllers themselves run in provider-local's process as long as the ControlPlane is in this seed. Disks and load
balancers are objects of the cloud, in the namespace of the shoot's machines, so they outlive a move of the control
plane and a lost seed, and go with the Infrastructure.
"""

from typing import Any

from activities.errors import transient
from activities.extension import Extension, apply_managed_resource, delete_managed_resource, delete_quietly
from activities.provider_local import storage
from activities.provider_local.provider import MANAGER, LocalActuator
from activities.provider_local.storage import ACCESS_SECRET, MANAGED_RESOURCE_NAME
from api.errors import ErrorCode
from api.resources import CONTROL_PLANE, SECRET
from kube.cache import Caches
from kube.client import KubeClient

_DELETION_SECONDS = 120.0


class ControlPlaneActuator(LocalActuator):
    """Applies the Secret with provider-local's token for the shoot, and its objects in the shoot.

    Every method may run twice: the second run applies the same objects, or finds none to delete.
    """

    resource = CONTROL_PLANE

    def __init__(self, seed: KubeClient, caches: Caches) -> None:
        super().__init__(seed)
        self._caches = caches

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        namespace = extension.namespace
        await self._seed.apply(storage.access_secret(namespace), manager=MANAGER)
        await apply_managed_resource(self._seed, namespace, MANAGED_RESOURCE_NAME, storage.manifests(), manager=MANAGER)
        return {}

    async def delete(self, extension: Extension) -> None:
        """Delete the objects in the shoot, then the token with which provider-local served it."""
        await self._remove(extension, keep_objects=False)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        """Leave the objects in the shoot: its pods use volumes, and its services have addresses."""
        await self._remove(extension, keep_objects=True)
        return {}

    async def force_delete(self, extension: Extension) -> None:
        """Delete the objects in the seed only. Disks and load balancers go with the Infrastructure."""
        for name in (f"managedresource-{MANAGED_RESOURCE_NAME}", ACCESS_SECRET):
            await delete_quietly(self._seed, SECRET, name, extension.namespace)

    async def _remove(self, extension: Extension, *, keep_objects: bool) -> None:
        namespace = extension.namespace
        try:
            await delete_managed_resource(
                self._seed,
                self._caches,
                namespace,
                MANAGED_RESOURCE_NAME,
                keep_objects=keep_objects,
                timeout=_DELETION_SECONDS,
            )
        except TimeoutError:
            raise transient(
                ErrorCode.CLEANUP_CLUSTER_RESOURCES,
                f"ManagedResource {namespace}/{MANAGED_RESOURCE_NAME} is not gone after {_DELETION_SECONDS:.0f} s;"
                " read its conditions",
            ) from None
        await delete_quietly(self._seed, SECRET, ACCESS_SECRET, namespace)
