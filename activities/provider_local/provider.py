"""Names of provider-local, and its sections in the objects of the extension API."""

from collections.abc import Mapping
from typing import Any

from activities.errors import permanent, transient
from activities.extension import Actuator, delete_managed_resource
from api.errors import ErrorCode
from api.local import InvalidProviderConfig, M, read_provider_section
from kube.cache import Caches
from kube.client import KubeClient

MANAGER = "provider-local"
"""Field manager of everything that provider-local applies, and holder of its heartbeat."""
PROVIDER_TYPE = "local"
_DELETION_SECONDS = 120.0


class LocalActuator(Actuator):
    """An actuator of objects with type ``local``."""

    type = PROVIDER_TYPE


def provider_section(model: type[M], section: Mapping[str, Any] | None, where: str) -> M:
    """A raw provider section as ``model``. Raises a final error for an invalid section, which only the user can fix."""
    try:
        return read_provider_section(model, section, where)
    except InvalidProviderConfig as error:
        raise permanent(ErrorCode.CONFIGURATION_PROBLEM, str(error)) from None


async def remove_objects(
    seed: KubeClient, caches: Caches, namespace: str, managed_resource: str, *, keep_objects: bool
) -> None:
    """Delete a ManagedResource, and wait until it is gone. Raises an error that is retried if it stays for 120 s.

    ``keep_objects``: leave its objects in the shoot. A second run waits for the deletion that the first one requested.
    """
    try:
        await delete_managed_resource(
            seed, caches, namespace, managed_resource, keep_objects=keep_objects, timeout=_DELETION_SECONDS
        )
    except TimeoutError:
        raise transient(
            ErrorCode.CLEANUP_CLUSTER_RESOURCES,
            f"ManagedResource {namespace}/{managed_resource} is not gone after {_DELETION_SECONDS:.0f} s;"
            " read its conditions",
        ) from None
