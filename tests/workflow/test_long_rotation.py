"""A rotation that its owner forgets for 40 days, and one that meets a fault at each of its tasks: both complete.

Shoot, status and phases are the real ones, written by the real activities into a garden in memory; what a seed does is
played.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, cast

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import activities.garden.shoots as garden_shoots
from activities.garden.rotation import GardenRotationActivities
from activities.garden.shoot_states import ShootStateSealingActivities
from activities.garden.shoots import ShootActivities
from activities.secrets.sealing import Sealing
from api import resources
from api.contracts.flows import FinishOperation, FlowId, ReportProgress, ShootRules, StartedOperation, StartOperation
from api.contracts.flows import Survey as Found
from api.contracts.operations import GARDEN_QUEUE, ShootRef, ShootTask, TaskResult, lifecycle_id, seed_queue
from api.contracts.rotation import CompleteRotation, Kind, RotationInput, RotationView, Survey, SurveyRequest, User
from api.decisions.rotation import active, status_of, view_of
from kube.cache import Caches
from kube.client import KubeClient
from tests.workflow.garden import FakeGarden, shoot, surroundings
from tests.workflow.next_version import CHECK_ALERTS, LOOK_AT_ALERTS, NEXT_WORKFLOWS
from workflows.garden import WORKFLOWS
from workflows.shoot.lifecycle import LifecycleInput, ShootLifecycle
from workflows.shoot.rotate import ROTATIONS, RotateCertificateAuthorities, rotation_id

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEMO = ShootRef(namespace="garden-local", name="demo", uid="0f3c")
NODE = User(who="node n-1", why="has an old certificate", remedy="roll its pool")
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
HALF_A_DAY = timedelta(hours=12)
FEW_DAYS = 4 * DAY
_PATIENCE = 100
"""Seconds, of a busy machine."""
_SYNC_PERIOD = timedelta(hours=84)
"""With its jitter less than ``FEW_DAYS``."""


class Clock(datetime):
    """The time of the time-skipping server, for activities that record it."""

    skipped = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Clock":
        return cast(Clock, datetime.now(tz) + cls.skipped)


class Cluster:
    """A Shoot in a garden in memory, and seeds that behave as a test sets it."""

    def __init__(self, env: WorkflowEnvironment) -> None:
        self.env = env
        other = next(each for each in surroundings() if each["kind"] == "Seed")
        other["metadata"] |= {"name": "seed-2", "uid": "5eed-2"}
        self.garden = FakeGarden(shoot(), *surroundings(), other)
        self.users: tuple[User, ...] = ()
        self.runs: Counter[tuple[str, str]] = Counter()
        """By operation and task."""
        self.surveyed: set[str] = set()
        self.alerts_looked_at: Counter[str] = Counter()
        """Runs by the later build, in flows that began with the earlier one."""
        self.faults = 0
        """How often each task of an operation fails."""
        garden = cast(KubeClient, self.garden)
        self._shoots = ShootActivities(garden, cast(Caches, None), ShootRules(sync_period=_SYNC_PERIOD))
        self._rotations = GardenRotationActivities(garden, cast(Caches, None))
        self._shoot_states = ShootStateSealingActivities(garden, Sealing)

    @asynccontextmanager
    async def workers(self) -> AsyncIterator[None]:
        """Those of the garden and of both seeds."""
        async with self.seeds(), self.build():
            yield

    @asynccontextmanager
    async def seeds(self) -> AsyncIterator[None]:
        """Their workers, which know no workflows."""
        activities: list[Callable[..., Any]] = [self.survey, self.find_users_of_old_credentials, self.anything]
        one, other = (
            Worker(self.env.client, task_queue=seed_queue(name), activities=activities) for name in ("seed-1", "seed-2")
        )
        async with one, other:
            yield

    @asynccontextmanager
    async def build(self, workflows: Sequence[type] = WORKFLOWS) -> AsyncIterator[None]:
        """The garden's worker, of the build that has these workflows.

        It remembers nothing: the server that skips time waits for ever for one that does, and is gone.
        """
        shoots, rotations = self._shoots, self._rotations
        played: list[Callable[..., Any]] = [
            self.start_operation,
            self.finish_operation,
            self.await_rotation,
            self.await_earlier_operations,
            self.report_progress,
            self.await_trouble,
            self.look_at_alerts,
        ]
        real: list[Callable[..., Any]] = [
            shoots.look_at_shoot, shoots.refuse_operation,
            rotations.report_survey, rotations.request_rotation_step, self._shoot_states.reseal_shoot_state,
        ]  # fmt: skip
        async with Worker(
            self.env.client,
            task_queue=GARDEN_QUEUE,
            workflows=workflows,
            activities=[*played, *real],
            # Without the sandbox, which the other tests have, a replay costs next to nothing.
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_cached_workflows=0,
        ):
            yield

    # What people and watchers do

    async def live(self) -> dict[str, Any]:
        return await self.garden.get(resources.SHOOT, DEMO.name, DEMO.namespace)

    async def change(self, *operations: str, **spec: Any) -> None:
        """Like ``kubectl``, and the watcher after it."""
        live = await self.live()
        live["spec"] |= spec
        live["metadata"]["generation"] += bool(spec)
        if operations:
            live["metadata"].setdefault("annotations", {})["gardener.cloud/operation"] = ";".join(operations)
        self.garden.put(live)
        await self.wake()

    async def wake(self) -> None:
        await self.env.client.start_workflow(
            ShootLifecycle.run,
            LifecycleInput(shoot=DEMO),
            id=lifecycle_id(DEMO),
            task_queue=GARDEN_QUEUE,
            start_signal="wake",
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

    async def watch(self) -> None:
        """Start rotations, and wake the Shoot where something is asked for."""
        live = await self.live()
        for each in active(status_of(live)):
            request = RotationInput(shoot=DEMO, kind=each.kind, initiated=each.initiated)
            await self.env.client.start_workflow(
                ROTATIONS[each.kind].run,
                request,
                id=rotation_id(request),
                task_queue=GARDEN_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
        if (live["metadata"].get("annotations") or {}).get("gardener.cloud/operation"):
            await self.wake()

    async def succeeded(self, what: str, *, generation: int = 0) -> None:
        """Wait until the last operation is of this type, and has succeeded."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                status = (await self.live()).get("status") or {}
                last = status.get("lastOperation") or {}
                if (
                    (last.get("type"), last.get("state")) == (what, "Succeeded")
                    and status["observedGeneration"] >= generation
                    and not (await self.live())["metadata"].get("annotations")
                ):
                    return
                # What has failed is tried again after a while: that is skipped.
                await (self.env.sleep(SECOND) if self.faults else asyncio.sleep(0.02))

    async def phases(self) -> dict[str, str]:
        rotation = status_of(await self.live())
        return {kind: rotation[kind].get("phase", "") for kind in rotation}

    async def days(self, number: int) -> None:
        """So many, with the reconciliation that every few of them bring."""
        for _ in range(timedelta(days=number) // FEW_DAYS):
            before = self.runs["Reconcile", "deploy_etcds"]
            await self.env.sleep(FEW_DAYS)
            assert self.runs["Reconcile", "deploy_etcds"] > before
            await self.succeeded("Reconcile")

    # Activities

    @activity.defn
    async def start_operation(self, request: StartOperation) -> StartedOperation:
        await self._look_at_the_clock()
        return await self._shoots.start_operation(request)

    @activity.defn
    async def finish_operation(self, request: FinishOperation) -> None:
        await self._look_at_the_clock()
        await self._shoots.finish_operation(request)

    async def _look_at_the_clock(self) -> None:
        Clock.skipped = await self.env.get_current_time() - datetime.now(UTC)

    @activity.defn
    async def await_rotation(self, request: RotationInput) -> RotationView:
        view = view_of(await self.live(), request.kind, request.initiated)
        moved = request.seen_in not in ("", view.seed)
        turned = view.owners_turn != request.seen_turn
        if (view.rotation.phase if view.rotation else None) == request.seen and not moved and not turned:
            raise ApplicationError("is as it was", next_retry_delay=HALF_A_DAY)
        return view

    @activity.defn
    async def await_earlier_operations(self, shoot: ShootRef) -> None:
        return None

    @activity.defn
    async def report_progress(self, request: ReportProgress) -> None:
        return None

    @activity.defn
    async def await_trouble(self, flow: FlowId) -> TaskResult:
        return TaskResult()

    @activity.defn(name=LOOK_AT_ALERTS)
    async def look_at_alerts(self, of: str) -> None:
        self.alerts_looked_at[of] += 1

    @activity.defn
    async def survey(self, task: ShootTask) -> Found:
        return Found(
            namespace=True, cluster=True, control_plane=True, controller_manager=True, api_server=True, backups=True
        )

    @activity.defn
    async def find_users_of_old_credentials(self, request: SurveyRequest) -> Survey:
        self.surveyed.add(request.seed)
        return Survey(users=self.users)

    @activity.defn(dynamic=True)
    async def anything(self, args: Sequence[RawValue]) -> TaskResult:
        info = activity.info()
        name = info.activity_type
        operation = str(json.loads(args[0].payload.data).get("operation", "?"))
        self.runs[operation, name] += 1
        if info.attempt <= self.faults:
            raise ApplicationError("its worker was killed", type="Killed")
        return TaskResult(secrets=(f"secret-of-{name}",))


@pytest.fixture
async def cluster(env: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Clock, "skipped", timedelta())
    monkeypatch.setattr(garden_shoots, "datetime", Clock)
    return Cluster(env)


async def rotate(cluster: Cluster) -> dict[str, Any]:
    """A cluster with all its rotations begun, and its etcd encryption key's ended; the status of that."""
    await cluster.wake()
    await cluster.succeeded("Create")
    await cluster.change("rotate-credentials-start")
    await cluster.succeeded("Reconcile")
    await cluster.watch()
    async with asyncio.timeout(_PATIENCE):
        while (await cluster.phases())[Kind.ETCD_ENCRYPTION_KEY] != "Completed":
            await cluster.watch()
            await cluster.env.sleep(SECOND)
    await cluster.succeeded("Reconcile")
    return dict(status_of(await cluster.live()))


async def complete(cluster: Cluster, begun: dict[str, Any]) -> None:
    """The owner completes the rotation, which then ends."""
    for kind in (Kind.CERTIFICATE_AUTHORITIES, Kind.SERVICE_ACCOUNT_KEY):
        request = RotationInput(shoot=DEMO, kind=kind, initiated=begun[kind]["lastInitiationTime"])
        rotation = cluster.env.client.get_workflow_handle(rotation_id(request))
        assert (await rotation.describe()).status is WorkflowExecutionStatus.RUNNING
        await rotation.execute_update(RotateCertificateAuthorities.complete, CompleteRotation())
        await cluster.watch()
        await cluster.succeeded("Reconcile")
        await cluster.env.sleep(HALF_A_DAY)
        with cluster.env.auto_time_skipping_disabled():
            await asyncio.wait_for(rotation.result(), 60)
        ended = status_of(await cluster.live())[kind]
        assert ended["phase"] == "Completed"
        assert ended["lastInitiationTime"] == begun[kind]["lastInitiationTime"]
        assert ended["lastCompletionTime"] > begun[kind]["lastInitiationFinishedTime"]


async def test_a_rotation_left_alone_for_40_days_completes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconciled again and again, asleep for some days, later on by another version, and moved to another seed.

    The later version is another build of the workflows, in a worker that has seen nothing: it replays what the earlier
    one did, and goes on with a step and a task more.
    """
    cluster.users = (NODE,)
    async with cluster.seeds():
        async with cluster.build():
            begun = await rotate(cluster)
            await cluster.days(8)
            await cluster.change(hibernation={"enabled": True})
            await cluster.succeeded("Reconcile", generation=2)
            await cluster.days(4)
            await cluster.change(hibernation={"enabled": False})
            await cluster.succeeded("Reconcile", generation=3)
            await cluster.days(8)
        waiting = (Kind.CERTIFICATE_AUTHORITIES, Kind.SERVICE_ACCOUNT_KEY)
        request = RotationInput(shoot=DEMO, kind=waiting[0], initiated=begun[waiting[0]]["lastInitiationTime"])
        rotation = cluster.env.client.get_workflow_handle(rotation_id(request))
        run = (await rotation.describe()).run_id
        assert (cluster.runs["Reconcile", CHECK_ALERTS], cluster.alerts_looked_at) == (0, Counter())

        monkeypatch.setattr(garden_shoots, "OWN_VERSION", "v0.2.0")
        async with cluster.build(NEXT_WORKFLOWS):
            await cluster.change(seedName="seed-2")
            await cluster.succeeded("Restore", generation=4)
            await cluster.days(20)
            status = status_of(await cluster.live())
            assert {kind: status[kind] for kind in waiting} == {kind: begun[kind] for kind in waiting}
            assert cluster.runs["Reconcile", CHECK_ALERTS] >= 5
            assert cluster.alerts_looked_at["lifecycle"] >= 5

            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await rotation.execute_update(RotateCertificateAuthorities.complete, CompleteRotation())
            assert "node n-1 has an old certificate" in str(refused.value.cause)
            cluster.users = ()
            assert cluster.alerts_looked_at["rotation"] == 0
            await complete(cluster, begun)
            assert (await cluster.live())["status"]["gardener"]["version"] == "v0.2.0"
        assert cluster.alerts_looked_at["rotation"] == 1
        assert (await rotation.describe()).run_id == run, "begun by the one build, ended by the other"
    assert cluster.surveyed == {"seed-1", "seed-2"}


async def test_a_rotation_whose_tasks_all_fail_once_completes(cluster: Cluster) -> None:
    """As when a worker is killed in the middle of each of them."""
    async with cluster.workers():
        cluster.faults = 1
        begun = await rotate(cluster)
        await complete(cluster, begun)
    assert {number % 2 for (operation, _), number in cluster.runs.items() if operation == "Reconcile"} == {0}
