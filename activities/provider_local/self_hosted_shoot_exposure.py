"""SelfHostedShootExposure: a load balancer of the cloud in front of the API servers of a self-hosted Shoot.

The load balancer is a Service of the cloud in the namespace of the Shoot's machines, named after the uid of the object.
Its annotation names the addresses of ``spec.endpoints``. The cloud alone writes its backends: the machines of that
namespace with these addresses, at which the port is open. So no object sends connections to the machines of others.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any

from activities.errors import permanent, transient
from activities.extension import Extension
from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.infrastructure import cloud_profile_config
from activities.provider_local.provider import MANAGER, LocalActuator
from api.errors import ErrorCode
from api.local import CHOSEN_MACHINES, infrastructure_namespace
from api.resources import SECRET, SELF_HOSTED_SHOOT_EXPOSURE, SERVICE
from kube.cache import Cache
from kube.client import KubeClient, Object

_ADDRESS_SECONDS = 60.0
"""A wait for the address of a load balancer, or for its end, fails after so long; a retry finds the load balancer."""


class SelfHostedShootExposureActuator(LocalActuator):
    """Makes the load balancer, and reports its address."""

    resource = SELF_HOSTED_SHOOT_EXPOSURE

    def __init__(self, seed: KubeClient, clouds: Clouds) -> None:
        super().__init__(seed)
        self._clouds = clouds

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        """Apply the load balancer, and wait until it has an address.

        A second run finds it by its name, and applies changed endpoints. The address stays while the object lives.
        """
        addresses = machine_addresses(extension)
        credentials = await self._credentials(extension)
        if credentials is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"Secret {_where(extension)}, with which {extension} is made in the cloud, does not exist",
            )
        name, namespace = _name(extension), infrastructure_namespace(extension.technical_id)
        cloud = await self._clouds.connect(credentials, _where(extension))
        with cloud_errors(f"making load balancer {namespace}/{name} in the cloud", credentials):
            await cloud.apply(balancer(name, namespace, extension.spec["port"], addresses), manager=MANAGER)
            async with Cache(cloud, SERVICE, namespace, fields=f"metadata.name={name}") as services:
                try:
                    address = await services.wait_for(name, namespace, _address, _ADDRESS_SECONDS)
                except TimeoutError as error:
                    raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{extension}: {error}") from None
        return {"ingress": [{"ip": address}]}

    async def delete(self, extension: Extension) -> None:
        """Delete the load balancer; returns when it is gone. A second run waits for the deletion of the first one."""
        credentials = await self._credentials(extension)
        if credentials is None:
            return  # leave objects in the cloud: the credentials are gone (spec/extensions.md 1.5)
        name, namespace = _name(extension), infrastructure_namespace(extension.technical_id)
        cloud = await self._clouds.connect(credentials, _where(extension))
        with cloud_errors(f"deleting load balancer {namespace}/{name} in the cloud", credentials):
            await cloud.delete(SERVICE, name, namespace)
            async with Cache(cloud, SERVICE, namespace, fields=f"metadata.name={name}") as services:
                try:
                    await services.wait_for(name, namespace, lambda found: found is None, _ADDRESS_SECONDS)
                except TimeoutError as error:
                    raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{extension}: {error}") from None

    async def _credentials(self, extension: Extension) -> Mapping[str, str] | None:
        """Data of the Secret in ``spec.credentialsRef``: it is in the namespace of the object, wherever that says."""
        secret = await self._seed.find(SECRET, _secret(extension), extension.namespace)
        return None if secret is None else secret.get("data") or {}


def machine_addresses(extension: Extension) -> list[str]:
    """The addresses of the endpoints, one each: those of type InternalIP in the network of machines.

    Raises ApplicationError for an endpoint without such an address.
    """
    network = ipaddress.IPv4Network(cloud_profile_config(extension).machine_network)
    found = []
    for endpoint in extension.spec["endpoints"]:
        internal = [each["address"] for each in endpoint["addresses"] if each["type"] == "InternalIP"]
        ours = [each for each in internal if _is_in(each, network)]
        if not ours:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{extension}: endpoint {endpoint['nodeName']} has no address of type InternalIP in {network}, the"
                f" network of the cloud's machines, but {', '.join(internal) or 'none of this type'}",
            )
        found.append(ours[0])
    return sorted(found)


def _is_in(address: str, network: ipaddress.IPv4Network) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False


def balancer(name: str, namespace: str, port: int, addresses: list[str]) -> Object:
    """The Service of the cloud that is the load balancer."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {CHOSEN_MACHINES: ",".join(addresses)},
        },
        "spec": {
            "type": "LoadBalancer",
            "allocateLoadBalancerNodePorts": False,
            # API servers see the addresses of clients.
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "kube-apiserver", "protocol": "TCP", "port": port, "targetPort": port}],
        },
    }


def _address(found: Object | None) -> str | None:
    ingress = (((found or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return str(ingress[0]["ip"]) if ingress else None


def _name(extension: Extension) -> str:
    return f"exposure-{extension.uid}"


def _secret(extension: Extension) -> str:
    """Name of the Secret with the credentials. Raises ApplicationError if there is none: this cloud needs one."""
    reference = extension.spec.get("credentialsRef") or {}
    place = reference.get("namespace", extension.namespace)
    if reference.get("kind", "Secret") != "Secret" or not reference.get("name") or place != extension.namespace:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"{extension}: spec.credentialsRef must name a Secret of namespace {extension.namespace} with access to"
            " the cloud: a load balancer is made there",
        )
    return str(reference["name"])


def _where(extension: Extension) -> str:
    return f"{extension.namespace}/{_secret(extension)}"
