"""The process of ``gardener shoot init``: Temporal on a file of the machine, its worker, and the exposure's controller.

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
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.worker import Worker

from activities.provider_local.cloud import Clouds
from activities.provider_local.self_hosted_shoot_exposure import SelfHostedShootExposureActuator
from activities.self_hosted import control_plane
from activities.self_hosted.init import SelfHostedActivities
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import SECRETS, InitTask
from api.resources import SELF_HOSTED_SHOOT_EXPOSURE
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError
from workers.extension.controller import ExtensionController
from workers.lib.codec import data_converter
from workers.lib.heartbeats import THROTTLE, Heartbeats
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.journal import open_journal
from workers.lib.sandbox import workflow_runner
from workers.lib.temporal import TemporalConnectionError, TemporalServer, connect_with
from workers.node_agent.system import System
from workflows.self_hosted.init import InitSelfHostedShoot

TEMPORAL = "/usr/local/bin/temporal"
_QUEUE = "self-hosted"
_START_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class AlreadyRuns(Exception):
    """Another process makes this control plane."""


async def run(task: InitTask, tell: Callable[[str, str], None]) -> None:
    """Start or continue the flow, and wait for its end.

    ``tell`` is called with each step that runs for a while, and with the error of its last attempt, if it had one.

    Raises AlreadyRuns; WorkflowFailureError for an error that a retry does not fix.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_locked(task.directory))
        address = await stack.enter_async_context(temporal(task.directory))
        client = await _connected(address)
        steps = SelfHostedActivities(System(), task)
        worker = Worker(
            client,
            task_queue=_QUEUE,
            workflows=[InitSelfHostedShoot],
            activities=[
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
                steps.write_self_hosted_kubeconfig,
            ],
            interceptors=[
                *await open_journal(task.directory / "journal", client),
                Heartbeats(),
                ActivityInterceptor(),
            ],
            max_heartbeat_throttle_interval=THROTTLE,
            workflow_runner=workflow_runner(),
        )
        serving = asyncio.create_task(serve_exposures(task))
        try:
            async with worker:
                # A flow that has ended runs again: each of its steps finds what there is.
                handle = await client.start_workflow(
                    InitSelfHostedShoot.run,
                    task.exposed,
                    id=f"init/{task.shoot.technical_id}",
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
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def tell_progress(handle: WorkflowHandle[Any, None], tell: Callable[[str, str], None]) -> None:
    """Call ``tell`` as ``run`` says, until cancelled."""
    told: tuple[str, str] | None = None
    while True:
        description = await handle.describe()
        for step in description.raw_description.pending_activities:
            name = step.activity_type.name.replace("_self_hosted", "").replace("_", " ")
            if (now := (name, step.last_failure.message)) != told:
                tell(*now)
                told = now
        await asyncio.sleep(_LOOK_SECONDS)


async def serve_exposures(task: InitTask) -> None:
    """Reconcile exposures in the new cluster, once it serves them, until cancelled."""
    while True:
        with contextlib.suppress(FileNotFoundError, ApiError):
            text = FileSecrets(task.directory / SECRETS).get(control_plane.ADMIN)["kubeconfig"].decode()
            async with KubeClient.from_kubeconfig(text) as client:
                await client.list(SELF_HOSTED_SHOOT_EXPOSURE)
                break
        await asyncio.sleep(_LOOK_SECONDS)
    async with KubeClient.from_kubeconfig(text) as client:
        caches, clouds = Caches(client), Clouds()
        try:
            actuator = SelfHostedShootExposureActuator(client, clouds)
            await ExtensionController(client, caches, actuator, interruptible=True).run()
        finally:
            await caches.close()
            await clouds.close()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRuns(f"another process makes the control plane in {directory}: wait for its end") from None
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
