"""``gardener landscape``: a real cloud on this machine."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from landscape import gvisor, lifecycle, network, node_logs, power, registry
from landscape import temporal_certificates as certificates
from landscape.errors import LandscapeError
from landscape.plan import DEFAULT_NAME, SEEDS, Plan
from landscape.processes import Running
from landscape.progress import Progress

Result = TypeVar("Result")

_name = click.option(
    "--name", default=DEFAULT_NAME, envvar="GARDENER_LANDSCAPE", show_default=True, help="Which landscape."
)
_output = click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)


def _completed(find: Callable[[Plan], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A callback for ``shell_complete``: names in the landscape. Without a landscape it offers nothing."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = sorted(find(lifecycle.require(context.params["name"])))
        except LandscapeError:
            return []
        return [each for each in found if each.startswith(incomplete)]

    return complete


def _processes(plan: Plan) -> list[str]:
    return [each.spec.name for each in lifecycle.processes_of(plan).all()]


_CLUSTERS = _completed(lambda plan: [each.name for each in plan.clusters])
_PROCESSES = _completed(_processes)
_PROCESSES_AND_PLACES = _completed(lambda plan: [*_processes(plan), *plan.places])


def _address(_: click.Context, __: click.Parameter, value: str) -> str:
    host, _colon, port = value.rpartition(":")
    if value and not (host and port.isdigit()):
        raise click.BadParameter(f"{value!r} is no HOST:PORT, like 127.0.0.1:7233")
    return value


@click.group()
def landscape() -> None:
    """Run a real cloud on this machine: Temporal, a garden, a cloud with machines, and two seeds."""
    # Directories of ip, iptables and knotd; root's PATH may lack them.
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"


@landscape.command()
@_name
@_output
@click.option(
    "--also-kubernetes",
    multiple=True,
    metavar="VERSION",
    help="A further version for shoots, for example 1.36.3, to upgrade from. It may have to be compiled.",
)
@click.option(
    "--workers",
    type=click.Choice(["all", "seeds", "none"]),
    default="all",
    show_default=True,
    help="Which of our own processes to start; the others can run elsewhere, as pods of the charts.",
)
@click.option(
    "--temporal",
    metavar="HOST:PORT",
    default="",
    callback=_address,
    help="Use the Temporal that this machine reaches there, in place of one of the landscape's own. Its namespace "
    "`default` gets our search attributes.",
)
@click.option(
    "--zonal",
    type=click.Choice(SEEDS),
    multiple=True,
    help="A seed with three nodes, each in a zone of its own; others have one node. Of a new landscape only.",
)
@click.option(
    "--open-seeds",
    is_flag=True,
    help="Do not enforce NetworkPolicies in seeds. Without it their pods have only the connections that they need, "
    "except where a seed is zonal. Of a new landscape only.",
)
@click.option(
    "--authentication-config",
    type=click.File(),
    help="AuthenticationConfiguration with the OpenID Connect issuers whose tokens the garden accepts, in place of "
    "those of before. The garden's API server reads it without a restart.",
)
def up(
    name: str,
    output: str,
    also_kubernetes: tuple[str, ...],
    workers: lifecycle.Which,
    temporal: str,
    zonal: tuple[str, ...],
    open_seeds: bool,
    authentication_config: TextIO | None,
) -> None:
    """Bring the landscape up; start the parts of it that do not run."""
    progress = Progress()
    authentication = authentication_config.read() if authentication_config else ""
    plan = _run(lifecycle.up(name, progress, also_kubernetes, workers, temporal, authentication, zonal, open_seeds))
    progress.say(f"landscape {name} is up")
    _print_status(plan, output, processes=False)


@landscape.command()
def prepare() -> None:
    """Download or compile the programs that a landscape needs. The first `up` does it, too, if nothing has before."""
    _run(lifecycle.prepare(Progress()))


@landscape.command(name="images")
@click.option("--output", "-o", type=click.Path(), help="Copy the archive here, in place of printing where it is.")
def images_(output: str | None) -> None:
    """Make all images of docker-compose.yaml, as one archive for `docker load`. Needs no registry."""
    archive = _run(lifecycle.engine_images(Progress()))
    if output:
        shutil.copyfile(archive, output)
    else:
        click.echo(archive)


@landscape.command(name="gvisor")
@_name
def gvisor_(name: str) -> None:
    """Offer the container runtime gVisor to new Shoots. Repeat it after the next `up`."""
    _run(gvisor.offer(lifecycle.require(name), Progress()))
    click.echo("pools may have cri.containerRuntimes with type gvisor")


@landscape.command(name="node-logs")
@_name
@click.argument("state", type=click.Choice(["on", "off"]), default="on")
def node_logs_(name: str, state: str) -> None:
    """Store the logs of Shoots' nodes in the seed, from the next reconciliation of a Shoot on, or no longer."""
    _run(node_logs.switch(lifecycle.require(name), Progress(), on=state == "on"))
    click.echo(f"node logs are {state}: each Shoot follows with its next reconciliation")


