"""Workers of the garden and of a seed as processes that are killed at chosen points, and started again.

``python -m tests.chaos.worker ROLE`` takes a ``Setting`` as JSON on the standard input; ROLE is ``garden`` or ``seed``.
The workers have the activities, interceptors and options of the controller-manager and of the gardenlet. Real are also
the watcher that starts a Seed's workflows, and the controller of BackupBuckets; other controllers do not run.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from activities.clusters import Clusters
from api.contracts.flows import ShootRules
from api.contracts.operations import GARDEN_QUEUE, seed_queue
from api.resources import EVENT, Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.kubeconfig import endpoint_of
from tests.chaos.plants import PLANTS
from tests.chaos.points import Moment, Point, Record
from workers.controller_manager.process import _STICKY_SECONDS
from workers.controller_manager.watchers.seeds import SeedWatcher
from workers.gardenlet.backup_buckets import BackupBucketController
from workers.gardenlet.namespace_guard import NamespaceGuard
from workers.lib import registry
from workers.lib.heartbeats import THROTTLE, Heartbeats
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.journal import open_journal
from workers.lib.runtime import configure_logging
from workflows import options
from workflows.seed import BootstrapSeed, DeleteSeed

ROOT = Path(__file__).parents[2]
GARDEN, SEED = "garden", "seed"
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Setting:
    temporal: str
    """Address."""
    garden: dict[str, Any]
    """Kubeconfig of the controller-manager and of the gardenlet."""
    seed: dict[str, Any]
    """Kubeconfig of the gardenlet."""
    seed_name: str
    directory: str
    """Directory of the record."""
    planted: bool = False
    """Whether the gardenlet has the faults of ``PLANTS``."""
    heartbeat: float = 0.0
    """Heartbeat timeout in seconds; 0: the product's."""

    def journal(self, role: str) -> Path:
        return Path(self.directory) / f"journal-{role}"


class Reaper:
    """Kills this process, or the other one, at points that were chosen."""

    def __init__(self, record: Record, role: str) -> None:
        self._record = record
        self._role = role

    def at(self, name: str, moment: Moment) -> None:
        """Kill this process if that point was chosen and no process was killed there."""
        if self._record.meet(point := Point(name, moment)):
            self._record.note("killed", str(point), self._role)
            os.kill(os.getpid(), signal.SIGKILL)

    def between(self, name: str) -> None:
        """Kill the worker of the garden, which runs the workflow, before the end of an activity is reported."""
        if self._record.meet(point := Point(name, Moment.BETWEEN)):
            self._record.note("killed", str(point), GARDEN)
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(int(self._record.pid_file(GARDEN).read_text()), signal.SIGKILL)

    def note(self, what: str, subject: str, attempt: int = 0) -> None:
        self._record.note(what, subject, self._role, attempt)


class Mortal(KubeClient):
    """Notes the writes of activities."""

    reaper: Reaper

    async def _call(self, method: str, res: Resource, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._call(method, res, *args, **kwargs)
        if method in WRITES and res != EVENT and activity.in_activity():
            name = activity.info().activity_type
            Mortal.reaper.note("wrote", name)
            Mortal.reaper.at(name, Moment.AMID)
        return answer


class _Deadly(Interceptor):
    """The innermost interceptor: nothing comes between it and an activity but a planted fault."""

    def __init__(self, reaper: Reaper, role: str) -> None:
        self._reaper = reaper
        self._role = role

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self._reaper, self._role)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, reaper: Reaper, role: str) -> None:
        super().__init__(next)
        self._reaper = reaper
        self._role = role

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        name = activity.info().activity_type
        self._reaper.note("started", name, activity.info().attempt)
        self._reaper.at(name, Moment.BEFORE)
        answer = await super().execute_activity(input)
        self._reaper.at(name, Moment.AFTER)
        if self._role == SEED:
            self._reaper.between(name)
        self._reaper.note("done", name, activity.info().attempt)
        return answer


class _Runner(WorkflowRunner):
    """Runs workflows as the controller-manager does, and dies as it takes the task after an activity of the garden."""

    def __init__(self, inner: WorkflowRunner, reaper: Reaper) -> None:
        self._inner = inner
        self._reaper = reaper

    def prepare_workflow(self, defn: Any) -> None:
        self._inner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        self._inner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(self._inner.create_instance(det), self._reaper)


