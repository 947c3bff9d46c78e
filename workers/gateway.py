"""Configures the Envoy in front of a seed's API servers: a sidecar that writes the files Envoy watches.

Exposures (labelled ConfigMaps) and Services of all namespaces go in, xDS files come out. Losing this process
costs nothing but news: Envoy goes on with the files it has.
"""

import asyncio
import json
import logging
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from activities.components import gateway
from activities.components.gateway import ApiServerExposure, Route, Upstream
from activities.kube.cache import Cache, Caches
from activities.kube.client import KubeClient, Object
from api.model import ApiModel
from api.resources import CONFIG_MAP, SERVICE
from workers.runtime import Health, HealthConfig, load_config, run_until_signal

_log = logging.getLogger(__name__)

_GATHER = 0.02
"""Seconds to wait for further events before writing: many shoots may change at once."""


class GatewayConfig(ApiModel):
    directory: Path = Path(gateway.XDS_DIRECTORY)
    """Where Envoy looks for its files."""
    kubeconfig: Path | None = None
    """Of the seed; unset: in-cluster."""
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    config = load_config(GatewayConfig, config_path)
    client = KubeClient.from_kubeconfig(config.kubeconfig) if config.kubeconfig else KubeClient.in_cluster()
    health = Health()
    server = await health.serve(config.health)
    caches = Caches(client)
    try:
        await run_until_signal(Gateway(caches, config.directory, health).run())
    finally:
        await caches.close()
        await client.close()
        await server.cleanup()


class Gateway:
    """Keeps the files in step with the cluster."""

    def __init__(self, caches: Caches, directory: Path, health: Health) -> None:
        self._exposures = caches.of(CONFIG_MAP, labels=_selector())
        self._services = caches.of(SERVICE, labels=_selector())
        self._directory = directory
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
            await self._changed.wait()
            await asyncio.sleep(_GATHER)

    def write(self) -> None:
        """Replace the files whose content changed."""
        files = gateway.xds_files(routes(self._exposures.list(), self._services))
        for name, content in files.items():
            data = json.dumps(content, separators=(",", ":")).encode()
            if self._written.get(name) != data:
                _replace(self._directory / name, data)
                self._written[name] = data
                _log.info("wrote %s, version %s", name, content["version_info"])


def routes(exposures: list[Object], services: Cache) -> list[Route]:
    """Resolve the exposures, sorted by namespace.

    One that cannot be read is left out, and of two with the same host the first keeps it: Envoy
    would otherwise refuse the files, and with them the next shoot.
    """
    found: list[Route] = []
    taken: dict[str, str] = {}
    for item in sorted(exposures, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"])):
        namespace = item["metadata"]["namespace"]
        try:
            what = ApiServerExposure.model_validate_json((item.get("data") or {}).get(gateway.EXPOSURE_KEY, ""))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            _log.error("leaving out ConfigMap %s/%s: %s", namespace, item["metadata"]["name"], faults)
            continue
        if any(route.namespace == namespace for route in found):
            _log.error("leaving out ConfigMap %s/%s: a second one", namespace, item["metadata"]["name"])
            continue
        hosts = tuple(host for host in dict.fromkeys(what.hosts) if taken.setdefault(host, namespace) == namespace)
        for host in set(what.hosts) - set(hosts):
            _log.error("not serving %s to %s: it belongs to %s", host, namespace, taken[host])
        found.append(
            Route(
                namespace,
                hosts,
                _address(what.api_server, namespace, services),
                _address(what.vpn, namespace, services) if what.vpn else None,
            )
        )
    return found


def _address(upstream: Upstream, namespace: str, services: Cache) -> tuple[str, int] | None:
    service = services.get(upstream.service, namespace)
    address = service["spec"].get("clusterIP") if service else None
    return (address, upstream.port) if address and address != "None" else None


def _replace(path: Path, data: bytes) -> None:
    """Write a file aside and move it: that is what Envoy watches for, and it never reads half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _selector() -> str:
    return ",".join(f"{key}={value}" for key, value in gateway.LABELS.items())
