"""Infrastructure: a namespace of the cloud cluster with the machines of one shoot."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

from temporalio.exceptions import ApplicationError

from activities.errors import permanent, transient
from activities.extension import Extension, required_secret_data, secret_data
from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.provider import MANAGER, LocalActuator, provider_section
from api.decisions import dual_stack
from api.errors import ErrorCode
from api.labels import pod_security
from api.local import (
    API_VERSION,
    CloudProfileConfig,
    InfrastructureStatus,
    infrastructure_namespace,
    ipv6_networks,
)
from api.model import ApiModel
from api.resources import INFRASTRUCTURE, NAMESPACE
from kube import namespaces
from kube.client import KubeClient
from kube.errors import ApiError

_log = logging.getLogger(__name__)

_MOST_NODES = 256
"""Number of networks of nodes (/64) in the IPv6 network of pods (/56)."""
SHOOT_UID_LABEL = "local.provider.extensions.gardener.cloud/shoot-uid"


class InfrastructureConfig(ApiModel):
    """``Shoot.spec.provider.infrastructureConfig``; this provider has no settings."""

    api_version: Literal["local.provider.extensions.gardener.cloud/v1alpha1"]
    kind: Literal["InfrastructureConfig"]


def cloud_profile_config(extension: Extension) -> CloudProfileConfig:
    """Configuration of the cloud, from the CloudProfile in the Cluster."""
    profile = extension.cloud_profile
    where = f"spec.providerConfig of CloudProfile {profile['metadata']['name']}"
    return provider_section(CloudProfileConfig, profile["spec"].get("providerConfig"), where)


def networks(shoot: Mapping[str, Any], profile: CloudProfileConfig) -> dict[str, list[str]]:
    """``status.networking``: the networks of nodes, pods and Services, IPv4 first.

    Raises a final error if the Shoot wants IPv6 and the cloud has no IPv6 network for machines, or if the Shoot wants
    IPv6 alone and may have more nodes than its network of pods has room for.
    """
    networking = shoot["spec"].get("networking") or {}
    found: dict[str, list[str]] = {"nodes": [], "pods": [], "services": []}
    if "IPv4" in dual_stack.families(shoot):
        found = {
            "nodes": [profile.machine_network],
            "pods": [networking["pods"]] if networking.get("pods") else [],
            "services": [networking["services"]] if networking.get("services") else [],
        }
    if not dual_stack.has_ipv6(shoot):
        return found
    if not profile.machine_network_ipv6:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            "spec.networking.ipFamilies has IPv6, but the machines of this cloud have IPv4 only: its CloudProfile has"
            " no spec.providerConfig.machineNetworkIPv6",
        )
    if dual_stack.is_ipv6_alone(shoot) and (nodes := _most_nodes(shoot)) > _MOST_NODES:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"the pools may have {nodes} nodes, but the IPv6 network of pods has room for {_MOST_NODES}",
        )
    pods, services = ipv6_networks(shoot["metadata"]["uid"])
    found["nodes"].append(profile.machine_network_ipv6)
    found["pods"].append(pods)
    found["services"].append(services)
    return found


def _most_nodes(shoot: Mapping[str, Any]) -> int:
    return sum(pool["maximum"] for pool in shoot["spec"]["provider"].get("workers") or ())


class InfrastructureActuator(LocalActuator):
    """Applies the namespace. A workflow deletes the namespace, because machines need time to stop."""

    resource = INFRASTRUCTURE

    def __init__(self, seed: KubeClient, clouds: Clouds) -> None:
        super().__init__(seed)
        self._clouds = clouds

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        data = await required_secret_data(self._seed, extension)
        cloud = await self._clouds.connect(data, secret_name(extension))
        if (own := extension.spec.get("providerConfig")) is not None:
            provider_section(InfrastructureConfig, own, f"spec.providerConfig of {extension}")
        profile = cloud_profile_config(extension)
        networking = networks(extension.shoot, profile)
        namespace = infrastructure_namespace(extension.namespace)
        with cloud_errors(f"making namespace {namespace} in the cloud", data):
            live = await cloud.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {
                        "name": namespace,
                        "labels": {
                            SHOOT_UID_LABEL: extension.shoot["metadata"]["uid"],
                            # Machines are pods that run an operating system.
                            **pod_security("privileged"),
                        },
                    },
                },
                manager=MANAGER,
            )
        if live["metadata"].get("deletionTimestamp"):
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                f"namespace {namespace} of an earlier shoot is still being deleted in the cloud",
            )
        status = InfrastructureStatus(namespace=namespace).model_dump(mode="json")
        return {
            "providerStatus": status,
            "nodesCIDR": networking["nodes"][0],
            "networking": networking,
            "state": {"apiVersion": API_VERSION, "kind": "InfrastructureState", "namespace": namespace},
        }

    async def delete_namespace(self, extension: Extension) -> bool:
        """Request the deletion of the namespace; True once it is gone, or if there are no working credentials."""
        data = await secret_data(self._seed, extension)
        if data is None:
            return True  # leave objects in the cloud: the credentials are gone (spec/extensions.md 1.5)
        namespace = infrastructure_namespace(extension.namespace)
        try:
            cloud = await self._clouds.connect(data, secret_name(extension))
            with cloud_errors(f"deleting namespace {namespace} in the cloud", data):
                live = await cloud.find(NAMESPACE, namespace)
                if live is not None and not live["metadata"].get("deletionTimestamp"):
                    await cloud.delete(NAMESPACE, namespace, uid=live["metadata"]["uid"])
                return live is None
        except ApplicationError as error:
            if error.non_retryable and not extension.status.get("providerStatus"):
                return True  # the credentials have never worked, so the cloud has no objects to delete
            raise

    async def force_delete(self, extension: Extension) -> None:
        """Request the deletion of the namespace in the cloud, if the credentials still work; wait for nothing."""
        try:
            await self.delete_namespace(extension)
        except (ApplicationError, ApiError) as error:
            _log.warning("%s is force-deleted, its namespace stays in the cloud: %s", extension, error)

    async def wait_namespace_gone(self, extension: Extension, timeout: float) -> None:
        """Delete all objects in the namespace; returns when the namespace is gone. Raises TimeoutError."""
        data = await secret_data(self._seed, extension)
        if data is None:
            return
        caches = await self._clouds.caches(data, secret_name(extension))
        namespace = infrastructure_namespace(extension.namespace)
        cache = caches.of(NAMESPACE, fields=f"metadata.name={namespace}")
        # Pods keep their grace period: machines must have stopped before the infrastructure is reported as deleted.
        async with namespaces.ending(caches.client, namespace):
            await cache.wait_for(namespace, None, lambda found: found is None, timeout)


def secret_name(extension: Extension) -> str:
    """Namespace and name of the Secret in ``spec.secretRef``, for errors."""
    reference = extension.spec["secretRef"]
    return f"{reference['namespace']}/{reference['name']}"
