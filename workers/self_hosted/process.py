"""The process of ``gardener shoot init``, ``join`` and ``renew``: Temporal on a file of the machine, and its worker.

There is no garden and no cluster yet whose Temporal could keep the flow. So the machine has one of its own: it listens
on the loopback address while this process runs, and ends with it, also by SIGKILL. The flow is in a file, so the next
process continues it.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.self_hosted.init import SelfHostedActivities
from activities.self_hosted.join import JoinActivities
from api.contracts.self_hosted import InitTask, JoinTask
from workers.lib.codec import data_converter
from workers.lib.heartbeats import THROTTLE, Heartbeats
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.journal import open_journal
from workers.lib.temporal import TemporalConnectionError, TemporalServer, connect_with
from workers.node_agent.system import System
from workflows.self_hosted.init import InitSelfHostedShoot
from workflows.self_hosted.join import JoinSelfHostedShoot
from workflows.self_hosted.renew import RenewSelfHostedShoot

Tell = Callable[[str, str], None]
TEMPORAL = "/usr/local/bin/temporal"
_QUEUE = "self-hosted"
_START_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class AlreadyRuns(Exception):
    """Another process changes this machine."""


async def run_init(task: InitTask, tell: Tell) -> None:
    """Start or continue the flow of ``gardener shoot init``, and wait for its end. See ``_run``."""
    steps = SelfHostedActivities(System(), task)
    activities = [
        steps.restore_self_hosted_keys,
        steps.make_self_hosted_secrets,
        steps.back_up_self_hosted_keys,
        steps.start_self_hosted_kubelet,
        steps.deploy_self_hosted_control_plane,
        steps.wait_self_hosted_apiserver,
        steps.deploy_self_hosted_system,
        steps.wait_self_hosted_node,
        steps.deploy_self_hosted_exposure,
        steps.wait_self_hosted_exposure,
        steps.name_self_hosted_apiserver,
        steps.write_self_hosted_kubeconfig,
    ]
    name = f"init/{task.shoot.technical_id}"
    switches = [task.exposed, task.named]
    await _run(task.directory, name, InitSelfHostedShoot.run, switches, InitSelfHostedShoot, activities, tell)


async def run_renewal(task: InitTask, tell: Tell) -> None:
    """Start or continue the flow of ``gardener shoot renew``, and wait for its end. See ``_run``."""
    steps = SelfHostedActivities(System(), task)
    activities = [
        steps.make_self_hosted_secrets,
        steps.deploy_self_hosted_control_plane,
        steps.start_self_hosted_kubelet,
        steps.wait_self_hosted_apiserver,
        steps.wait_self_hosted_pods,
        steps.wait_self_hosted_exposure,
        steps.write_self_hosted_kubeconfig,
    ]
    name = f"renew/{task.shoot.technical_id}"
    await _run(task.directory, name, RenewSelfHostedShoot.run, [task.exposed], RenewSelfHostedShoot, activities, tell)


async def run_join(directory: Path, task: JoinTask, tell: Tell) -> None:
    """Start or continue the flow of ``gardener shoot join``, and wait for its end. See ``_run``."""
    steps = JoinActivities(System(), task)
    activities = [steps.start_joining_kubelet, steps.wait_joining_node]
    name = f"join/{task.join.shoot.technical_id}"
    await _run(directory, name, JoinSelfHostedShoot.run, [], JoinSelfHostedShoot, activities, tell)


async def _run(
    directory: Path,
    name: str,
    start: Callable[..., Awaitable[None]],
    arguments: list[bool],
    workflow: type,
    activities: Sequence[Callable[..., Any]],
    tell: Tell,
) -> None:
    """Run a flow of this machine. ``tell`` gets each step that takes long, and the error of its last attempt.

    Raises AlreadyRuns; WorkflowFailureError for an error that a retry does not fix.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_locked(directory))
        client = await _connected(await stack.enter_async_context(temporal(directory)))
        worker = Worker(
            client,
            task_queue=_QUEUE,
            workflows=[workflow],
            activities=activities,
            interceptors=[*await open_journal(directory / "journal", client), Heartbeats(), ActivityInterceptor()],
            max_heartbeat_throttle_interval=THROTTLE,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            # A flow that has ended runs again: each of its steps finds what there is.
            handle = await client.start_workflow(
                start,
                args=arguments,
                id=name,
                task_queue=_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            )
            telling = asyncio.create_task(tell_progress(handle, tell))
            try:
                await handle.result()
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)


async def tell_progress(handle: WorkflowHandle[Any, None], tell: Tell) -> None:
    """Call ``tell`` as ``_run`` says, until cancelled."""
    told: tuple[str, str] | None = None
    while True:
        description = await handle.describe()
        for step in description.raw_description.pending_activities:
            name = step.activity_type.name.replace("_self_hosted", "").replace("_joining", "").replace("_", " ")
            if (now := (name, step.last_failure.message)) != told:
                tell(*now)
                told = now
        await asyncio.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRuns(f"another process works in {directory}: wait for its end") from None
        yield


@contextlib.asynccontextmanager
async def temporal(directory: Path) -> AsyncIterator[str]:
    """Address of a Temporal whose data are a file in ``directory``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(TEMPORAL, "server", "start-dev", "--headless", "--ip=127.0.0.1", f"--port={port}"),
        *(f"--db-filename={directory / 'temporal.db'}", "--log-level=error"),
        *("--sqlite-pragma=journal_mode=wal", "--sqlite-pragma=synchronous=1"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _end_with_parent() -> None:
    """Let the kernel end this child when its parent ends, however that ends: the next one needs the file."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)


async def _connected(address: str) -> Client:
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                return await connect_with(TemporalServer(address=address), data_converter(None))
            except TemporalConnectionError:
                await asyncio.sleep(0.2)
