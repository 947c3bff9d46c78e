"""Keeps the general NetworkPolicies in the namespaces of the seed, see ``activities.components.network_policies``.

The resource manager of the seed makes all other policies, from Services. Both are switched on together.
"""

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from activities.clusters import Clusters
from activities.components import network_policies
from activities.components.coredns import cluster_dns_address
from activities.components.network_policies import Networks
from activities.seed.extension_objects import MANAGER
from api import resources
from api.names import is_ip_address
from kube.cache import Key
from kube.client import Object, WatchEvent
from kube.controller import Controller
from kube.events import emit

log = logging.getLogger(__name__)

_DEFAULT = "default"
_API_SERVER = "kubernetes"
"""Service of the seed's API server in namespace ``default``."""
_RESOLVED_AGAIN_SECONDS = 10.0


class NetworkPolicyController:
    """One per gardenlet.

    In a seed that is a Shoot, the resource manager of the Shoot gives each pod the name of the API server in place of
    the address of its Service. So the addresses of that name are allowed, too. They follow the DNS.
    """

    def __init__(self, clusters: Clusters, *, enabled: bool) -> None:
        self._clusters = clusters
        self._enabled = enabled
        self._named: frozenset[tuple[str, int]] = frozenset()
        seed = clusters.seed_caches
        self._namespaces = seed.of(resources.NAMESPACE)
        self._policies = seed.of(resources.NETWORK_POLICY)
        self._shoots = seed.of(resources.CLUSTER)
        self._endpoints = seed.of(resources.ENDPOINT_SLICE, _DEFAULT)
        self._seeds = clusters.garden_caches.of(resources.SEED, fields=f"metadata.name={clusters.seed_name}")
        self._controller = Controller("general network policies", self._reconcile)

    async def run(self) -> None:
        """Run until cancelled."""
        caches = (self._namespaces, self._policies, self._shoots, self._endpoints, self._seeds)
        await asyncio.gather(*(each.synced() for each in caches))
        self._named = await self._resolved()
        watch = self._controller.watch
        watch(self._namespaces)
        watch(self._policies, keys=_place, when=_is_general)
        watch(self._shoots)
        watch(self._endpoints, keys=lambda _: self._all())
        watch(self._seeds, keys=lambda _: self._all())
        await asyncio.gather(self._controller.run(), self._follow_name(), self._warn())

    async def _follow_name(self) -> None:
        while self._enabled:
            await asyncio.sleep(_RESOLVED_AGAIN_SECONDS)
            if (found := await self._resolved()) != self._named:
                self._named = found
                for key in self._all():
                    self._controller.enqueue(key)

    async def _resolved(self) -> frozenset[tuple[str, int]]:
        """Addresses and ports of the API server's name; those of before if the DNS does not answer."""
        url = urlsplit(self._clusters.seed.endpoint.server)
        host, port = url.hostname or "", url.port or 443
        if is_ip_address(host):
            return frozenset()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError as error:
            log.warning("the API server's name %s is not resolved: %s", host, error)
            return self._named
        return frozenset((str(address), port) for *_, (address, *_) in found)

    def _all(self) -> Iterator[Key]:
        return (Key(None, each["metadata"]["name"]) for each in self._namespaces.list())

    async def _reconcile(self, key: Key) -> None:
        """Write the policies of one namespace, or delete them if it has none."""
        namespace = self._namespaces.get(key.name)
        if namespace is None or namespace["metadata"].get("deletionTimestamp"):
            return
        wanted: list[Object] = []
        if self._enabled and network_policies.is_closed(namespace):
            if (networks := self._networks()) is None:
                return  # an event of the Seed or of the endpoints follows
            wanted = network_policies.policies(namespace, networks, _networks_of(self._shoots.get(key.name)))
        for policy in wanted:
            name = policy["metadata"]["name"]
            live = self._policies.get(name, key.name)
            if live is None or live["spec"] != policy["spec"]:
                await self._write(policy, live)
        names = {each["metadata"]["name"] for each in wanted}
        for name in network_policies.NAMES:
            if name not in names and (live := self._policies.get(name, key.name)) is not None:
                await self._clusters.seed.delete(resources.NETWORK_POLICY, name, key.name, uid=live["metadata"]["uid"])

    async def _write(self, policy: Object, live: Object | None) -> None:
        """Create a policy, or replace it as a whole: nothing that others add to it may stay."""
        if live is None:
            await self._clusters.seed.apply(policy, manager=MANAGER)
        else:
            metadata = {**live["metadata"], **policy["metadata"]}
            await self._clusters.seed.replace({**policy, "metadata": metadata})

    def _networks(self) -> Networks | None:
        seed = self._seeds.get(self._clusters.seed_name)
        servers = [
            (address, port["port"])
            for each in self._endpoints.list()
            if (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == _API_SERVER
            for endpoint in each.get("endpoints") or ()
            for address in endpoint["addresses"]
            for port in each.get("ports") or ()
        ]
        if seed is None or not servers:
            return None
        networks = seed["spec"]["networks"]
        own = [networks[each] for each in ("nodes", "pods", "services") if networks.get(each)]
        dns = cluster_dns_address(networks["services"]) if networks.get("services") else ""
        blocked = networks.get("blockCIDRs") or ()
        return Networks(own=own, blocked=blocked, api_servers=sorted({*servers, *self._named}), dns=dns)

    async def _warn(self) -> None:
        """Write an Event if the Seed blocks networks, but the policies that block them are switched off."""
        seed = self._seeds.get(self._clusters.seed_name)
        if self._enabled or seed is None or not seed["spec"]["networks"].get("blockCIDRs"):
            return
        text = (
            "spec.networks.blockCIDRs blocks nothing: set networkPolicies.enabled in the configuration of the "
            f"gardenlet of seed {self._clusters.seed_name}"
        )
        await emit(self._clusters.garden, seed, "gardenlet", "NetworkPoliciesDisabled", text, "Warning")


def _networks_of(cluster: Object | None) -> list[str]:
    """Networks of a Shoot: those of its spec, and those that its network extension reports."""
    shoot: dict[str, Any] = (cluster or {"spec": {}})["spec"].get("shoot") or {}
    spec = (shoot.get("spec") or {}).get("networking") or {}
    status = (shoot.get("status") or {}).get("networking") or {}
    found = [spec.get(each) for each in ("nodes", "pods", "services")]
    return [each for each in (*found, *(cidr for part in status.values() for cidr in part or ())) if each]


def _place(event: WatchEvent) -> list[Key]:
    return [Key(None, event.object["metadata"]["namespace"])]


def _is_general(event: WatchEvent) -> bool:
    return event.object["metadata"]["name"] in network_policies.NAMES
