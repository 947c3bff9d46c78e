"""Compare the landscape's dev server with the Temporal cluster of ``docker-compose.yaml``.

    python -m benchmarks.temporal [--runs 5] [--flows 30] [--without-cluster] [-o json]
    python -m benchmarks.temporal --cluster HOST:PORT --certificate DIRECTORY

Without an address, the benchmark starts the cluster and stops it at the end; it builds missing images. It uses the dev
server in plain text, and through the Envoy of a landscape, which requires a certificate. One worker process uses all of
them in turns: for a workflow of activities one after the other, and for many flows of 90 tasks at once
(``benchmarks.flow_overhead``). The dev server in plain text is the baseline of the others.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from temporalio import workflow
from temporalio.client import Client

with workflow.unsafe.imports_passed_through():
    import click

    from benchmarks.flow_overhead import LAYERS, QUEUE, TASK, WIDTH, Bench, ByFlow, connected, dev_server
    from benchmarks.report import Better, Figure, emit, figure, other_output_on_stderr, output_option, report_of
    from landscape import temporal_certificates
    from tests.temporal_endpoint import mutual_tls_before
    from workers.lib.temporal import TemporalServer, TemporalTLS
    from workers.setup import TemporalSetup, set_up_temporal

ROOT = Path(__file__).parents[1]
SEQUENTIAL = 50
BASELINE = "dev server"
_SERVICES = [f"temporal-{name}" for name in ("frontend", "internal-frontend", "history", "matching", "worker")]


@dataclass(frozen=True)
class Measured:
    """Values of a server, one of each run."""

    latencies: list[float] = field(default_factory=list)
    """Milliseconds for one activity."""
    rates: list[float] = field(default_factory=list)
    """Flows per hour."""


@workflow.defn
class OneByOne:
    """Activities one after the other: the median of their times is what one task of a flow waits at least."""

    @workflow.run
    async def run(self) -> None:
        for _ in range(SEQUENTIAL):
            await workflow.execute_activity_method(Bench.no_op, TASK, start_to_close_timeout=timedelta(minutes=2))


async def latency(client: Client) -> float:
    """Milliseconds for one activity."""
    started = time.perf_counter()
    await client.execute_workflow(OneByOne.run, id=f"sequence-{uuid.uuid4()}", task_queue=QUEUE)
    return (time.perf_counter() - started) / SEQUENTIAL * 1000


async def throughput(client: Client, flows: int) -> float:
    """Flows per hour."""
    started = time.perf_counter()
    await asyncio.gather(
        *(client.execute_workflow(ByFlow.run, id=f"flow-{uuid.uuid4()}", task_queue=QUEUE) for _ in range(flows))
    )
    return flows / (time.perf_counter() - started) * 3600


async def measure(cluster: TemporalServer | None, runs: int, flows: int) -> dict[str, Measured]:
    """Values of each run, by server."""
    async with AsyncExitStack() as stack:
        # A server each: workers of one server would share their tasks.
        target, behind = [await stack.enter_async_context(dev_server()) for _ in range(2)]
        secured = stack.enter_context(mutual_tls_before(behind))
        servers = {
            BASELINE: TemporalServer(address=target),
            "dev server behind TLS": secured.server(secured.authority.for_process("controller-manager")),
        }
        if cluster is not None:
            await set_up_temporal(TemporalSetup(address=cluster.address, tls=cluster.tls))
            servers["cluster"] = cluster
        clients = {
            name: await stack.enter_async_context(connected(server, OneByOne, ByFlow))
            for name, server in servers.items()
        }
        found = {name: Measured() for name in clients}
        for number in range(runs + 1):
            for name, client in clients.items():
                took, rate = await latency(client), await throughput(client, flows)
                if number:  # the first one warms up
                    found[name].latencies.append(took)
                    found[name].rates.append(rate)
    return found


def figures(found: dict[str, Measured]) -> list[Figure]:
    baseline = found[BASELINE]
    flows = f"flows of {LAYERS * WIDTH} tasks"
    return [
        each
        for name, measured in found.items()
        if name != BASELINE
        for each in (
            figure(f"{name}: activity", "ms", measured.latencies, baseline.latencies),
            figure(f"{name}: {flows}", "flows/h", measured.rates, baseline.rates, better=Better.HIGHER),
        )
    ]


@contextmanager
def composed() -> Iterator[TemporalServer]:
    """The cluster, brought up."""
    from tests.compose.engine import Compose, docker, engine
    from tests.landscape.conftest import BIN, run

    with TemporaryDirectory() as made, engine():
        directory = Path(made)
        temporal_certificates.write(directory, directory / "authority", ["temporal-frontend", "127.0.0.1"], ())
        directory.chmod(0o755)
        for path in (directory / "server").iterdir():
            path.chmod(0o644)  # the containers have a user of their own
        os.environ |= {
            "COMPOSE_PROJECT_NAME": "gardener-benchmark",
            "POSTGRES_PASSWORD": "not-a-secret",
            "TEMPORAL_CERTIFICATES": made,
        }
        docker("load", "--input", run(BIN / "gardener", "landscape", "images", timeout=900).strip())
        with Compose(ROOT, wait=False, services=_SERVICES):
            yield TemporalServer(address="127.0.0.1:7233", tls=_tls(directory / "admin"))


def _tls(directory: Path) -> TemporalTLS:
    """Files named as in a Secret of cert-manager."""
    return TemporalTLS(
        ca_file=directory / "ca.crt", certificate_file=directory / "tls.crt", private_key_file=directory / "tls.key"
    )


@click.command(help="Compare the landscape's dev server with the Temporal cluster of docker-compose.yaml.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--flows", default=30, show_default=True, type=click.IntRange(1, 1000), help="Flows at once.")
@click.option("--cluster", "address", metavar="HOST:PORT", help="A cluster that runs; default: one is started.")
@click.option("--certificate", type=click.Path(path_type=Path), help="Directory with ca.crt, tls.crt and tls.key.")
@click.option("--without-cluster", is_flag=True, help="Measure only the cost of TLS at the dev server.")
@output_option
def main(
    runs: int, flows: int, address: str | None, certificate: Path | None, without_cluster: bool, output: str
) -> None:
    given: AbstractContextManager[TemporalServer | None] = nullcontext(None)
    if address:
        given = nullcontext(TemporalServer(address=address, tls=_tls(certificate) if certificate else None))
    elif not without_cluster:
        given = composed()
    with other_output_on_stderr(), given as cluster:
        found = asyncio.run(measure(cluster, runs, flows))
    emit(report_of("temporal", runs, figures(found), {"flows": flows}), output)


if __name__ == "__main__":
    main()
