"""Payloads in Temporal: a seed's key makes nothing that another seed's queue, or the garden's, accepts.

The attacker reaches Temporal without limits, as where no authorizer is before it: it polls any queue, and writes
commands of workflows by hand. It holds the key file of the gardenlet of seed a.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import SerializationContext, WorkflowSerializationContext
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.secrets.keyring import write_key_file
from api.contracts.operations import GARDEN_QUEUE, OperationType, ShootRef, ShootTask, TaskResult, seed_queue
from tests.forged_tasks import of_activity, schedule, sealed
from tests.temporal_dev_server import TEMPORAL
from workers.lib.codec import data_converter, derived_keys

A, B = seed_queue("a"), seed_queue("b")
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id="shoot--local--demo",
    seed="b",
    generation=1,
    operation=OperationType.DELETE,
)
_POLL_SECONDS = 30

pytestmark = pytest.mark.asyncio(loop_scope="module")


@workflow.defn
class Operation:
    """An operation of the garden that has one task on a seed and notes what it is told by signal."""

    def __init__(self) -> None:
        self._told: list[str] = []

    @workflow.run
    async def run(self, queue: str) -> str:
        result: TaskResult = await workflow.execute_activity(
            "sync_cluster", TASK, task_queue=queue, result_type=TaskResult, start_to_close_timeout=timedelta(minutes=1)
        )
        return result.note

    @workflow.signal
    def tell(self, text: str) -> None:
        self._told.append(text)

    @workflow.query
    def told(self) -> list[str]:
        return self._told


class Place:
    """A Temporal with the garden's worker, and what an attacker may do to it."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.root = directory / "root.key"
        write_key_file(self.root)
        for seed in ("a", "b"):
            (directory / f"{seed}.key").write_text(derived_keys(self.root, gardenlet=seed))
        self.ran: list[str] = []

    async def connected(self, key: str, queue: str) -> Client:
        converter = data_converter(self.directory / key, queue)
        return await Client.connect(self.client.service_client.config.target_host, data_converter=converter)

    def gardenlet(self, client: Client, queue: str) -> Worker:
        """Plays two activities of a seed, and writes down what it did."""

        @activity.defn
        async def sync_cluster(task: ShootTask) -> TaskResult:
            self.ran.append("sync_cluster")
            return TaskResult(note=f"done by {queue}")

        @activity.defn
        async def delete_namespace(task: ShootTask) -> TaskResult:
            self.ran.append("delete_namespace")
            return TaskResult()

        return Worker(client, task_queue=queue, activities=[sync_cluster, delete_namespace])

    async def begun(self, queue: str) -> "WorkflowHandle[Operation, str]":
        garden = await self.connected("root.key", GARDEN_QUEUE)
        return await garden.start_workflow(
            Operation.run, queue, id=f"operation/{uuid.uuid4()}", task_queue=GARDEN_QUEUE
        )

    async def sealed_by_a(self, value: Any, context: SerializationContext, claims: str = "") -> Payload:
        """What an attacker with the key file of seed a encrypts, and says of it."""
        return await sealed(value, self.directory / "a.key", A, context, claims)

    async def schedule(self, queue: str, kind: str, argument: Payload) -> None:
        """Have a workflow of the attacker schedule an activity on any queue, with any argument."""
        await schedule(self.client, queue, kind, argument)

    async def answer(self, queue: str, result: Payload) -> None:
        """Take a task from a queue before its worker does, and answer it."""
        service, namespace = self.client.workflow_service, self.client.namespace
        task = await service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=queue)),
            timeout=timedelta(seconds=_POLL_SECONDS),
        )
        await service.respond_activity_task_completed(
            RespondActivityTaskCompletedRequest(
                namespace=namespace, task_token=task.task_token, result=Payloads(payloads=[result])
            )
        )

    async def argument_of(self, handle: "WorkflowHandle[Operation, str]") -> Payload:
        """The argument that the garden wrote for the operation's task, as everybody sees it who reads histories."""
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.HasField("activity_task_scheduled_event_attributes"):
                return event.activity_task_scheduled_event_attributes.input.payloads[0]
        raise AssertionError("no activity was scheduled")


WORKFLOW = WorkflowSerializationContext(namespace="default", workflow_id="w")


def refused(queue: str, reason: str) -> float:
    """The metric, as a process on this queue shows it."""
    labels = {"queue": queue, "reason": reason}
    return REGISTRY.get_sample_value("gardener_codec_refused_total", labels) or 0.0


async def is_refused(queue: str, reason: str, before: float) -> None:
    async with asyncio.timeout(60):
        while refused(queue, reason) == before:  # noqa: ASYNC110 -- a metric cannot be awaited
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL), dev_server_log_level="error"
    ) as environment:
        yield environment


