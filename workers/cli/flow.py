"""``gardener flow list|show|follow``: the operations of a Shoot, task by task."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from temporalio.client import Client, RPCError, WorkflowExecution
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverterWithEncodedAttributes

from api.flows import TaskState
from workers.cli.connection import landscape_facts, namespaced_name
from workers.cli.flow_view import FlowView, RemoteCodec, TaskView, read_flow, watch_flow
from workers.codec import CodecError, data_converter
from workflows.shoot.lifecycle import LifecycleProgress

T = TypeVar("T")

_MARKS = {
    TaskState.WAITING: ("·", "dim"),
    TaskState.RUNNING: ("▶", "bold cyan"),
    TaskState.FINISHED: ("✔", "green"),
    TaskState.KEPT: ("✔", "blue"),
    TaskState.SKIPPED: ("○", "dim"),
    TaskState.FAILED: ("✘", "bold red"),
    TaskState.BLOCKED: ("·", "dim red"),
    TaskState.CANCELED: ("✘", "yellow"),
}
_STATES = {"Running": "cyan", "Completed": "green", "Failed": "red"}


@dataclass(frozen=True)
class Connection:
    """Where Temporal is, and how its payloads are read."""

    address: str
    namespace: str
    codec_key: Path | None
    codec_endpoint: str | None

    async def connect(self) -> Client:
        if self.codec_key is not None:
            converter = data_converter(self.codec_key)
        else:
            converter = replace(
                pydantic_data_converter,
                payload_codec=RemoteCodec(self.codec_endpoint) if self.codec_endpoint else None,
                failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
            )
        return await Client.connect(self.address, namespace=self.namespace, data_converter=converter)


def _connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that talks to Temporal."""
    for option in (
        click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option("--codec-endpoint", help="Reads encrypted histories; default: the landscape's."),
        click.option(
            "--codec-key", type=click.Path(path_type=Path, dir_okay=False), help="Key file, in place of the endpoint."
        ),
        click.option("--temporal-namespace", default="default", show_default=True),
        click.option("--temporal-address", help="HOST:PORT; default: the landscape's."),
    ):
        command = option(command)
    return command


def _connection(
    temporal_address: str | None, temporal_namespace: str, codec_key: Path | None, codec_endpoint: str | None
) -> Connection:
    if temporal_address is None:
        facts = landscape_facts()["temporal"]
        temporal_address = facts["address"]
        codec_endpoint = codec_endpoint or facts.get("codec")
    return Connection(temporal_address, temporal_namespace, codec_key, codec_endpoint)


@click.group()
def flow() -> None:
    """List, show and follow the operations of a Shoot.

    Without connection options, those of the landscape are meant: GARDENER_LANDSCAPE, else `default`.
    """


@flow.command("list")
@click.argument("shoot", callback=namespaced_name)
@_connected
def list_flows(shoot: tuple[str, str], output: str, **connection: Any) -> None:
    """All operations of the Shoot NAMESPACE/NAME, the newest first."""
    rows = _run(_list(_connection(**connection), "/".join(shoot)))
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo(f"no operation of Shoot {'/'.join(shoot)} has been started", err=True)
        return
    table = Table("OPERATION", "GENERATION", "ATTEMPT", "STATE", "STARTED", "SECONDS", "WORKFLOW ID", box=None)
    for row in rows:
        color = _STATES.get(row["state"], "yellow")
        seconds = f"{row['seconds']:.1f}" if row["seconds"] is not None else ""
        table.add_row(
            row["operation"],
            row["generation"],
            row["attempt"],
            Text(row["state"], color),
            row["started"],
            seconds,
            row["workflowId"],
        )
    _console().print(table)


@flow.command("show")
@click.argument("shoot", callback=namespaced_name)
@click.option("--id", "workflow_id", help="Workflow id of another than the newest operation, from `flow list`.")
@_connected
def show_flow(shoot: tuple[str, str], workflow_id: str | None, output: str, **connection: Any) -> None:
    """Tree of the tasks of one operation, with times, retries, errors and interruptions."""
    view = _run(_show(_connection(**connection), "/".join(shoot), workflow_id))
    if output == "json":
        click.echo(json.dumps(_as_json(view), indent=2))
    else:
        _console().print(_render(view))


@flow.command("follow")
@click.argument("shoot", callback=namespaced_name)
@click.option("--id", "workflow_id", help="Workflow id of another than the newest operation, from `flow list`.")
@_connected
def follow_flow(shoot: tuple[str, str], workflow_id: str | None, output: str, **connection: Any) -> None:
    """Like show, live until the operation ends; exits 1 if it fails. JSON: one line for each change."""
    where = _connection(**connection)
    state = _run(_follow(where, "/".join(shoot), workflow_id, output))
    raise SystemExit(0 if state == "Completed" else 1)


# Asking Temporal


async def _list(where: Connection, shoot: str) -> list[dict[str, Any]]:
    client = await where.connect()
    return [_row(each) for each in await _operations(client, shoot)]


async def _operations(client: Client, shoot: str) -> list[WorkflowExecution]:
    found = [each async for each in client.list_workflows(f'GardenerShoot = "{shoot}" AND GardenerOperation != ""')]
    return sorted(found, key=lambda each: each.start_time, reverse=True)


