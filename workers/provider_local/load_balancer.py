"""Load balancer of the gateways' Services: the seed has one node, and kube-proxy serves each Service at its address."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from api.resources import SERVICE
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object
from kube.controller import Controller
from kube.errors import NotFound
from workers.provider_local.access import GATEWAY_NAMESPACE, GATEWAY_SERVICE

_log = logging.getLogger(__name__)


class LoadBalancerController:
    """Writes an address to the status of each gateway's Service. provider-local may read no other Service.

    The seed's own gateway gets the node's address. The gateway of each handler of ExposureClasses gets one of the
    further addresses, and keeps it: its DNS records name it. ``ipv6`` has the address of IPv6 that leads to the same
    gateway, by the address of IPv4: a Service gets it as its second address.
    """

    def __init__(
        self,
        seed: KubeClient,
        caches: Caches,
        address: str,
        further: Sequence[str] = (),
        ipv6: Mapping[str, str] | None = None,
    ) -> None:
        self._seed = seed
        self._services = caches.of(SERVICE, fields=f"metadata.name={GATEWAY_SERVICE}")
        self._address = address
        self._further = further
        self._ipv6 = ipv6 or {}
        # One worker: two that choose an address at the same time could choose the same one.
        self._controller = Controller("load balancer", self._reconcile, workers=1)
        self._given: dict[Key, str] = {}
        """Addresses that this process has written: the cache may not show them yet."""

    async def run(self) -> None:
        """Run until cancelled."""
        await self._services.synced()
        # A Service that goes leaves its address to one that waits for an address.
        self._controller.watch(self._services, keys=lambda _: [key_of(each) for each in self._services.list()])
        await self._controller.run()

    async def _reconcile(self, key: Key) -> None:
        service = self._services.get(key.name, key.namespace)
        if service is None or service["metadata"].get("deletionTimestamp") or service["spec"].get("loadBalancerClass"):
            return
        target = self._target(key, service)
        if _ingress(service) == target:
            return
        status = {"status": {"loadBalancer": {"ingress": target or None}}}
        try:
            await self._seed.patch(SERVICE, key.name, key.namespace, status, subresource="status")
        except NotFound:
            return

    def _target(self, key: Key, service: Object) -> list[dict[str, Any]]:
        if service["spec"].get("type") != "LoadBalancer":
            return []
        address = self._address if key.namespace == GATEWAY_NAMESPACE else self._further_address(key)
        addresses = [address, self._ipv6.get(address)] if address else []
        # A client that uses one address alone takes the first one.
        return [{"ip": each, "ipMode": "VIP"} for each in addresses if each]

    def _further_address(self, key: Key) -> str | None:
        """Address of a further gateway: its present address, or else the first free one."""
        live = {key_of(each): each for each in self._services.list()}
        held: dict[Key, str] = {each: _ingress(service)[0]["ip"] for each, service in live.items() if _ingress(service)}
        held |= {each: address for each, address in self._given.items() if each in live}
        mine = held.pop(key, None)
        if mine not in self._further or mine in held.values():
            free = [each for each in self._further if each not in held.values()]
            mine = free[0] if free else None
        self._given = {each: address for each, address in self._given.items() if each in live and each != key}
        if mine is None:
            _log.warning("Service %s gets no address: all of furtherLoadBalancerIps are in use", key)
            return None
        self._given[key] = mine
        return mine


def _ingress(service: Object) -> list[dict[str, Any]]:
    live = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [{"ip": each.get("ip"), "ipMode": each.get("ipMode", "VIP")} for each in live]
