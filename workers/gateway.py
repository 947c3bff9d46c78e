"""Configures the Envoy in front of a seed's API servers: a sidecar that writes the files that Envoy watches.

It reads exposures and forwardings (labelled ConfigMaps) and Services of all namespaces, and writes xDS files. If this
process is down, Envoy goes on with the last files. This process also deletes forwardings that have expired.
"""

import asyncio
import contextlib
import json
import logging
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from activities.components import gateway
from activities.components.gateway import (
    ApiServerExposure,
    Forwarding,
    Route,
    ServiceExposure,
    ServiceRoute,
    Upstream,
)
from api.model import ApiModel
from api.resources import CONFIG_MAP, SERVICE
from kube.cache import Cache, Caches
from kube.client import KubeClient, Object
from kube.errors import ApiError
from workers.lib.exposed_hosts import hosts, named, oldest_first
from workers.lib.runtime import Health, HealthConfig, load_config, run_until_signal

_log = logging.getLogger(__name__)

_GATHER = 0.02
"""Seconds to wait for further events before files are written: many shoots may change at once."""
_FORWARDING_RETRY_SECONDS = 10.0
"""Seconds after which the deletion of a forwarding is tried again."""

Model = TypeVar("Model", ApiServerExposure, ServiceExposure, Forwarding)


class GatewayConfig(ApiModel):
    directory: Path = Path(gateway.XDS_DIRECTORY)
    """Directory that Envoy reads its files from."""
    kubeconfig: Path | None = None
    """Kubeconfig of the seed; unset: in-cluster."""
    namespace: str = gateway.NAMESPACE
    """Namespace of this gateway, with its forwardings."""
    handler: str = ""
    """Handler of ExposureClasses whose Shoots this gateway serves; empty: all Shoots without an ExposureClass."""
    internal_domain: str = ""
    """``spec.dns.internal.domain`` of the seed. A DNS name below it contains the name of its control plane."""
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    config = load_config(GatewayConfig, config_path)
    client = KubeClient.from_kubeconfig(config.kubeconfig) if config.kubeconfig else KubeClient.in_cluster()
    health = Health()
    server = await health.serve(config.health)
    caches = Caches(client)
    try:
        place = gateway.Place(config.namespace, config.handler)
        await run_until_signal(Gateway(caches, config.directory, health, config.internal_domain, place).run())
    finally:
        await caches.close()
        await client.close()
        await server.cleanup()


class Gateway:
    """Writes the files when exposures, forwardings or Services change."""

    def __init__(
        self,
        caches: Caches,
        directory: Path,
        health: Health,
        internal_domain: str = "",
        place: gateway.Place = gateway.OWN,
    ) -> None:
        self._client = caches.client
        self._exposures = caches.of(CONFIG_MAP, labels=gateway.SELECTOR)
        self._services = caches.of(SERVICE, labels=gateway.SELECTOR)
        self._directory = directory
        self._internal_domain = internal_domain
        self._place = place
        self._health = health
        self._changed = asyncio.Event()
        self._written: dict[str, bytes] = {}

    async def run(self) -> None:
        """Write once both caches are complete, then after each change; until cancelled."""
        for cache in (self._exposures, self._services):
            cache.subscribe(lambda _event: self._changed.set())
            await cache.synced()
        while True:
            self._changed.clear()
            self.write()
            self._health.ready = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(await self._end_forwardings()):
                    await self._changed.wait()
            await asyncio.sleep(_GATHER)

    async def _end_forwardings(self) -> float | None:
        """Delete expired forwardings; returns the seconds until the next one expires, None if there are no others."""
        now, soonest = datetime.now(UTC), None
        for item in self._exposures.list():
            if (what := _forwarding(item, self._place)) is None:
                continue
            left = (what.until - now).total_seconds()
            if left <= 0:
                metadata, left = item["metadata"], _FORWARDING_RETRY_SECONDS
                try:
                    await self._client.delete(CONFIG_MAP, metadata["name"], metadata["namespace"], uid=metadata["uid"])
                except ApiError as error:
                    _log.warning("deleting ConfigMap %s/%s: %s", metadata["namespace"], metadata["name"], error)
            soonest = left if soonest is None else min(soonest, left)
        return soonest

    def write(self) -> None:
        """Replace the files whose content changed."""
        files = gateway.xds_files(*routes(self._exposures.list(), self._services, self._internal_domain, self._place))
        for name, content in files.items():
            data = json.dumps(content, separators=(",", ":")).encode()
            if self._written.get(name) != data:
                _replace(self._directory / name, data)
                self._written[name] = data
                _log.info("wrote %s, version %s", name, content["version_info"])