class _Instance(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, reaper: Reaper) -> None:
        self._inner = inner
        self._reaper = reaper
        self._activities: dict[int, str] = {}

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        ended = [self._activities[job.resolve_activity.seq] for job in act.jobs if job.HasField("resolve_activity")]
        if not act.is_replaying:
            for each in ended:
                self._reaper.at(each, Moment.BETWEEN)
        completion = self._inner.activate(act)
        for command in completion.successful.commands:
            if command.HasField("schedule_activity"):
                self._activities[command.schedule_activity.seq] = command.schedule_activity.activity_type
        if not act.is_replaying and ended:
            self._reaper.note("decided", ", ".join(ended))
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


async def _garden(setting: Setting, reaper: Reaper, temporal: Client) -> None:
    garden = Mortal(endpoint_of(setting.garden))
    caches = Caches(garden)
    worker = Worker(
        temporal,
        task_queue=GARDEN_QUEUE,
        workflows=[BootstrapSeed, DeleteSeed],
        activities=registry.garden_activities(garden, caches, ShootRules()),
        interceptors=[
            *await open_journal(setting.journal(GARDEN), temporal),
            Heartbeats(),
            ActivityInterceptor(),
            _Deadly(reaper, GARDEN),
        ],
        max_heartbeat_throttle_interval=THROTTLE,
        workflow_runner=_Runner(UnsandboxedWorkflowRunner(), reaper),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=_STICKY_SECONDS),
    )
    await asyncio.gather(worker.run(), SeedWatcher(garden, caches, temporal).run())


async def _seed(setting: Setting, reaper: Reaper, temporal: Client) -> None:
    clusters = Clusters(Mortal(endpoint_of(setting.garden)), Mortal(endpoint_of(setting.seed)), setting.seed_name)
    plants = [each(clusters.seed) for each in PLANTS] if setting.planted else []
    worker = Worker(
        temporal,
        task_queue=seed_queue(setting.seed_name),
        activities=registry.seed_activities(clusters, vpn_network="192.168.1.0/24"),
        interceptors=[
            *await open_journal(setting.journal(SEED), temporal),
            Heartbeats(),
            ActivityInterceptor(),
            NamespaceGuard(clusters),
            _Deadly(reaper, SEED),
            *plants,
        ],
        max_heartbeat_throttle_interval=THROTTLE,
    )
    await asyncio.gather(worker.run(), BackupBucketController(clusters).run())


_ROLES = {GARDEN: _garden, SEED: _seed}


async def _live(role: str, setting: Setting) -> None:
    record = Record(Path(setting.directory))
    record.pid_file(role).write_text(str(os.getpid()))
    Mortal.reaper = reaper = Reaper(record, role)
    if setting.heartbeat:
        options.HEARTBEAT = timedelta(seconds=setting.heartbeat)
    temporal = await _connected(setting.temporal)
    reaper.note("up", role)
    run: Coroutine[Any, Any, None] = _ROLES[role](setting, reaper, temporal)
    await run


async def _connected(address: str) -> Client:
    """A client of Temporal, which may not answer yet."""
    while True:
        try:
            return await Client.connect(address, data_converter=pydantic_data_converter)
        except RuntimeError:
            await asyncio.sleep(0.2)


def main(role: str, setting: Setting) -> None:
    """Live in one child after the other: what is imported is imported once."""
    while True:
        child = os.fork()
        if child == 0:
            configure_logging(f"chaos-{role}")
            asyncio.run(_live(role, setting))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"a worker ended by itself: {status}")


@contextlib.asynccontextmanager
async def lives(role: str, setting: Setting, log: Path) -> Any:
    """Processes of one role until the end of the block, each of which follows one that was killed."""
    command = (sys.executable, "-m", "tests.chaos.worker", role)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, cwd=ROOT, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(setting)).encode())
        process.stdin.close()
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


if __name__ == "__main__":
    main(sys.argv[1], Setting(**json.load(sys.stdin)))
