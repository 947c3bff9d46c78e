"""How long a user waits: from ``kubectl apply`` to an API server that answers, to a Ready node, and for a deletion.

    .venv/bin/python -m benchmarks.shoot --runs 5 [--landscape default] [-o json]

Needs a landscape that is up and otherwise idle. The baseline ``by hand`` is the same control plane's etcd and API
server pods applied at once, without a flow, measured in the same run: what the machine itself needs. The baseline of a
deletion is the removal of these pods. Beside the times it prints the CPU seconds that each program of the machine used
until the node was ready, and until the creation ended.
"""

import asyncio
import copy
import functools
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from api import resources
from benchmarks.by_hand import ControlPlane
from benchmarks.cpu import Moment
from benchmarks.report import Figure, emit, figure, output_option, report_of
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError
from workers.cli.connection import landscape_facts
from workers.cli.kubeconfig import requested_kubeconfig

EXAMPLE = Path(__file__).parents[1] / "examples/shoot.yaml"
_POLL_SECONDS = 0.1
_LIMIT_SECONDS = 300.0
BY_HAND = "by hand"
REMOVED_BY_HAND = "removal by hand"
API_SERVER, NODE_READY, SUCCEEDED, DELETION = "api server", "node ready", "succeeded", "deletion"
_SHOWN_SECONDS = 0.1
"""Programs that used less CPU than this are not shown."""
_LIMITS = {NODE_READY: 15.0, DELETION: 15.0}
"""In seconds."""
_BY_HAND = 1.05
"""Limit for the API server: so many times as long as by hand."""
_CPU_SECONDS = 40.0
"""Limit until the node is ready."""


@click.command()
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 50))
@click.option("--landscape", default="default", show_default=True, envvar="GARDENER_LANDSCAPE")
@output_option
def main(runs: int, landscape: str, output: str) -> None:
    """Create and delete one Shoot after the other; print medians and spread."""
    os.environ["GARDENER_LANDSCAPE"] = landscape  # for whatever looks for the landscape's facts, its DNS for example
    facts = landscape_facts(landscape)
    found = asyncio.run(_measure(facts, runs, quiet=output == "json"))
    emit(report_of("shoot", runs, figures(found), {}), output)


