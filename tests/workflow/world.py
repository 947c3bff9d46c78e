"""A garden with one Shoot and a seed, in memory: activities that only record that they ran."""

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, cast

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from activities.garden.flows import FlowActivities
from api.contracts.flows import (
    FinishOperation,
    FlowId,
    LastOperation,
    RecordRepair,
    Refusal,
    ReportProgress,
    ShootFacts,
    ShootView,
    StartedOperation,
    StartOperation,
    Survey,
)
from api.contracts.operations import (
    GARDEN_QUEUE,
    OperationType,
    ResealShootState,
    ShootRef,
    ShootTask,
    TaskResult,
    lifecycle_id,
    seed_queue,
)
from api.contracts.schedules import ScheduledTime
from kube.client import KubeClient
from tests.sandbox import SANDBOX
from tests.workflow.rotation_garden import RotationGarden
from workflows import fairness
from workflows.garden import WORKFLOWS
from workflows.shoot.decision import LifecycleState
from workflows.shoot.lifecycle import LifecycleInput, LifecycleProgress, ShootLifecycle

SHOOT = ShootRef(namespace="garden-local", name="demo", uid="0f3c")
SEED = "seed-1"
DESTINATION = "seed-2"
VERSION = "v0"
_THROTTLE = timedelta(milliseconds=100)
"""A cancellation reaches a task as the answer to its next heartbeat that is sent."""
Behaviour = Callable[[], Awaitable[None]]


class _Own(Interceptor):
    """Accepts activities of workflows of one Shoot alone.

    A flow that began as its test ended may not be listed yet when all are terminated, and continues in the next test.
    """

    def __init__(self, shoot: ShootRef) -> None:
        self._id = lifecycle_id(shoot)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _OwnInbound(next, self._id)


class _OwnInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, id_: str) -> None:
        super().__init__(next)
        self._id = id_

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        workflow = activity.info().workflow_id or ""
        if workflow.startswith("shoot/") and not workflow.startswith(self._id):
            raise ApplicationError(f"{workflow} is of a test before this one", non_retryable=True)
        return await super().execute_activity(input)


