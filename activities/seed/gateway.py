"""The gateway in front of all API servers of a seed."""

from collections.abc import Sequence
from typing import Any

from activities.clusters import Clusters
from activities.components import gateway
from activities.components.base import Manifest
from activities.components.gateway import OWN, Place
from activities.errors import permanent
from activities.heartbeat import heartbeating
from activities.seed import rollout
from activities.seed.extension_objects import MANAGER
from api import resources
from api.decisions.conditions import find_condition
from api.errors import ErrorCode
from api.names import dns_record_type
from kube.cache import Cache, Caches
from kube.objects import label_selector

_READY_SECONDS = 5 * 60
_ADDRESS_SECONDS = 10 * 60
"""Source: spec/flows.md 2, wait of deploy_api_service."""


async def deploy_gateway(clusters: Clusters, objects: Sequence[Manifest], place: Place = OWN) -> None:
    """Apply the objects of a gateway (``gateway.objects``); no connection fails when this replaces its pods.

    A pod of this version serves on after its deletion, until no node sends it connections any more. Pods of earlier
    versions end at once. So they stay until a new pod is ready, the Service selects new pods alone, and the requests
    that they have begun are answered: see ``gateway.handed_over``.

    All objects are applied by name. A second run finds pods of an earlier version as long as they are there. Then it
    keeps the Service's selector, whether the first run has changed it or not, and waits for a new pod, which may be
    ready already. If these pods are gone, the second run applies the objects as they stay.

    Raises:
        TimeoutError: after 5 minutes no new pod is ready. The pods of the earlier version serve meanwhile.
    """
    seed, namespace = clusters.seed, place.namespace
    pods = await seed.list(resources.POD, namespace, labels=label_selector(gateway.SELECT))
    if all(gateway.keeps_serving(each) for each in pods):
        for each in objects:
            await seed.apply(each, manager=MANAGER)
        return
    live = await seed.find(resources.SERVICE, gateway.NAME, namespace)
    selector = live["spec"].get("selector") if live else None
    for each in gateway.handed_over(objects, selector or gateway.SELECT):
        await seed.apply(each, manager=MANAGER)
    await _wait_for_new_pod(clusters, namespace)
    await seed.apply(next(each for each in objects if each["kind"] == "Service"), manager=MANAGER)


async def _wait_for_new_pod(clusters: Clusters, namespace: str) -> None:
    pods = clusters.seed_caches.of(resources.POD, namespace, labels=label_selector(gateway.KEEPS_SERVING))
    try:
        await heartbeating(pods.wait_until(_any_ready, _READY_SECONDS, namespace))
    except TimeoutError as error:
        deployment = await clusters.seed.find(resources.DEPLOYMENT, gateway.NAME, namespace)
        why = await rollout.pod_failures(clusters.seed, deployment) or error
        raise TimeoutError(f"no new pod of Deployment {namespace}/{gateway.NAME} is ready: {why}") from None


def _any_ready(pods: Cache) -> bool:
    return any(
        find_condition(each, "Ready").get("status") == "True" and "deletionTimestamp" not in each["metadata"]
        for each in pods.list()
    )


async def gateway_address(seed: Caches, namespace: str = gateway.NAMESPACE) -> str:
    """IP address (or host name) at which clients outside of the seed reach its API servers, by one of its gateways.

    A gateway with several addresses, for example of both IP families, gives the first one.

    Raises:
        TimeoutError: the load balancer has no address after 10 minutes.
    """
    return (await _addresses(seed, namespace))[0]


async def gateway_address_ipv6(seed: Caches, namespace: str = gateway.NAMESPACE) -> str:
    """Address of IPv6 (or host name) at which clients without IPv4 reach API servers by a gateway of the seed.

    Raises:
        ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if the gateway has addresses of IPv4 only.
        TimeoutError: the load balancer has no address after 10 minutes.
    """
    found = await _addresses(seed, namespace)
    address = next((each for each in found if dns_record_type(each) != "A"), None)
    if address is None:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"the gateway of the Shoot's seed has no address of IPv6, and a Shoot with IPv6 alone needs one: Service "
            f"{namespace}/{gateway.NAME} of the seed has {', '.join(found)}; configure its load balancer with IPv6 "
            "(provider-local: value ipv6LoadBalancerIps), or choose another seed",
        )
    return address


async def _addresses(seed: Caches, namespace: str) -> list[str]:
    """IP addresses and host names of a gateway, at least one."""

    def addresses(service: dict[str, Any] | None) -> list[str] | None:
        ingress = ((service or {}).get("status", {}).get("loadBalancer") or {}).get("ingress") or ()
        return [found for each in ingress if (found := each.get("ip") or each.get("hostname"))] or None

    cache = seed.of(resources.SERVICE)
    return await heartbeating(cache.wait_for(gateway.NAME, namespace, addresses, _ADDRESS_SECONDS))
