"""``gardener shoot move NAMESPACE/NAME --to SEED``: another seed for a control plane."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import click

from activities.kube.cache import Cache
from activities.kube.client import KubeClient
from activities.kube.errors import ApiError, NotFound
from api import resources
from api.constants import CONTROL_PLANE_MIGRATION, MIGRATION_BAD_CASE
from workers.cli.connection import find_garden_kubeconfig, namespaced_name

_PATIENCE = 60 * 60.0


@click.group()
def shoot() -> None:
    """Operate Shoots."""


@shoot.command()
@click.argument("shoot", callback=namespaced_name)
@click.option("--to", "seed", required=True, help="Name of the Seed that the control plane goes to.")
@click.option("--source-lost", is_flag=True, help="The seed it is in is lost for good, and takes no part.")
@click.option("--follow", is_flag=True, help="Show the phases, and end when the control plane has arrived.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def move(
    shoot: tuple[str, str], seed: str, source_lost: bool, follow: bool, garden_kubeconfig: str | None, output: str
) -> None:
    """Move the control plane of the Shoot NAMESPACE/NAME; its nodes and pods go on where they are.

    Ends with status 1 if the move is refused, or, with --follow, has failed.
    """
    try:
        asyncio.run(_move(*shoot, seed, source_lost, follow, garden_kubeconfig, as_json=output == "json"))
    except NotFound:
        raise click.ClickException(f"Shoot {'/'.join(shoot)} does not exist") from None
    except ApiError as error:
        raise click.ClickException(str(error)) from None


async def _move(
    namespace: str, name: str, seed: str, source_lost: bool, follow: bool, path: str | None, *, as_json: bool
) -> None:
    garden = KubeClient.from_kubeconfig(find_garden_kubeconfig(path))
    try:
        live = await garden.get(resources.SHOOT, name, namespace)
        source = (live.get("status") or {}).get("seedName") or live["spec"].get("seedName")
        if source == seed and live["spec"].get("seedName") == seed:
            raise click.ClickException(f"the control plane of Shoot {namespace}/{name} is in seed {seed} already")
        started = datetime.now(UTC)
        change: dict[str, Any] = {"spec": {"seedName": seed}}
        if source_lost:
            change["metadata"] = {"annotations": {CONTROL_PLANE_MIGRATION: MIGRATION_BAD_CASE}}
        await garden.patch(resources.SHOOT, name, namespace, change)
        _say(f"{namespace}/{name} moves from {source} to {seed}", started, as_json, phase="Accepted")
        if follow:
            await _follow(garden, namespace, name, seed, started, as_json)
    finally:
        await garden.close()


async def _follow(garden: KubeClient, namespace: str, name: str, seed: str, started: datetime, as_json: bool) -> None:
    said = ""
    async for last, here in _operations(garden, namespace, name):
        phase = f"{last.get('type')} {last.get('state')}"
        if phase != said and last.get("type") in ("Migrate", "Restore"):
            _say(last.get("description", ""), started, as_json, phase=phase)
            said = phase
        if last.get("state") == "Failed":
            raise click.ClickException(f"{last['type']} has failed: {last.get('description', '')}")
        if here == seed and (last.get("type"), last.get("state")) == ("Restore", "Succeeded"):
            return


async def _operations(garden: KubeClient, namespace: str, name: str) -> AsyncIterator[tuple[dict[str, Any], str]]:
    """The last operation and the seed, whenever the Shoot changes."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    async with Cache(garden, resources.SHOOT, namespace, fields=f"metadata.name={name}") as cache:
        cache.subscribe(lambda event: events.put_nowait(event.object))
        while True:
            found = await asyncio.wait_for(events.get(), _PATIENCE)
            status = found.get("status") or {}
            yield status.get("lastOperation") or {}, status.get("seedName", "")


def _say(text: str, started: datetime, as_json: bool, *, phase: str) -> None:
    seconds = round((datetime.now(UTC) - started).total_seconds(), 1)
    if as_json:
        click.echo(json.dumps({"seconds": seconds, "phase": phase, "text": text}))
    else:
        click.echo(f"{seconds:7.1f} s  {phase}: {text}")
