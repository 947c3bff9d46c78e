"""Load balancer of the gateway's Service: the seed has one node, and kube-proxy serves the Service at its address."""

from typing import Any

from api.resources import SERVICE
from kube.cache import Caches, Key
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller
from kube.errors import NotFound
from workers.provider_local.access import GATEWAY_SERVICE


class LoadBalancerController:
    """Writes the node's address to the status of the gateway's Service. provider-local may read no other Service."""

    def __init__(self, seed: KubeClient, caches: Caches, address: str) -> None:
        self._seed = seed
        self._services = caches.of(SERVICE, fields=f"metadata.name={GATEWAY_SERVICE}")
        self._wanted: list[dict[str, Any]] = [{"ip": address, "ipMode": "VIP"}]
        self._controller = Controller("load balancer", self._reconcile, workers=2)

    async def run(self) -> None:
        """Run until cancelled."""
        self._controller.watch(self._services, when=self._differs)
        await self._controller.run()

    def _differs(self, event: WatchEvent) -> bool:
        if event.type == "DELETED" or event.object["spec"].get("loadBalancerClass"):
            return False
        return self._ingress(event.object) != self._target(event.object)

    async def _reconcile(self, key: Key) -> None:
        service = self._services.get(key.name, key.namespace)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return
        target = self._target(service)
        if self._ingress(service) == target:
            return
        status = {"status": {"loadBalancer": {"ingress": target or None}}}
        try:
            await self._seed.patch(SERVICE, key.name, key.namespace, status, subresource="status")
        except NotFound:
            return

    def _target(self, service: dict[str, Any]) -> list[dict[str, Any]]:
        return self._wanted if service["spec"].get("type") == "LoadBalancer" else []

    def _ingress(self, service: dict[str, Any]) -> list[dict[str, Any]]:
        live = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
        return [{"ip": each.get("ip"), "ipMode": each.get("ipMode", "VIP")} for each in live]
