"""An update names its author. Where Temporal knows its clients, the name comes from their certificates."""

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from api.contracts.repair import Action, Repair
    from workers.lib.callers import HEADER, Callers
from workflows.garden import WORKFLOWS

SPOKEN = Repair(action=Action.PAUSE, reason="a flood", by="mallory")
RUNNER = UnsandboxedWorkflowRunner()


@workflow.defn
class Repaired:
    """Remembers the author of its repair."""

    def __init__(self) -> None:
        self._by: list[str] = []
        self._checked: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: bool(self._by))
        return self._by

    @workflow.update
    def repair(self, request: Repair) -> str:
        self._by.append(request.by)
        return request.by

    @repair.validator
    def _check(self, request: Repair) -> None:
        if request.by == "refused":
            raise ValueError("refused may not repair")


class Headers(Interceptor):
    """Sends headers with each update, as Temporal's authorization adds them."""

    def __init__(self, headers: Mapping[str, Payload]) -> None:
        self.headers = headers

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        headers = self.headers

        class Outbound(OutboundInterceptor):
            async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
                input.headers = {**input.headers, **headers}
                return await super().start_workflow_update(input)

        return Outbound(next)


def certified(name: str, organization: str = "gardener.cloud:temporal:repairers") -> dict[str, Payload]:
    data = json.dumps({"organization": organization, "name": name}).encode()
    return {HEADER: Payload(metadata={"encoding": b"json/plain"}, data=data)}


@asynccontextmanager
async def running(
    address: str, headers: Mapping[str, Payload], *, required: bool = False
) -> AsyncIterator[WorkflowHandle[Any, list[str]]]:
    client = await Client.connect(address, data_converter=pydantic_data_converter, interceptors=[Headers(headers)])
    queue = f"callers-{uuid.uuid4()}"
    interceptors = [Callers(required=required)]
    async with Worker(
        client, task_queue=queue, workflows=[Repaired], interceptors=interceptors, workflow_runner=RUNNER
    ):
        yield await client.start_workflow(Repaired.run, id=queue, task_queue=queue)


@pytest.mark.attack(actor="T5", asset="A5", finding=20)
async def test_a_repair_under_another_name_is_recorded_under_the_name_in_the_certificate(temporal_address: str) -> None:
    """A person with the right to repair writes another person's name into the request."""
    async with running(temporal_address, certified("alice")) as handle:
        assert await handle.execute_update(Repaired.repair, SPOKEN) == "alice"
        assert await handle.result() == ["alice"]
        history = await handle.fetch_history()

    replayer = Replayer(
        workflows=[Repaired],
        data_converter=pydantic_data_converter,
        workflow_runner=RUNNER,
        interceptors=[Callers(required=True)],
    )
    await replayer.replay_workflow(history)


async def test_the_check_of_an_update_sees_the_name_in_the_certificate(temporal_address: str) -> None:
    async with running(temporal_address, certified("refused")) as handle:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(Repaired.repair, SPOKEN)
        await handle.terminate()
    assert "refused may not repair" in str(refused.value.cause)


async def test_a_process_of_the_garden_passes_on_the_name_of_its_caller(temporal_address: str) -> None:
    """Annotations of a Shoot: admission wrote their author, and the controller-manager repeats it."""
    headers = certified("gardener.cloud:system:controller-manager", "gardener.cloud:system:operators")
    async with running(temporal_address, headers) as handle:
        assert await handle.execute_update(Repaired.repair, SPOKEN) == "mallory"


async def test_without_certificates_the_request_names_its_author(temporal_address: str) -> None:
    async with running(temporal_address, {}) as handle:
        assert await handle.execute_update(Repaired.repair, SPOKEN) == "mallory"


@pytest.mark.attack(actor="T5", asset="A5", finding=20)
async def test_a_repair_without_a_client_name_is_refused_where_the_name_is_required(
    temporal_address: str,
) -> None:
    """A request that did not pass Temporal's authorization."""
    async with running(temporal_address, {}, required=True) as handle:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(Repaired.repair, SPOKEN)
        await handle.terminate()
    assert "Temporal does not report the name of the caller" in str(refused.value.cause)


async def test_a_history_from_before_names_were_required_replays(temporal_address: str) -> None:
    async with running(temporal_address, {}) as handle:
        await handle.execute_update(Repaired.repair, SPOKEN)
        await handle.result()
        history = await handle.fetch_history()
    replayer = Replayer(
        workflows=[Repaired],
        data_converter=pydantic_data_converter,
        workflow_runner=RUNNER,
        interceptors=[Callers(required=True)],
    )
    await replayer.replay_workflow(history)


@pytest.mark.parametrize("defined", WORKFLOWS, ids=lambda each: each.__name__)
def test_each_update_that_names_its_author_is_checked_before_it_is_accepted(defined: type) -> None:
    """A name that is required is asked for by the check: an update without one would pass."""
    definition = workflow._Definition.must_from_class(defined)
    for name, update in definition.updates.items():
        if any("by" in getattr(kind, "model_fields", {}) for kind in update.arg_types or []):
            assert update.validator is not None, name
