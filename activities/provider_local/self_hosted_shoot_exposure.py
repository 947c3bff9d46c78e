"""SelfHostedShootExposure: a load balancer of the cloud in front of the API servers of a self-hosted Shoot.

The load balancer is a Service of the cloud in the namespace of the Shoot's machines, named after the uid of the object.
Its annotation names the addresses of ``spec.endpoints``. The cloud alone writes its backends: the machines of that
namespace with these addresses, at which the port is open. So no object sends connections to the machines of others.
"""

import ipaddress
from typing import Any

from activities.errors import permanent, transient
from activities.extension import Extension
from activities.provider_local.cloud_actuator import CloudActuator, address_of
from activities.provider_local.infrastructure import cloud_profile_config
from activities.provider_local.provider import MANAGER
from api.errors import ErrorCode
from api.local import CHOSEN_MACHINES, infrastructure_namespace
from api.resources import SELF_HOSTED_SHOOT_EXPOSURE, SERVICE
from kube.cache import Cache
from kube.client import Object

_ADDRESS_SECONDS = 60.0
"""A wait for the address of a load balancer, or for its end, fails after so long; a retry finds the load balancer."""


class SelfHostedShootExposureActuator(CloudActuator):
    """Makes the load balancer, and reports its address."""

    resource = SELF_HOSTED_SHOOT_EXPOSURE

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        """Apply the load balancer, and wait until it has an address.

        A second run finds it by its name, and applies changed endpoints. The address stays while the object lives.
        """
        addresses = machine_addresses(extension)
        credentials = await self._required_credentials(extension)
        name, namespace = _name(extension), infrastructure_namespace(extension.technical_id)
        doing = f"making load balancer {namespace}/{name} in the cloud"
        async with self._cloud(extension, credentials, doing) as cloud:
            await cloud.apply(balancer(name, namespace, extension.spec["port"], addresses), manager=MANAGER)
            async with Cache(cloud, SERVICE, namespace, fields=f"metadata.name={name}") as services:
                try:
                    address = await services.wait_for(name, namespace, address_of, _ADDRESS_SECONDS)
                except TimeoutError as error:
                    raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{extension}: {error}") from None
        return {"ingress": [{"ip": address}]}

    async def delete(self, extension: Extension) -> None:
        """Delete the load balancer; returns when it is gone. A second run waits for the deletion of the first one."""
        credentials = await self._credentials(extension)
        if credentials is None:
            return  # leave objects in the cloud: the credentials are gone (spec/extensions.md 1.5)
        name, namespace = _name(extension), infrastructure_namespace(extension.technical_id)
        doing = f"deleting load balancer {namespace}/{name} in the cloud"
        async with self._cloud(extension, credentials, doing) as cloud:
            await cloud.delete(SERVICE, name, namespace)
            async with Cache(cloud, SERVICE, namespace, fields=f"metadata.name={name}") as services:
                try:
                    await services.wait_for(name, namespace, lambda found: found is None, _ADDRESS_SECONDS)
                except TimeoutError as error:
                    raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{extension}: {error}") from None

    def _secret(self, extension: Extension) -> str:
        """The Secret in ``spec.credentialsRef``. Raises ApplicationError if there is none: this cloud needs one."""
        reference = extension.spec.get("credentialsRef") or {}
        place = reference.get("namespace", extension.namespace)
        if reference.get("kind", "Secret") != "Secret" or not reference.get("name") or place != extension.namespace:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{extension}: spec.credentialsRef must name a Secret of namespace {extension.namespace} with access to"
                " the cloud: a load balancer is made there",
            )
        return str(reference["name"])


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


def _name(extension: Extension) -> str:
    return f"exposure-{extension.uid}"
