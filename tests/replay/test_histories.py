"""Recorded histories: today's code must still do what yesterday's did, or flows that run now would stall."""

import json
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from api.contracts.flows import FlowInput, FlowOutcome, TaskState
from api.contracts.operations import ShootTask, TaskResult
from tests.sandbox import SANDBOX
from workers.cli.flow_view import FlowHistory, FlowView
from workers.lib.callers import Callers
from workflows.flow import Flow
from workflows.garden import WORKFLOWS
from workflows.shoot.base import OperationWorkflow
from workflows.shoot.reconcile import reconcile_flow

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replayer(workflows: list[type] | None = None) -> Replayer:
    return Replayer(
        workflows=workflows or WORKFLOWS,
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOX,
        interceptors=[Callers(required=True)],
    )


def recorded(name: str) -> WorkflowHistory:
    [path] = [path for path in HISTORIES if path.stem == name]
    text = path.read_text()
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


async def view(name: str) -> FlowView:
    history = recorded(name)
    reader = FlowHistory("garden-local/demo", history.workflow_id, "run", pydantic_data_converter)
    for event in history.events:
        await reader.feed(event)
    return await reader.view()


@pytest.mark.parametrize("name", [path.stem for path in HISTORIES])
async def test_a_recorded_history_still_replays(name: str) -> None:
    await replayer().replay_workflow(recorded(name))


def test_every_workflow_and_every_kind_of_end_is_recorded() -> None:
    kinds = {path.stem.split("-", 2)[2] for path in HISTORIES}
    assert kinds >= {
        "ShootLifecycle-running",
        "ShootLifecycle-continued_as_new",
        "ShootLifecycle-completed",
        "ReconcileShoot-completed",
        "ReconcileShoot-failed",
        "ReconcileShoot-canceled",
        "DeleteShoot-completed",
        "DeleteShoot-failed",
        "ReconcileSeed-completed",
        "BootstrapSeed-completed",
        "DeleteSeed-failed",
        "DeleteSeed-completed",
        "MigrateShoot-completed",
        "MigrateShoot-failed",
        "DeleteBackups-completed",
        "ForgetShoot-completed",
        "RotateCertificateAuthorities-completed",
        "SwitchHibernation-completed",
        "MaintainShoot-completed",
    }


class NewActivities:
    @activity.defn
    async def one_more(self, task: ShootTask) -> TaskResult:
        return TaskResult()


class NextRelease(OperationWorkflow):
    """The flow of a release to come: one task more, which starts at once."""

    def __init__(self, request: FlowInput, *, changed: bool) -> None:
        self.graph: Flow = reconcile_flow(request)
        if changed:
            self.graph.add(NewActivities.one_more)


@workflow.defn(name="ReconcileShoot")
class Unpatched(NextRelease):
    """A flow with a change without a patch."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        super().__init__(request, changed=True)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        self.report(request.task)
        return await self.graph.run()


@workflow.defn(name="ReconcileShoot")
class Patched(NextRelease):
    """The same change behind a patch: flows that began before it continue unchanged."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        super().__init__(request, changed=workflow.patched("one-more-task-in-reconcile"))

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        self.report(request.task)
        return await self.graph.run()


RECONCILED = [path.stem for path in HISTORIES if "-ReconcileShoot-" in path.stem]
"""Completed, failed, resumed and canceled flows."""


async def test_an_incompatible_change_would_be_noticed() -> None:
    with pytest.raises(workflow.NondeterminismError):
        await replayer([Unpatched]).replay_workflow(recorded("created-1-ReconcileShoot-completed"))


@pytest.mark.parametrize("name", RECONCILED)
async def test_the_same_change_behind_a_patch_keeps_earlier_flows_running(name: str) -> None:
    await replayer([Patched]).replay_workflow(recorded(name))


# What `gardener flow show` makes of them


async def test_the_view_of_a_failed_flow_names_what_failed_and_what_was_blocked() -> None:
    shown = await view("failed_and_resumed-1-ReconcileShoot-failed")
    states = {task.name: task for task in shown.tasks}

    assert shown.state == "Failed"
    assert states["wait_infrastructure"].state is TaskState.FAILED
    assert states["wait_infrastructure"].error == "the cloud refused the credentials"
    assert states["deploy_etcds"].state is TaskState.BLOCKED
    assert states["deploy_external_dns"].state is TaskState.FINISHED


async def test_the_view_of_the_next_attempt_shows_what_was_kept() -> None:
    shown = await view("failed_and_resumed-3-ReconcileShoot-completed")
    states = {task.name: task for task in shown.tasks}

    assert (shown.state, shown.attempt, shown.percent) == ("Completed", 2, 100)
    assert states["init_secrets"].state is TaskState.KEPT
    assert states["init_secrets"].note == "kept from attempt 1"
    assert states["deploy_cloud_secret"].state is TaskState.FINISHED, "its credentials had changed"
    assert states["cleanup_secrets"].state is TaskState.FINISHED


async def test_the_view_tells_retries_in_place() -> None:
    shown = await view("created-1-ReconcileShoot-completed")
    [task] = [task for task in shown.tasks if task.name == "wait_etcds"]
    assert task.attempts == 3
    assert task.error == "not yet"
    assert task.state is TaskState.FINISHED


async def test_the_view_of_a_deletion_knows_what_was_there() -> None:
    shown = await view("deleted-3-DeleteShoot-completed")
    [task] = [task for task in shown.tasks if task.name == "deploy_apiserver"]
    assert (task.state, task.note) == (TaskState.SKIPPED, "no API server")


async def test_the_view_of_a_move_tells_what_runs_in_which_seed() -> None:
    """One activity runs in both: each is a task, and a row, of its own."""
    shown = await view("moved-1-MigrateShoot-failed")
    states = {task.name: task.state for task in shown.tasks}

    assert (states["wait_etcds"], states["wait_etcds_there"]) == (TaskState.FINISHED, TaskState.BLOCKED)
    assert "deploy_worker" not in states, "its graph is that of a move"


async def test_a_worker_lost_between_two_steps_is_reported() -> None:
    """It leaves no other trace than that another one took the next step."""
    history = recorded("created-1-ReconcileShoot-completed")
    steps = [each for each in history.events if each.HasField("workflow_task_completed_event_attributes")]
    for step in steps[len(steps) // 2 :]:
        step.workflow_task_completed_event_attributes.identity = "2@another"
    reader = FlowHistory("garden-local/demo", history.workflow_id, "run", pydantic_data_converter)
    for event in history.events:
        await reader.feed(event)

    told = [each.text for each in (await reader.view()).interruptions]
    assert [text for text in told if "2@another went on" in text] == [told[-1]]
    assert (await view("created-1-ReconcileShoot-completed")).interruptions == ()


async def test_the_view_of_a_seed_s_deletion_shows_failed_kept_and_blocked_tasks() -> None:
    failed = await view("seed_deleted-0-DeleteSeed-failed")
    states = {task.name: task.state for task in failed.tasks}
    assert (failed.operation, failed.state) == ("Delete", "Failed")
    assert states["delete_seed_gateway"] is TaskState.FAILED
    assert states["wait_seed_unused"] is TaskState.FINISHED
    assert states["delete_seed_crds"] is TaskState.BLOCKED

    retried = await view("seed_deleted-1-DeleteSeed-completed")
    states = {task.name: task.state for task in retried.tasks}
    assert states["wait_seed_unused"] is TaskState.KEPT
    assert states["delete_seed_gateway"] is TaskState.FINISHED
    assert retried.percent == 100
