"""Work of a gardenlet per minute, and its cost with Shoots of other seeds in the garden.

    .venv/bin/python -m benchmarks.gardenlet --minutes 10 --foreign 1000 [--landscape default] [-o json]

Needs a landscape that is up with at least one Shoot of seed-1. Measures twice for the given time: first the garden as
it is, then with Shoots of a seed that has no gardenlet. During both, an event of each control plane comes each second;
during the second, a foreign Shoot changes each second, too. Meanwhile the controller-manager is stopped, because it
would start a workflow for each foreign Shoot. The figures are the gardenlet's own metrics. Targets: each awake Shoot is
checked once a minute, and requests and memory do not depend on foreign Shoots.
"""

import asyncio
import contextlib
import copy
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import click
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api import resources
from benchmarks.report import Figure, emit, figure, output_option, report_of
from kube.client import KubeClient, Object
from landscape import lifecycle
from landscape.plan import Plan

SEED, OTHER_SEED = "seed-1", "seed-without-gardenlet"
EXAMPLE = Path(__file__).parents[1] / "examples/shoot.yaml"
_EVENT_SECONDS = 1.0
_PARALLEL = 8


@dataclass(frozen=True)
class Cost:
    """A gardenlet's figures over some minutes; ``memory`` is in MiB."""

    checks_per_shoot_and_minute: float
    requests_per_minute: float
    memory: float


@click.command()
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(1, 120))
@click.option("--foreign", default=1000, show_default=True, type=click.IntRange(1, 10000))
@click.option("--landscape", default="default", show_default=True, envvar="GARDENER_LANDSCAPE")
@output_option
def main(minutes: float, foreign: int, landscape: str, output: str) -> None:
    """Measure without foreign Shoots, and with them."""
    alone, beside = asyncio.run(_measure(lifecycle.require(landscape), minutes, foreign))
    emit(report_of("gardenlet", 1, figures(alone, beside), {"minutes": minutes, "foreign": foreign}), output)


def figures(alone: Cost, beside: Cost) -> list[Figure]:
    """Costs beside foreign Shoots. The baseline is without them."""
    return [
        figure(name, unit, [getattr(beside, field)], [getattr(alone, field)])
        for name, unit, field in (
            ("checks per Shoot and minute", "checks", "checks_per_shoot_and_minute"),
            ("requests per minute", "requests", "requests_per_minute"),
            ("memory", "MiB", "memory"),
        )
    ]


async def _measure(plan: Plan, minutes: float, foreign: int) -> tuple[Cost, Cost]:
    """Cost without foreign Shoots, and with them."""
    async with (
        KubeClient.from_kubeconfig(plan.kubeconfig("garden")) as garden,
        KubeClient.from_kubeconfig(plan.kubeconfig(SEED)) as seed,
    ):
        shoots = await garden.list(resources.SHOOT)
        own = [each for each in shoots if each["spec"].get("seedName") == SEED]
        if not own:
            raise click.ClickException(f"no Shoot is in {SEED}: create one first, for example by `make demo`")
        namespaces = [each["status"]["technicalID"] for each in own]
        metrics = _metrics_url(plan)
        alone = await _cost(metrics, len(own), minutes, seed, namespaces, garden, [])
        async with _foreign_shoots(plan, garden, foreign) as others:
            return alone, await _cost(metrics, len(own), minutes, seed, namespaces, garden, others)


async def _cost(
    metrics: str,
    own: int,
    minutes: float,
    seed: KubeClient,
    namespaces: list[str],
    garden: KubeClient,
    foreign: list[Object],
) -> Cost:
    before = await _figures(metrics)
    started = time.monotonic()
    count = 0
    while time.monotonic() - started < minutes * 60:
        note = {"metadata": {"annotations": {"benchmark": str(count)}}}
        for namespace in namespaces:
            await seed.patch(resources.DEPLOYMENT, "kube-scheduler", namespace, note)
        if foreign:
            each = foreign[count % len(foreign)]["metadata"]
            await garden.patch(resources.SHOOT, each["name"], each["namespace"], note)
        count += 1
        await asyncio.sleep(_EVENT_SECONDS)  # the rate of the events
    after = await _figures(metrics)
    passed = (time.monotonic() - started) / 60
    return Cost(
        (after["checks"] - before["checks"]) / passed / own,
        (after["requests"] - before["requests"]) / passed,
        after["memory"] / 2**20,
    )


@contextlib.asynccontextmanager
async def _foreign_shoots(plan: Plan, garden: KubeClient, count: int) -> AsyncIterator[list[Object]]:
    """Shoots of a Seed that no gardenlet looks after; they go again at the end."""
    processes = lifecycle.processes_of(plan)
    manager = processes.get("garden/controller-manager")
    processes.send(manager, signal.SIGSTOP)
    try:
        await garden.apply(_other_seed(await garden.get(resources.SEED, SEED)), manager="benchmark")
        manifest = yaml.safe_load(EXAMPLE.read_text())
        manifest["spec"]["seedName"] = OTHER_SEED
        limit = asyncio.Semaphore(_PARALLEL)

        async def create(number: int) -> Object:
            each = copy.deepcopy(manifest)
            each["metadata"] = {"name": f"f{number}", "namespace": manifest["metadata"]["namespace"]}
            async with limit:
                return await garden.apply(each, manager="benchmark")

        async def remove(shoot: Object) -> None:
            name, namespace = shoot["metadata"]["name"], shoot["metadata"]["namespace"]
            confirmed = {"annotations": {"confirmation.gardener.cloud/deletion": "true"}, "finalizers": None}
            async with limit:
                await garden.patch(resources.SHOOT, name, namespace, {"metadata": confirmed})
                await garden.delete(resources.SHOOT, name, namespace)

        made = await asyncio.gather(*(create(number) for number in range(count)))
        try:
            yield list(made)
        finally:
            await asyncio.gather(*map(remove, made))
            await garden.patch(resources.SEED, OTHER_SEED, None, {"metadata": {"finalizers": None}})
            await garden.delete(resources.SEED, OTHER_SEED)
    finally:
        processes.send(manager, signal.SIGCONT)


def _other_seed(seed: Object) -> Object:
    spec = copy.deepcopy(seed["spec"])
    spec.pop("backup", None)
    spec["ingress"]["domain"] = f"ingress.{OTHER_SEED}.example"
    metadata = {"name": OTHER_SEED, "labels": seed["metadata"].get("labels", {})}
    return {"apiVersion": seed["apiVersion"], "kind": "Seed", "metadata": metadata, "spec": spec}


def _metrics_url(plan: Plan) -> str:
    config = yaml.safe_load((plan.configs / f"{SEED}-gardenlet.yaml").read_text())
    return f"http://{config['health']['address']}:{config['health']['port']}/metrics"


async def _figures(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    found = {"checks": 0.0, "requests": 0.0, "memory": 0.0}
    named = {
        "gardener_shoot_care_checks_total": "checks",
        "gardener_kube_request_duration_seconds_count": "requests",
        "process_resident_memory_bytes": "memory",
    }
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if figure := named.get(sample.name):
                found[figure] += sample.value
    return found


if __name__ == "__main__":
    main()
