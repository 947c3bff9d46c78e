"""A Project with many tasks does not delay the tasks of others, on the real server."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import Priority
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from api.contracts.operations import ShootRef, lifecycle_id
from tests.workflow.world import World
from workflows import fairness
from workflows.shoot.decision import FlowKind
from workflows.shoot.lifecycle import operation_id

SHOOTS = 40


async def test_all_workflows_of_a_shoot_have_the_key_of_its_project(world: World) -> None:
    """The operation is a child of the lifecycle, and the lifecycle then continues as new."""
    await world.wake()
    await world.until(lambda: bool(world.finished))
    await world.resting("")
    runs = [each.run_id async for each in world.client.list_workflows(f"WorkflowId = '{lifecycle_id(world.shoot)}'")]
    assert len(runs) > 1

    ids = [(lifecycle_id(world.shoot), each) for each in runs]
    for id_, run in [*ids, (operation_id(world.shoot, FlowKind.RECONCILE, 1, 1), None)]:
        begun, *_ = (await world.client.get_workflow_handle(id_, run_id=run).fetch_history()).events
        assert begun.workflow_execution_started_event_attributes.priority.fairness_key == "garden-local"


@workflow.defn
class Lifecycle:
    @workflow.run
    async def run(self, queue: str, operates: bool) -> None:
        if not operates:
            workflow.continue_as_new(args=[queue, True])
        await workflow.execute_child_workflow(Operation.run, queue, id=f"{workflow.info().workflow_id}/operation")


@workflow.defn
class Operation:
    @workflow.run
    async def run(self, queue: str) -> None:
        await workflow.execute_activity("act", task_queue=queue, start_to_close_timeout=timedelta(minutes=1))


@pytest.mark.parametrize("fair", [True, False])
async def test_a_project_with_many_tasks_does_not_delay_another_one(temporal: Client, fair: bool) -> None:
    """Without keys, tasks run in the order in which they came."""
    name = uuid.uuid4().hex[:8]
    garden, seed = f"garden-{name}", f"seed-{name}"
    ran: list[str] = []

    @activity.defn
    async def act() -> None:
        ran.append((activity.info().workflow_id or "").split("/")[1])

    async def backlog(count: int) -> None:
        """Wait until that many tasks of the seed wait for a worker."""
        query = f"WorkflowType = 'Operation' AND TaskQueue = '{garden}' AND ExecutionStatus = 'Running'"
        async with asyncio.timeout(60):
            waiting = 0
            while waiting < count:
                await asyncio.sleep(0.3)
                listed = [each.id async for each in temporal.list_workflows(query)]
                described = [await temporal.get_workflow_handle(each).describe() for each in listed]
                waiting = sum(len(each.raw_description.pending_activities) for each in described)

    async def start(project: str, number: int) -> None:
        shoot = ShootRef(namespace=project, name=f"s-{number}", uid=name)
        await temporal.start_workflow(
            Lifecycle.run,
            args=[seed, False],
            id=lifecycle_id(shoot),
            task_queue=garden,
            priority=fairness.of_shoot(shoot) if fair else Priority.default,
        )

    async with Worker(
        temporal,
        task_queue=garden,
        workflows=[Lifecycle, Operation],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        for number in range(SHOOTS):
            await start("garden-poisoned", number)
        await backlog(SHOOTS)
        await start("garden-other", 0)
        await backlog(SHOOTS + 1)
        async with Worker(temporal, task_queue=seed, activities=[act], max_concurrent_activities=1):
            async with asyncio.timeout(60):
                while len(ran) <= SHOOTS:  # noqa: ASYNC110 -- what activities do is no event
                    await asyncio.sleep(0.02)

    place = ran.index("garden-other")
    assert place < SHOOTS / 4 if fair else place > SHOOTS * 3 / 4, ran
