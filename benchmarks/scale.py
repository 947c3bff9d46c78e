"""A garden with many Shoots: how long all of them take to be reconciled, and what the garden needs meanwhile.

    python -m benchmarks.scale [--shoots 1000] [--seeds 10] [--poisoned 500] [-o json]

Real are the garden's API server and etcd, Temporal (the dev server, with its data in a file), and the
controller-manager. The seeds are simulated: each task of a gardenlet ends at once. So the figures are those of the
garden and of Temporal; a gardenlet has the work of its own seed's Shoots alone.

First all Shoots are created. Then all are reconciled without a change at once. When all of that has ended, one Shoot
gets events, one after the other. In the end a hundred Shoots are reconciled again, first alone, then beside a Project
whose Shoots all fail, once all of its operations run. Then Shoots without a seed get one from the scheduler.
"""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import yaml
from temporalio.client import Client

from activities.secrets.keyring import write_key_file, write_private
from api import resources
from api.constants import OPERATION, SEED_GARDENLET_READY, SEED_SYSTEM_COMPONENTS_HEALTHY
from benchmarks.api_server import ApiServer, answered, free_port, process
from benchmarks.cpu import Moment, resident
from benchmarks.report import Figure, emit, figure, other_output_on_stderr, output_option, report_of
from benchmarks.signal import EXAMPLE, delivered, quantile, signal_buckets
from kube.client import KubeClient, Object
from landscape import binaries
from landscape.progress import Progress
from landscape.temporal import SQLITE
from tests import temporal_dev_server
from tests.unit.api.shoots import PROFILE, SEED
from workers.lib.codec import derived_keys
from workers.lib.temporal import TemporalServer, connect_with
from workers.setup import set_up_garden
from workflows import visibility

SIMULATED_SEEDS = Path(__file__).with_name("simulated_seeds.py")
FLEET, POISONED, UNPLACED = "garden-fleet", "garden-poisoned", "garden-unplaced"
_TIME = "2026-11-01T00:00:00Z"
_TOLD = {"lastTransitionTime": _TIME, "lastUpdateTime": _TIME, "reason": "Simulated", "message": "It is simulated."}
_READY = {
    "observedGeneration": 1,
    "lastOperation": {**SEED["status"]["lastOperation"], "description": "It is simulated.", "lastUpdateTime": _TIME},
    "conditions": [
        {"type": each, "status": "True", **_TOLD} for each in (SEED_GARDENLET_READY, SEED_SYSTEM_COMPONENTS_HEALTHY)
    ],
}
"""Status of a Seed."""
_GO = {"GOGC": "400"}
"""Go collects garbage a quarter as often, and needs more memory meanwhile, see docs/operations/scale.md."""
_TEMPORAL = (
    *SQLITE,
    # Each new task goes through all tasks that have ended since, see docs/operations/scale.md.
    *(f'--dynamic-config-value=history.{each}ProcessorUpdateAckInterval="3s"' for each in ("transfer", "visibility")),
)
"""Flags of the dev server."""
_EVENTS = 200
_SETTLE_SECONDS = 300.0
"""Time until tasks that fail are retried as seldom as they ever are, see ``workflows.options.RETRY``."""
_UNPLACED = 50
_COMPLETED = 'ExecutionStatus = "Completed"'
_PROGRAMS = ("temporal", "gardener worker controller-manager", "kube-apiserver", "etcd")
"""Programs of a garden, as ``benchmarks.cpu`` calls them."""
_POLL_SECONDS = 5.0
"""Each poll reads an entry of each Shoot: polls every 0.5 s took 7 % of Temporal's CPU time beside 1,000 Shoots."""
_AT_ONCE = 20
"""Concurrent requests of this benchmark to the API server."""
_LIMIT_SECONDS = 3600.0
_FLEET_MILLISECONDS = 600.0
"""Limit for the reconciliation of all Shoots, for each of them: 1,000 in 10 minutes."""
_SIGNAL_MILLISECONDS = 50.0
_MEMORY_MIB = 4096.0
_UNFAIRNESS = 1.2


