"""``gardener flow retry|skip|provide|reset|pause|resume|cancel|replay``: repair an operation that makes no progress.

Except ``replay``, each command sends an update to the Shoot's lifecycle, which accepts it or refuses it with a reason.
An Event of the Shoot, the history and ``gardener flow show`` record each accepted repair, with its author and reason.
"""

import getpass
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHistory, WorkflowUpdateFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from api.contracts.operations import TaskResult
from api.contracts.repair import Action, Repair
from workers.cli import completion
from workers.cli.connection import namespaced_name
from workers.cli.operations import CHOICE, chosen_operation, running_lifecycle
from workers.cli.temporal import Connection, connected, connection_of, run_async
from workers.lib.callers import Callers
from workflows.garden import WORKFLOWS
from workflows.shoot.lifecycle import OperationAnswer


def _myself() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _intervention(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all commands that repair an operation."""
    for option in (
        click.option(
            "--by",
            default=_myself,
            show_default="user@host",
            help="Your name, for the record; the name in your certificate replaces it if Temporal reports that.",
        ),
        click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS),
    ):
        command = option(command)
    return connected(command)


_REASON = click.option("--reason", required=True, help="Why you do it, for operators that read it later.")
_TASK = click.argument("task", shell_complete=completion.FAILED_TASKS)


@click.command()
@_intervention
@click.option(
    "--from",
    "task",
    default="",
    help="Run this task, and all that comes after it, again.",
)
@click.option("--reason", default="")
def retry(shoot: tuple[str, str], task: str, reason: str, by: str, **connection: Any) -> None:
    """Go on with the failed tasks of NAMESPACE/NAME; what is finished is kept."""
    _ask(shoot, Repair(action=Action.RETRY, task=task, reason=reason, by=by), connection)


@click.command()
@_intervention
@_TASK
@_REASON
def skip(shoot: tuple[str, str], task: str, reason: str, by: str, **connection: Any) -> None:
    """Count TASK as done without running it: at once if the operation runs, else from the next `retry` on."""
    _ask(shoot, Repair(action=Action.SKIP, task=task, reason=reason, by=by), connection)


@click.command()
@_intervention
@_TASK
@click.option(
    "--result-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True,
    help='JSON: {"note": "…", "secrets": ["…"]}, both optional.',
)  # fmt: skip
@_REASON
def provide(shoot: tuple[str, str], task: str, result_file: Path, reason: str, by: str, **connection: Any) -> None:
    """Count TASK as done, with the result in a file, because its work was done by hand."""
    try:
        result = TaskResult.model_validate_json(result_file.read_bytes())
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise click.ClickException(f"{result_file} holds no result of a task: {faults}") from None
    _ask(shoot, Repair(action=Action.PROVIDE, task=task, result=result, reason=reason, by=by), connection)


@click.command()
@_intervention
@click.option("--to", "task", required=True, help="The first task to run again.")
@_REASON
def reset(shoot: tuple[str, str], task: str, reason: str, by: str, **connection: Any) -> None:
    """Put the operation back to before a task; one that runs is ended at a task border first."""
    _ask(shoot, Repair(action=Action.RESET, task=task, reason=reason, by=by), connection)


@click.command()
@_intervention
@_REASON
def pause(shoot: tuple[str, str], reason: str, by: str, **connection: Any) -> None:
    """Start no new task and no new operation; what runs goes on."""
    _ask(shoot, Repair(action=Action.PAUSE, reason=reason, by=by), connection)


@click.command()
@_intervention
@click.option("--reason", default="")
def resume(shoot: tuple[str, str], reason: str, by: str, **connection: Any) -> None:
    """Go on after `pause`."""
    _ask(shoot, Repair(action=Action.RESUME, reason=reason, by=by), connection)


@click.command()
@_intervention
@_REASON
def cancel(shoot: tuple[str, str], reason: str, by: str, **connection: Any) -> None:
    """End the running operation at a task border; it rests until a change or `retry`, which keeps what is finished."""
    _ask(shoot, Repair(action=Action.CANCEL, reason=reason, by=by), connection)


@click.command()
@click.argument("shoot", required=False, shell_complete=completion.SHOOTS)
@CHOICE
@click.option(
    "--history", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON from the Temporal UI or `temporal workflow show --output json`.",
)  # fmt: skip
@connected
def replay(shoot: str | None, chosen: str | None, history: Path | None, output: str, **connection: Any) -> None:
    """Run the workflow's code of this version against a history, of NAMESPACE/NAME or of a file; touches nothing.

    Exits 1 if this version would decide otherwise: such a flow must not be run by it.
    """
    if (shoot is None) == (history is None):
        raise click.UsageError("give NAMESPACE/NAME or --history FILE")
    where = connection_of(**connection) if shoot or connection["codec_key"] or connection["codec_endpoint"] else None
    said = run_async(_replay(where, shoot, chosen, history))
    click.echo(json.dumps(said, indent=2) if output == "json" else said["text"])
    raise SystemExit(0 if said["same"] else 1)


COMMANDS: list[click.Command] = [retry, skip, provide, reset, pause, resume, cancel, replay]


def _ask(shoot: tuple[str, str], repair: Repair, connection: dict[str, Any]) -> None:
    output = connection.pop("output")
    if fault := repair.fault:
        raise click.ClickException(fault)
    text = run_async(_send(connection_of(**connection), "/".join(shoot), repair))
    click.echo(json.dumps({"text": text}) if output == "json" else text)


async def _send(where: Connection, shoot: str, repair: Repair) -> str:
    client = await where.connect()
    lifecycle = await running_lifecycle(client, shoot)
    if lifecycle is None:
        raise click.ClickException(f"no lifecycle of Shoot {shoot} runs: the Shoot is deleted, or was never created")
    try:
        answer: OperationAnswer = await lifecycle.execute_update("repair", repair, result_type=OperationAnswer)
    except WorkflowUpdateFailedError as error:
        raise click.ClickException(f"refused: {getattr(error.cause, 'message', error.cause)}") from None
    return answer.text


async def _replay(where: Connection | None, shoot: str | None, chosen: str | None, file: Path | None) -> dict[str, Any]:
    client = await where.connect() if where else None
    if file is not None:
        history = _read_history(file)
    else:
        assert client is not None
        assert shoot is not None
        chosen, run_id = await chosen_operation(client, shoot, chosen)
        history = await client.get_workflow_handle(chosen, run_id=run_id).fetch_history()
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=_unsent(client.data_converter) if client else pydantic_data_converter,
        interceptors=[Callers()],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    events = len(history.events)
    told = {"workflowId": history.workflow_id, "events": events}
    try:
        await replayer.replay_workflow(history)
    except NondeterminismError as error:
        text = (
            f"{history.workflow_id}: this version decides differently from the version that wrote the history: {error}"
        )
        return told | {"same": False, "text": text}
    return told | {"same": True, "text": f"{history.workflow_id}: {events} events replayed, all decisions are the same"}


class _Unsent(PayloadCodec):
    """Decrypts with another codec, and does not encrypt, because a replay sends nothing to Temporal."""

    def __init__(self, reading: PayloadCodec) -> None:
        self._reading = reading

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._reading.decode(payloads)


def _unsent(converter: DataConverter) -> DataConverter:
    codec = converter.payload_codec
    return replace(converter, payload_codec=_Unsent(codec)) if codec else converter


def _read_history(file: Path) -> WorkflowHistory:
    text = file.read_text()
    try:
        started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
        return WorkflowHistory.from_json(started["workflowId"], text)
    except (ValueError, KeyError, IndexError, TypeError):
        raise click.ClickException(f"{file} is no history of a workflow in Temporal's JSON form") from None