@pytest_asyncio.fixture(loop_scope="module")
async def place(server: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(server.client, tmp_path)
    garden = await place.connected("root.key", GARDEN_QUEUE)
    runner = UnsandboxedWorkflowRunner()  # the sandbox would import this module and its servers again
    async with Worker(garden, task_queue=GARDEN_QUEUE, workflows=[Operation], workflow_runner=runner):
        yield place
        async for each in server.client.list_workflows('ExecutionStatus = "Running"'):
            await server.client.get_workflow_handle(each.id, run_id=each.run_id).terminate("end of test")


async def test_what_the_garden_orders_is_done_and_its_result_is_read(place: Place) -> None:
    """Otherwise the refusals below would prove nothing."""
    async with place.gardenlet(await place.connected("b.key", B), B):
        handle = await place.begun(B)
        assert await handle.result() == f"done by {B}"
    assert place.ran == ["sync_cluster"]


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
@pytest.mark.parametrize(("claims", "reason"), [("", "destination"), (B, "changed")])
async def test_a_task_forged_under_the_key_of_seed_a_is_refused_by_seed_b_and_told(
    place: Place, claims: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed a encrypts a deletion by its own key, schedules it on the queue of seed b, and may name seed b in it."""
    forged = await place.sealed_by_a(TASK, of_activity(A, "sync_cluster"), claims)
    before = refused(B, reason)
    with caplog.at_level(logging.WARNING, logger="workers.lib.codec"):
        async with place.gardenlet(await place.connected("b.key", B), B):
            await place.schedule(B, "sync_cluster", forged)
            await is_refused(B, reason, before)
    assert place.ran == []
    assert f"refused a payload for activity 'sync_cluster' on queue {B}" in caplog.text


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_a_plain_task_is_refused_by_a_gardenlet(place: Place) -> None:
    """A client of Temporal without any key schedules a deletion on the queue of seed b."""
    [plain] = await data_converter(None).encode([TASK])
    before = refused(B, "plain")
    async with place.gardenlet(await place.connected("b.key", B), B):
        await place.schedule(B, "delete_namespace", plain)
        await is_refused(B, "plain", before)
    assert place.ran == []


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_an_argument_that_the_garden_wrote_for_seed_a_is_refused_by_seed_b(place: Place) -> None:
    """Seed a schedules a payload that it has seen in its own history on the queue of seed b."""
    seen = await place.argument_of(await place.begun(A))
    before = refused(B, "destination")
    async with place.gardenlet(await place.connected("b.key", B), B):
        await place.schedule(B, "sync_cluster", seen)
        await is_refused(B, "destination", before)
    assert place.ran == []


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_an_argument_of_one_activity_is_refused_as_that_of_another_one(place: Place) -> None:
    """A reader of histories without any key repeats an argument that was written for seed b, for a deletion there."""
    before = refused(B, "destination")
    async with place.gardenlet(await place.connected("b.key", B), B):
        handle = await place.begun(B)
        seen = await place.argument_of(handle)
        await handle.result()
        await place.schedule(B, "delete_namespace", seen)
        await is_refused(B, "destination", before)
    assert place.ran == ["sync_cluster"]


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
@pytest.mark.parametrize(("claims", "reason"), [("", "destination"), (B, "changed")])
async def test_a_result_under_the_key_of_seed_a_is_refused_for_an_activity_of_seed_b(
    place: Place, claims: str, reason: str
) -> None:
    """Seed a takes a task from the queue of seed b, and answers it for seed b."""
    forged = await place.sealed_by_a(TaskResult(note="forged"), of_activity(A, "sync_cluster"), claims)
    before = refused(GARDEN_QUEUE, reason)
    handle = await place.begun(B)
    await place.answer(B, forged)
    await is_refused(GARDEN_QUEUE, reason, before)
    assert (await handle.describe()).close_time is None


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_seeds_key_starts_and_tells_no_workflow_of_the_garden(place: Place) -> None:
    """Seed a starts an operation, and signals one that runs, by its own key."""
    service, namespace = place.client.workflow_service, place.client.namespace
    forged = await place.sealed_by_a(B, WORKFLOW)
    before = refused(GARDEN_QUEUE, "destination")
    id_ = f"forged/{uuid.uuid4()}"
    await service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=namespace,
            workflow_id=id_,
            workflow_type=WorkflowType(name="Operation"),
            task_queue=TaskQueue(name=GARDEN_QUEUE),
            request_id=id_,
            input=Payloads(payloads=[forged]),
        )
    )
    await is_refused(GARDEN_QUEUE, "destination", before)

    handle = await place.begun(B)
    await place.argument_of(handle)
    before = refused(GARDEN_QUEUE, "destination")
    await service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            signal_name="tell",
            input=Payloads(payloads=[forged]),
        )
    )
    await is_refused(GARDEN_QUEUE, "destination", before)
    scheduled = [
        each
        async for each in place.client.get_workflow_handle(id_).fetch_history_events()
        if each.HasField("activity_task_scheduled_event_attributes")
    ]
    assert scheduled == []


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_a_plain_signal_is_refused_by_the_garden(place: Place) -> None:
    """A client of Temporal without any key signals an operation."""
    handle = await place.begun(B)
    await place.argument_of(handle)
    before = refused(GARDEN_QUEUE, "plain")
    await place.client.get_workflow_handle(handle.id).signal("tell", "anything")
    await is_refused(GARDEN_QUEUE, "plain", before)
    history = place.client.get_workflow_handle(handle.id).fetch_history_events()
    kinds = [each.WhichOneof("attributes") async for each in history]
    after = kinds[kinds.index("workflow_execution_signaled_event_attributes") :]
    assert "workflow_task_completed_event_attributes" not in after