@dataclass(frozen=True)
class Fleet:
    """The Shoots of one Project."""

    garden: KubeClient
    namespace: str
    names: tuple[str, ...]

    async def create(self, seeds: int = 0) -> None:
        """``seeds``: number of the seeds that host them; 0: the scheduler chooses."""

        async def one(number: int, name: str) -> None:
            await self.garden.create(_shoot(self.namespace, name, number % seeds + 1 if seeds else None))

        await self._each(one)

    async def placed(self) -> None:
        """Wait until each has a seed. Raises TimeoutError."""
        async with asyncio.timeout(_LIMIT_SECONDS):
            while any("seedName" not in each["spec"] for each in await self._listed()):  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.1)

    async def recorded(self, operation: str) -> None:
        """Wait until each has this as its last operation, and it has succeeded. Raises TimeoutError."""
        wanted = (operation, "Succeeded")
        async with asyncio.timeout(_LIMIT_SECONDS):
            while any(_last(each) != wanted for each in await self._listed()):  # noqa: ASYNC110 -- no event
                await asyncio.sleep(_POLL_SECONDS)

    async def _listed(self) -> list[Object]:
        return await self.garden.list(resources.SHOOT, self.namespace)

    async def reconcile(self) -> None:
        annotation = {"metadata": {"annotations": {OPERATION: "reconcile"}}}
        await self._each(lambda _, name: self.garden.patch(resources.SHOOT, name, self.namespace, annotation))

    async def _each(self, act: Callable[[int, str], Any]) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int, name: str) -> None:
            async with turns:
                await act(number, name)

        await asyncio.gather(*(one(number, name) for number, name in enumerate(self.names)))


@dataclass(frozen=True)
class Garden:
    """Clients of all processes. ``metrics``: URL of the controller-manager's; ``pids``: by program."""

    api: KubeClient
    temporal: Client
    metrics: str
    pids: dict[str, int]
    files: dict[str, Path]
    """Data of a program: a file or directory."""

    async def ended(self, fleet: Fleet, operation: str, since: datetime) -> list[tuple[datetime, datetime]]:
        """Start and end of each operation of a fleet, once all have succeeded. Raises TimeoutError."""
        query = f'{_operations(fleet, operation)} AND StartTime > "{since.isoformat()}" AND {_COMPLETED}'
        await self._counted(query, fleet)
        return [
            (each.start_time, each.close_time) async for each in self.temporal.list_workflows(query) if each.close_time
        ]

    async def begun(self, fleet: Fleet, operation: str) -> None:
        """Wait until each Shoot of a fleet has begun one. Raises TimeoutError."""
        await self._counted(_operations(fleet, operation), fleet)

    async def _counted(self, query: str, fleet: Fleet) -> None:
        async with asyncio.timeout(_LIMIT_SECONDS):
            while (await self.temporal.count_workflows(query)).count < len(fleet.names):  # noqa: ASYNC110 -- no event
                await asyncio.sleep(_POLL_SECONDS)

    async def history(self, fleet: Fleet) -> tuple[int, int]:
        """Events and bytes of the last reconciliation of a fleet."""
        query = f"{_operations(fleet, 'Reconcile')} AND {_COMPLETED}"
        last = await anext(aiter(self.temporal.list_workflows(query, limit=1)))
        info = (await self.temporal.get_workflow_handle(last.id).describe()).raw_info
        return info.history_length, info.history_size_bytes

    def memory(self, *programs: str) -> float:
        """Resident memory in MiB."""
        return sum(resident(self.pids[each]) for each in programs)


@dataclass(frozen=True)
class Measured:
    created: float
    reconciled: float
    """Seconds for all Shoots."""
    cpu: dict[str, float]
    """CPU seconds by program while all Shoots were reconciled."""
    events: int
    history: int
    """Events and bytes in the history of one reconciliation."""
    stored: dict[str, float]
    """MiB on disk, after that."""
    signals: dict[float, float]
    """Events up to each bound, in seconds."""
    memory: dict[str, float]
    """MiB by program."""
    alone: float
    beside: float
    """99th percentile of the seconds of one reconciliation: without and beside the poisoned Project."""
    scheduled: float
    """Seconds until the scheduler has chosen seeds for ``_UNPLACED`` Shoots."""


def _last(shoot: Object) -> tuple[str, str]:
    """Type and state of its last operation."""
    operation = shoot["status"]["lastOperation"]
    return operation["type"], operation["state"]


