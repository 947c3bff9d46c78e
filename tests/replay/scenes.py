"""Scenes of the corpus: each workflow type with each of its outcomes, played against a real Temporal server.

Flows are played task by task from their graphs, so that a new task has its scenes without a line here. The lifecycle's
scenes are the tests of the lifecycle (``tests/workflow``). Activities do nothing: histories hold no secret values.
"""

import asyncio
import contextlib
import inspect
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    UnsandboxedWorkflowRunner,
    Worker,
)

from activities.provider_local.operations import ExtensionTask
from api.constants import TASK_RESTART_CONTROL_PLANE_PODS
from api.contracts.flows import Attempt, FinishedTask, FlowInput, FlowOutcome, SeedFlowInput, ShootFacts, Survey
from api.contracts.operations import GARDEN_QUEUE, OperationType, SeedTask, ShootTask, TaskResult, seed_queue
from api.contracts.repair import Action, Repair
from api.contracts.rotation import ActiveRotation, CompleteRotation, Kind, Phase, User
from api.contracts.schedules import ScheduledShoot
from api.decisions.registrations import Phase as ExtensionPhase
from api.decisions.rotation import COMPLETION
from tests.replay.record import SCENES
from tests.temporal_dev_server import TEMPORAL
from tests.workflow import test_every_task, test_lifecycle, test_repair
from tests.workflow.rotation_garden import RotationGarden
from tests.workflow.world import DESTINATION, SEED, SHOOT, World
from workflows import provider_local, visibility
from workflows.earlier import ReconcileSeed
from workflows.flow import Flow, failed_outcome
from workflows.garden import WORKFLOWS
from workflows.provider_local import options as provider_options
from workflows.seed import SEED_FLOWS
from workflows.shoot.decision import FlowKind
from workflows.shoot.flows import ALL_EXISTS, FLOWS
from workflows.shoot.hibernation import SwitchHibernation
from workflows.shoot.maintenance import MaintainShoot
from workflows.shoot.rotate import ROTATIONS

Found = tuple[str, str, WorkflowHistory]
"""Workflow type, name of the history, history."""

_AT_ONCE = timedelta(milliseconds=20)
_THROTTLE = timedelta(milliseconds=100)
_AT_A_TIME = 16
_SECONDS = 400
"""Limit for one scene. The longest one waits for three heartbeat timeouts of 10 s each."""


@asynccontextmanager
async def _server(**dynamic: int) -> AsyncIterator[Client]:
    """A server of its own, with values of its dynamic configuration."""
    speed = [f"history.{each}ProcessorMaxPollRPS=2000" for each in ("transfer", "timer", "visibility")]
    values = [*speed, *(f"{key.replace('__', '.')}={value}" for key, value in dynamic.items())]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL),
        data_converter=pydantic_data_converter,
        search_attributes=visibility.ALL,
        dev_server_log_level="error",
        dev_server_extra_args=[part for each in values for part in ("--dynamic-config-value", each)],
    ) as environment:
        yield environment.client


FAULTS: list[str] = []
"""Scenes that went wrong in this process, for example because the machine was too busy."""


def _note(scene: str, error: Exception) -> None:
    FAULTS.append(f"scene {scene}: {type(error).__name__} {error}")


async def play(only: str = "") -> AsyncIterator[Found]:
    """All histories; ``only``: of scenes whose name contains this text. ``FAULTS`` tells which scenes went wrong."""
    for part in (_flows, _lifecycles, _rotations):
        async for found in part(only):
            yield found


# Workflows that are played task by task