@landscape.command()
@_name
@click.argument("archives", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@_output
def push(name: str, archives: tuple[Path, ...], output: str) -> None:
    """Push the images of ARCHIVES, for example from `docker save`, into the registry of the landscape.

    It prints their names, by which pods of Shoots use them. An image of the same name is replaced.
    """
    pushed = _run(registry.push(lifecycle.require(name), archives, Progress()))
    click.echo(json.dumps(pushed, indent=2) if output == "json" else "\n".join(pushed))


@landscape.command(name="temporal-certificates")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--authority",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory of the signing authorities, with their keys; created if it is missing.",
)
@click.option("--host", "hosts", multiple=True, required=True, help="Name or address by which clients reach Temporal.")
@click.option("--seed", "seeds", multiple=True, help="A seed whose gardenlet and extension get certificates, too.")
def temporal_certificates(directory: Path, authority: Path, hosts: tuple[str, ...], seeds: tuple[str, ...]) -> None:
    """Write certificates for a trial of a Temporal cluster, and for its clients, into DIRECTORY."""
    for made in certificates.write(directory, authority, hosts, seeds):
        click.echo(made)


@landscape.command()
@_name
def down(name: str) -> None:
    """Take the landscape down, and remove all but the caches."""
    _run(lifecycle.down(name, Progress()))


@landscape.command()
@_name
@_output
def status(name: str, output: str) -> None:
    """Print the processes of the landscape, and their addresses."""
    _print_status(lifecycle.require(name), output, processes=True)


@landscape.command()
@_name
@_output
@click.argument("cluster", shell_complete=_CLUSTERS)
@click.option("--path", is_flag=True, help="Print the name of the file, not its content.")
def kubeconfig(name: str, output: str, cluster: str, path: bool) -> None:
    """Print the admin kubeconfig of CLUSTER: garden, cloud, seed-1 or seed-2."""
    plan = lifecycle.require(name)
    file = plan.kubeconfig(plan.cluster(cluster).name)
    if not file.exists():
        raise LandscapeError(f"{cluster} was not brought up yet: run `gardener landscape up --name {name}`")
    if path:
        click.echo(json.dumps({"path": str(file)}) if output == "json" else str(file))
        return
    content = file.read_text()
    if output == "json":
        import yaml

        content = json.dumps(yaml.safe_load(content), indent=2)
    click.echo(content.rstrip())


@landscape.command()
@_name
@click.argument("process", shell_complete=_PROCESSES)
@click.option("--follow", "-f", is_flag=True, help="Go on printing what is added.")
@click.option("--tail", default=200, show_default=True, help="Number of lines from the end.")
def logs(name: str, process: str, follow: bool, tail: int) -> None:
    """Print the log of PROCESS, for example seed-1/gardenlet."""
    processes = lifecycle.processes_of(lifecycle.require(name))
    file = processes.log(processes.get(process).spec.name)
    raise SystemExit(subprocess.call(["tail", f"--lines={tail}", *(["--follow=name"] if follow else []), str(file)]))


