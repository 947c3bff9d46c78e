"""One object of the extension API while its controller reconciles it, and the base class of actuators.

Source: spec/extensions.md 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from activities.errors import permanent
from api.constants import SELF_HOSTED_NAMESPACE
from api.errors import ErrorCode
from api.resources import CLUSTER, NAMESPACE, SECRET, Resource
from kube.client import KubeClient, Object
from kube.errors import Forbidden, NotFound
from kube.objects import owner_reference


@dataclass(frozen=True)
class Extension:
    """An object as it was at the start of a run, and its Cluster."""

    resource: Resource
    object: Mapping[str, Any]
    cluster: Mapping[str, Any] | None
    """The raw Cluster; None for objects that belong to a seed."""

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty for cluster-scoped kinds."""
        return str(self.object["metadata"].get("namespace", ""))

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.object["spec"]
        return spec

    @property
    def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.object.get("status") or {}
        return status

    @property
    def technical_id(self) -> str:
        """Technical ID of the Shoot, which is the name of its Cluster."""
        return str(self._cluster()["metadata"]["name"])

    @property
    def shoot(self) -> Mapping[str, Any]:
        """The Shoot in the Cluster."""
        return self._of_cluster("shoot")

    @property
    def cloud_profile(self) -> Mapping[str, Any]:
        """The CloudProfile in the Cluster."""
        return self._of_cluster("cloudProfile")

    @property
    def hibernated(self) -> bool:
        """Whether the owner wants the Shoot to be hibernated."""
        return bool((self.shoot["spec"].get("hibernation") or {}).get("enabled"))

    def _of_cluster(self, part: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._cluster()["spec"][part]
        return found

    def _cluster(self) -> Mapping[str, Any]:
        if self.cluster is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{self} needs the Cluster of namespace {self.namespace}, which does not exist",
            )
        return self.cluster

    def owner_reference(self) -> dict[str, Any]:
        """Owner reference for objects that must be deleted together with this object."""
        return owner_reference(self.resource, self.name, self.uid)

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource.kind} {place}{self.name}"


async def load_extension(seed: KubeClient, resource: Resource, namespace: str, name: str) -> Extension | None:
    """Read an object and its Cluster from the API server; None if the object is gone.

    Not from a cache: the Cluster is written just before the object is triggered, and events of two watches
    may arrive in any order.
    """
    found = await seed.find(resource, name, namespace or None)
    if found is None:
        return None
    cluster = await _cluster_of(seed, namespace) if namespace else None
    return Extension(resource, found, cluster)


async def _cluster_of(seed: KubeClient, namespace: str) -> Object | None:
    """The Cluster of the control plane in a namespace."""
    if namespace != SELF_HOSTED_NAMESPACE:
        return await seed.find(CLUSTER, namespace)
    clusters = await seed.list(CLUSTER)
    return next((each for each in clusters if control_plane_namespace(each) == namespace), None)


def control_plane_namespace(cluster: Mapping[str, Any]) -> str:
    """Namespace of a control plane: the name of its Cluster, which is the Shoot's technical ID.

    A self-hosted Shoot has no Seed, and its control plane is in namespace ``kube-system``.
    """
    return str(cluster["metadata"]["name"]) if cluster["spec"].get("seed") else SELF_HOSTED_NAMESPACE


async def secret_data(seed: KubeClient, extension: Extension) -> Mapping[str, str] | None:
    """The base64 data of the Secret that ``spec.secretRef`` names, None if the Secret is gone."""
    reference = extension.spec["secretRef"]
    secret = await seed.find(SECRET, reference["name"], reference["namespace"])
    return None if secret is None else secret.get("data") or {}


async def required_secret_data(seed: KubeClient, extension: Extension) -> Mapping[str, str]:
    """Like ``secret_data``, but raises a final error for a missing Secret, which only the user can fix."""
    data = await secret_data(seed, extension)
    if data is None:
        raise missing_secret(extension)
    return data


def missing_secret(extension: Extension) -> Exception:
    """The error for a ``spec.secretRef`` whose Secret does not exist."""
    reference = extension.spec["secretRef"]
    return permanent(
        ErrorCode.CONFIGURATION_PROBLEM,
        f"Secret {reference['namespace']}/{reference['name']}, which {extension} refers to, does not exist",
    )


class Actuator:
    """Reconciles objects of one kind; every method may run twice.

    Each method returns the fields that it contributes to ``status``. Failures are ``ApplicationError``; they are final
    if only a user can fix them.
    """

    resource: ClassVar[Resource]
    type: str
    """``spec.type`` of the objects."""

    def __init__(self, seed: KubeClient) -> None:
        self._seed = seed

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        """Make the real state the same as in ``spec``."""
        raise NotImplementedError

    async def delete(self, extension: Extension) -> None:
        """Delete the objects in the cloud and the actuator's own objects in the seed."""
        raise NotImplementedError

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        """Delete the actuator's objects in the seed and nothing outside the seed; returns the final ``state``."""
        return {}

    async def restore(self, extension: Extension) -> dict[str, Any]:
        """Restore objects from ``status.state``, then reconcile."""
        return await self.reconcile(extension)

    async def force_delete(self, extension: Extension) -> None:
        """Delete the actuator's objects in the seed without a request to the cloud."""


async def delete_quietly(seed: KubeClient, resource: Resource, name: str, namespace: str) -> None:
    """Delete an object of an extension; it is no error if the object, or its whole namespace, is gone already.

    The rights of an extension in a control plane end with the namespace: the API server then answers Forbidden.
    """
    try:
        await seed.delete(resource, name, namespace)
    except NotFound:
        return
    except Forbidden:
        if await namespace_lives(seed, namespace):
            raise


async def namespace_lives(seed: KubeClient, name: str) -> bool:
    """Whether a namespace exists and is not being deleted."""
    live = await seed.find(NAMESPACE, name)
    return live is not None and not live["metadata"].get("deletionTimestamp")
