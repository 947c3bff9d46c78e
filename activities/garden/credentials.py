"""Credentials in the garden that operations in a seed use."""

from collections.abc import Mapping
from typing import Any

from activities.errors import transient
from api import resources
from api.constants import SEED_NAME_PREFIX
from api.decisions.credentials import binding_of
from api.errors import ErrorCode
from kube.client import KubeClient, Object
from kube.errors import Forbidden


async def cloud_credentials(garden: KubeClient, shoot: Object) -> Object | None:
    """The Secret or WorkloadIdentity to which the Shoot's binding refers; None if the Shoot names no binding.

    Raises:
        NotFound: if the binding or its credentials do not exist.
    """
    bound = binding_of(shoot)
    if bound is None:
        return None
    kind, name = bound
    credentials = kind.credentials(await garden.get(kind.resource, name, shoot["metadata"]["namespace"]))
    wanted = resources.WORKLOAD_IDENTITY
    is_identity = (credentials.api_version, credentials.kind) == (wanted.api_version, wanted.kind)
    return await garden.get(wanted if is_identity else resources.SECRET, credentials.name, credentials.namespace)


def is_workload_identity(credentials: Object) -> bool:
    """Whether credentials are a WorkloadIdentity, and no Secret."""
    return credentials.get("kind") == resources.WORKLOAD_IDENTITY.kind


async def seed_credentials(garden: KubeClient, seed: str, reference: Mapping[str, Any]) -> Object:
    """The Secret to which the spec of a Seed refers.

    Raises:
        ApplicationError: ``ERR_RETRYABLE_CONFIGURATION_PROBLEM`` if the garden does not let the seed read it.
    """
    name, namespace = reference["name"], reference["namespace"]
    try:
        return await garden.get(resources.SECRET, name, namespace)
    except Forbidden:
        raise transient(
            ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
            f"the garden does not let seed {seed} read Secret {namespace}/{name}: an operator has to label the Secret "
            f"{SEED_NAME_PREFIX}{seed}=true",
        ) from None
