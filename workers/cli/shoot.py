"""``gardener shoot``: Shoots as their owners see them, moves of their control planes, and self-hosted Shoots."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, BinaryIO, TypeVar

import click
import yaml
from rich.console import Console
from rich.table import Table

from api import resources
from api.constants import CONTROL_PLANE_MIGRATION, MIGRATION_BAD_CASE, SHOOT_STATUS
from api.contracts.operations import MIGRATIONS
from kube.cache import Cache
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from workers.cli import completion
from workers.cli.connection import garden_client, namespaced_name
from workers.cli.narrator import Narrator
from workers.cli.shoot_init import init, renew, repair
from workers.cli.shoot_join import join, token
from workers.cli.ssh import ssh

T = TypeVar("T")

_SILENCE_SECONDS = 60 * 60.0
"""Time without an event of the Shoot after which the command ends."""


@click.group()
def shoot() -> None:
    """Operate Shoots."""


shoot.add_command(ssh)
shoot.add_command(init)
shoot.add_command(join)
shoot.add_command(renew)
shoot.add_command(repair)
shoot.add_command(token)


_GARDEN = click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
_WIDE = 4000


@shoot.command("list")
@click.option("-n", "--namespace", help="Namespace of a Project; default: all namespaces, if you may read them.")
@_GARDEN
@_OUTPUT
def list_shoots(namespace: str | None, garden_kubeconfig: str | None, output: str) -> None:
    """List Shoots with their versions, seeds and last operations."""
    found = _in_garden(_listed(namespace, garden_kubeconfig))
    if output == "json":
        click.echo(json.dumps([_row(each) for each in found], indent=2))
        return
    if not found:
        click.echo(f"no Shoots in {f'namespace {namespace}' if namespace else 'the garden'}", err=True)
        return
    table = Table(*(name.upper() for name in _row(found[0])), box=None)
    for each in found:
        table.add_row(*(str(value) for value in _row(each).values()))
    Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(table)


@shoot.command()
@click.option("-f", "--filename", "file", type=click.File("rb"), required=True, help="YAML or JSON; - is the input.")
@click.option("--follow", is_flag=True, help="Show the progress, and end when the cluster is ready.")
@_GARDEN
@_OUTPUT
def create(file: BinaryIO, follow: bool, garden_kubeconfig: str | None, output: str) -> None:
    """Create the Shoot in a file. `gardener explain-admission -f FILE` says before what the garden would make of it.

    Ends with status 1 if the garden refuses the Shoot, or, with --follow, its creation has failed.
    """
    try:
        manifest = yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise click.ClickException(f"{file.name} is no YAML: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != "Shoot":
        raise click.ClickException(f"{file.name} holds no Shoot, or more than one object")
    if not (manifest.get("metadata") or {}).get("namespace"):
        raise click.ClickException(f"{file.name} has no metadata.namespace: name the namespace of a Project")
    _in_garden(_create(manifest, follow, garden_kubeconfig, Narrator(as_json=output == "json")))


def _in_garden(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except (ApiError, MoveFailed, OperationFailed) as error:
        raise click.ClickException(str(error)) from None


async def _listed(namespace: str | None, path: str | None) -> list[dict[str, Any]]:
    async with garden_client(path) as garden:
        found = await garden.list(resources.SHOOT, namespace)
    return sorted(found, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))


def _row(shoot: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a Shoot, by the names that JSON has."""
    metadata, status = shoot["metadata"], shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "version": shoot["spec"]["kubernetes"].get("version", ""),
        "provider": shoot["spec"]["provider"]["type"],
        "region": shoot["spec"]["region"],
        "seed": seed_of(dict(shoot)),
        "hibernated": bool(status.get("hibernated")),
        "operation": last.get("type", ""),
        "state": last.get("state", ""),
        "progress": last.get("progress", 0),
        "status": (metadata.get("labels") or {}).get(SHOOT_STATUS, ""),
    }


async def _create(manifest: dict[str, Any], follow: bool, path: str | None, narrator: "Narrator") -> None:
    async with garden_client(path) as garden:
        made = await garden.create(manifest)
        namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
        narrator.say(f"Shoot {namespace}/{name}, Kubernetes {made['spec']['kubernetes']['version']}", phase="Created")
        if not follow:
            return
        said = ""
        async for last, _ in _operations(garden, namespace, name):
            phase, text = f"{last.get('type', 'Create')} {last.get('state', 'Pending')}", last.get("description", "")
            if (line := f"{phase}: {text}") != said:
                narrator.say(text, phase=phase)
                said = line
            if last.get("state") == "Succeeded":
                return
            if last.get("state") == "Failed":
                raise OperationFailed(f"{last.get('type')} of Shoot {namespace}/{name} has failed: {text}")


