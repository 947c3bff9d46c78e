"""ControlPlane: what provider-local needs in a shoot to serve its volumes and load balancers.

The controllers themselves run in provider-local's process as long as the ControlPlane is in this seed. Disks and load
balancers are objects of the cloud, in the namespace of the shoot's machines, so they outlive a move of the control
plane and a lost seed, and go with the Infrastructure.
"""

from typing import Any

from activities.extension import (
    Extension,
    apply_managed_resource,
    delete_managed_resource,
    delete_quietly,
    required_secret_data,
)
from activities.provider_local import storage
from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.infrastructure import secret_name
from activities.provider_local.provider import MANAGER, LocalActuator
from activities.provider_local.storage import ACCESS_SECRET, MANAGED_RESOURCE_NAME
from api.local import DISKS_VOLUME, MACHINE_LABEL, infrastructure_namespace
from api.resources import CONTROL_PLANE, POD, SECRET
from kube.cache import Caches
from kube.client import KubeClient


class ControlPlaneActuator(LocalActuator):
    """Applies the Secret with provider-local's token for the shoot, and its objects in the shoot.

    Every method may run twice: the second run applies the same objects, or finds none to delete.
    """

    resource = CONTROL_PLANE

    def __init__(self, seed: KubeClient, caches: Caches, clouds: Clouds) -> None:
        super().__init__(seed)
        self._caches = caches
        self._clouds = clouds

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        namespace = extension.namespace
        manifests = storage.manifests(await self._machines_without_disks(extension))
        await self._seed.apply(storage.access_secret(namespace), manager=MANAGER)
        await apply_managed_resource(self._seed, namespace, MANAGED_RESOURCE_NAME, manifests, manager=MANAGER)
        return {}

    async def _machines_without_disks(self, extension: Extension) -> list[str]:
        """Names of the machines that an earlier version made, whose nodes cannot have disks."""
        data = await required_secret_data(self._seed, extension)
        machines = infrastructure_namespace(extension.namespace)
        cloud = await self._clouds.connect(data, secret_name(extension))
        with cloud_errors(f"listing the machines of namespace {machines} in the cloud", data):
            found = await cloud.list(POD, machines, labels=MACHINE_LABEL)
        return [
            each["metadata"]["name"]
            for each in found
            if DISKS_VOLUME not in {volume["name"] for volume in each["spec"].get("volumes") or ()}
        ]

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
        await delete_managed_resource(
            self._seed, self._caches, namespace, MANAGED_RESOURCE_NAME, keep_objects=keep_objects
        )
        await delete_quietly(self._seed, SECRET, ACCESS_SECRET, namespace)
