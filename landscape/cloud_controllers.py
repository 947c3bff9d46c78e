"""Process of the cloud's controllers: public addresses, load balancers and disks.

It runs in the network of the cloud, in which it reaches machines, and mounts disks on the cloud's host.
"""

import asyncio
import logging
import sys
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import click

from kube.client import KubeClient
from landscape import disks
from landscape.code import code_digest
from landscape.disks import Disks, Files
from landscape.kernel import has_ipv6
from landscape.load_balancers import Backends
from landscape.plan import Plan
from landscape.processes import ProcessSpec
from landscape.public_addresses import Addresses


def process(plan: Plan) -> ProcessSpec:
    arguments = ["--kubeconfig", str(plan.kubeconfig("cloud")), "--network", plan.public_network]
    if has_ipv6():
        arguments += ["--network-ipv6", plan.public_network_ipv6]
    arguments += ["--disks", str(disks.directory(plan))]
    argv = (sys.executable, "-m", "landscape.cloud_controllers", *arguments)
    version = {"GARDENER_VERSION": code_digest("landscape", "kube", "api", "workers/provider_local")}
    return ProcessSpec("cloud/controllers", argv, plan.cloud.netns, version)


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
@click.option("--network", type=IPv4Network, required=True)
@click.option("--network-ipv6", type=IPv6Network)
@click.option("--disks", "directory", type=click.Path(path_type=Path), required=True)
def main(kubeconfig: Path, network: IPv4Network, network_ipv6: IPv6Network | None, directory: Path) -> None:
    """Serve load balancers and disks until stopped."""
    networks = {"IPv4": network} | ({"IPv6": network_ipv6} if network_ipv6 else {})
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    async def serve() -> None:
        async with KubeClient.from_kubeconfig(kubeconfig) as client:
            await asyncio.gather(
                Addresses(client, networks).run(), Backends(client).run(), Disks(client, Files(directory)).run()
            )

    asyncio.run(serve())


if __name__ == "__main__":
    main()
