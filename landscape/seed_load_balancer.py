"""Load balancer of a zonal seed: the addresses of its Services of type LoadBalancer, outside of its nodes.

Envoy accepts the connections, and connects to a pod of the Service in any zone (``landscape.tcp_load_balancer``).
This process writes the files that Envoy watches, from the Services of the seed and their EndpointSlices. If it is down,
Envoy goes on with the last files.
"""

import asyncio
import hashlib
import logging
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from api.resources import ENDPOINT_SLICE, SERVICE
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller
from kube.objects import ip_family
from landscape import tcp_load_balancer
from landscape.code import code_digest
from landscape.files import write_if_changed
from landscape.plan import ClusterPlan, Plan
from landscape.processes import ProcessSpec
from landscape.public_addresses import addresses_of
from landscape.tcp_load_balancer import BACKENDS, Balancer

log = logging.getLogger("landscape.seed_load_balancer")

_METRICS_PORT = 15090
_SERVICE_NAME = "kubernetes.io/service-name"


def processes(plan: Plan, seed: ClusterPlan) -> list[ProcessSpec]:
    """Envoy, and the process that writes its files; both in the network namespace that has the seed's addresses."""
    directory = seed.directory / "load-balancer"
    for name, content in tcp_load_balancer.files((), directory).items():
        if not (directory / name).exists():
            write_if_changed(directory / name, content)
    socket = seed.run_directory / "load-balancer.sock"
    config = tcp_load_balancer.bootstrap(seed.name, directory, admin_socket=socket, metrics_port=_METRICS_PORT)
    bootstrap = directory / "bootstrap.json"
    write_if_changed(bootstrap, config)
    executable = str(Path(sys.executable).parent / "envoy")
    proxy = (executable, "-c", str(bootstrap), "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart")
    writer = (
        *(sys.executable, "-m", "landscape.seed_load_balancer"),
        *("--kubeconfig", str(plan.kubeconfig(seed.name)), "--directory", str(directory)),
    )
    version = code_digest("landscape", "kube", "api", "activities/components")
    config_version = hashlib.sha256(config.encode()).hexdigest()[:12]
    return [
        ProcessSpec(f"{seed.name}/load-balancer-files", writer, seed.netns, {"GARDENER_VERSION": version}),
        ProcessSpec(f"{seed.name}/load-balancer", proxy, seed.netns, {"GARDENER_VERSION": config_version}),
    ]


def balancers(services: Iterable[Object], slices: Iterable[Object]) -> list[Balancer]:
    """Ports of all Services that have an address, sorted by name."""
    by_service: dict[tuple[str, str], list[Object]] = {}
    for each in slices:
        metadata = each["metadata"]
        key = (metadata["namespace"], (metadata.get("labels") or {}).get(_SERVICE_NAME, ""))
        by_service.setdefault(key, []).append(each)
    found = []
    for service in services:
        metadata = service["metadata"]
        own = by_service.get((metadata["namespace"], metadata["name"]), [])
        for address in addresses_of(service) if service["spec"].get("type") == "LoadBalancer" else ():
            if ip_family(address) == "IPv6":
                continue  # landscape.gateway_ipv6 accepts its connections
            for port in service["spec"].get("ports") or ():
                name = f"{metadata['namespace']}.{metadata['name']}.{port.get('name') or port['port']}.{address}"
                found.append(Balancer(name, address, port["port"], _backends(own, port.get("name") or "")))
    return sorted(found, key=lambda each: each.name)


def _backends(slices: Iterable[Object], port_name: str) -> tuple[tuple[str, int], ...]:
    """Pods that are ready; all of them if none is: the checks of Envoy then decide."""
    ready: set[tuple[str, int]] = set()
    others: set[tuple[str, int]] = set()
    for each in slices:
        ports = [port["port"] for port in each.get("ports") or () if (port.get("name") or "") == port_name]
        for endpoint in each.get("endpoints") or ():
            good = (endpoint.get("conditions") or {}).get("ready") is not False
            (ready if good else others).update((address, port) for address in endpoint["addresses"] for port in ports)
    return tuple(sorted(ready or others))


class Files:
    """Writes the files when a Service or its pods change."""

    def __init__(self, client: KubeClient, directory: Path) -> None:
        self._services = Cache(client, SERVICE)
        self._slices = Cache(client, ENDPOINT_SLICE)
        self._directory = directory

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("load balancer", self._write, workers=1)
        all_of_them = Key(None, "files")
        async with self._services, self._slices:
            await self._services.synced()
            await self._slices.synced()
            controller.enqueue(all_of_them)
            controller.watch(self._services, keys=lambda _: [all_of_them])
            controller.watch(self._slices, keys=lambda _: [all_of_them])
            await controller.run()

    async def _write(self, _: Key) -> None:
        found = balancers(self._services.list(), self._slices.list())
        made = tcp_load_balancer.files(found, self._directory)
        for name, content in made.items():
            write_if_changed(self._directory / name, content)
        for stale in self._directory.glob(f"{BACKENDS}*.json"):
            if stale.name not in made:
                stale.unlink()


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
@click.option("--directory", type=click.Path(path_type=Path), required=True)
def main(kubeconfig: Path, directory: Path) -> None:
    """Write the files until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    async def write() -> None:
        async with KubeClient.from_kubeconfig(kubeconfig) as client:
            await Files(client, directory).run()

    asyncio.run(write())


if __name__ == "__main__":
    main()