@landscape.command()
@_name
@click.argument("seed", type=click.Choice(SEEDS))
@click.option("--serving", is_flag=True, help="Users and machines still reach it; central services do not.")
def cut(name: str, seed: str, serving: bool) -> None:
    """Cut SEED off from the garden, Temporal and the cloud."""
    links = ("garden",) if serving else network.SEED_LINKS
    _run(network.set_seed_links(lifecycle.require(name), seed, "down", links))
    click.echo(f"{seed} is cut off")


@landscape.command()
@_name
@click.argument("seed", type=click.Choice(SEEDS))
def heal(name: str, seed: str) -> None:
    """Connect SEED again."""
    _run(network.set_seed_links(lifecycle.require(name), seed, "up"))
    click.echo(f"{seed} is joined again")


@landscape.command()
@_name
@click.argument("process", shell_complete=_PROCESSES_AND_PLACES)
def kill(name: str, process: str) -> None:
    """Kill PROCESS (SIGKILL), for example seed-1/kube-apiserver; the keeper starts it again.

    Of a whole seed, for example seed-1, or of a node of a zonal seed, for example seed-1-0, all processes and pods are
    killed, and stay dead until the next `up`.
    """
    plan = lifecycle.require(name)
    if process in plan.places:
        count = _run(power.off(plan, process, lifecycle.processes_of(plan)))
        click.echo(f"{process} ({count} processes, and its pods) killed")
        return
    _signal(name, process, signal.SIGKILL, "killed")


@landscape.command()
@_name
@click.argument("process", shell_complete=_PROCESSES_AND_PLACES)
def pause(name: str, process: str) -> None:
    """Pause PROCESS, or a whole seed or node with its pods (SIGSTOP), until it is resumed."""
    _signal(name, process, signal.SIGSTOP, "paused")


@landscape.command()
@_name
@click.argument("process", shell_complete=_PROCESSES_AND_PLACES)
def resume(name: str, process: str) -> None:
    """Resume a paused PROCESS, seed or node (SIGCONT)."""
    _signal(name, process, signal.SIGCONT, "resumed")


def _signal(name: str, process: str, number: signal.Signals, done: str) -> None:
    plan = lifecycle.require(name)
    processes = lifecycle.processes_of(plan)
    if process in plan.places:
        click.echo(f"{process} ({power.send(plan, process, processes, number)} processes) {done}")
        return
    running: Running = processes.get(process)
    if not processes.send(running, number):
        raise LandscapeError(f"{process} does not run")
    click.echo(f"{process} (pid {running.pid}) {done}")


def _print_status(plan: Plan, output: str, *, processes: bool) -> None:
    state = _run(lifecycle.status(plan))
    if output == "json":
        click.echo(json.dumps(state, indent=2))
        return
    temporal = state["temporal"]
    external = temporal["external"]
    click.echo(f"Temporal {temporal['address']}, {f'which is {external}' if external else 'UI ' + temporal['ui']}\n")
    rows = [("CLUSTER", "READY", "SERVER", "KUBECONFIG")]
    for cluster, content in state["clusters"].items():
        ready = "cut off" if content.get("cut") else str(content["ready"]).lower()
        rows.append((cluster, ready, content["server"], content["kubeconfig"]))
    _print_table(rows)
    if not processes:
        return
    click.echo()
    rows = [("PROCESS", "STATE", "PID", "STARTS")]
    for process, content in state["processes"].items():
        rows.append((process, content["state"], str(content["pid"]), str(content["starts"])))
    _print_table(rows)
    click.echo()
    rows = [("EXTENSION", "SEED", "READY", "CONDITIONS")]
    for installation, content in state["extensions"].items():
        told = ", ".join(f"{type_}={status}" for type_, status in content["conditions"].items())
        rows.append((installation, content["seed"], str(content["ready"]).lower(), told))
    _print_table(rows)


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    """Print a table with columns of full width: paths must not be cut off."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)
