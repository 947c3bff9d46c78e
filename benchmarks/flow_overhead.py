"""Cost of the flow engine: a flow of 90 no-op activities against the same activities in hand-written Temporal code.

Both run the same graph (fifteen layers of six tasks, each after two of the layer before) in one worker process
on one dev server, tuned as the landscape tunes it, in turns. The engine's flow has all parts
of a real flow: the query, the tree in the UI, and an activity that asks for progress meanwhile.

    python -m benchmarks.flow_overhead [--runs 20] [-o json]
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    import click

    from activities.secrets.keyring import write_key_file
    from api.contracts.flows import FlowProgress
    from api.contracts.operations import OperationType, ShootRef, ShootTask, TaskResult
    from benchmarks.report import Figure, emit, figure, other_output_on_stderr, output_option, report_of
    from landscape.temporal import SQLITE, TUNING
    from workers.lib.codec import data_converter
    from workers.lib.heartbeats import Heartbeats
    from workers.lib.temporal import TemporalServer, connect_with
    from workflows import options
    from workflows.flow import Flow

LAYERS, WIDTH = 15, 6
LIMIT = 1.15
"""Times as long as hand-written code that a flow may take."""
QUEUE = "bench"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="bench", uid="0"),
    technical_id="shoot--local--bench",
    seed="seed-1",
    generation=1,
    operation=OperationType.RECONCILE,
)


def graph() -> dict[str, list[str]]:
    """Predecessors of each task."""
    return {
        f"task_{layer}_{place}": [f"task_{layer - 1}_{other % WIDTH}" for other in (place, place + 1)] if layer else []
        for layer in range(LAYERS)
        for place in range(WIDTH)
    }


class Bench:
    @activity.defn
    async def no_op(self, task: ShootTask) -> TaskResult:
        return TaskResult()


@activity.defn
async def report() -> None:
    """Asks for progress like ``report_progress``, and writes it nowhere."""
    info = activity.info()
    flow = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    while True:
        activity.heartbeat()
        await asyncio.sleep(2)
        if (await flow.query("progress", result_type=FlowProgress)).ended:
            return


@workflow.defn
class ByFlow:
    @workflow.init
    def __init__(self) -> None:
        self.flow = Flow("Bench", TASK, queue=QUEUE, options=options.seed_call())
        for name, after in graph().items():
            self.flow.add(Bench.no_op, name=name, after=after)

    @workflow.query
    def progress(self) -> FlowProgress:
        return self.flow.progress()

    @workflow.run
    async def run(self) -> None:
        workflow.start_activity(
            report, start_to_close_timeout=timedelta(hours=1), heartbeat_timeout=timedelta(seconds=10)
        )
        await self.flow.run()


@workflow.defn
class ByHand:
    @workflow.run
    async def run(self) -> None:
        done: dict[str, asyncio.Task[None]] = {}
        for name, after in graph().items():
            done[name] = asyncio.create_task(self._step([done[each] for each in after]))
        await asyncio.gather(*done.values())

    async def _step(self, after: list[asyncio.Task[None]]) -> None:
        for each in after:
            await each
        await workflow.execute_activity_method(
            Bench.no_op, TASK, start_to_close_timeout=timedelta(minutes=2), heartbeat_timeout=timedelta(seconds=10)
        )


@asynccontextmanager
async def dev_server() -> AsyncIterator[str]:
    """Address of a dev server, tuned as that of a landscape."""
    with TemporaryDirectory() as directory:
        async with await WorkflowEnvironment.start_local(
            dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
            dev_server_database_filename=f"{directory}/temporal.db",
            dev_server_extra_args=[*TUNING, *SQLITE],
            dev_server_log_level="error",
        ) as server:
            yield server.client.service_client.config.target_host


@asynccontextmanager
async def connected(server: TemporalServer, *workflows: type) -> AsyncIterator[Client]:
    """A client whose workflows a worker of this process runs, as a gardenlet would."""
    with TemporaryDirectory() as directory:
        key = Path(directory) / "key"
        write_key_file(key)
        client = await connect_with(server, data_converter(key))
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=workflows,
            activities=[Bench().no_op, report],
            interceptors=[Heartbeats()],
            disable_eager_activity_execution=True,  # a flow's activities run in the gardenlet, elsewhere
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            yield client


async def measure(runs: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each run, and the number of events in a history: by ``flow`` and by ``hand``."""
    async with dev_server() as target, connected(TemporalServer(address=target), ByFlow, ByHand) as client:
        times: dict[str, list[float]] = {"flow": [], "hand": []}
        for number in range(runs + 1):
            for name, kind in (("flow", ByFlow), ("hand", ByHand)):
                started = time.perf_counter()
                await client.execute_workflow(kind.run, id=f"{name}-{number}", task_queue=QUEUE)
                if number:  # the first one warms up
                    times[name].append(time.perf_counter() - started)
        events = {}
        for name in times:
            history = await client.get_workflow_handle(f"{name}-1").fetch_history()
            events[name] = len(history.events)
    return times, events


def figures(times: dict[str, list[float]], events: dict[str, int]) -> list[Figure]:
    runs = len(times["flow"])
    limit = statistics.median(times["hand"]) * LIMIT
    return [
        figure(f"flow of {LAYERS * WIDTH} tasks", "s", times["flow"], times["hand"], limit=limit),
        figure("events in the history", "events", [events["flow"]] * runs, [events["hand"]] * runs),
    ]


@click.command(help="Measure a flow beside hand-written workflow code.")
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1, 1000))
@output_option
def main(runs: int, output: str) -> None:
    with other_output_on_stderr():
        times, events = asyncio.run(measure(runs))
    emit(report_of("flow_overhead", runs, figures(times, events), {}), output)


if __name__ == "__main__":
    main()
