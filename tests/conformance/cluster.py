"""A Shoot of two nodes on a landscape for the conformance specs."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from landscape import binaries, conformance
from landscape import plan as plans
from landscape.progress import Progress
from tests.conformance.runner import Suite
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, Shoot

NAME = "conformance"
NODES = 2
_SPARE_SECONDS = 3600
"""Validity of the kubeconfig beyond the time of the specs: ginkgo cleans up at their end."""


@contextmanager
def cluster(
    landscape: Landscape, directory: Path, output: Path, seconds: float, *, keep: bool = False
) -> Iterator[Suite]:
    """The specs' programs with a Shoot that they can use for so many seconds; its kubeconfig is in ``directory``.

    ``keep`` leaves the Shoot for the next run.
    """
    plan = plans.load(landscape.name)
    assert plan is not None, f"landscape {landscape.name} is up"
    programs = asyncio.run(conformance.offer_images(plan, Progress()))
    shoot = Shoot(landscape, NAME, directory)
    manifest = shoot.manifest(machines=NODES)
    if keep:
        shoot.apply(manifest)
        shoot.wait_for_state("Succeeded", CREATION)
        yield _suite(shoot, programs, directory, output, seconds)
    else:
        with shoot.created(manifest):
            yield _suite(shoot, programs, directory, output, seconds)


def _suite(shoot: Shoot, programs: binaries.Binaries, directory: Path, output: Path, seconds: float) -> Suite:
    validity = ("--expiration", f"{seconds + _SPARE_SECONDS:.0f}")
    config = yaml.safe_load(shoot.gardener("kubeconfig", "shoot", shoot.reference, *validity))
    kubeconfig, hosts = directory / "kubeconfig.yaml", directory / "hosts"
    kubeconfig.touch(mode=0o600)
    hosts.write_text(Path("/etc/hosts").read_text() + by_name(config))
    kubeconfig.write_text(yaml.safe_dump(config))
    return Suite(programs["e2e.test"], programs["ginkgo"], str(BIN / "kubectl"), kubeconfig, hosts, output, NODES)


def by_name(config: dict[str, Any]) -> str:
    """Let a kubeconfig name its API server by host name; returns the lines of /etc/hosts for it.

    Gateways of seeds find an API server by the name that a client asks for in TLS. A kubeconfig has the name in
    ``tls-server-name`` beside an address that needs no DNS, but e2e.test only reads the address.
    """
    lines = []
    for cluster in (each["cluster"] for each in config["clusters"]):
        if name := cluster.pop("tls-server-name", ""):
            server = urlsplit(cluster["server"])
            lines.append(f"{server.hostname} {name}\n")
            cluster["server"] = f"https://{name}:{server.port or 443}"
    return "".join(lines)
