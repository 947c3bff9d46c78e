"""Whose cloud account a Shoot's operations act for."""

from activities.kube.client import KubeClient, Object
from api import resources
from api.credentials import binding_of


async def cloud_credentials(garden: KubeClient, shoot: Object) -> Object | None:
    """The Secret that the Shoot's binding refers to; None if it names no binding.

    Raises:
        NotFound: if there is no such binding, or no such Secret.
    """
    bound = binding_of(shoot)
    if bound is None:
        return None
    kind, name = bound
    credentials = kind.credentials(await garden.get(kind.resource, name, shoot["metadata"]["namespace"]))
    return await garden.get(resources.SECRET, credentials.name, credentials.namespace)