@dataclass(frozen=True)
class Subject:
    """One workflow with its input."""

    name: str
    workflow: Any
    request: BaseModel
    tasks: tuple[str, ...]
    """Tasks that run, in the order of their declaration. Without a graph: activities."""
    graph: Flow[Any] | None = None
    survey: Survey = ALL_EXISTS
    queue: str = GARDEN_QUEUE
    rebuild: Callable[[], Flow[Any]] | None = None

    @property
    def points(self) -> dict[str, str]:
        """Tasks at which an operator or a fault interrupts the workflow."""
        return {"first": self.tasks[0], "middle": self.tasks[(len(self.tasks) - 1) // 2], "last": self.tasks[-1]}


_OPERATIONS = {
    "create": (FlowKind.RECONCILE, OperationType.CREATE),
    "reconcile": (FlowKind.RECONCILE, OperationType.RECONCILE),
    "restore": (FlowKind.RESTORE, OperationType.RESTORE),
    "migrate": (FlowKind.MIGRATE, OperationType.MIGRATE),
    "delete": (FlowKind.DELETE, OperationType.DELETE),
    "force-delete": (FlowKind.FORCE_DELETE, OperationType.DELETE),
    "forget": (FlowKind.FORGET, OperationType.MIGRATE),
    "delete-backups": (FlowKind.DELETE_BACKUPS, OperationType.DELETE),
}
_FACTS = ShootFacts(credentials="1", managed_issuer=True, ssh_access=False)
_EXTENSIONS: dict[str, str] = {str(phase): "digest" for phase in ExtensionPhase}
_TWO_PHASES = (Phase.PREPARING, Phase.PREPARING_WITHOUT_WORKERS_ROLLOUT, Phase.COMPLETING)
_SHAPES: dict[str, dict[str, Any]] = {
    "workerless": {"workerless": True},
    "hibernated": {"hibernated": True},
    "without-backup": {"backup": False},
    "skip-readiness": {"skip_readiness": True},
    "extended": {"extensions": _EXTENSIONS, "container_runtimes": True},
    "extended-hibernated": {"extensions": _EXTENSIONS, "hibernated": True},
    "fault-tolerant": {"failure_tolerance": True, "managed_issuer": False, "ssh_access": True},
    "restarting": {"tasks": (TASK_RESTART_CONTROL_PLANE_PODS,)},
    **{
        f"rotating-{kind}-{phase}": {"rotations": (ActiveRotation(kind=kind, phase=phase, initiated="t"),)}
        for kind in Kind
        for phase in _TWO_PHASES
    },
}
"""Facts of Shoots for which flows have other tasks."""
_DELETIONS: dict[str, dict[str, Any]] = {
    name: _SHAPES[name] for name in ("workerless", "hibernated", "extended", "without-backup")
} | {"skip-cleanup": {"skip_cleanup": True}}
_SURVEYS = {
    "no-namespace": Survey(namespace=False, cluster=False, control_plane=False, controller_manager=False),
    "no-cluster": ALL_EXISTS.model_copy(update={"cluster": False}),
    "no-control-plane": ALL_EXISTS.model_copy(update={"control_plane": False}),
    "no-controller-manager": ALL_EXISTS.model_copy(update={"controller_manager": False}),
    "no-api-server": ALL_EXISTS.model_copy(update={"api_server": False}),
    "backups-handed-over": ALL_EXISTS.model_copy(update={"backups": False}),
}
"""Objects in the seed for which a deletion or a move has other tasks."""


def _operation(what: str, shape: str = "", survey: Survey = ALL_EXISTS, seed: str = SEED, **facts: Any) -> Subject:
    kind, operation = _OPERATIONS[what]
    moves = kind in (FlowKind.MIGRATE, FlowKind.FORGET)
    task = ShootTask(shoot=SHOOT, technical_id="shoot--local--demo", seed=seed, generation=1, operation=operation,
                     destination=DESTINATION if moves else "", trigger="t")  # fmt: skip
    request = FlowInput(task=task, facts=_FACTS.model_copy(update=facts), sources=(DESTINATION, SEED))
    build = partial(FLOWS[kind].build, request, survey)
    graph = build()
    return Subject(
        f"{what}-{shape}" if shape else what,
        FLOWS[kind].workflow,
        request,
        tuple(name for name in graph.names if not graph.skipped(name)),
        graph,
        survey,
        rebuild=build,
    )


def _seed(what: str, seed: str = SEED) -> Subject:
    operation = OperationType.DELETE if what == "delete-seed" else OperationType.RECONCILE
    request = SeedFlowInput(task=SeedTask(name=seed, uid="5eed", generation=1, trigger="t", operation=operation))
    definition = SEED_FLOWS[what]
    build = partial(definition.graph, request)
    graph = build()
    return Subject(what, definition.workflow, request, graph.names, graph, rebuild=build)


FLOW_SUBJECTS = [*(_operation(what) for what in _OPERATIONS), *(_seed(what) for what in SEED_FLOWS)]
"""The flows, each with a Shoot or Seed that has most of its tasks."""


_SCHEDULED = ScheduledShoot(shoot=SHOOT)
_OBJECT = ExtensionTask(namespace="shoot--local--demo", name="demo", uid="e0")
_CLOUD = provider_options.queue(SEED)
STEPS = [
    Subject("switch-hibernation", SwitchHibernation, _SCHEDULED, ("switch_hibernation",)),
    Subject("maintain-shoot", MaintainShoot, _SCHEDULED, ("maintain_shoot",)),
    Subject(
        "reconcile-seed",
        ReconcileSeed,
        SeedTask(name=SEED, uid="5eed", generation=1, trigger="t"),
        (
            "report_seed_processing",
            "deploy_seed_crds",
            "deploy_seed_gateway",
            "deploy_seed_ingress_dns",
            "deploy_backup_bucket",
            "report_seed_ready",
        ),
    ),
    *(
        Subject(name, workflow, _OBJECT, tasks, queue=_CLOUD)
        for name, workflow, tasks in (
            (
                "delete-infrastructure",
                provider_local.DeleteInfrastructure,
                ("delete_cloud_namespace", "wait_cloud_namespace_deleted"),
            ),
            (
                "reconcile-worker",
                provider_local.ReconcileWorker,
                ("deploy_machines", "wait_machines", "remove_unwanted_machines"),
            ),
            ("restore-worker", provider_local.RestoreWorker, ("restore_machines", "deploy_machines")),
            ("delete-worker", provider_local.DeleteWorker, ("delete_machines", "wait_machines_deleted")),
        )
    ),
]
"""Workflows without a graph."""
_WITHOUT_RESULT = ("report_progress", "report_seed_progress", "record_seed_failure")

Task = Callable[[str, int], Awaitable[None]]
"""Behaviour of a task, by its name and the number of its attempt."""


class Stage:
    """One scene: one workflow id, and what its tasks do. ``handles`` are the runs that the corpus keeps."""

    def __init__(self, theatre: "Theatre", subject: Subject, name: str) -> None:
        self.theatre, self.subject, self.name = theatre, subject, name
        self.id = f"corpus/{name}"
        self.task: Task = _nothing
        self.begun: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self.handles: dict[str, WorkflowHandle[Any, Any]] = {}

    async def start(self, name: str = "", *, queue: str = "", **request: Any) -> WorkflowHandle[Any, Any]:
        handle: WorkflowHandle[Any, Any] = await self.theatre.client.start_workflow(
            self.subject.workflow.run,
            self.subject.request.model_copy(update=request),
            id=self.id,
            task_queue=queue or self.subject.queue,
        )
        run = self.theatre.client.get_workflow_handle(self.id, run_id=handle.result_run_id)
        self.handles[name or self.name] = run
        return run

    async def runs(self, task: str) -> None:
        """Wait until a task runs."""
        while not self.begun[task]:
            self.changed.clear()
            await self.changed.wait()

    def hold(self, *tasks: str) -> asyncio.Event:
        """The tasks run until the returned event is set."""
        gate = asyncio.Event()

        async def wait(task: str, attempt: int) -> None:
            while task in tasks and not gate.is_set():
                activity.heartbeat()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await gate.wait()

        self.task = wait
        return gate

    def fail(self, task: str) -> None:
        """The task fails for good."""

        async def fail(name: str, attempt: int) -> None:
            if name == task:
                raise ApplicationError("it does not work", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)

        self.task = fail


async def _nothing(task: str, attempt: int) -> None:
    return None


class Theatre:
    """Workers of the garden, of both seeds and of provider-local; their activities do what the scene says."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stages: dict[str, Stage] = {}
        self.closing = asyncio.Event()

    @activity.defn(dynamic=True)
    async def act(self, args: Sequence[RawValue]) -> Any:
        info = activity.info()
        stage = self.stages[info.workflow_id or ""]
        called = info.activity_type.removeprefix("provider_local.")
        name = called if info.activity_id.isdigit() else info.activity_id
        stage.begun[name] += 1
        stage.changed.set()
        if info.activity_type not in _WITHOUT_RESULT:
            await stage.task(name, info.attempt)
        if info.activity_type == "survey":
            return stage.subject.survey
        if info.activity_type in _WITHOUT_RESULT or stage.subject.queue == _CLOUD:
            return False if called == "delete_cloud_namespace" else None
        # A flow deletes Secrets that no task has reported, and refuses to if none has reported any.
        return _result(name)

    def worker(self, queue: str, workflows: Sequence[type] = ()) -> Worker:
        return Worker(
            self.client,
            task_queue=queue,
            workflows=workflows,
            activities=[self.act],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_heartbeat_throttle_interval=_THROTTLE,
            max_concurrent_activities=1000,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for queue in (GARDEN_QUEUE, _CLOUD):
                workflows = provider_local.WORKFLOWS if queue == _CLOUD else WORKFLOWS
                await stack.enter_async_context(self.worker(queue, workflows))
            for seed in (SEED, DESTINATION):
                await stack.enter_async_context(self.worker(seed_queue(seed)))
            try:
                yield
            finally:
                self.closing.set()

    async def perform(self, subject: Subject, name: str, outcome: "Outcome") -> list[Found]:
        stage = self.stages[f"corpus/{name}"] = Stage(self, subject, name)
        async with asyncio.timeout(_SECONDS):
            await outcome(stage)
            type_ = subject.workflow.__name__
            return [(type_, each, await handle.fetch_history()) for each, handle in stage.handles.items()]


# Outcomes

Outcome = Callable[[Stage], Awaitable[None]]


async def _ended(handle: WorkflowHandle[Any, Any]) -> FlowOutcome | None:
    """Wait for the end of a workflow; returns the outcome of a failed flow."""
    try:
        await handle.result()
    except WorkflowFailureError as error:
        return failed_outcome(error.cause)
    return None


async def succeeds(stage: Stage) -> None:
    await (await stage.start()).result()


async def retries(stage: Stage) -> None:
    """Each task fails at its first attempt."""

    async def fail(task: str, attempt: int) -> None:
        if attempt == 1:
            raise ApplicationError("not yet", type="NotReady", next_retry_delay=_AT_ONCE)

    stage.task = fail
    await (await stage.start()).result()


async def loses_workers(stage: Stage) -> None:
    """The worker of three tasks dies; Temporal notices it by the missing heartbeats."""
    lost = set(stage.subject.points.values())

    async def die(task: str, attempt: int) -> None:
        if task in lost and attempt == 1 and activity.info().heartbeat_timeout:
            await stage.theatre.closing.wait()

    stage.task = die
    handle = await stage.start()
    # Workers send heartbeats for activities only if these do; these do not.
    await handle.result()


async def moves_to_another_worker(stage: Stage) -> None:
    """The worker that runs the workflow is replaced in its middle; the next worker replays it."""
    middle = stage.subject.points["middle"]
    gate = stage.hold(middle)
    queue = f"{GARDEN_QUEUE}-{stage.name}"
    workflows = provider_local.WORKFLOWS if stage.subject.queue == _CLOUD else WORKFLOWS
    async with stage.theatre.worker(queue, workflows):
        handle = await stage.start(queue=queue)
        await stage.runs(middle)
        if stage.subject.queue == _CLOUD:  # its activities run in the same worker
            gate.set()
    gate.set()
    async with stage.theatre.worker(queue, workflows):
        await handle.result()


def canceled_at(point: str) -> Outcome:
    async def canceled(stage: Stage) -> None:
        task = stage.subject.points[point]
        stage.hold(task)
        handle = await stage.start()
        await stage.runs(task)
        await handle.cancel()
        await _ended(handle)

    return canceled


async def terminated(stage: Stage) -> None:
    task = stage.subject.points["middle"]
    stage.hold(task)
    handle = await stage.start()
    await stage.runs(task)
    await handle.terminate("it stands still")


async def reset(stage: Stage) -> None:
    """An operator resets the workflow to the middle of its history, and it runs from there again."""
    client = stage.theatre.client
    first = await stage.start()
    await first.result()
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    completed = [each.event_id for each in (await first.fetch_history()).events if each.event_type == done]
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=first.id, run_id=first.run_id or ""),
            reason="it took a wrong turn",
            request_id=str(uuid.uuid4()),
            workflow_task_finish_event_id=completed[len(completed) // 2],
        )
    )
    again = stage.handles[stage.name] = client.get_workflow_handle(stage.id, run_id=answer.run_id)
    await again.result()


def fails_in(task: str) -> Outcome:
    async def fails(stage: Stage) -> None:
        stage.fail(task)
        await _ended(await stage.start())

    return fails


def repaired(task: str, how: Action) -> Outcome:
    """The task fails for good, and is repaired. All others have finished before, except for those that it starts."""

    async def repair(stage: Stage) -> None:
        graph = stage.subject.graph
        assert graph is not None
        finished = tuple(
            FinishedTask(name=name, digest=graph.digest(name), result=_result(name), attempt=1, trigger="t")
            for name in stage.subject.tasks
            if name != task and task not in graph.after(name)
        )
        stage.fail(task)
        attempt = Attempt(number=2, trigger="t", kept=FlowOutcome(finished=finished))
        outcome = await _ended(await stage.start(f"{stage.name}-fails", attempt=attempt))
        assert outcome is not None, f"{task} must fail"
        stage.task = _nothing
        if how.by_hand:
            outcome = outcome.model_copy(update={"repairs": (*outcome.repairs, _repair(how, task))})
        attempt = Attempt(number=3, trigger="u", kept=outcome)
        await (await stage.start(f"{stage.name}-{_HOWS[how]}", attempt=attempt)).result()

    return repair


def _result(task: str) -> TaskResult:
    return TaskResult(secrets=(f"secret-of-{task}",))


def _repair(action: Action, task: str = "") -> Repair:
    result = TaskResult(note="done by hand") if action is Action.PROVIDE else None
    return Repair(action=action, task=task, reason="it is night", by="olga", result=result, attempt=3)


def edited(action: Action) -> Outcome:
    """An operator does the work of a task that runs."""

    async def edit(stage: Stage) -> None:
        task = stage.subject.points["middle"]
        stage.hold(task)
        handle = await stage.start()
        await stage.runs(task)
        await handle.execute_update("repair", _repair(action, task))
        await handle.result()

    return edit


async def repaired_beside_others(stage: Stage) -> None:
    """A task fails for good while another one runs; an operator skips it, and the flow continues."""
    graph = stage.subject.graph
    assert graph is not None
    roots = [name for name in stage.subject.tasks if not graph.after(name)]
    middle = stage.subject.points["middle"]
    beside = [
        name
        for name in stage.subject.tasks
        if name != middle and not graph.comes_after(name, middle) and not graph.comes_after(middle, name)
    ]
    held = beside[0] if beside else roots[0]
    gate = stage.hold(held)
    holding = stage.task

    async def fail(task: str, attempt: int) -> None:
        await holding(task, attempt)
        if task == middle:
            raise ApplicationError("it does not work", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)

    stage.task = fail
    handle = await stage.start()
    if beside:
        await stage.runs(held)
        await stage.runs(middle)
        await _until(lambda: _failed(handle, middle))
    else:
        await stage.runs(held)
    await handle.execute_update("repair", _repair(Action.SKIP, middle))
    gate.set()
    await handle.result()


async def _failed(handle: WorkflowHandle[Any, Any], task: str) -> bool:
    progress = await handle.query("progress")
    return any(each["name"] == task for each in progress["failed"])


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 -- a query is no event
        await asyncio.sleep(0.1)


async def paused(stage: Stage) -> None:
    """An operator pauses the flow, and resumes it once nothing runs any more."""
    task = stage.subject.points["middle"]
    gate = stage.hold(task)
    handle = await stage.start()
    await stage.runs(task)
    await handle.signal("pause", _repair(Action.PAUSE))
    gate.set()

    async def stands_still() -> bool:
        progress = await handle.query("progress")
        return bool(progress["paused"]) and all(each["state"] != "Running" for each in progress["tasks"])

    await _until(stands_still)
    await handle.signal("resume", _repair(Action.RESUME))
    await handle.result()


async def runs_out_of_time(stage: Stage) -> None:
    """A task is not ready at the deadline of the attempt."""
    late = stage.subject.points["middle"]

    async def fail(task: str, attempt: int) -> None:
        if task == late:
            raise ApplicationError("not yet", type="NotReady", next_retry_delay=timedelta(seconds=1))

    stage.task = fail
    # Long enough for the tasks before on a busy machine.
    attempt = Attempt(trigger="t", deadline=datetime.now(UTC) + timedelta(seconds=40))
    await _ended(await stage.start(attempt=attempt))


async def unanswered(stage: Stage) -> None:
    """No worker polls the queue of the seed for a while."""
    seed = stage.subject.request.model_dump()["task"]["seed" if stage.subject.name in _OPERATIONS else "name"]
    handle = await stage.start()

    async def noticed() -> bool:
        progress = await handle.query("progress")
        return any(each["unansweredSince"] for each in progress["tasks"])

    if stage.subject.survey is ALL_EXISTS and stage.subject.name in ("migrate", "delete"):
        # The survey waits for the gardenlet without limit: the worker answers it, and is gone for the tasks.
        async with stage.theatre.worker(seed_queue(seed)):
            await stage.runs("survey")
    await _until(noticed)
    async with stage.theatre.worker(seed_queue(seed)):
        await handle.result()


def _everywhere() -> dict[str, Outcome]:
    return {
        "succeeds": succeeds,
        "retries": retries,
        "loses-workers": loses_workers,
        "moves-to-another-worker": moves_to_another_worker,
        "terminated": terminated,
        "reset": reset,
        **{f"canceled-at-{point}": canceled_at(point) for point in ("first", "middle", "last")},
    }


_OF_FLOWS: dict[str, Outcome] = {
    "skipped": edited(Action.SKIP),
    "provided": edited(Action.PROVIDE),
    "repaired-beside-others": repaired_beside_others,
    "paused": paused,
    "runs-out-of-time": runs_out_of_time,
}
_HOWS = {Action.RETRY: "retried", Action.SKIP: "skipped", Action.PROVIDE: "provided"}
_AWAY = "seed-away"


def scenes() -> Iterator[tuple[Subject, str, Outcome]]:
    """Subject, name and outcome of each scene of the flows."""
    # A reconciliation has the tasks of a creation: it only succeeds here, for Shoots of all shapes.
    interrupted = [each for each in FLOW_SUBJECTS if each.name != "reconcile"]
    yield (subject := _operation("reconcile")), "reconcile-succeeds", succeeds
    for subject in [*interrupted, *STEPS]:
        for name, outcome in _everywhere().items():
            yield subject, f"{subject.name}-{name}", outcome
    for subject in STEPS:
        for task in subject.tasks:
            yield subject, f"{subject.name}-{task}-fails", fails_in(task)
    for subject in interrupted:
        for name, outcome in _OF_FLOWS.items():
            yield subject, f"{subject.name}-{name}", outcome
        # A restoration has the tasks of a creation, and a few more.
        known = _operation("create").tasks if subject.name == "restore" else ()
        for number, task in enumerate(task for task in subject.tasks if task not in known):
            yield subject, f"{subject.name}-{task}", repaired(task, list(_HOWS)[number % len(_HOWS)])
    for what in ("create", "migrate", "delete"):
        yield _operation(what, seed=f"{_AWAY}-{what}"), f"{what}-unanswered", unanswered
    for what in SEED_FLOWS:
        yield _seed(what, f"{_AWAY}-{what}"), f"{what}-unanswered", unanswered
    for shape, facts in _SHAPES.items():
        for what in ("create", "restore") if shape.startswith("ext") else ("reconcile",):
            yield (subject := _operation(what, shape, **facts)), f"{subject.name}-succeeds", succeeds
    for shape, facts in _DELETIONS.items():
        for what in ("delete", "migrate"):
            yield (subject := _operation(what, shape, **facts)), f"{subject.name}-succeeds", succeeds
    for shape, survey in _SURVEYS.items():
        for what in ("delete", "migrate"):
            yield (subject := _operation(what, shape, survey)), f"{subject.name}-succeeds", succeeds
    yield (subject := _operation("force-delete", "workerless", workerless=True)), f"{subject.name}-succeeds", succeeds


async def _flows(only: str) -> AsyncIterator[Found]:
    chosen = [each for each in scenes() if only in each[1]]
    if not chosen:
        return
    async with _server() as client:
        theatre, turn = Theatre(client), asyncio.Semaphore(_AT_A_TIME)

        async def perform(subject: Subject, name: str, outcome: Outcome) -> list[Found]:
            async with turn:
                try:
                    return await theatre.perform(subject, name, outcome)
                except Exception as error:
                    _note(name, error)
                    return []

        async with theatre.open():
            for each in asyncio.as_completed([perform(*each) for each in chosen]):
                for history in await each:
                    yield history


# Lifecycles

_TESTS = (test_lifecycle, test_repair, test_every_task)
Scene = Callable[[World], Awaitable[Any]]


def _lifecycle_scenes() -> dict[str, Scene]:
    """The tests of the lifecycle that need only a world, and the scenes of ``record.py``."""
    others = ("rotated", "scheduled", "forgotten", "backups_deleted")  # they have no lifecycle
    found: dict[str, Scene] = {name.replace("_", "-"): each for name, each in SCENES.items() if name not in others}
    for module in _TESTS:
        for name, test in vars(module).items():
            if name.startswith("test_") and list(inspect.signature(test).parameters) == ["world"]:
                found[name.removeprefix("test_").replace("_", "-")] = test
    return found


async def _lifecycles(only: str) -> AsyncIterator[Found]:
    chosen = {name: scene for name, scene in _lifecycle_scenes().items() if only in name}
    if not chosen:
        return
    async with _server() as client:
        for number, (name, scene) in enumerate(sorted(chosen.items())):
            try:
                async with asyncio.timeout(_SECONDS), World(client, uid=f"{number}") as world:
                    await scene(world)
                told = await _told(client, f"shoot/{SHOOT.namespace}/{SHOOT.name}/{number}", name)
            except Exception as error:
                _note(name, error)
                continue
            for each in told:
                yield each


async def _told(client: Client, id_: str, name: str) -> list[Found]:
    """Histories of all runs of a lifecycle, and of its operations that an operator or a fault has interrupted.

    Other operations have the same histories as those that are played task by task.
    """
    try:
        newest = await client.get_workflow_handle(id_).fetch_history()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return []  # the scene plays a cleanup alone, which is played task by task, too
    run = newest.events[0].workflow_execution_started_event_attributes.first_execution_run_id
    lifecycles: list[WorkflowHistory] = []
    while run:
        lifecycles.append(await client.get_workflow_handle(id_, run_id=run).fetch_history())
        run = lifecycles[-1].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    found = [("ShootLifecycle", f"{name}-{number}", each) for number, each in enumerate(lifecycles)]
    children = [
        event.child_workflow_execution_started_event_attributes
        for each in lifecycles
        for event in each.events
        if event.HasField("child_workflow_execution_started_event_attributes")
    ]
    for number, child in enumerate(children):
        execution = child.workflow_execution
        history = await client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id).fetch_history()
        interrupted = any(
            event.HasField(each)
            for event in history.events
            for each in (
                "workflow_execution_signaled_event_attributes",
                "workflow_execution_update_accepted_event_attributes",
                "workflow_execution_cancel_requested_event_attributes",
            )
        )
        if interrupted:
            found.append((child.workflow_type.name, f"{name}-{number}", history))
    return found


# Rotations


@dataclass
class Rotating:
    """One rotation, and the activities that it needs."""

    client: Client
    kind: Kind
    garden: RotationGarden = field(default_factory=RotationGarden)
    faults: set[str] = field(default_factory=set)
    """Activities that fail for good."""
    handle: "WorkflowHandle[Any, None] | None" = None

    async def begin(self, phase: Phase = Phase.PREPARING) -> "WorkflowHandle[Any, None]":
        self.garden.turn(self.kind, phase)
        self.handle = await self.garden.start(self.client, self.kind)
        return self.handle

    async def prepared(self) -> "WorkflowHandle[Any, None]":
        handle = await self.begin()
        self.garden.turn(self.kind, Phase.PREPARED)
        await self.garden.until(lambda: self.garden.reports)
        return handle

    async def end(self) -> None:
        assert self.handle is not None
        self.garden.turn(self.kind, Phase.COMPLETING)
        self.garden.turn(self.kind, None)
        await self.handle.result()

    async def refused(self, **request: Any) -> None:
        assert self.handle is not None
        with contextlib.suppress(WorkflowUpdateFailedError):
            await self.handle.execute_update("complete", CompleteRotation(**request))


async def _completed(rotating: Rotating) -> None:
    handle = await rotating.prepared()
    await handle.execute_update("complete", CompleteRotation())
    await rotating.end()


async def _forced(rotating: Rotating) -> None:
    rotating.garden.users = (User(who="node n-1", why="has an old certificate", remedy="roll its pool"),)
    handle = await rotating.prepared()
    await rotating.refused()
    await handle.execute_update("complete", CompleteRotation(by="ann", force=True, reason="it is burnt"))
    await rotating.end()


async def _unanswered(rotating: Rotating) -> None:
    rotating.garden.unanswered = "namespace t is not there"
    await rotating.begin(Phase.PREPARED)
    while not rotating.garden.reports:
        await rotating.refused()
        rotating.garden.unanswered = ""
        await rotating.refused()
    await rotating.end()


async def _deferred(rotating: Rotating) -> None:
    """The rollout of the worker pools is the owner's turn; other steps the workflow requests."""
    await rotating.begin(Phase.PREPARING_WITHOUT_WORKERS_ROLLOUT)
    rotating.garden.turn(rotating.kind, Phase.WAITING_FOR_WORKERS_ROLLOUT)
    rotating.garden.turn(rotating.kind, Phase.PREPARED, owners_turn=False)
    await rotating.garden.until(lambda: rotating.garden.asked)
    await rotating.end()


async def _looked(rotating: Rotating) -> None:
    handle = await rotating.prepared()
    for _ in range(3):
        await handle.execute_update("look")
    await rotating.end()


async def _canceled(rotating: Rotating) -> None:
    handle = await rotating.prepared()
    await handle.cancel()
    await _ended(handle)


async def _failed_for_good(rotating: Rotating) -> None:
    rotating.faults = {"report_survey"}
    await _ended(await rotating.begin(Phase.PREPARED))


async def _terminated(rotating: Rotating) -> None:
    await (await rotating.prepared()).terminate("the Shoot is gone")


_ROTATIONS = {
    "completed": _completed,
    "forced": _forced,
    "unanswered": _unanswered,
    "deferred": _deferred,
    "looked": _looked,
    "canceled": _canceled,
    "fails": _failed_for_good,
    "terminated": _terminated,
}


_COMPLETING = {"completed", "forced", "unanswered"}
"""Scenes in which the owner completes the rotation. Kinds of one phase are completed by a reconciliation."""


class _Faulty(Interceptor):
    """Activities of a rotation fail at their first attempt, and some for good."""

    def __init__(self, rotating: Rotating) -> None:
        self._rotating = rotating

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _FaultyInbound(next, self._rotating)


class _FaultyInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, rotating: Rotating) -> None:
        super().__init__(next)
        self._rotating = rotating

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if info.activity_type in self._rotating.faults:
            raise ApplicationError("it does not work", type="Refused", non_retryable=True)
        if info.attempt == 1:
            raise ApplicationError("not yet", type="NotReady", next_retry_delay=_AT_ONCE)
        return await super().execute_activity(input)


async def _rotations(only: str) -> AsyncIterator[Found]:
    for server, events in (("", None), ("long-", 12)):
        names = [
            (kind, name)
            for kind in ROTATIONS
            for name in (_ROTATIONS if events is None else ("completed",))
            if only in f"rotate-{server}{name}-{kind}" and (kind in COMPLETION or name not in _COMPLETING)
        ]
        if not names:
            continue
        # A server that suggests after a few events to continue as new.
        limits = {} if events is None else {"limit__historyCount__suggestContinueAsNew": events}
        async with _server(**limits) as client:
            for kind, name in names:
                try:
                    told = [each async for each in _rotation(client, kind, name, f"{server}{name}")]
                except Exception as error:
                    _note(f"{server}{name} of {kind}", error)
                    continue
                for each in told:
                    yield each


async def _rotation(client: Client, kind: Kind, name: str, title: str) -> AsyncIterator[Found]:
    rotating = Rotating(client, kind)
    garden, faulty = rotating.garden, [_Faulty(rotating)]
    async with (
        Worker(client, task_queue=GARDEN_QUEUE, workflows=WORKFLOWS, activities=garden.of_garden, interceptors=faulty,
               workflow_runner=UnsandboxedWorkflowRunner(), max_heartbeat_throttle_interval=_THROTTLE),
        Worker(client, task_queue=seed_queue(SEED), activities=[garden.find_users_of_old_credentials],
               interceptors=faulty),
    ):  # fmt: skip
        async with asyncio.timeout(_SECONDS):
            await _ROTATIONS[name](rotating)
    assert rotating.handle is not None
    run, number = rotating.handle.result_run_id, 0
    while run:
        history = await client.get_workflow_handle(rotating.handle.id, run_id=run).fetch_history()
        yield ROTATIONS[kind].__name__, f"{title}-{number}", history
        run = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        number += 1