def routes(
    exposures: list[Object], services: Cache, internal_domain: str = "", place: gateway.Place = gateway.OWN
) -> tuple[list[Route], list[ServiceRoute]]:
    """Resolve the exposures, and then the forwardings to control planes in other seeds.

    An exposure that cannot be read is left out. Each host goes to one exposure, see ``hosts``. Of two exposures of the
    same Service only the older one is served. Otherwise Envoy would reject the files, and new shoots would get no
    route. This holds for the exposures of all gateways, and only then those of other gateways are left out: a control
    plane that one gateway serves gets no second way in by another one.
    """
    found: dict[str, Route | None] = {}
    served: dict[str, ServiceRoute | None] = {}
    forwardings: list[Route] = []
    given = hosts(exposures, internal_domain)
    for item in oldest_first(exposures):
        name, namespace = named(item), item["metadata"]["namespace"]
        ours = gateway.handler_of(item) == place.handler
        for host in given.refused[name] if ours else ():
            _log.error("not serving %s to ConfigMap %s: the name belongs to another control plane", host, name)
        if elsewhere := _forwarding(item, place):
            there = (elsewhere.address, gateway.SNI_PORT)
            forwardings.append(Route(item["metadata"]["name"], elsewhere.hosts, there, None, elsewhere=True))
            continue
        if gateway.FORWARDING_KEY in (item.get("data") or {}):
            continue  # another gateway's, or one in a namespace that may not route out of the seed
        if gateway.SERVICE_EXPOSURE_KEY in (item.get("data") or {}):
            if (more := _read(item, gateway.SERVICE_EXPOSURE_KEY, ServiceExposure)) is None:
                continue
            cluster = gateway.service_cluster(namespace, more.upstream)
            if cluster in (*served, gateway.proxy_header(namespace), *_vpn_headers(namespace)):
                _log.error("leaving out ConfigMap %s: the name %s is taken", name, cluster)
                continue
            address = _address(more.upstream, namespace, services)
            served[cluster] = (
                ServiceRoute(cluster, given.served[name], address, more.port) if address and ours else None
            )
            continue
        if (what := _read(item, gateway.EXPOSURE_KEY, ApiServerExposure)) is None:
            continue
        if namespace in found:
            _log.error("leaving out ConfigMap %s: an older one of its namespace counts", name)
            continue
        route = Route(
            namespace,
            given.served[name],
            _address(what.api_server, namespace, services),
            _address(what.vpn, namespace, services) if what.vpn else None,
            _address(_second(what.vpn), namespace, services) if what.vpn else None,
        )
        found[namespace] = route if ours else None
    taken = {host for each in given.served.values() for host in each}
    # Sorted by name: the files must not depend on the age of the exposures.
    here = [route for _, route in sorted(found.items()) if route]
    here += sorted((each for each in forwardings if taken.isdisjoint(each.hosts)), key=lambda each: each.namespace)
    return here, [each for _, each in sorted(served.items()) if each]


def _forwarding(item: Object, place: gateway.Place) -> Forwarding | None:
    """The forwarding in a ConfigMap of the gateway's namespace. Other namespaces may not route out of the seed."""
    if item["metadata"]["namespace"] != place.namespace or gateway.FORWARDING_KEY not in (item.get("data") or {}):
        return None
    return _read(item, gateway.FORWARDING_KEY, Forwarding)


def _read(item: Object, key: str, model: type[Model]) -> Model | None:
    try:
        return model.model_validate_json((item.get("data") or {}).get(key, ""))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        _log.error("leaving out ConfigMap %s: %s", named(item), faults)
        return None


def _vpn_headers(namespace: str) -> list[str]:
    return [gateway.vpn_header(namespace, server) for server in gateway.VPN_SERVERS]


def _second(vpn: Upstream) -> Upstream:
    """The second VPN server. Its Service exists in highly available control planes only."""
    return Upstream(service=gateway.VPN_SERVERS[1], port=vpn.port)


def _address(upstream: Upstream, namespace: str, services: Cache) -> tuple[str, int] | None:
    service = services.get(upstream.service, namespace)
    address = service["spec"].get("clusterIP") if service else None
    return (address, upstream.port) if address and address != "None" else None


def _replace(path: Path, data: bytes) -> None:
    """Write a temporary file and rename it: Envoy watches for renames, and never reads an incomplete file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
