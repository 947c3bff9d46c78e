"""The gateway in front of all API servers of a seed."""

from typing import Any

from activities.components import gateway
from activities.heartbeat import heartbeating
from api import resources
from kube.cache import Caches

_ADDRESS_SECONDS = 10 * 60
"""Source: spec/flows.md 2, wait of deploy_api_service."""


async def gateway_address(seed: Caches, namespace: str = gateway.NAMESPACE) -> str:
    """IP address (or host name) at which clients outside of the seed reach its API servers, by one of its gateways.

    Raises:
        TimeoutError: the load balancer has no address after 10 minutes.
    """

    def address(service: dict[str, Any] | None) -> str | None:
        ingress = ((service or {}).get("status", {}).get("loadBalancer") or {}).get("ingress") or [{}]
        found: str | None = ingress[0].get("ip") or ingress[0].get("hostname")
        return found

    cache = seed.of(resources.SERVICE)
    return await heartbeating(cache.wait_for(gateway.NAME, namespace, address, _ADDRESS_SECONDS))