async def measure(garden: Garden, shoots: int, seeds: int, poisoned: int) -> Measured:
    fleet = Fleet(garden.api, FLEET, tuple(f"s{number:04}" for number in range(shoots)))
    created = await _timed(garden, fleet, "Create", lambda: fleet.create(seeds))
    _tell(f"{shoots} Shoots created in {created:.0f} s")
    before = Moment.now()
    reconciled = await _timed(garden, fleet, "Reconcile", fleet.reconcile)
    used = Moment.now().since(before)
    cpu = {each: used[each] for each in _PROGRAMS}
    events, history = await garden.history(fleet)
    _tell(f"{shoots} Shoots reconciled in {reconciled:.0f} s")
    memory = {each: garden.memory(each) for each in garden.pids}
    stored = {name: _size(path) for name, path in garden.files.items()}
    await fleet.recorded("Reconcile")
    signals = await delivered(garden.api, garden.metrics, FLEET, fleet.names[0], _EVENTS)
    some = Fleet(garden.api, FLEET, fleet.names[:: max(1, shoots // 100)])
    alone = await _slowest(garden, some)
    failing = Fleet(garden.api, POISONED, tuple(f"p{number:04}" for number in range(poisoned)))
    await failing.create(seeds)
    await garden.begun(failing, "Create")
    await asyncio.sleep(_SETTLE_SECONDS)
    beside = await _slowest(garden, some)
    _tell(f"99 % of the reconciliations took {alone:.1f} s, beside {poisoned} Shoots that fail {beside:.1f} s")
    unplaced = Fleet(garden.api, UNPLACED, tuple(f"u{number:04}" for number in range(_UNPLACED)))
    begun = time.monotonic()
    await unplaced.create()
    await unplaced.placed()
    scheduled = time.monotonic() - begun
    return Measured(created, reconciled, cpu, events, history, stored, signals, memory, alone, beside, scheduled)


async def _timed(garden: Garden, fleet: Fleet, operation: str, act: Callable[[], Any]) -> float:
    since = datetime.now(UTC)
    await act()
    return (max(end for _, end in await garden.ended(fleet, operation, since)) - since).total_seconds()


async def _slowest(garden: Garden, fleet: Fleet) -> float:
    since = datetime.now(UTC)
    await fleet.reconcile()
    seconds = sorted((end - start).total_seconds() for start, end in await garden.ended(fleet, "Reconcile", since))
    return seconds[math.ceil(len(seconds) * 0.99) - 1]


@asynccontextmanager
async def _running(directory: Path, seeds: int) -> AsyncIterator[Garden]:
    server = ApiServer(directory, **_GO)
    port, health = free_port(), free_port()
    address, key = f"127.0.0.1:{port}", directory / "key"
    write_key_file(key)
    names = [f"seed-{number + 1}" for number in range(seeds)]
    for each in names:
        write_private(directory / f"{each}.key", derived_keys(key, gardenlet=each))
    config = {
        "gardenClientConnection": {"kubeconfig": str(server.kubeconfig)},
        "temporal": {"address": address, "codecKeyFile": str(key)},
        "health": {"port": health},
        "gardenletLifecycle": {"monitorPeriod": "PT24H"},
        # Values for a garden of this size, see docs/operations/scale.md. Lifecycles and operations are workflows.
        "maxCachedWorkflows": 3000,
        "stickySeconds": 30,
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    connection = {"gardenClientConnection": config["gardenClientConnection"], "health": {"port": free_port()}}
    (directory / "scheduler.yaml").write_text(yaml.safe_dump(connection))
    commands: dict[str, tuple[str | Path, ...]] = {
        "Temporal": tuple(temporal_dev_server.command(port, f"--db-filename={directory}/temporal.db", *_TEMPORAL)),
        "controller-manager": (
            *(Path(sys.executable).parent / "gardener", "worker", "controller-manager"),
            *("--config", directory / "config.yaml"),
        ),
        "scheduler": (
            *(Path(sys.executable).parent / "gardener", "worker", "scheduler"),
            *("--config", directory / "scheduler.yaml"),
        ),
        "seeds": (sys.executable, "-P", SIMULATED_SEEDS, address, directory, POISONED, *names),
    }
    async with server.serving(), process(directory, *commands["Temporal"], **_GO) as temporal:
        await set_up_garden(server.client, None)
        for manifest in _surroundings(names):
            await server.client.apply(manifest, manager="benchmark")
        for each in names:
            await server.client.patch(resources.SEED, each, None, {"status": _READY}, subresource="status")
        client = await connect_with(TemporalServer(address=address))
        async with (
            process(directory, *commands["controller-manager"]) as manager,
            process(directory, *commands["seeds"]),
            process(directory, *commands["scheduler"]),
        ):
            metrics = f"http://127.0.0.1:{health}/metrics"
            await answered(lambda: signal_buckets(metrics))
            pids = {"Temporal": temporal.pid, "controller-manager": manager.pid}
            files = {"Temporal": directory / "temporal.db", "etcd": directory / "data"}
            yield Garden(server.client, client, metrics, pids, files)


def _surroundings(seeds: Iterable[str]) -> Iterable[Object]:
    for namespace in (FLEET, POISONED, UNPLACED):
        name = visibility.project_of(namespace)
        labels = {"gardener.cloud/role": "project", "project.gardener.cloud/name": name}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
        yield {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "kind": "Project",
            "metadata": {"name": name},
            "spec": {"namespace": namespace},
        }
    yield PROFILE
    for each in seeds:
        yield {**SEED, "metadata": {"name": each}}


def _shoot(namespace: str, name: str, seed: int | None) -> Object:
    manifest: Object = yaml.safe_load(EXAMPLE.read_text())
    manifest["metadata"] = {"name": name, "namespace": namespace}
    if seed is not None:
        manifest["spec"]["seedName"] = f"seed-{seed}"
    return manifest


def _operations(fleet: Fleet, operation: str) -> str:
    """Query for the operations of a fleet."""
    project = visibility.project_of(fleet.namespace)
    return f'{visibility.PROJECT.name} = "{project}" AND {visibility.OPERATION.name} = "{operation}"'


def _size(path: Path) -> float:
    """MiB of a file, or of the files of a directory."""
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file()) / 2**20


def _tell(line: str) -> None:
    click.echo(line, err=True)


def figures(measured: Measured, shoots: int) -> list[Figure]:
    each = 1000 / shoots
    return [
        figure("creation, for each Shoot", "ms", [measured.created * each]),
        figure("reconciliation, for each Shoot", "ms", [measured.reconciled * each], limit=_FLEET_MILLISECONDS),
        figure("event to signal p99, at most", "ms", [_p99(measured.signals) * 1000], limit=_SIGNAL_MILLISECONDS),
        *(
            figure(f"CPU time of {name}, for each reconciliation", "ms", [seconds * each])
            for name, seconds in measured.cpu.items()
        ),
        figure("events of a reconciliation", "events", [measured.events]),
        figure("history of a reconciliation", "KiB", [measured.history / 1024]),
        *(figure(f"files of {name}", "MiB", [mib]) for name, mib in measured.stored.items()),
        *(figure(f"memory of {name}", "MiB", [mib]) for name, mib in measured.memory.items()),
        figure("memory of both", "MiB", [sum(measured.memory.values())], limit=_MEMORY_MIB),
        figure("creation and choice of a seed, for each Shoot", "ms", [measured.scheduled * 1000 / _UNPLACED]),
        figure("reconciliation p99 beside a poisoned project", "s", [measured.beside], [measured.alone],
               limit=measured.alone * _UNFAIRNESS),
    ]  # fmt: skip


def _p99(counts: dict[float, float]) -> float:
    return quantile(counts, counts[math.inf] * 0.99)


@click.command(help="Measure a garden with many Shoots.")
@click.option("--shoots", default=1000, show_default=True, type=click.IntRange(10, 5000))
@click.option("--seeds", default=10, show_default=True, type=click.IntRange(1, 100))
@click.option("--poisoned", default=500, show_default=True, type=click.IntRange(1, 5000), help="Shoots that fail.")
@output_option
def main(shoots: int, seeds: int, poisoned: int, output: str) -> None:
    async def run() -> Measured:
        await binaries.ensure(binaries.cluster_tools(), Progress(quiet=True))
        with TemporaryDirectory() as directory:
            async with _running(Path(directory), seeds) as garden:
                return await measure(garden, shoots, seeds, poisoned)

    with other_output_on_stderr():
        measured = asyncio.run(run())
    settings = {"shoots": shoots, "seeds": seeds, "poisoned": poisoned}
    emit(report_of("scale", 1, figures(measured, shoots), settings), output)


if __name__ == "__main__":
    main()
