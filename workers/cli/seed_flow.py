"""``gardener seed show|skip``: the operation of a Seed, task by task, and the repair of one that makes no progress."""

import getpass
import json
import socket
from typing import Any

import click
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowUpdateFailedError

from api.contracts.repair import Action, Repair
from workers.cli import completion
from workers.cli.flow import print_view
from workers.cli.flow_view import FlowView, read_flow
from workers.cli.temporal import Connection, connected, connection_of, run_async


@click.command("show")
@click.argument("name", metavar="SEED", shell_complete=completion.SEEDS)
@connected
def show(name: str, output: str, **connection: Any) -> None:
    """Tree of the tasks of the newest operation of SEED, with times, retries and errors."""
    print_view(run_async(_show(connection_of(**connection), name)), output)


@click.command("skip")
@click.argument("name", metavar="SEED", shell_complete=completion.SEEDS)
@click.argument("task")
@click.option("--reason", required=True, help="Why you do it, for operators that read it later.")
@click.option(
    "--by",
    default=lambda: f"{getpass.getuser()}@{socket.gethostname()}",
    show_default="user@host",
    help="Your name, for the record; the name in your certificate replaces it if Temporal reports that.",
)
@connected
def skip(name: str, task: str, reason: str, by: str, output: str, **connection: Any) -> None:
    """Count TASK of the running operation of SEED as done without running it, for example of a seed that is lost.

    What the task would have deleted stays. The history and `seed show` record it.
    """
    repair = Repair(action=Action.SKIP, task=task, reason=reason, by=by)
    if fault := repair.fault:
        raise click.ClickException(fault)
    text = run_async(_skip(connection_of(**connection), name, repair))
    click.echo(json.dumps({"text": text}) if output == "json" else text)


async def _show(where: Connection, name: str) -> FlowView:
    client = await where.connect()
    newest = await _newest(client, name)
    return await read_flow(client, name, newest.id, newest.run_id)


async def _skip(where: Connection, name: str, repair: Repair) -> str:
    client = await where.connect()
    newest = await _newest(client, name)
    if newest.status is not WorkflowExecutionStatus.RUNNING:
        raise click.ClickException(f"no operation of Seed {name} runs; annotate it with gardener.cloud/operation=retry")
    try:
        await client.get_workflow_handle(newest.id, run_id=newest.run_id).execute_update("repair", repair)
    except WorkflowUpdateFailedError as error:
        raise click.ClickException(f"refused: {getattr(error.cause, 'message', error.cause)}") from None
    return f"{repair}"


async def _newest(client: Client, name: str) -> WorkflowExecution:
    """The newest operation of the Seed of this name, whether it still exists or not."""
    found = [each async for each in client.list_workflows(f'WorkflowId STARTS_WITH "seed/{name}/"')]
    if not found:
        raise click.ClickException(f"no operation of a Seed {name} has been started")
    return max(found, key=lambda each: each.start_time)
