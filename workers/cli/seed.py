"""``gardener seed``: a Seed's operations, moves of all control planes, and bootstrap tokens for gardenlets."""

import asyncio
import json
from base64 import b64encode
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from api import constants, resources
from api.access import bootstrap_secret
from api.constants import GARDEN_NAMESPACE
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.profiles import profile_of, profile_reference
from api.decisions.scheduling import NoSeed, choose_seed
from api.decisions.seed_ranking import REGION_CONFIG_SELECTOR, Ranking, Strategy, distances_from
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from kube.kubeconfig import Endpoint
from workers.cli import completion
from workers.cli.connection import garden_client
from workers.cli.narrator import Narrator
from workers.cli.seed_flow import show, skip
from workers.cli.shoot import MoveFailed, ask_to_move, phases, seed_of

_MOVED = "moved"


@click.group()
def seed() -> None:
    """Operate Seeds."""


seed.add_command(show)
seed.add_command(skip)


@seed.command()
@click.argument("name", metavar="SEED", shell_complete=completion.SEEDS)
@click.option(
    "--to",
    "destination",
    shell_complete=completion.SEEDS,
    help="Destination of all Shoots; default: the scheduler's choice for each.",
)
@click.option(
    "--at-once", type=click.IntRange(1, 50), default=3, show_default=True, help="Maximum number of simultaneous moves."
)
@click.option(
    "--strategy",
    type=click.Choice(list(Strategy)),
    default=Strategy.SAME_REGION,
    show_default=True,
    help="candidateDeterminationStrategy of the scheduler, for the choice of destinations.",
)
@click.option("--source-lost", is_flag=True, help="SEED is lost for good: the moves do not wait for it.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def evacuate(
    name: str,
    destination: str | None,
    at_once: int,
    strategy: Strategy,
    source_lost: bool,
    garden_kubeconfig: str | None,
    output: str,
) -> None:
    """Move all control planes out of SEED, which takes no new ones from then on.

    Each move goes on if this command ends; called again, it follows those and begins the others. The report at its
    end names each Shoot; its status is 1 if one of them has not moved.
    """
    if destination == name:
        raise click.BadParameter(f"{name} is the seed to evacuate: name another destination", param_hint="--to")
    narrator = Narrator(as_json=output == "json")
    try:
        moves = asyncio.run(_evacuate(name, destination, at_once, strategy, source_lost, garden_kubeconfig, narrator))
    except NotFound as error:
        raise click.ClickException(str(error)) from None
    except ApiError as error:
        raise click.ClickException(f"seed {name} cannot be evacuated: {error}") from None
    report(moves, as_json=narrator.as_json)
    raise SystemExit(0 if all(each.result == _MOVED for each in moves) else 1)


@dataclass(frozen=True)
class Move:
    """Result of the move of one Shoot."""

    shoot: str
    """Namespace and name of the Shoot, ``NAMESPACE/NAME``."""
    destination: str
    result: str
    seconds: float


async def _evacuate(
    name: str,
    destination: str | None,
    at_once: int,
    strategy: Strategy,
    source_lost: bool,
    path: str | None,
    narrator: Narrator,
) -> list[Move]:
    garden = garden_client(path)
    try:
        return await Evacuation(garden, name, destination, source_lost, narrator, strategy).run(at_once)
    finally:
        await garden.close()