class World:
    """Plays the garden's and the seed's activities. Everything that happens is written to ``log``."""

    def __init__(self, client: Client, uid: str = SHOOT.uid, seed: str = SEED) -> None:
        """``seed``: of the Shoot; activities are only played for the seed ``SEED``."""
        self.client = client
        self.seed = seed
        self.shoot = SHOOT.model_copy(update={"uid": uid})
        self.view: ShootView | None = ShootView(generation=1, spec_seed=seed, our_version=VERSION)
        self.facts = ShootFacts(credentials="1")
        self.survey_result = Survey(
            namespace=True, cluster=True, control_plane=True, controller_manager=True, api_server=True, backups=True
        )
        self.log: list[str] = []
        self.triggers: dict[str, list[str]] = defaultdict(list)
        self.finished: list[FinishOperation] = []
        self.refusals: list[Refusal] = []
        self.resealed: list[tuple[str, tuple[str, ...]]] = []
        """For which seed a ShootState was sealed, and whose were accepted."""
        self.behaviours: dict[str, Behaviour] = {}
        self.rotation = RotationGarden()
        self.trouble = asyncio.Event()
        self.runs: dict[str, int] = defaultdict(int)
        self.tasks: dict[tuple[str, str], int] = defaultdict(int)
        """The same by the workflow's type and the task's name: a move has one activity in both seeds."""
        self.every_task: Callable[[int], Awaitable[None]] | None = None
        """Behaviour of each task, by the number of its run."""
        self.begun: dict[str, list[float]] = defaultdict(list)
        """When the attempts of a task began (monotonic seconds)."""
        self.repairs: list[RecordRepair] = []
        self._real = FlowActivities(cast(KubeClient, None))
        """Only its methods that need nothing but Temporal are used."""
        self._closing = asyncio.Event()
        self._stack = AsyncExitStack()
        self._seed_worker: Worker | None = None

    async def __aenter__(self) -> "World":
        own = [_Own(self.shoot)]
        await self._stack.enter_async_context(
            Worker(
                self.client,
                task_queue=GARDEN_QUEUE,
                workflows=WORKFLOWS,
                activities=[
                    self.look_at_shoot,
                    self.await_earlier_operations,
                    self.abandon_source,
                    self.start_operation,
                    self.finish_operation,
                    self.refuse_operation,
                    self.release_shoot,
                    self.report_progress,
                    self.await_trouble,
                    *self.rotation.of_garden,
                    self.record_repair,
                    self.reseal_shoot_state,
                    self._real.edit_flow,
                    self._real.read_outcome,
                    self.switch_hibernation,
                    self.maintain_shoot,
                ],
                max_heartbeat_throttle_interval=_THROTTLE,
                workflow_runner=SANDBOX,
                interceptors=own,
            )
        )
        for seed in (SEED, DESTINATION):
            await self._stack.enter_async_context(
                Worker(
                    self.client,
                    task_queue=seed_queue(seed),
                    activities=[self.survey, self.rotation.find_users_of_old_credentials, self.anything],
                    max_heartbeat_throttle_interval=_THROTTLE,
                    interceptors=own,
                )
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()  # their heartbeats would report it only after a while
        await self._end_all()
        await self._stack.aclose()

    async def _unless_closing(self, behaviour: Awaitable[None]) -> None:
        behaving, closing = asyncio.ensure_future(behaviour), asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({behaving, closing}, return_when=asyncio.FIRST_COMPLETED)
            if behaving.done():
                behaving.result()
        finally:
            closing.cancel()
            behaving.cancel()

    async def _end_all(self) -> None:
        """A server may have other tests after this one: none of its workflows may run in theirs."""
        while left := [each async for each in self.client.list_workflows('ExecutionStatus = "Running"')]:
            for each in left:
                with contextlib.suppress(RPCError):  # it ended by itself
                    await self.client.get_workflow_handle(each.id).terminate("end of test")
            await asyncio.sleep(0.05)

    # What tests do

    async def wake(self, memory: LifecycleState | None = None) -> "WorkflowHandle[ShootLifecycle, None]":
        """Like the watcher: signal with start. With a memory: a lifecycle that continues with it."""
        return await self.client.start_workflow(
            ShootLifecycle.run,
            LifecycleInput(shoot=self.shoot, memory=memory or LifecycleState(), continued=memory is not None),
            id=lifecycle_id(self.shoot),
            task_queue=GARDEN_QUEUE,
            start_signal="wake",
            priority=fairness.of_shoot(self.shoot),
        )

    def change(self, **fields: Any) -> None:
        assert self.view is not None
        self.view = self.view.model_copy(update=fields)

    def fail_always(self, task: str, type_: str, message: str = "it does not work") -> None:
        async def fail() -> None:
            raise ApplicationError(message, type=type_, non_retryable=True)

        self.behaviours[task] = fail

    def fail_times(self, task: str, times: int, type_: str = "NotReady") -> None:
        async def fail() -> None:
            if self.runs[task] <= times:
                raise ApplicationError("not yet", type=type_)

        self.behaviours[task] = fail

    def hold(self, task: str) -> asyncio.Event:
        """The task runs, and heartbeats, until the returned event is set."""
        gate = asyncio.Event()

        async def wait() -> None:
            while not gate.is_set():
                activity.heartbeat()
                try:
                    await asyncio.wait_for(gate.wait(), 0.2)
                except TimeoutError:
                    continue

        self.behaviours[task] = wait
        return gate

    def mend(self, task: str) -> None:
        self.behaviours.pop(task, None)

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 -- what the activities play is no event
                await asyncio.sleep(0.02)

    async def resting(self, words: str) -> LifecycleProgress:
        """The lifecycle's answer, once it rests for this reason."""
        handle = self.client.get_workflow_handle(lifecycle_id(self.shoot))
        async with asyncio.timeout(60):
            while True:
                progress = await handle.query("progress", result_type=LifecycleProgress)
                if words in progress.resting:
                    return progress
                await asyncio.sleep(0.05)

    def ran(self, task: str) -> int:
        return self.log.count(task)

    # The garden's activities

    @activity.defn
    async def look_at_shoot(self, shoot: ShootRef) -> ShootView | None:
        return self.view

    @activity.defn
    async def abandon_source(self, shoot: ShootRef) -> None:
        self.log.append("abandon_source")
        assert self.view is not None
        self.change(
            status_seed=self.view.spec_seed,
            source_lost=False,
            last_operation=LastOperation(type=OperationType.MIGRATE, state="Aborted", updated=datetime.now(UTC)),
        )

    @activity.defn
    async def await_earlier_operations(self, shoot: ShootRef) -> None:
        self.log.append("await_earlier_operations")

    @activity.defn
    async def start_operation(self, request: StartOperation) -> StartedOperation:
        assert self.view is not None
        now = datetime.now(UTC)
        self.log.append(f"start {request.operation} {request.attempt}")
        left = tuple(each for each in self.view.operations if each not in request.consume)
        seed = self.view.status_seed or self.view.spec_seed or self.seed
        self.change(
            observed_generation=self.view.generation,
            gardener_version=VERSION,
            uid_recorded=True,
            status_seed=seed,
            operations=left,
            last_operation=LastOperation(type=request.operation, state="Processing", updated=now),
        )
        task = ShootTask(
            shoot=self.shoot,
            technical_id="shoot--local--demo",
            seed=seed,
            generation=self.view.generation,
            operation=request.operation,
            destination=(self.view.prepared_at or self.view.spec_seed or "")
            if request.operation is OperationType.MIGRATE
            else "",
            trigger=f"trigger-{self.view.generation}-{request.attempt}",
        )
        return StartedOperation(task=task, facts=self.facts, started=now, retry_cycle_start=now)

    @activity.defn
    async def finish_operation(self, request: FinishOperation) -> None:
        self.finished.append(request)
        self.log.append(f"{request.task.operation} {request.state}")
        if request.falls_back:
            self.facts = self.facts.model_copy(update={"live": False, "fell_back": True})
        if request.task.operation is OperationType.MIGRATE and request.state == "Succeeded" and self.view:
            self.change(status_seed=request.task.destination, prepared_at="")
        self.change(
            last_operation=LastOperation(type=request.task.operation, state=request.state, updated=datetime.now(UTC))
        )

    @activity.defn
    async def refuse_operation(self, request: Refusal) -> None:
        self.refusals.append(request)
        assert self.view is not None
        self.change(operations=tuple(each for each in self.view.operations if each not in request.consume))

    @activity.defn
    async def record_repair(self, request: RecordRepair) -> None:
        self.repairs.append(request)
        assert self.view is not None
        wish = request.repair.model_copy(update={"at": None})
        self.change(repairs=tuple(each for each in self.view.repairs if each != wish))

    @activity.defn
    async def release_shoot(self, shoot: ShootRef) -> None:
        self.log.append("release_shoot")
        self.view = None

    @activity.defn
    async def report_progress(self, request: ReportProgress) -> None:
        return None

    @activity.defn
    async def await_trouble(self, flow: FlowId) -> TaskResult:
        while not self.trouble.is_set():
            activity.heartbeat()
            try:
                await asyncio.wait_for(self.trouble.wait(), 0.2)
            except TimeoutError:
                continue
        return TaskResult()

    @activity.defn
    async def switch_hibernation(self, request: ScheduledTime) -> TaskResult:
        self.log.append("switch_hibernation")
        return TaskResult(note="hibernate at 0 20 * * * UTC")

    @activity.defn
    async def maintain_shoot(self, request: ScheduledTime) -> TaskResult:
        self.log.append("maintain_shoot")
        return TaskResult(note="there was nothing to update")

    # The seed's activities

    @activity.defn
    async def survey(self, task: ShootTask) -> Survey:
        return self.survey_result

    @activity.defn(dynamic=True)
    async def anything(self, args: Sequence[RawValue]) -> TaskResult:
        name = activity.info().activity_type
        self.runs[name] += 1
        self.log.append(name)
        self.begun[name].append(time.monotonic())
        if trigger := json.loads(args[0].payload.data).get("trigger"):
            self.triggers[name].append(trigger)
        return await self._play(name, args)

    @activity.defn
    async def reseal_shoot_state(self, request: ResealShootState) -> TaskResult:
        self.resealed.append((request.seed, request.sources))
        self.runs["reseal_shoot_state"] += 1
        self.log.append("reseal_shoot_state")
        self.begun["reseal_shoot_state"].append(time.monotonic())
        return await self._play("reseal_shoot_state")

    async def _play(self, name: str, args: Sequence[RawValue] = ()) -> TaskResult:
        info = activity.info()
        task_name = info.workflow_type or "", info.activity_id
        if task_name == ("MigrateShoot", "deploy_source_backup_entry_there"):
            self.change(prepared_at=activity.payload_converter().from_payload(args[0].payload, ShootTask).seed)
        self.tasks[task_name] += 1
        if self.every_task:
            await self.every_task(self.tasks[task_name])
        if behaviour := self.behaviours.get(name):
            await self._unless_closing(behaviour())
        return TaskResult(secrets=(f"secret-of-{name}",))


def operation(type_: OperationType, state: str) -> LastOperation:
    return LastOperation(type=type_, state=state, updated=datetime.now(UTC))
