"""The front door's cost: latency of get, list and watch events through it and without it, side by side.

    .venv/bin/python -m benchmarks.front_door [--rounds 10] [--landscape default] [-o json]

Needs a landscape that is up, and root: the benchmark enters the garden's network namespace, where kube-apiserver
answers on the loopback address. In each round both ways are measured, one after the other, in turns first. A figure is
the median over the rounds. Its baseline is the way without the door.
"""

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import click
import yaml

from api import resources
from benchmarks.report import Figure, emit, figure, output_option, report_of
from kube.client import KubeClient
from landscape import lifecycle
from landscape.plan import Plan

NAMESPACE = "benchmark-front-door"
_OBJECTS = 200
_REQUESTS = {"get": 200, "list": 20, "watch event": 100}
"""Requests in one round. A list has all objects."""
_CLONE_NEWNET = 0x40000000
_WAYS = ("without", "with")

Times = list[float]
"""Seconds of single requests."""


@click.command()
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(2, 200))
@click.option("--landscape", default="default", show_default=True, envvar="GARDENER_LANDSCAPE")
@output_option
def main(rounds: int, landscape: str, output: str) -> None:
    """Measure both ways in each round."""
    plan = lifecycle.require(landscape)
    _enter_network(plan)
    found = asyncio.run(_measure(plan, rounds))
    emit(report_of("front_door", rounds, figures(found), {"objects": _OBJECTS}), output)


def _enter_network(plan: Plan) -> None:
    descriptor = os.open(f"/run/netns/{plan.garden.netns}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise click.ClickException(f"entering the garden's network: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


async def _measure(plan: Plan, rounds: int) -> dict[str, dict[str, list[Times]]]:
    """Times of each round: by what was asked, and by the way."""
    kubeconfig = yaml.safe_load(plan.kubeconfig("garden").read_text())
    async with KubeClient.from_kubeconfig(kubeconfig) as through:
        kubeconfig["clusters"][0]["cluster"]["server"] = "https://localhost:6443"
        async with KubeClient.from_kubeconfig(kubeconfig) as direct, _objects(direct):
            clients = dict(zip(_WAYS, (direct, through), strict=True))
            times: dict[str, dict[str, list[Times]]] = {what: {way: [] for way in _WAYS} for what in _REQUESTS}
            measures = {"get": _get, "list": _list, "watch event": _watch}
            for number in range(rounds + 1):
                for what, measure in measures.items():
                    for way in _WAYS if number % 2 else reversed(_WAYS):
                        taken = await measure(clients[way], direct, _REQUESTS[what])
                        if number:  # the round before opens connections and fills caches
                            times[what][way].append(taken)
    return times


def figures(times: dict[str, dict[str, list[Times]]]) -> list[Figure]:
    """Percentiles of the rounds."""
    found = []
    for what, ways in times.items():
        for share in (50, 99):
            rounds = {way: [_percentile(each, share) * 1000 for each in taken] for way, taken in ways.items()}
            found.append(figure(f"{what} p{share}", "ms", rounds["with"], rounds["without"]))
    return found


def _percentile(times: Times, share: int) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


async def _get(client: KubeClient, _: KubeClient, count: int) -> Times:
    return [await _timed(lambda: client.get(resources.CONFIG_MAP, "object-0", NAMESPACE)) for _ in range(count)]


async def _list(client: KubeClient, _: KubeClient, count: int) -> Times:
    return [await _timed(lambda: client.list(resources.CONFIG_MAP, NAMESPACE)) for _ in range(count)]


async def _watch(client: KubeClient, writer: KubeClient, count: int) -> Times:
    """Times from the begin of a write, which never uses the door, to its event."""
    _, version = await client.list_with_version(resources.CONFIG_MAP, NAMESPACE)
    opened = asyncio.Event()
    events = client.watch(resources.CONFIG_MAP, NAMESPACE, resource_version=version, on_open=opened.set)
    times = []
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        for number in range(count):
            event = asyncio.ensure_future(anext(events))
            await opened.wait()
            started = time.perf_counter()
            patch = asyncio.ensure_future(
                writer.patch(resources.CONFIG_MAP, "object-0", NAMESPACE, {"data": {"number": f"{started}-{number}"}})
            )
            await event
            times.append(time.perf_counter() - started)
            await patch
    return times


async def _timed(request: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await request()
    return time.perf_counter() - started


@asynccontextmanager
async def _objects(client: KubeClient) -> AsyncIterator[None]:
    """ConfigMaps of 1 KiB in a namespace of their own."""
    await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, manager="benchmark")
    try:
        for number in range(_OBJECTS):
            metadata = {"name": f"object-{number}", "namespace": NAMESPACE}
            content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "x" * 1024}}
            await client.apply(content, manager="benchmark")
        yield
    finally:
        await client.delete(resources.NAMESPACE, NAMESPACE)


if __name__ == "__main__":
    main()