@shoot.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.option("--to", "seed", required=True, shell_complete=completion.SEEDS, help="Name of the destination Seed.")
@click.option("--source-lost", is_flag=True, help="The source seed is lost for good: the move does not wait for it.")
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
        asyncio.run(_move(*shoot, seed, source_lost, follow, garden_kubeconfig, Narrator(as_json=output == "json")))
    except NotFound:
        raise click.ClickException(f"Shoot {'/'.join(shoot)} does not exist") from None
    except (ApiError, MoveFailed) as error:
        raise click.ClickException(str(error)) from None


async def _move(
    namespace: str, name: str, seed: str, source_lost: bool, follow: bool, path: str | None, narrator: "Narrator"
) -> None:
    garden = garden_client(path)
    try:
        live = await garden.get(resources.SHOOT, name, namespace)
        source = seed_of(live)
        if source == seed and live["spec"].get("seedName") == seed:
            raise click.ClickException(f"the control plane of Shoot {namespace}/{name} is in seed {seed} already")
        await ask_to_move(garden, live, seed, source_lost)
        narrator.say(f"{namespace}/{name} moves from {source} to {seed}", phase="Accepted")
        if follow:
            async for phase, text in phases(garden, live, seed):
                narrator.say(text, phase=phase)
    finally:
        await garden.close()


# Common to the move of one Shoot and of many


class MoveFailed(Exception):
    """A move has failed; the text says in which phase, and why."""


class OperationFailed(Exception):
    """An operation has failed; the text says of which Shoot, and why."""


def seed_of(shoot: dict[str, Any]) -> str:
    """Name of the seed that hosts the Shoot's control plane, else of the seed that it is scheduled to."""
    return (shoot.get("status") or {}).get("seedName") or shoot["spec"].get("seedName") or ""


async def ask_to_move(garden: KubeClient, shoot: dict[str, Any], seed: str, source_lost: bool) -> None:
    """Write the destination to the Shoot. Raises ApiError if the garden refuses the change."""
    change: dict[str, Any] = {"spec": {"seedName": seed}}
    if source_lost:
        change["metadata"] = {"annotations": {CONTROL_PLANE_MIGRATION: MIGRATION_BAD_CASE}}
    await garden.patch(resources.SHOOT, shoot["metadata"]["name"], shoot["metadata"]["namespace"], change)


async def phases(garden: KubeClient, shoot: dict[str, Any], seed: str) -> AsyncIterator[tuple[str, str]]:
    """Yield each phase of a move with its description, until the control plane is in the destination.

    ``shoot``: the Shoot as it was before ``ask_to_move``. Raises MoveFailed if the move fails.
    """
    said = ""
    under_way = shoot["spec"].get("seedName") != seed_of(shoot)
    before = {} if under_way else (shoot.get("status") or {}).get("lastOperation")
    async for last, here in _operations(garden, shoot["metadata"]["namespace"], shoot["metadata"]["name"]):
        if last == before or (last.get("type") not in (*MIGRATIONS, "Restore") and here != seed):
            continue  # this operation is older than the move
        phase, text = f"{last.get('type')} {last.get('state')}", last.get("description", "")
        if phase != said:
            yield phase, text
            said = phase
        if last.get("state") == "Failed":
            raise MoveFailed(f"{last.get('type')} has failed: {text}")
        if here == seed and last.get("state") == "Succeeded" and last.get("type") not in MIGRATIONS:
            return


async def _operations(garden: KubeClient, namespace: str, name: str) -> AsyncIterator[tuple[dict[str, Any], str]]:
    """Yield last operation and seed of the Shoot, whenever the Shoot changes."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    async with Cache(garden, resources.SHOOT, namespace, fields=f"metadata.name={name}") as cache:
        cache.subscribe(lambda event: events.put_nowait(event.object))
        while True:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    found = await events.get()
            except TimeoutError:
                raise MoveFailed(
                    f"the garden's API server has sent no event of the Shoot for {_SILENCE_SECONDS / 60:.0f} minutes"
                ) from None
            status = found.get("status") or {}
            yield status.get("lastOperation") or {}, status.get("seedName", "")
