"""Public addresses of the cloud: each Service of type LoadBalancer gets one of each of its IP families.

kube-proxy forwards them, and enforces the Service's ``loadBalancerSourceRanges``, by rules of the cloud's network
namespace.
"""

import logging
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network

from api.resources import SERVICE
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, TryAgain
from kube.objects import ip_families, ip_family

log = logging.getLogger("landscape.public_addresses")

Network = IPv4Network | IPv6Network


class Addresses:
    """Gives each Service of type LoadBalancer addresses that no other has. One such process runs in a cloud.

    ``networks``: by IP family.
    """

    def __init__(self, client: KubeClient, networks: Mapping[str, Network]) -> None:
        self._client = client
        self._networks = networks
        self._services = Cache(client, SERVICE)

    async def run(self) -> None:
        """Run until cancelled."""
        # One worker: two would choose the same address.
        controller = Controller("public addresses", self._service, workers=1)
        controller.watch(self._services)
        async with self._services:
            await controller.run()

    async def _service(self, key: Key) -> None:
        """Give a Service one address of each of its families. It keeps those that it has."""
        service = self._services.get(key.name, key.namespace)
        if service is None or service["spec"].get("type") != "LoadBalancer":
            return
        families = ip_families(service)
        if [ip_family(each) for each in addresses_of(service)] == families:
            return
        # From the API server: the cache may not hold the addresses that were just written.
        live = await self._client.list(SERVICE)
        taken = {each for other in live for each in addresses_of(other)}
        ours = (addresses_of(each) for each in live if each["metadata"]["uid"] == service["metadata"]["uid"])
        kept = {ip_family(each): each for each in next(ours, ())}
        addresses = [kept.get(family) or self._free(family, taken) for family in families]
        status = {"loadBalancer": {"ingress": [{"ip": each, "ipMode": "VIP"} for each in addresses]}}
        await self._client.patch(SERVICE, key.name, key.namespace, {"status": status}, subresource="status")
        log.info("addresses %s for Service %s", ", ".join(addresses), key)

    def _free(self, family: str, taken: Iterable[str]) -> str:
        address = free_address(self._networks[family], taken)
        if address is None:
            raise TryAgain(f"all addresses of {self._networks[family]} are taken")
        return address


def addresses_of(service: Object) -> list[str]:
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [each["ip"] for each in ingress if each.get("ip")]


def free_address(network: Network, taken: Iterable[str]) -> str | None:
    """The lowest address that is not taken; None if there is none."""
    known = set(taken)
    return next((text for each in network.hosts() if (text := str(each)) not in known), None)
