"""``gardener flow list|show|follow``: the operations of Shoots, task by task."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from temporalio.client import Client, RPCError, WorkflowExecution

from api.contracts.flows import TaskState
from api.times import timestamp
from workers.cli import completion
from workers.cli.connection import namespaced_name, optional_name
from workers.cli.explain import Explanation, explain
from workers.cli.flow_repair import COMMANDS
from workers.cli.flow_view import FlowView, Intervention, TaskView, read_flow, watch_flow
from workers.cli.operations import CHOICE, chosen_operation, operations_of, running_lifecycle, running_operations
from workers.cli.temporal import Connection, connected, connection_of, run_async
from workflows.shoot.lifecycle import LifecycleProgress

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
_WIDE = 4000
_STATES = {"Running": "cyan", "Completed": "green", "Failed": "red"}


@click.group()
def flow() -> None:
    """List, show, follow and repair the operations of a Shoot.

    Without connection options, those of the landscape are meant: GARDENER_LANDSCAPE, else `default`.
    """


@flow.command("list")
@click.argument("shoot", callback=optional_name, required=False, shell_complete=completion.SHOOTS)
@connected
def list_flows(shoot: tuple[str, str] | None, output: str, **connection: Any) -> None:
    """All operations of the Shoot NAMESPACE/NAME, or, without a name, those of all Shoots that run; the newest first.

    ID is that of the workflow, or of its run where a later one has the same: syncs of a generation do.
    """
    rows = run_async(_list(connection_of(**connection), "/".join(shoot) if shoot else None))
    if shoot is not None and not rows:
        raise click.ClickException(f"there is no Shoot {'/'.join(shoot)}, or no operation of it has been started")
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("no operation runs", err=True)
        return
    _console().print(_table(rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("SHOOT", "OPERATION", "GENERATION", "ATTEMPT", "STATE", "STARTED", "SECONDS", "ID", box=None)
    newest = {row["workflowId"]: row for row in reversed(rows)}
    for row in rows:
        color = _STATES.get(row["state"], "yellow")
        seconds = f"{row['seconds']:.1f}" if row["seconds"] is not None else ""
        table.add_row(
            row["shoot"],
            row["operation"],
            row["generation"],
            row["attempt"],
            Text(row["state"], color),
            row["started"],
            seconds,
            row["workflowId"] if newest[row["workflowId"]] is row else row["runId"],
        )
    return table


@flow.command("show")
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@CHOICE
@connected
def show_flow(shoot: tuple[str, str], chosen: str | None, output: str, **connection: Any) -> None:
    """Tree of the tasks of one operation, with times, retries, errors and interruptions."""
    print_view(run_async(_show(connection_of(**connection), "/".join(shoot), chosen)), output)


@flow.command("follow")
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@CHOICE
@connected
def follow_flow(shoot: tuple[str, str], chosen: str | None, output: str, **connection: Any) -> None:
    """Like show, live until the operation ends; exits 1 if it fails. JSON: one line for each change."""
    where = connection_of(**connection)
    state = run_async(_follow(where, "/".join(shoot), chosen, output))
    raise SystemExit(0 if state == "Completed" else 1)


@flow.command("explain")
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@connected
def explain_flow(shoot: tuple[str, str], output: str, **connection: Any) -> None:
    """Why the Shoot's operation stands where it stands: task, object, since when, last error, and what to do."""
    said = run_async(_explain(connection_of(**connection), "/".join(shoot)))
    click.echo(json.dumps(said.model_dump(mode="json"), indent=2) if output == "json" else said.text)
    if said.is_unknown:
        raise SystemExit(1)


# Asking Temporal


async def _list(where: Connection, shoot: str | None) -> list[dict[str, Any]]:
    client = await where.connect()
    return [_row(each) for each in await (operations_of(client, shoot) if shoot else running_operations(client))]


def _row(each: WorkflowExecution) -> dict[str, Any]:
    kind, _, number = each.id.rpartition("/")
    generation, _, attempt = number.partition("-")
    end = each.close_time
    operation = (each.search_attributes.get("GardenerOperation") or [kind.rpartition("/")[2]])[0]
    return {
        "shoot": str((each.search_attributes.get("GardenerShoot") or [""])[0]),
        "operation": str(operation),
        "generation": generation,
        "attempt": attempt,
        "state": _state_of(each),
        "started": timestamp(each.start_time),
        "ended": timestamp(end) if end else None,
        "seconds": (end - each.start_time).total_seconds() if end else None,
        "workflowId": each.id,
        "runId": each.run_id,
    }


