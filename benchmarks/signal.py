"""How long an event of the garden takes until its signal is delivered to the Shoot's workflow.

    .venv/bin/python -m benchmarks.signal --events 200 [--landscape default] [-o json]

Annotates a Shoot that no scheduler takes, so that nothing else happens, and takes the times from the watcher's own
metric: from the arrival of the event to Temporal's answer. Target: p99 <= 50 ms.
"""

import asyncio
import math
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import click
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api import resources
from benchmarks.report import Figure, emit, figure, output_option, report_of
from kube.client import KubeClient
from workers.cli.connection import landscape_facts
from workers.controller_manager.watchers.shoots import SIGNAL_METRIC

EXAMPLE = Path(__file__).parents[1] / "examples/shoot.yaml"
_GAP_SECONDS = 0.05
_LIMIT_SECONDS = 30.0
CONTROLLER_MANAGER_PORT = 2718
"""Where the landscape's controller-manager serves its metrics."""


@click.command()
@click.option("--events", default=200, show_default=True, type=click.IntRange(10, 5000))
@click.option("--landscape", default="default", show_default=True)
@output_option
def main(events: int, landscape: str, output: str) -> None:
    """Send events one after the other; print the upper bound of the bucket that holds each percentile."""
    counts = asyncio.run(_measure(landscape_facts(landscape), events))
    emit(report_of("signal", 1, figures(counts), {"events": events}), output)


def figures(counts: dict[float, float]) -> list[Figure]:
    """Figures of one run. ``counts``: events up to each bound, in seconds."""
    total = counts[math.inf]
    bounds = {share: quantile(counts, total * share / 100) * 1000 for share in (50, 90, 99)}
    return [figure(f"p{share}, at most", "ms", [bound]) for share, bound in bounds.items()]


async def _measure(facts: dict[str, Any], events: int) -> dict[float, float]:
    garden = KubeClient.from_kubeconfig(Path(facts["clusters"]["garden"]["kubeconfig"]))
    manifest = yaml.safe_load(EXAMPLE.read_text())
    name, namespace = "signals", manifest["metadata"]["namespace"]
    manifest |= {"metadata": {"name": name, "namespace": namespace}}
    manifest["spec"]["schedulerName"] = "none"
    host = urlsplit(facts["temporal"]["ui"]).hostname
    metrics = f"http://{host}:{CONTROLLER_MANAGER_PORT}/metrics"
    try:
        await garden.apply(manifest, manager="benchmark")
        counts = await delivered(garden, metrics, namespace, name, events)
        confirmation = {"metadata": {"annotations": {"confirmation.gardener.cloud/deletion": "true"}}}
        await garden.patch(resources.SHOOT, name, namespace, confirmation)
        await garden.delete(resources.SHOOT, name, namespace)
    finally:
        await garden.close()
    return counts


async def delivered(garden: KubeClient, metrics: str, namespace: str, name: str, events: int) -> dict[float, float]:
    """Annotate a Shoot again and again; the number of events up to each bound, in seconds.

    Each event is sent once the one before is delivered: a busy watcher would send one signal for two events.
    ``metrics``: URL of the controller-manager's. Raises ClickException if an event does not reach the workflow.
    """
    before = after = await signal_buckets(metrics)
    for number in range(events):
        annotation = {"metadata": {"annotations": {"benchmark": str(number)}}}
        await garden.patch(resources.SHOOT, name, namespace, annotation)
        sent = time.monotonic()
        while after[math.inf] - before.get(math.inf, 0.0) <= number:
            if time.monotonic() > sent + _LIMIT_SECONDS:
                raise click.ClickException(f"the controller-manager has delivered {number} of {events} events")
            await asyncio.sleep(_GAP_SECONDS)  # metrics cannot be watched
            after = await signal_buckets(metrics)
    return {bound: after[bound] - before.get(bound, 0.0) for bound in after}


async def signal_buckets(url: str) -> dict[float, float]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == SIGNAL_METRIC
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }


def quantile(cumulative: dict[float, float], rank: float) -> float:
    """Smallest bound, in seconds, up to which there are that many events."""
    bound = min(bound for bound, count in cumulative.items() if count >= rank)
    if math.isinf(bound):
        largest = max(filter(math.isfinite, cumulative))
        raise click.ClickException(f"more than {largest:g} s, the largest bound of the metric: is the machine idle?")
    return bound


if __name__ == "__main__":
    main()
