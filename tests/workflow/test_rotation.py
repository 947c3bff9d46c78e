"""A rotation of credentials from its start to its end: what it asks for, what it refuses, whom it names."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from api.operations import GARDEN_QUEUE, ShootRef, seed_queue
from api.rotation import (
    ActiveRotation,
    CompleteRotation,
    Kind,
    Phase,
    RotationInput,
    RotationStep,
    RotationView,
    Survey,
    SurveyReport,
    SurveyRequest,
    User,
)
from workflows.shoot import WORKFLOWS
from workflows.shoot.rotate import ROTATIONS, RotateCertificateAuthorities, rotation_id

SHOOT = ShootRef(namespace="garden-local", name="demo", uid="0f3c")
STARTED = "2026-11-21T10:00:00Z"
NODE = User(who="node n-1", why="has an old certificate", remedy="roll its pool")


class Garden:
    """A Shoot's rotation, and what its workflow has said and asked for."""

    def __init__(self) -> None:
        self.view = RotationView()
        self.changed = asyncio.Event()
        self.users: tuple[User, ...] = ()
        self.reports: list[Survey] = []
        self.asked: list[tuple[str, str]] = []

    def turn(self, kind: Kind, phase: Phase | None, *, owners_turn: bool = True) -> None:
        rotation = ActiveRotation(kind=kind, phase=phase, initiated=STARTED) if phase else None
        self.view = RotationView(seed="s", technical_id="t", rotation=rotation, owners_turn=owners_turn)
        self.changed.set()

    @activity.defn
    async def await_rotation(self, request: RotationInput) -> RotationView:
        while (self.view.rotation.phase if self.view.rotation else None) == request.seen:
            self.changed.clear()
            activity.heartbeat()
            try:
                await asyncio.wait_for(self.changed.wait(), 0.2)
            except TimeoutError:
                continue
        return self.view

    @activity.defn
    async def report_survey(self, request: SurveyReport) -> None:
        self.reports.append(request.survey)

    @activity.defn
    async def request_rotation_step(self, request: RotationStep) -> None:
        self.asked.append((request.operation, request.forced))

    @activity.defn
    async def find_users_of_old_credentials(self, request: SurveyRequest) -> Survey:
        return Survey(users=self.users)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 -- what the workflow does is no event here
                await asyncio.sleep(0.02)


@pytest.fixture
async def garden(env: WorkflowEnvironment) -> AsyncIterator[Garden]:
    garden = Garden()
    mine = [garden.await_rotation, garden.report_survey, garden.request_rotation_step]
    async with (
        Worker(env.client, task_queue=GARDEN_QUEUE, workflows=WORKFLOWS, activities=mine),
        Worker(env.client, task_queue=seed_queue("s"), activities=[garden.find_users_of_old_credentials]),
    ):
        yield garden


async def started(env: WorkflowEnvironment, kind: Kind) -> "WorkflowHandle[Any, None]":
    request = RotationInput(shoot=SHOOT, kind=kind, initiated=STARTED)
    handle: WorkflowHandle[Any, None] = await env.client.start_workflow(
        ROTATIONS[kind].run, request, id=rotation_id(request), task_queue=GARDEN_QUEUE
    )
    return handle


async def complete(handle: "WorkflowHandle[Any, None]", **request: Any) -> str:
    return await handle.execute_update(RotateCertificateAuthorities.complete, CompleteRotation(**request))


CA = Kind.CERTIFICATE_AUTHORITIES


def test_its_id_says_whose_rotation_it_is_and_when_it_was_begun() -> None:
    request = RotationInput(shoot=SHOOT, kind=CA, initiated=STARTED)
    assert rotation_id(request) == f"shoot/garden-local/demo/0f3c/rotate-ca/{STARTED}"


async def test_a_rotation_lives_until_it_is_completed(env: WorkflowEnvironment, garden: Garden) -> None:
    garden.turn(CA, Phase.PREPARING)
    handle = await started(env, CA)
    garden.turn(CA, Phase.PREPARED)
    await garden.until(lambda: garden.reports)

    assert "are being dropped" in await complete(handle)
    assert garden.asked == [("rotate-ca-complete", "")]
    garden.turn(CA, Phase.COMPLETING)
    garden.turn(CA, None)
    await handle.result()


async def test_completing_before_clients_trust_the_new_ca_is_refused(env: WorkflowEnvironment, garden: Garden) -> None:
    """Dropping the old CA too early would cut off every kubelet of the shoot."""
    garden.turn(CA, Phase.PREPARING)
    handle = await started(env, CA)
    await garden.until(lambda: garden.view.rotation)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await complete(handle)
    assert "must be Prepared" in str(refused.value.cause)
    assert garden.asked == []


async def test_one_forgotten_node_holds_the_completion_by_its_name(env: WorkflowEnvironment, garden: Garden) -> None:
    garden.turn(CA, Phase.PREPARED)
    garden.users = (NODE,)
    handle = await started(env, CA)
    await garden.until(lambda: garden.reports)
    assert garden.reports[-1].users == (NODE,)

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await complete(handle)
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "OldCredentialsInUse"
    assert "node n-1 has an old certificate" in cause.message
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await complete(handle, force=True, reason=" ")
    assert "must give a reason" in str(refused.value.cause)
    assert garden.asked == []

    await complete(handle, force=True, reason="it is burnt", by="ann")
    assert garden.asked == [("rotate-ca-complete", "it is burnt (by ann)")]


async def test_who_needs_the_old_ones_is_looked_for_anew_when_asked(env: WorkflowEnvironment, garden: Garden) -> None:
    garden.turn(CA, Phase.PREPARED)
    garden.users = (NODE,)
    handle = await started(env, CA)
    await garden.until(lambda: garden.reports)
    garden.users = ()
    assert await handle.execute_update(RotateCertificateAuthorities.look) == Survey()
    assert garden.reports[-1] == Survey()


async def test_what_needs_no_owner_goes_on_by_itself(env: WorkflowEnvironment, garden: Garden) -> None:
    kind = Kind.ETCD_ENCRYPTION_KEY
    garden.turn(kind, Phase.PREPARING)
    handle = await started(env, kind)
    garden.turn(kind, Phase.PREPARED, owners_turn=False)
    await garden.until(lambda: garden.asked)
    assert garden.asked == [("reconcile", "")]
    garden.turn(kind, None)
    await handle.result()


async def test_a_rotation_outlives_its_worker(env: WorkflowEnvironment) -> None:
    garden = Garden()
    garden.turn(CA, Phase.PREPARING)
    activities = [garden.await_rotation, garden.report_survey, garden.request_rotation_step]
    options: dict[str, Any] = {"task_queue": GARDEN_QUEUE, "workflows": WORKFLOWS, "activities": activities}
    async with Worker(env.client, max_cached_workflows=0, **options):
        handle = await started(env, CA)
        await garden.until(lambda: garden.view.rotation)
    garden.turn(CA, None)
    async with Worker(env.client, max_cached_workflows=0, **options):
        await handle.result()
