"""A rotation of credentials from its start to its end: its requests, its refusals, and the users that it names."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from api.contracts.operations import GARDEN_QUEUE, seed_queue
from api.contracts.rotation import CompleteRotation, Kind, Phase, RotationInput, RotationView, Survey, User
from tests.workflow.rotation_garden import SHOOT, STARTED, RotationGarden
from workflows.garden import WORKFLOWS
from workflows.shoot.rotate import RotateCertificateAuthorities, rotation_id

NODE = User(who="node n-1", why="has an old certificate", remedy="roll its pool")


@pytest.fixture
async def garden(env: WorkflowEnvironment) -> AsyncIterator[RotationGarden]:
    garden = RotationGarden()
    async with (
        Worker(env.client, task_queue=GARDEN_QUEUE, workflows=WORKFLOWS, activities=garden.of_garden),
        Worker(env.client, task_queue=seed_queue("seed-1"), activities=[garden.find_users_of_old_credentials]),
    ):
        yield garden


async def complete(handle: "WorkflowHandle[Any, None]", **request: Any) -> str:
    return await handle.execute_update(RotateCertificateAuthorities.complete, CompleteRotation(**request))


async def accepted(handle: "WorkflowHandle[Any, None]", number: int = 1) -> None:
    """Wait until the workflow has accepted updates."""
    done = 0
    async for event in handle.fetch_history_events(wait_new_event=True):
        done += event.HasField("workflow_execution_update_accepted_event_attributes")
        if done == number:
            return


CA = Kind.CERTIFICATE_AUTHORITIES


def test_the_workflow_id_names_shoot_and_start_of_the_rotation() -> None:
    request = RotationInput(shoot=SHOOT, kind=CA, initiated=STARTED)
    assert rotation_id(request) == f"shoot/garden-local/demo/0f3c/rotate-ca/{STARTED}"


async def test_a_rotation_lives_until_it_is_completed(env: WorkflowEnvironment, garden: RotationGarden) -> None:
    garden.turn(CA, Phase.PREPARING)
    handle = await garden.start(env.client, CA)
    garden.turn(CA, Phase.PREPARED)
    await garden.until(lambda: garden.reports)

    assert "are being dropped" in await complete(handle)
    assert garden.asked == [("rotate-ca-complete", "")]
    garden.turn(CA, Phase.COMPLETING)
    garden.turn(CA, None)
    await handle.result()


async def test_completing_before_clients_trust_the_new_ca_is_refused(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    """Dropping the old CA too early would cut off every kubelet of the shoot."""
    garden.turn(CA, Phase.PREPARING)
    handle = await garden.start(env.client, CA)
    await garden.until(lambda: garden.view.rotation)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await complete(handle)
    assert "must be Prepared" in str(refused.value.cause)
    assert garden.asked == []


async def test_a_completion_that_comes_before_the_phase_is_known_waits_for_it(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    """A workflow that has just started, or continues as new, has not read the phase yet."""
    handle = await garden.start(env.client, CA)
    async with asyncio.TaskGroup() as group:
        early = group.create_task(complete(handle))
        await accepted(handle)
        garden.turn(CA, Phase.PREPARED)
    assert "are being dropped" in early.result()
    assert garden.asked == [("rotate-ca-complete", "")]


async def test_a_completion_that_waits_for_another_phase_is_refused(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    handle = await garden.start(env.client, CA)
    early = asyncio.create_task(complete(handle))
    await accepted(handle)
    garden.turn(CA, Phase.PREPARING)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await early
    assert "is Preparing, must be Prepared" in str(refused.value.cause)
    assert garden.asked == []


async def test_a_rotation_that_continues_as_new_looks_at_once(
    env: WorkflowEnvironment, garden: RotationGarden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its phase may stay the same for days, and its owner wants to complete it."""
    suggested = iter([True])
    monkeypatch.setattr(workflow.Info, "is_continue_as_new_suggested", lambda _: next(suggested, False))
    garden.turn(CA, Phase.PREPARED)
    handle = await garden.start(env.client, CA)
    await garden.until(lambda: len(garden.reports) == 2)
    assert "are being dropped" in await complete(handle)


async def test_a_rotation_whose_shoot_is_deleted_ends_what_waits_for_its_phase(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    handle = await garden.start(env.client, CA)
    waiting = [asyncio.create_task(each) for each in (handle.execute_update("look"), complete(handle))]
    await accepted(handle, 2)
    garden.forget()
    for each in waiting:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await each
        assert "is over" in str(refused.value.cause)
    await handle.result()


async def test_a_node_with_an_old_certificate_blocks_the_completion_by_name(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    garden.turn(CA, Phase.PREPARED)
    garden.users = (NODE,)
    handle = await garden.start(env.client, CA)
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
    assert "needs a reason" in str(refused.value.cause)
    assert garden.asked == []

    await complete(handle, force=True, reason="it is burnt", by="ann")
    assert garden.asked == [("rotate-ca-complete", "it is burnt (by ann)")]


async def test_a_cluster_that_cannot_be_asked_holds_the_completion_and_ends_no_rotation(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    """It may sleep, or move to another seed, where the old one is asked in vain."""
    garden.turn(CA, Phase.PREPARED)
    garden.unanswered = "namespace t is not there"
    handle = await garden.start(env.client, CA)
    async with asyncio.timeout(20):
        while not (await handle.query("progress", result_type=RotationView)).rotation:  # noqa: ASYNC110 -- a query is no event
            await asyncio.sleep(0.02)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await complete(handle)
    expected = "cannot be asked for users of the old credentials: namespace t is not there; is it hibernated?"
    assert expected in str(refused.value.cause)
    assert garden.asked == []

    garden.unanswered = ""
    await complete(handle)
    assert garden.asked == [("rotate-ca-complete", "")]


async def test_users_of_old_credentials_are_searched_again_on_request(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    garden.turn(CA, Phase.PREPARED)
    garden.users = (NODE,)
    handle = await garden.start(env.client, CA)
    await garden.until(lambda: garden.reports)
    garden.users = ()
    assert await handle.execute_update(RotateCertificateAuthorities.look) == Survey()
    assert garden.reports[-1] == Survey()


async def test_rotations_without_an_owners_step_complete_automatically(
    env: WorkflowEnvironment, garden: RotationGarden
) -> None:
    kind = Kind.ETCD_ENCRYPTION_KEY
    garden.turn(kind, Phase.PREPARING)
    handle = await garden.start(env.client, kind)
    garden.turn(kind, Phase.PREPARED, owners_turn=False)
    await garden.until(lambda: garden.asked)
    assert garden.asked == [("reconcile", "")]
    garden.turn(kind, None)
    await handle.result()


async def test_a_rotation_outlives_its_worker(env: WorkflowEnvironment) -> None:
    garden = RotationGarden()
    garden.turn(CA, Phase.PREPARING)
    options: dict[str, Any] = {"task_queue": GARDEN_QUEUE, "workflows": WORKFLOWS, "activities": garden.of_garden}
    async with Worker(env.client, max_cached_workflows=0, **options):
        handle = await garden.start(env.client, CA)
        await garden.until(lambda: garden.view.rotation)
    garden.turn(CA, None)
    async with Worker(env.client, max_cached_workflows=0, **options):
        await handle.result()
