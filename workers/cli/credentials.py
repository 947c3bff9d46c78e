"""``gardener credentials status|rotate|roll|complete NAMESPACE/NAME``: rotations of a Shoot's credentials.

``kubeconfigs`` shows the kubeconfigs that were issued, and ``discard`` notes that all copies of one were deleted.
"""

import asyncio
import getpass
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from temporalio.client import Client, RPCError, WorkflowUpdateFailedError

from activities.garden import events
from api import constants, resources
from api.contracts.kubeconfigs import SHOWN_DIGITS, Discard, IssuedKubeconfig, issued, noted
from api.contracts.operations import ShootRef
from api.contracts.rotation import ActiveRotation, CompleteRotation, Kind, Phase, RotationInput, Survey
from api.decisions.rotation import COMPLETION, active, status_of
from api.names import issued_kubeconfigs
from api.times import timestamp
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from workers.cli import completion
from workers.cli.connection import garden_client, namespaced_name
from workers.cli.temporal import connected, connection_of
from workers.lib.temporal import TemporalConnectionError
from workflows.shoot.rotate import RotateCertificateAuthorities, rotation_id

T = TypeVar("T")

_KINDS = {
    "ca": Kind.CERTIFICATE_AUTHORITIES,
    "serviceaccount-key": Kind.SERVICE_ACCOUNT_KEY,
    "etcd-encryption-key": Kind.ETCD_ENCRYPTION_KEY,
    "ssh-keypair": Kind.SSH_KEYPAIR,
    "observability-credentials": Kind.OBSERVABILITY,
}
_ONE_STEP = ("etcd-encryption-key", "ssh-keypair", "observability-credentials")
_NEXT = {
    Phase.PREPARED: "give your clients the new credentials, then: gardener credentials complete {shoot} {what}",
    Phase.WAITING_FOR_WORKERS_ROLLOUT: "roll the worker pools: gardener credentials roll {shoot} {pools}",
}


@click.group()
def credentials() -> None:
    """Rotate the credentials of a Shoot, and see how far that is."""


_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@credentials.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@connected
def status(shoot: tuple[str, str], garden_kubeconfig: str | None, output: str, **connection: Any) -> None:
    """Show rotations of the Shoot NAMESPACE/NAME, and clients that still use the old credentials."""

    async def look(garden: KubeClient, temporal: Client) -> list[dict[str, Any]]:
        live = await garden.get(resources.SHOOT, shoot[1], shoot[0])
        found = {each.kind: each for each in active(status_of(live))}
        return [await _row(temporal, live, kind, found.get(kind)) for kind in Kind]

    rows = _with_both(look, garden_kubeconfig, connection)
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(f"{row['what']:<20} {row['phase'] or 'never rotated':<31} {row['started'] or ''}")
        for user in row["users"]:
            click.echo(f"  {user['who']} {user['why']}: {user['remedy']}")
        if row["next"]:
            click.echo(f"  next: {row['next']}")