def _state_of(each: WorkflowExecution) -> str:
    return each.status.name.title().replace("_", "") if each.status else "Running"


async def _show(where: Connection, shoot: str, chosen: str | None) -> FlowView:
    client = await where.connect()
    view = await read_flow(client, shoot, *await chosen_operation(client, shoot, chosen))
    return view if chosen or view.state == "Running" else await _with_later(client, shoot, view)


async def _explain(where: Connection, shoot: str) -> Explanation:
    client = await where.connect()
    return await explain_shoot(client, shoot)


async def explain_shoot(client: Client, shoot: str) -> Explanation:
    """Explain the Shoot's newest operation, from Temporal's data about it and about the Shoot's lifecycle."""
    lifecycle = await running_lifecycle(client, shoot)
    progress = await lifecycle.query("progress", result_type=LifecycleProgress) if lifecycle else None
    found = await operations_of(client, shoot)
    view = await read_flow(client, shoot, found[0].id, found[0].run_id) if found else None
    if view is not None and view.state != "Running":
        view = await _with_later(client, shoot, view)
    return explain(shoot, view, progress, datetime.now(UTC))


async def _with_later(client: Client, shoot: str, view: FlowView) -> FlowView:
    """Add the repairs made since the operation ended: the next attempt starts with them."""
    lifecycle = await running_lifecycle(client, shoot)
    if lifecycle is None:
        return view
    memory = (await lifecycle.query("progress", result_type=LifecycleProgress)).memory
    repairs = (*memory.outcome.repairs, *([memory.paused] if memory.paused else []))
    later = (Intervention(at=each.at, text=f"{each}") for each in repairs)
    return view.model_copy(update={"interventions": tuple(dict.fromkeys((*view.interventions, *later)))})


async def _follow(where: Connection, shoot: str, chosen: str | None, output: str) -> str:
    client = await where.connect()
    state = "Running"
    if output == "json":
        await _first_operation(client, shoot, lambda text: None)
        return await _follow_lines(watch_flow(client, shoot, *await chosen_operation(client, shoot, chosen)))
    with Live(console=_console(), refresh_per_second=4) as live:
        await _first_operation(client, shoot, lambda text: live.update(Text(text, "dim")))
        async for view in watch_flow(client, shoot, *await chosen_operation(client, shoot, chosen)):
            live.update(_render(view))
            state = view.state
    return state


async def _first_operation(client: Client, shoot: str, say: Callable[[str], None]) -> None:
    """Wait until the Shoot has an operation; meanwhile tell ``say`` why there is none."""
    while not await operations_of(client, shoot):
        reason = f"waiting for Shoot {shoot}"
        async for each in client.list_workflows(f'GardenerShoot = "{shoot}" AND ExecutionStatus = "Running"'):
            with contextlib.suppress(RPCError):
                handle = client.get_workflow_handle(each.id)
                resting = (await handle.query("progress", result_type=LifecycleProgress)).resting
                reason = f"Shoot {shoot}: {resting or 'about to start'}"
        say(reason)
        await asyncio.sleep(1)  # Temporal's visibility has no watch


async def _follow_lines(views: AsyncIterator[FlowView]) -> str:
    state, said = "Running", ""
    async for view in views:
        line = json.dumps(_as_json(view))
        if line != said:
            click.echo(line)
        state, said = view.state, line
    return state


# Showing


def print_view(view: FlowView, output: str) -> None:
    """Print the tree of a flow's tasks, as ``text`` or ``json``."""
    if output == "json":
        click.echo(json.dumps(_as_json(view), indent=2))
    else:
        _console().print(_render(view))


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
    if view.interventions:
        parts.append(Text("interventions:", "bold"))
        parts += [Text(f"  {_clock(each.at)}  {each.text}", "magenta") for each in view.interventions]
    if view.interruptions:
        parts.append(Text("interruptions:", "bold"))
        parts += [Text(f"  {each.at.astimezone():%H:%M:%S}  {each.text}", "yellow") for each in view.interruptions]
    return Group(*parts)


def _clock(at: datetime | None) -> str:
    return f"{at.astimezone():%H:%M:%S}" if at else "--:--:--"


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


def _console() -> Console:
    """Console as wide as the terminal. In a pipe or a file, it is wide enough for each row to be one line."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


for _command in COMMANDS:
    flow.add_command(_command)