@dataclass
class Creation:
    """One Shoot: seconds until each phase, and CPU seconds of each program until then."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)


def figures(found: list[Creation]) -> list[Figure]:
    """Times, beside the control plane that was applied by hand in the same run, and CPU seconds of each program."""
    seconds = {phase: [each.seconds[phase] for each in found] for phase in found[0].seconds}
    limits = _LIMITS | {API_SERVER: statistics.median(seconds[BY_HAND]) * _BY_HAND}
    times = [
        figure(phase, "s", values, seconds[REMOVED_BY_HAND if phase == DELETION else BY_HAND], limit=limits.get(phase))
        for phase, values in seconds.items()
        if phase not in (BY_HAND, REMOVED_BY_HAND)
    ]
    return [*times, *(each for phase in found[0].cpu for each in _cpu(phase, [one.cpu[phase] for one in found]))]


async def _measure(facts: dict[str, Any], runs: int, *, quiet: bool) -> list[Creation]:
    garden = KubeClient.from_kubeconfig(Path(facts["clusters"]["garden"]["kubeconfig"]))
    caches = Caches(garden)
    found: list[Creation] = []
    try:
        for number in range(runs):
            found.append(await _one(facts, garden, caches, f"bench{number}"))
            if not quiet:
                shown = (f"{phase} {seconds:.2f} s" for phase, seconds in found[-1].seconds.items())
                click.echo("  ".join(shown), err=True)
    finally:
        await caches.close()
        await garden.close()
    return found


async def _one(facts: dict[str, Any], garden: KubeClient, caches: Caches, name: str) -> Creation:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    namespace = manifest["metadata"]["namespace"]
    manifest = copy.deepcopy(manifest) | {"metadata": {"name": name, "namespace": namespace}}
    shoots = caches.of(resources.SHOOT, namespace)
    found = Creation()
    took = found.seconds
    idle, started = Moment.now(), time.monotonic()
    await garden.apply(manifest, manager="benchmark")
    config = await user_kubeconfig(garden, caches, namespace, name)
    await answers(config)
    took[API_SERVER] = time.monotonic() - started
    async with KubeClient.from_kubeconfig(config) as client:
        theirs = Caches(client)
        try:
            await theirs.of(resources.NODE).wait_until(lambda nodes: any(map(_ready, nodes.list())), _LIMIT_SECONDS)
            took[NODE_READY] = time.monotonic() - started
            found.cpu[NODE_READY] = Moment.now().since(idle)
        finally:
            await theirs.close()
    await shoots.wait_for(name, namespace, _succeeded, _LIMIT_SECONDS)
    took[SUCCEEDED] = time.monotonic() - started
    found.cpu[SUCCEEDED] = Moment.now().since(idle)
    status = (await garden.get(resources.SHOOT, name, namespace))["status"]
    async with KubeClient.from_kubeconfig(Path(facts["clusters"][status["seedName"]]["kubeconfig"])) as seed:
        by_hand = await ControlPlane.of(seed, status["technicalID"])
        took[DELETION] = await deletion(garden, caches, namespace, name)
        seeds = Caches(seed)
        try:
            # The user has no permissions in this cluster, but a ready API server answers /readyz to every client.
            took[BY_HAND] = await by_hand.start(seed, functools.partial(answers, config, "/readyz"))
        finally:
            took[REMOVED_BY_HAND] = await by_hand.remove(seed, seeds)
            await seeds.close()
    return found


async def deletion(garden: KubeClient, caches: Caches, namespace: str, name: str) -> float:
    """Delete a Shoot; returns the seconds until it is gone."""
    confirmation = {"metadata": {"annotations": {"confirmation.gardener.cloud/deletion": "true"}}}
    await garden.patch(resources.SHOOT, name, namespace, confirmation)
    started = time.monotonic()
    await garden.delete(resources.SHOOT, name, namespace)
    shoots = caches.of(resources.SHOOT, namespace)
    await shoots.wait_for(name, namespace, lambda live: live is None or None, _LIMIT_SECONDS)
    return time.monotonic() - started


async def user_kubeconfig(garden: KubeClient, caches: Caches, namespace: str, name: str) -> dict[str, object]:
    """Kubeconfig of a user, as soon as the Shoot has an address and a DNS name."""

    def advertised(shoot: dict[str, Any] | None) -> bool | None:
        return bool((shoot or {}).get("status", {}).get("advertisedAddresses")) or None

    await caches.of(resources.SHOOT, namespace).wait_for(name, namespace, advertised, _LIMIT_SECONDS)
    async with asyncio.timeout(_LIMIT_SECONDS):
        while True:
            try:
                config, _ = await requested_kubeconfig(garden, namespace, name, expiration=3600)
            except (ApiError, click.ClickException):
                await asyncio.sleep(_POLL_SECONDS)  # the clock of the measurement
            else:
                return config


async def answers(config: dict[str, object], path: str = "/api/v1/namespaces") -> None:
    """Return as soon as one request of the user is answered."""
    async with asyncio.timeout(_LIMIT_SECONDS), KubeClient.from_kubeconfig(config) as client:
        while True:
            try:
                async with asyncio.timeout(2):
                    await client.request("GET", path)
            except (ApiError, TimeoutError):
                await asyncio.sleep(_POLL_SECONDS)  # the clock of the measurement
            else:
                return


def _ready(node: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))


def _succeeded(shoot: dict[str, Any] | None) -> bool | None:
    status = (shoot or {}).get("status", {})
    return (status.get("lastOperation") or {}).get("state") == "Succeeded" or None


def _cpu(phase: str, runs: list[dict[str, float]]) -> list[Figure]:
    """CPU seconds of all programs together and of each; one that a run did not see used nothing in it."""
    names = {name for each in runs for name in each}
    programs = {name: [each.get(name, 0.0) for each in runs] for name in names}
    shown = {name: values for name, values in programs.items() if statistics.median(values) >= _SHOWN_SECONDS}
    ordered = sorted(shown, key=lambda name: (-statistics.median(shown[name]), name))
    limit = _CPU_SECONDS if phase == NODE_READY else None
    return [
        figure(f"CPU until {phase}", "s", [sum(each.values()) for each in runs], limit=limit),
        *(figure(f"CPU until {phase}: {name}", "s", shown[name]) for name in ordered),
    ]


if __name__ == "__main__":
    main()
