"""Temporal's SDK tells the codec the place of every payload: nothing that our processes send each other is refused."""

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from temporalio import activity, workflow
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec, WorkflowUpdateFailedError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from activities.secrets.keyring import write_key_file
from api.contracts.operations import GARDEN_QUEUE, seed_queue
from workers.lib.codec import data_converter, derived_keys

SEED = seed_queue("a")
_SHORT = timedelta(seconds=10)


@activity.defn
async def told_before() -> str:
    """Fails once; its second attempt says what its first one told by heartbeat."""
    activity.heartbeat("from the first attempt")
    if activity.info().attempt == 1:
        raise ApplicationError("not yet", "a detail")
    return str(activity.info().heartbeat_details[0])


@activity.defn
async def broken() -> str:
    raise ApplicationError("broken", "a detail", type="Broken", non_retryable=True)


@activity.defn
async def never_ready() -> str:
    raise ApplicationError("not yet", type="NotReady")


@workflow.defn
class Child:
    def __init__(self) -> None:
        self._told = ""

    @workflow.run
    async def run(self, fails: str) -> str:
        if fails:
            try:
                await workflow.execute_activity(broken, task_queue=SEED, start_to_close_timeout=_SHORT)
            except ActivityError as error:
                raise ApplicationError("child failed", "of the child", type="FlowFailed", non_retryable=True) from error
        await workflow.wait_condition(lambda: bool(self._told))
        return self._told

    @workflow.signal
    def tell(self, text: str) -> None:
        self._told = text


@workflow.defn
class Everything:
    def __init__(self) -> None:
        self._ended = False

    @workflow.run
    async def run(self, collected: list[str]) -> list[str]:
        if not collected:
            workflow.continue_as_new([await self._activities(), *await self._children()])
        workflow.upsert_memo({"outcome": "kept"})
        await workflow.wait_condition(lambda: self._ended, timeout=60, timeout_summary="a summary")
        return collected

    async def _activities(self) -> str:
        again = workflow.start_activity(
            never_ready,
            task_queue=SEED,
            start_to_close_timeout=_SHORT,
            retry_policy=RetryPolicy(initial_interval=timedelta(hours=1)),
        )
        retried = RetryPolicy(initial_interval=timedelta(milliseconds=50))
        told = await workflow.execute_activity(
            told_before, task_queue=SEED, start_to_close_timeout=_SHORT, summary="a summary", retry_policy=retried
        )
        again.cancel()  # it waits for its second attempt: the server itself says that it is canceled
        with workflow.unsafe.imports_passed_through():
            from contextlib import suppress
        with suppress(ActivityError):
            await again
        return told

    async def _children(self) -> list[str]:
        id_ = workflow.info().workflow_id
        child = await workflow.start_child_workflow(Child.run, "", id=f"{id_}/child", memo={"of": "child"})
        await child.signal(Child.tell, "by its parent")
        try:
            await workflow.execute_child_workflow(Child.run, "fails", id=f"{id_}/failing")
        except ChildWorkflowError as error:
            failed = error.cause
        return [await child, str(failed.details[0]), str(failed.cause.cause)]  # type: ignore[union-attr, attr-defined]

    @workflow.signal
    def end(self, by: str) -> None:
        self._ended = bool(by)

    @workflow.query
    def asked(self, text: str) -> str:
        return f"answer to {text}"

    @workflow.update
    async def change(self, text: str) -> str:
        return await workflow.execute_activity(told_before, task_queue=SEED, start_to_close_timeout=_SHORT) + text

    @change.validator
    def _check(self, text: str) -> None:
        if text == "no":
            raise ValueError("refused by the workflow")


def refusals() -> float:
    samples = [each for metric in REGISTRY.collect() for each in metric.samples]
    return sum(each.value for each in samples if each.name == "gardener_codec_refused_total")


@pytest.mark.parametrize("cached", [100, 0], ids=["cached", "replayed at each step"])
async def test_everything_reaches_its_place(temporal_address: str, tmp_path: Path, cached: int) -> None:
    root, derived, before = tmp_path / "root.key", tmp_path / "a.key", refusals()
    write_key_file(root)
    derived.write_text(derived_keys(root, gardenlet="a"))
    garden = await Client.connect(temporal_address, data_converter=data_converter(root))
    seed = await Client.connect(temporal_address, data_converter=data_converter(derived, SEED))
    workflows, runner = [Everything, Child], UnsandboxedWorkflowRunner()
    queue = GARDEN_QUEUE
    async with (
        Worker(garden, task_queue=queue, workflows=workflows, workflow_runner=runner, max_cached_workflows=cached),
        Worker(seed, task_queue=SEED, activities=[told_before, broken, never_ready]),
    ):
        id_ = f"everything/{uuid.uuid4()}"
        handle = await garden.start_workflow(
            Everything.run, [], id=id_, task_queue=queue, memo={"at": "start"}, static_summary="a summary"
        )
        running = garden.get_workflow_handle_for(Everything.run, id_)
        async with asyncio.timeout(60):
            while (await running.describe()).run_id == handle.first_execution_run_id:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await running.execute_update(Everything.change, "!") == "from the first attempt!"
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await running.execute_update(Everything.change, "no")
        assert "refused by the workflow" in str(refused.value.cause)
        assert await running.query(Everything.asked, "this") == "answer to this"
        description = await running.describe()
        assert await description.memo() == {"at": "start", "outcome": "kept"}
        await running.signal(Everything.end, "us")
        assert await handle.result() == ["from the first attempt", "by its parent", "of the child", "Broken: broken"]

        action = ScheduleActionStartWorkflow(Child.run, "fails", id=f"{id_}/scheduled", task_queue=queue)
        schedule = await garden.create_schedule(
            id_, Schedule(action=action, spec=ScheduleSpec()), trigger_immediately=True
        )
        async with asyncio.timeout(60):
            while not (actions := (await schedule.describe()).info.recent_actions):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        execution = actions[0].action
        scheduled = garden.get_workflow_handle(execution.workflow_id)  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="Workflow execution failed") as failed:
            await scheduled.result()
        assert "child failed" in str(failed.value.cause)  # type: ignore[attr-defined]
        await schedule.delete()

    replayer = Replayer(workflows=workflows, data_converter=data_converter(root), workflow_runner=runner)
    for run in (handle.first_execution_run_id, description.run_id):
        await replayer.replay_workflow(await garden.get_workflow_handle(id_, run_id=run).fetch_history())
    assert refusals() == before