def _row(each: WorkflowExecution) -> dict[str, Any]:
    kind, _, number = each.id.rpartition("/")
    generation, _, attempt = number.partition("-")
    end = each.close_time
    operation = (each.search_attributes.get("GardenerOperation") or [kind.rpartition("/")[2]])[0]
    return {
        "operation": str(operation),
        "generation": generation,
        "attempt": attempt,
        "state": _state_of(each),
        "started": _time(each.start_time),
        "ended": _time(end) if end else None,
        "seconds": (end - each.start_time).total_seconds() if end else None,
        "workflowId": each.id,
        "runId": each.run_id,
    }


def _state_of(each: WorkflowExecution) -> str:
    return each.status.name.title().replace("_", "") if each.status else "Running"


async def _chosen(client: Client, shoot: str, workflow_id: str | None) -> tuple[str, str]:
    """Id and run id of the operation that is meant."""
    if workflow_id is not None:
        description = await client.get_workflow_handle(workflow_id).describe()
        return description.id, description.run_id
    found = await _operations(client, shoot)
    if not found:
        raise click.ClickException(
            f"no operation of Shoot {shoot} has been started; `kubectl describe shoot` says what it waits for"
        )
    return found[0].id, found[0].run_id


async def _show(where: Connection, shoot: str, workflow_id: str | None) -> FlowView:
    client = await where.connect()
    return await read_flow(client, shoot, *await _chosen(client, shoot, workflow_id))


async def _follow(where: Connection, shoot: str, workflow_id: str | None, output: str) -> str:
    client = await where.connect()
    state = "Running"
    if output == "json":
        await _first_operation(client, shoot, lambda text: None)
        return await _follow_lines(watch_flow(client, shoot, *await _chosen(client, shoot, workflow_id)))
    with Live(console=_console(), refresh_per_second=4) as live:
        await _first_operation(client, shoot, lambda text: live.update(Text(text, "dim")))
        async for view in watch_flow(client, shoot, *await _chosen(client, shoot, workflow_id)):
            live.update(_render(view))
            state = view.state
    return state


async def _first_operation(client: Client, shoot: str, say: Callable[[str], None]) -> None:
    """Wait until the Shoot has had an operation; meanwhile say why there is none."""
    while not await _operations(client, shoot):
        reason = f"waiting for Shoot {shoot}"
        async for each in client.list_workflows(f'GardenerShoot = "{shoot}" AND ExecutionStatus = "Running"'):
            with contextlib.suppress(RPCError):
                handle = client.get_workflow_handle(each.id)
                resting = (await handle.query("progress", result_type=LifecycleProgress)).resting
                reason = f"Shoot {shoot}: {resting or 'about to start'}"
        say(reason)
        await asyncio.sleep(1)  # visibility cannot be watched


async def _follow_lines(views: AsyncIterator[FlowView]) -> str:
    state, said = "Running", ""
    async for view in views:
        line = json.dumps(_as_json(view))
        if line != said:
            click.echo(line)
        state, said = view.state, line
    return state


def _run(work: "Coroutine[Any, Any, T] | Awaitable[T]") -> T:
    async def run() -> T:
        return await work

    try:
        return asyncio.run(run())
    except (CodecError, RPCError, RuntimeError, OSError) as error:
        raise click.ClickException(f"asking Temporal: {error}") from None


# Showing


def _render(view: FlowView) -> RenderableType:
    now = datetime.now(UTC)
    seconds = ((view.ended or now) - view.started).total_seconds()
    head = Text.assemble(
        (f"{view.operation} {view.shoot}", "bold"),
        f", generation {view.generation}, attempt {view.attempt}: ",
        (view.state, _STATES.get(view.state, "yellow")),
        f", {view.percent} %, {seconds:.1f} s since {view.started.astimezone():%H:%M:%S}",
    )
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for task in view.tasks:
        table.add_row(*_task_row(task, view.started, now))
    parts: list[RenderableType] = [head, table]
    if view.interruptions:
        parts.append(Text("interruptions:", "bold"))
        parts += [Text(f"  {each.at.astimezone():%H:%M:%S}  {each.text}", "yellow") for each in view.interruptions]
    return Group(*parts)


def _task_row(task: TaskView, start: datetime, now: datetime) -> tuple[RenderableType, ...]:
    mark, style = _MARKS[task.state]
    seconds = task.seconds(now)
    told = []
    if task.note:
        told.append((task.note, "dim"))
    if task.attempts > 1:
        told.append((f"attempt {task.attempts}", "yellow"))
    if task.error:
        told.append((task.error, "red" if task.state is TaskState.FAILED else "yellow"))
    texts = [part for each in told for part in (("; ", "dim"), each)][1:]
    return (
        Text.assemble((task.indent, "dim"), (f"{mark} {task.name}", style)),
        Text(f"+{(task.started - start).total_seconds():.2f}" if task.started else "", "dim"),
        Text(f"{seconds:.2f} s" if seconds is not None else ""),
        Text.assemble(*texts),
    )


def _as_json(view: FlowView) -> dict[str, Any]:
    now = datetime.now(UTC)
    data: dict[str, Any] = view.model_dump(mode="json")
    for task, shown in zip(view.tasks, data["tasks"], strict=True):
        shown["seconds"] = task.seconds(now) if task.ended else None
        del shown["indent"]
    return data


def _time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _console() -> Console:
    return Console(highlight=False)