@credentials.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.argument("what", type=click.Choice([*_KINDS, "all"]))
@click.option("--without-workers-rollout", is_flag=True, help="Roll the worker pools later, by `roll`.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@_OUTPUT
def rotate(
    shoot: tuple[str, str], what: str, without_workers_rollout: bool, garden_kubeconfig: str | None, output: str
) -> None:
    """Start to rotate WHAT, for the Shoot NAMESPACE/NAME."""
    if what in _ONE_STEP:
        if without_workers_rollout:
            raise click.UsageError(f"the rotation of {what} rolls no workers")
        operation = f"rotate-{what}"
    else:
        operation = f"rotate-{'credentials' if what == 'all' else what}-start"
        operation += "-without-workers-rollout" if without_workers_rollout else ""
    _annotate(shoot, operation, garden_kubeconfig, output)


@credentials.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.argument("pools", nargs=-1, required=True, shell_complete=completion.POOLS)
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@_OUTPUT
def roll(shoot: tuple[str, str], pools: tuple[str, ...], garden_kubeconfig: str | None, output: str) -> None:
    """Replace the machines of worker POOLS that a rotation waits for."""
    _annotate(shoot, f"{constants.OPERATION_ROTATE_ROLLOUT_WORKERS}={','.join(pools)}", garden_kubeconfig, output)


@credentials.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.argument("what", type=click.Choice([name for name, kind in _KINDS.items() if kind in COMPLETION]))
@click.option("--force", is_flag=True, help="Complete although clients use the old ones; needs --reason.")
@click.option("--reason", default="", help="Why these clients may lose access; it is recorded.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@connected
def complete(
    shoot: tuple[str, str],
    what: str,
    force: bool,
    reason: str,
    garden_kubeconfig: str | None,
    output: str,
    **connection: Any,
) -> None:
    """Drop the old WHAT of the Shoot NAMESPACE/NAME, unless a known client still uses them."""
    kind = _KINDS[what]

    async def drop(garden: KubeClient, temporal: Client) -> str:
        live = await garden.get(resources.SHOOT, shoot[1], shoot[0])
        rotation = next((each for each in active(status_of(live)) if each.kind is kind), None)
        if rotation is None:
            raise click.ClickException(f"no rotation of the {kind.words} of Shoot {'/'.join(shoot)} is under way")
        handle = temporal.get_workflow_handle(_workflow_of(live, rotation))
        request = CompleteRotation(by=getpass.getuser(), force=force, reason=reason)
        return await handle.execute_update(RotateCertificateAuthorities.complete, request)

    text = _with_both(drop, garden_kubeconfig, connection)
    click.echo(json.dumps({"text": text}) if output == "json" else text)


@credentials.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def kubeconfigs(shoot: tuple[str, str], garden_kubeconfig: str | None, output: str) -> None:
    """Kubeconfigs of the Shoot NAMESPACE/NAME that were given out and have not expired."""

    async def find() -> dict[str, IssuedKubeconfig]:
        async with garden_client(garden_kubeconfig) as garden:
            return await _given_out(garden, *shoot)

    found = _run(find())
    if output == "json":
        click.echo(json.dumps({serial: each.model_dump(exclude_none=True) for serial, each in found.items()}, indent=2))
        return
    for serial, each in found.items():
        click.echo(f"{serial[:SHOWN_DIGITS]} {each.expires} {each.user}, by {each.issuer}")
        if each.discarded:
            click.echo(f"  discarded by {each.discarded.by} on {each.discarded.at}: {each.discarded.reason}")


@credentials.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.argument("ids", nargs=-1, required=True, metavar="KUBECONFIG...", shell_complete=completion.KUBECONFIGS)
@click.option("--reason", required=True, help="How you know that no client has it; it is recorded.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@_OUTPUT
def discard(
    shoot: tuple[str, str], ids: tuple[str, ...], reason: str, garden_kubeconfig: str | None, output: str
) -> None:
    """Record that no client has a KUBECONFIG of the Shoot NAMESPACE/NAME any more.

    Rotations then do not wait for it. It stays valid until it expires, or until the authority that signed it is
    dropped.
    """
    if not reason.strip():
        raise click.UsageError("--reason must say how you know that no client has the kubeconfig any more")

    async def note() -> list[str]:
        async with garden_client(garden_kubeconfig) as garden:
            return await discard_kubeconfigs(garden, shoot, ids, reason.strip(), getpass.getuser())

    lines = _run(note())
    click.echo(json.dumps({"text": lines}) if output == "json" else "\n".join(lines))


async def discard_kubeconfigs(
    garden: KubeClient, shoot: tuple[str, str], ids: Sequence[str], reason: str, by: str
) -> list[str]:
    """Note each kubeconfig as discarded, with an Event; returns a line for each. An earlier note is kept.

    Raises ClickException, and notes nothing, if one of the ids is unknown.
    """
    known = await _given_out(garden, *shoot)
    live = await garden.get(resources.SHOOT, shoot[1], shoot[0])
    said = []
    for serial in [_serial(each, known, shoot) for each in ids]:
        entry = known[serial]
        what = f"kubeconfig {serial[:SHOWN_DIGITS]} of {entry.user}"
        if entry.discarded:
            said.append(f"{what} was discarded by {entry.discarded.by} on {entry.discarded.at} before")
            continue
        word = Discard(by=by, at=timestamp(), reason=reason)
        data = {serial: noted(entry.model_copy(update={"discarded": word}))}
        await garden.patch(resources.CONFIG_MAP, issued_kubeconfigs(shoot[1]), shoot[0], {"data": data})
        told = f"No client has {what} any more, which is valid until {entry.expires}: {reason} (by {by})"
        await events.record(garden, ShootRef.of(live), f"discard/{serial}", "Normal", "KubeconfigDiscarded", told)
        said.append(f"{what} is recorded as discarded; it stays valid until {entry.expires}")
    return said


async def _given_out(garden: KubeClient, namespace: str, name: str) -> dict[str, IssuedKubeconfig]:
    await garden.get(resources.SHOOT, name, namespace)
    found = issued(await garden.find(resources.CONFIG_MAP, issued_kubeconfigs(name), namespace))
    now = datetime.now(UTC)
    return {serial: each for serial, each in found.items() if not each.expired(now)}


def _serial(given: str, known: Mapping[str, IssuedKubeconfig], shoot: tuple[str, str]) -> str:
    """The complete serial number of the kubeconfig whose number begins with ``given``."""
    meant = [serial for serial in known if serial.startswith(given.lower())]
    if len(given) < SHOWN_DIGITS or len(meant) != 1:
        raise click.ClickException(
            f"{given!r} is {'the beginning of several kubeconfigs' if len(meant) > 1 else 'no kubeconfig'} of Shoot "
            f"{'/'.join(shoot)}: see `gardener credentials kubeconfigs {'/'.join(shoot)}`, and give {SHOWN_DIGITS} or "
            "more digits of the number it shows with -o json"
        )
    return meant[0]


def _annotate(shoot: tuple[str, str], operation: str, garden_kubeconfig: str | None, output: str) -> None:
    async def ask() -> None:
        async with garden_client(garden_kubeconfig) as garden:
            live = await garden.get(resources.SHOOT, shoot[1], shoot[0])
            metadata = live["metadata"]
            asked = (metadata.get("annotations") or {}).get(constants.OPERATION, "")
            operations = [*filter(None, asked.split(";")), operation]
            change = {
                "annotations": {constants.OPERATION: ";".join(dict.fromkeys(operations))},
                "resourceVersion": metadata["resourceVersion"],
            }
            await garden.patch(resources.SHOOT, shoot[1], shoot[0], {"metadata": change})

    _run(ask())
    text = f"{operation} of Shoot {'/'.join(shoot)} is accepted"
    click.echo(json.dumps({"text": text}) if output == "json" else text)


async def _row(temporal: Client, live: dict[str, Any], kind: Kind, rotation: ActiveRotation | None) -> dict[str, Any]:
    what = next(name for name, each in _KINDS.items() if each is kind)
    state = status_of(live).get(kind) or {}
    shoot = f"{live['metadata']['namespace']}/{live['metadata']['name']}"
    phase = rotation.phase if rotation else Phase(state.get("phase") or ("Completed" if state else ""))
    users: list[dict[str, str]] = []
    if rotation is not None and phase is Phase.PREPARED:
        handle = temporal.get_workflow_handle(_workflow_of(live, rotation))
        survey: Survey = await handle.execute_update(RotateCertificateAuthorities.look)
        users = [each.model_dump() for each in survey.users]
    pools = rotation.pending_pools if rotation else ()
    following = _NEXT.get(phase, "").format(shoot=shoot, what=what, pools=" ".join(pools))
    return {
        "what": what,
        "phase": str(phase),
        "started": state.get("lastInitiationTime"),
        "completed": state.get("lastCompletionTime"),
        "pendingPools": list(pools),
        "users": users,
        "next": following,
    }


def _workflow_of(live: dict[str, Any], rotation: ActiveRotation) -> str:
    return rotation_id(RotationInput(shoot=ShootRef.of(live), kind=rotation.kind, initiated=rotation.initiated))


def _with_both(
    do: Callable[[KubeClient, Client], Coroutine[Any, Any, T]],
    garden_kubeconfig: str | None,
    connection: dict[str, Any],
) -> T:
    async def connect() -> T:
        temporal = await connection_of(**connection).connect()
        async with garden_client(garden_kubeconfig) as garden:
            return await do(garden, temporal)

    return _run(connect())


def _run(command: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(command)
    except WorkflowUpdateFailedError as error:
        raise click.ClickException(str(error.cause or error)) from None
    except NotFound as error:
        raise click.ClickException(f"{error}; does the Shoot exist?") from None
    except (ApiError, RPCError, TemporalConnectionError) as error:
        raise click.ClickException(str(error)) from None
