"""How long a user waits for an operation of a Shoot: hibernation, wake-up, rotation of credentials, move.

    .venv/bin/python -m benchmarks.operations --runs 3 [--landscape default] [-o json]

Needs a landscape with two seeds that is up and otherwise idle. ``benchmarks.shoot`` measures creations and deletions.
Each run creates a Shoot, operates on it, and deletes it. Then it applies the etcds and the API server of the same
control plane at once, without a flow, and does to them what the operation needs at least. These are the baselines:

- hibernation: all pods are scaled to zero
- wake-up: all pods start again
- each phase of a rotation: all pods are scaled to zero and start again
- move: everything is removed, and applied again
"""

import asyncio
import copy
import functools
import os
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import yaml

from api import resources
from benchmarks.by_hand import ControlPlane
from benchmarks.report import Figure, emit, figure, output_option, report_of
from benchmarks.shoot import EXAMPLE, answers, deletion, user_kubeconfig
from kube.cache import Caches
from kube.client import KubeClient, Object
from workers.cli.connection import landscape_facts
from workers.cli.garden_tests.changes import phases
from workers.cli.garden_tests.context import Context
from workers.cli.garden_tests.model import TestFailed

_LIMIT_SECONDS = 1800.0
"""For all operations of one Shoot."""

BASELINES = {
    "hibernation": ("stop",),
    "wake-up": ("resume",),
    "rotation, first phase": ("stop", "resume"),
    "rotation, second phase": ("stop", "resume"),
    "move": ("remove", "start"),
}
"""Steps by hand in place of each operation."""

Seconds = dict[str, float]


@click.command(help="Measure operations of one Shoot after the other; print medians and spread.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 50))
@click.option("--landscape", default="default", show_default=True, envvar="GARDENER_LANDSCAPE")
@output_option
def main(runs: int, landscape: str, output: str) -> None:
    os.environ["GARDENER_LANDSCAPE"] = landscape  # the search for the Shoot's name in the DNS reads it
    try:
        found = asyncio.run(_measure(landscape_facts(landscape), runs))
    except TestFailed as error:
        raise click.ClickException(str(error)) from None
    emit(report_of("operations", runs, figures(found), {}), output)


def figures(found: list[tuple[Seconds, Seconds]]) -> list[Figure]:
    """Figures of runs. Each run has the seconds of each operation, and of each step by hand."""
    return [
        figure(
            operation,
            "s",
            [ours[operation] for ours, _ in found],
            [sum(by_hand[step] for step in steps) for _, by_hand in found],
        )
        for operation, steps in BASELINES.items()
    ]


async def _measure(facts: dict[str, Any], runs: int) -> list[tuple[Seconds, Seconds]]:
    found = []
    async with KubeClient.from_kubeconfig(Path(facts["clusters"]["garden"]["kubeconfig"])) as garden:
        for number in range(runs):
            async with _caches(garden) as caches, asyncio.timeout(_LIMIT_SECONDS):
                found.append(await _one(facts, garden, caches, f"operated{number}"))
            ours, by_hand = found[-1]
            click.echo("  ".join(f"{each} {ours[each]:.1f} s" for each in ours), err=True)
            click.echo("  ".join(f"{each} by hand {by_hand[each]:.1f} s" for each in by_hand), err=True)
    return found


async def _one(facts: dict[str, Any], garden: KubeClient, caches: Caches, name: str) -> tuple[Seconds, Seconds]:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    namespace = manifest["metadata"]["namespace"]
    created = await garden.apply(
        copy.deepcopy(manifest) | {"metadata": {"name": name, "namespace": namespace}}, manager="benchmark"
    )
    shoot = Context(garden, namespace, name, run="benchmark", image="", open_cluster=_no_cluster)
    await shoot.reconciled(created["metadata"]["generation"])
    left = (await shoot.live())["spec"]["seedName"]
    others = [each["metadata"]["name"] for each in await garden.list(resources.SEED)]
    target = next((each for each in others if each != left and each in facts["clusters"]), None)
    if target is None:
        raise click.ClickException(f"no Seed but {left} is in the landscape: a move needs another one")

    await shoot.may_hibernate()
    ours: Seconds = {}
    ours["hibernation"] = await _timed(shoot.change({"hibernation": {"enabled": True}}))
    ours["wake-up"] = await _timed(shoot.change({"hibernation": {"enabled": False}}))
    ours["rotation, first phase"] = await _timed(_rotated(shoot, "start", "Prepared"))
    ours["rotation, second phase"] = await _timed(_rotated(shoot, "complete", "Completed"))
    ours["move"] = await _timed(_moved(shoot, target))
    config = await user_kubeconfig(garden, caches, namespace, name)
    await answers(config)
    technical_id = (await shoot.live())["status"]["technicalID"]
    async with KubeClient.from_kubeconfig(Path(facts["clusters"][target]["kubeconfig"])) as seed:
        by_hand = await ControlPlane.of(seed, technical_id)
        await deletion(garden, caches, namespace, name)
        ready = functools.partial(answers, config, "/readyz")  # answered to every client
        steps: Seconds = {}
        async with _caches(seed) as seeds:
            try:
                steps["start"] = await by_hand.start(seed, ready)
                steps["stop"] = await by_hand.stop(seed, seeds)
                steps["resume"] = await by_hand.resume(seed, ready)
            finally:
                steps["remove"] = await by_hand.remove(seed, seeds)
    return ours, steps


@asynccontextmanager
async def _caches(client: KubeClient) -> AsyncIterator[Caches]:
    caches = Caches(client)
    try:
        yield caches
    finally:
        await caches.close()


async def _timed(operation: Awaitable[object]) -> float:
    started = time.monotonic()
    await operation
    return time.monotonic() - started


async def _rotated(shoot: Context, step: str, phase: str) -> None:
    """Start or complete the rotation of all credentials, and wait until both two-phase rotations have a phase."""
    await shoot.operate(f"rotate-credentials-{step}")
    await shoot.until(lambda live: phases(live) == {phase}, f"all credentials are {phase}", seconds=None)
    await shoot.reconciled()


async def _moved(shoot: Context, target: str) -> None:
    """Move the control plane, and wait until it is restored: the migration before that succeeds, too."""
    await shoot.garden.patch(resources.SHOOT, shoot.shoot, shoot.namespace, {"spec": {"seedName": target}})

    def done(live: Object) -> bool:
        last, seed = live["status"]["lastOperation"], live["status"].get("seedName")
        if last["state"] == "Failed":
            raise TestFailed(f"{last['type']} of Shoot {shoot.reference} has failed: {last.get('description')}")
        return bool(seed == target and (last["type"], last["state"]) == ("Restore", "Succeeded"))

    await shoot.until(done, f"the control plane is in seed {target}", seconds=None)


async def _no_cluster() -> KubeClient:
    raise TestFailed("no client of the Shoot is needed")


if __name__ == "__main__":
    main()
