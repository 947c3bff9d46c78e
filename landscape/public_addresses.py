"""Public addresses of the cloud: each Service of type LoadBalancer gets one, and kube-proxy forwards it.

kube-proxy also enforces the Service's ``loadBalancerSourceRanges``, by rules of the cloud's network namespace.
"""

import logging
from collections.abc import Iterable
from ipaddress import IPv4Network

from api.resources import SERVICE
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, TryAgain

log = logging.getLogger("landscape.public_addresses")


class Addresses:
    """Gives each Service of type LoadBalancer an address that no other has. One such process runs in a cloud."""

    def __init__(self, client: KubeClient, network: IPv4Network) -> None:
        self._client = client
        self._network = network
        self._services = Cache(client, SERVICE)

    async def run(self) -> None:
        """Run until cancelled."""
        # One worker: two would choose the same address.
        controller = Controller("public addresses", self._service, workers=1)
        controller.watch(self._services)
        async with self._services:
            await controller.run()

    async def _service(self, key: Key) -> None:
        service = self._services.get(key.name, key.namespace)
        if service is None or service["spec"].get("type") != "LoadBalancer" or addresses_of(service):
            return
        # From the API server: the cache may not hold the address that was just written.
        taken = {each for live in await self._client.list(SERVICE) for each in addresses_of(live)}
        address = free_address(self._network, taken)
        if address is None:
            raise TryAgain(f"all addresses of {self._network} are taken")
        status = {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}
        await self._client.patch(SERVICE, key.name, key.namespace, {"status": status}, subresource="status")
        log.info("address %s for Service %s", address, key)


def addresses_of(service: Object) -> list[str]:
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [each["ip"] for each in ingress if each.get("ip")]


def free_address(network: IPv4Network, taken: Iterable[str]) -> str | None:
    """The lowest address that is not taken; None if there is none."""
    known = set(taken)
    return next((text for each in network.hosts() if (text := str(each)) not in known), None)