class Evacuation:
    """Moves all control planes of a seed to other seeds. It keeps no state: the Shoots show which moves have begun."""

    def __init__(
        self,
        garden: KubeClient,
        name: str,
        destination: str | None,
        source_lost: bool,
        narrator: Narrator,
        strategy: Strategy = Strategy.SAME_REGION,
    ) -> None:
        self._garden = garden
        self._name = name
        self._destination = destination
        self._source_lost = source_lost
        self._narrator = narrator
        self._strategy = strategy
        self._placed: Counter[str] = Counter()

    async def run(self, at_once: int) -> list[Move]:
        """Start or follow all moves, ``at_once`` at a time, in the order of the Shoots' names.

        Raises ApiError if the seed does not exist, or the garden refuses the change of the Seed.
        """
        visible = {"spec": {"settings": {"scheduling": {"visible": False}}}}
        await self._garden.patch(resources.SEED, self._name, None, visible)
        shoots = await self._garden.list(resources.SHOOT)
        self._placed.update(each["spec"].get("seedName") or "" for each in shoots)
        here = [each for each in shoots if seed_of(each) == self._name]
        text = f"accepts no new control planes; {len(here)} of {len(shoots)} leave it, {at_once} at a time"
        self._narrator.say(text, phase="Accepted", seed=self._name)
        turn = asyncio.Semaphore(at_once)
        return await asyncio.gather(*(self._move(each, turn) for each in sorted(here, key=_reference)))

    async def _move(self, shoot: dict[str, Any], turn: asyncio.Semaphore) -> Move:
        async with turn:
            started = self._narrator.seconds
            there = ""
            try:
                there = await self._begin(shoot)
                async for phase, text in phases(self._garden, shoot, there):
                    self._narrator.say(f"to {there}: {text}", phase=phase, shoot=_reference(shoot))
                result = _MOVED
            except (ApiError, MoveFailed, NoSeed, ValueError) as error:
                result = str(error)
                self._narrator.say(result, phase="Failed", shoot=_reference(shoot))
            return Move(_reference(shoot), there, result, round(self._narrator.seconds - started, 1))

    async def _begin(self, shoot: dict[str, Any]) -> str:
        """Start the move, unless an earlier call of the command has; returns the name of the destination."""
        asked = str(shoot["spec"].get("seedName") or "")
        if asked != self._name:
            return asked
        there = self._destination or await self._choose(shoot)
        self._placed[there] += 1
        await ask_to_move(self._garden, shoot, there, self._source_lost)
        return there

    async def _choose(self, shoot: dict[str, Any]) -> str:
        wanted = Shoot.of(shoot)
        found = await profile_of(shoot, self._garden.find)
        if found is None:
            raise NoSeed(f"{profile_reference(shoot) or 'the cloud profile'} does not exist")
        profile = CloudProfile.of(found)
        seeds = [Seed.of(each) for each in await self._garden.list(resources.SEED)]
        others = [each for each in seeds if each.metadata.name != self._name]
        regions = await self._garden.list(resources.CONFIG_MAP, GARDEN_NAMESPACE, labels=REGION_CONFIG_SELECTOR)
        distances = distances_from(regions, profile.metadata.name, wanted.spec.region)
        return choose_seed(wanted, profile, others, self._placed, Ranking(self._strategy, distances=distances))


def _reference(shoot: dict[str, Any]) -> str:
    return f"{shoot['metadata']['namespace']}/{shoot['metadata']['name']}"


def report(moves: list[Move], *, as_json: bool) -> None:
    """Print a table of all moves, or one JSON object ``{"report": [...]}``."""
    if as_json:
        click.echo(json.dumps({"report": [asdict(each) for each in moves]}))
        return
    table = Table("SHOOT", "TO", "SECONDS", "RESULT", box=None)
    for each in moves:
        table.add_row(each.shoot, each.destination, f"{each.seconds:.1f}", each.result)
    Console(soft_wrap=True).print(table)


@seed.command("bootstrap-kubeconfig")
@click.argument("name", metavar="SEED", shell_complete=completion.SEEDS)
@click.option(
    "--valid",
    type=click.IntRange(5, 24 * 60),
    default=60,
    show_default=True,
    help="Minutes that the token is valid.",
)
@click.option(
    "--replace", is_flag=True, help="Let the token replace a certificate of the gardenlet that is still valid."
)
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
def bootstrap_kubeconfig(name: str, valid: int, replace: bool, garden_kubeconfig: str | None) -> None:
    """Write a kubeconfig with a new bootstrap token, by which the gardenlet of SEED gets its first certificate.

    The token is good for no other seed. While the gardenlet of SEED has a valid certificate, it is good for nothing,
    unless the command is called with --replace.
    """
    try:
        text = asyncio.run(_bootstrap(name, timedelta(minutes=valid), replace, garden_kubeconfig))
    except NotFound as error:
        raise click.ClickException(str(error)) from None
    except ApiError as error:
        raise click.ClickException(f"no bootstrap token for seed {name}: {error}") from None
    click.echo(text)


async def _bootstrap(name: str, valid: timedelta, replace: bool, path: str | None) -> str:
    async with garden_client(path) as garden:
        token_id, secret = token_hex(3), token_hex(8)
        await garden.create(bootstrap_secret(name, token_id, secret, datetime.now(UTC) + valid))
        if replace:
            annotations = {"metadata": {"annotations": {constants.BOOTSTRAP_TOKEN_ID: token_id}}}
            await garden.patch(resources.SEED, name, None, annotations)
        return json.dumps(_token_kubeconfig(garden.endpoint, f"{token_id}.{secret}"), indent=2)


def _token_kubeconfig(garden: Endpoint, token: str) -> dict[str, Any]:
    cluster: dict[str, Any] = {"server": garden.server}
    if garden.ca:
        cluster["certificate-authority-data"] = b64encode(garden.ca.encode()).decode()
    if garden.tls_server_name:
        cluster["tls-server-name"] = garden.tls_server_name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "garden",
        "clusters": [{"name": "garden", "cluster": cluster}],
        "users": [{"name": "bootstrap", "user": {"token": token}}],
        "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "bootstrap"}}],
    }
