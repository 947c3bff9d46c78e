"""Repairs of an operation that fails at night: it continues where it stopped, and records author and reason."""

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError

from api.contracts.flows import TaskState
from api.contracts.operations import TaskResult, lifecycle_id
from api.contracts.repair import Action, Repair
from tests.workflow.world import World
from workers.cli.flow_view import FlowView, read_flow
from workflows.shoot.decision import FlowKind
from workflows.shoot.lifecycle import OperationAnswer, ShootLifecycle, operation_id

BROKEN = "deploy_apiserver"


def asking(action: Action, task: str = "", **fields: object) -> Repair:
    return Repair.model_validate({"action": action, "task": task, "reason": "it is night", "by": "olga", **fields})


async def ask(world: World, repair: Repair) -> OperationAnswer:
    handle: WorkflowHandle[ShootLifecycle, None] = world.client.get_workflow_handle(lifecycle_id(world.shoot))
    return await handle.execute_update(ShootLifecycle.repair, repair)


async def refused(world: World, repair: Repair) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await ask(world, repair)
    return str(failure.value.cause)


async def failed(world: World, task: str = BROKEN) -> None:
    """A creation that failed for good in one task."""
    world.fail_always(task, "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    await world.resting("the last operation failed")


async def ended(world: World, operations: int = 2) -> str:
    await world.until(lambda: len(world.finished) == operations)
    return world.finished[-1].state


async def shown(world: World, attempt: int, flow: FlowKind = FlowKind.RECONCILE) -> FlowView:
    workflow_id = operation_id(world.shoot, flow, 1, attempt)
    run_id = (await world.client.get_workflow_handle(workflow_id).describe()).run_id
    return await read_flow(world.client, "garden-local/demo", workflow_id, run_id)


def after(world: World, mark: int) -> list[str]:
    """Tasks that ran since, without the garden's part."""
    return [line for line in world.log[mark:] if " " not in line]


async def test_a_skipped_task_does_not_run_and_what_follows_does(world: World) -> None:
    await failed(world)
    mark = len(world.log)
    await ask(world, asking(Action.SKIP, BROKEN))
    assert after(world, mark) == [], "an edit starts nothing by itself"
    await ask(world, asking(Action.RETRY))

    assert await ended(world) == "Succeeded"
    assert world.ran(BROKEN) == 1
    assert "wait_apiserver" in after(world, mark)
    assert "cleanup_secrets" not in after(world, mark), "the Secrets of the skipped task are unknown"
    view = await shown(world, 2)
    [task] = [task for task in view.tasks if task.name == BROKEN]
    assert (task.state, task.note) == (TaskState.SKIPPED, f"olga skipped {BROKEN}: it is night")
    assert [each.text for each in view.interventions] == [f"olga skipped {BROKEN}: it is night"]
    assert [f"{each.repair}" for each in world.repairs] == [
        f"olga skipped {BROKEN}: it is night",
        "olga retried: it is night",
    ]


async def test_a_provided_result_is_used_as_the_tasks_own(world: World) -> None:
    await failed(world, "init_secrets")
    await ask(world, asking(Action.PROVIDE, "init_secrets", result=TaskResult(secrets=("ca-by-hand",), note="made")))
    await ask(world, asking(Action.RETRY))

    assert await ended(world) == "Succeeded"
    assert world.ran("init_secrets") == 1
    [task] = [task for task in (await shown(world, 2)).tasks if task.name == "init_secrets"]
    assert (task.state, task.note) == (TaskState.KEPT, "olga provided the result of init_secrets: it is night")


async def test_a_reset_runs_a_task_and_all_after_it_again_and_only_in_that_attempt(world: World) -> None:
    await failed(world)
    world.mend(BROKEN)
    world.fail_always("deploy_coredns", "ERR_CONFIGURATION_PROBLEM")
    mark = len(world.log)
    await ask(world, asking(Action.RESET, "wait_etcds"))
    assert await ended(world) == "Failed"
    await world.resting("the last operation failed")
    again = after(world, mark)
    assert again.count("deploy_etcds") == 1, "a wait and what it completes are one step"
    assert "wait_etcds" in again
    assert BROKEN in again
    assert not {"init_secrets", "deploy_namespace", "deploy_cloud_secret"} & set(again)

    world.mend("deploy_coredns")
    mark = len(world.log)
    await ask(world, asking(Action.RETRY))
    assert await ended(world, 3) == "Succeeded"
    assert "deploy_etcds" not in after(world, mark)


async def test_a_running_operation_is_reset_and_continues(world: World) -> None:
    gate = world.hold("wait_worker")
    await world.wake()
    await world.until(lambda: world.ran("wait_worker") == 1)
    mark = len(world.log)
    gate.set()
    world.mend("wait_worker")
    gate = world.hold("deploy_machine_controller_manager")
    await ask(world, asking(Action.RESET, "deploy_machine_controller_manager"))
    await world.until(lambda: world.ran("deploy_machine_controller_manager") == 2)
    gate.set()

    assert await ended(world, 1) == "Succeeded"
    again = after(world, mark)
    assert "deploy_worker" in again
    assert "deploy_os_configs" not in again
    assert [line for line in world.log if line.startswith("start")] == ["start Create 1", "start Create 2"]


async def test_retry_from_a_task_runs_it_again(world: World) -> None:
    await failed(world)
    world.mend(BROKEN)
    await ask(world, asking(Action.RETRY, "deploy_internal_dns"))
    assert await ended(world) == "Succeeded"
    assert world.ran("deploy_internal_dns") == 2
    assert world.ran("deploy_external_dns") == 1


async def test_a_task_that_is_tried_for_ever_is_skipped_while_the_flow_runs(world: World) -> None:
    world.fail_times("wait_infrastructure", times=10**6)
    await world.wake()
    await world.until(lambda: world.runs["wait_infrastructure"] > 1)
    await ask(world, asking(Action.SKIP, "wait_infrastructure"))

    assert await ended(world, 1) == "Succeeded"
    view = await shown(world, 1)
    [task] = [task for task in view.tasks if task.name == "wait_infrastructure"]
    assert task.state is TaskState.SKIPPED
    assert [each.text for each in view.interventions] == ["olga skipped wait_infrastructure: it is night"]


async def test_a_task_that_failed_is_provided_while_others_still_run(world: World) -> None:
    gate = world.hold("deploy_etcds")
    world.fail_always("deploy_infrastructure", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: world.ran("deploy_infrastructure") == 1 and world.ran("deploy_etcds") == 1)
    await ask(world, asking(Action.PROVIDE, "deploy_infrastructure", result=TaskResult(note="it is there")))
    await world.until(lambda: world.ran("wait_infrastructure") == 1)
    gate.set()

    assert await ended(world, 1) == "Succeeded"


async def test_a_paused_flow_starts_no_task_and_a_resumed_one_continues(world: World) -> None:
    gate = world.hold("init_secrets")
    await world.wake()
    await world.until(lambda: world.ran("init_secrets") == 1)
    await ask(world, asking(Action.PAUSE))
    handle = world.client.get_workflow_handle(operation_id(world.shoot, FlowKind.RECONCILE, 1, 1))
    gate.set()

    async def waits() -> None:
        while (await handle.query("progress"))["paused"] is None:
            pass

    await waits()
    await world.until(lambda: world.ran("deploy_cloud_secret") == 1)
    assert not {"deploy_etcds", "deploy_api_service"} & set(world.log)
    assert "is paused already: olga paused: it is night" in await refused(world, asking(Action.PAUSE))
    await ask(world, asking(Action.RESUME, by="piet", reason=""))

    assert await ended(world, 1) == "Succeeded"
    texts = [each.text for each in (await shown(world, 1)).interventions]
    assert texts == ["olga paused: it is night", "piet resumed"]


async def test_a_paused_shoot_gets_no_operation_until_it_is_resumed(world: World) -> None:
    world.change(spec_seed=None)
    await world.wake()
    await world.resting("the scheduler has assigned no seed yet; an Event of the Shoot names the reason")
    await ask(world, asking(Action.PAUSE))
    world.change(spec_seed="seed-1")
    await world.wake()
    await world.resting("olga paused: it is night; no operation starts until a user resumes the Shoot")
    await ask(world, asking(Action.RESUME))
    assert await ended(world, 1) == "Succeeded"
    texts = [each.text for each in (await shown(world, 1)).interventions]
    assert texts == ["olga paused: it is night", "olga resumed: it is night"]


async def test_a_canceled_operation_rests_and_continues_where_it_stopped(world: World) -> None:
    gate = world.hold("wait_etcds")
    await world.wake()
    await world.until(lambda: world.ran("wait_etcds") == 1)
    await ask(world, asking(Action.CANCEL))
    assert await ended(world, 1) == "Failed"
    said = world.finished[0].description
    assert said == "Create was ended: olga canceled: it is night. Finished tasks are kept: `retry` runs the others."
    await world.resting("the last operation was canceled")

    gate.set()
    world.mend("wait_etcds")
    world.change(operations=("retry",), asked_by="piet")
    await world.wake()
    assert await ended(world) == "Succeeded"
    assert world.ran("init_secrets") == 1
    assert world.ran("wait_etcds") == 2
    texts = [each.text for each in (await shown(world, 2)).interventions]
    assert texts == ["olga canceled: it is night", "piet retried"]


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_terminated_operation_rests_and_keeps_finished_tasks(world: World, how: str) -> None:
    """Other systems would start again at once, against the will of the operator that stopped it."""
    world.hold("wait_etcds")
    await world.wake()
    await world.until(lambda: world.ran("wait_etcds") == 1)
    flow = world.client.get_workflow_handle(operation_id(world.shoot, FlowKind.RECONCILE, 1, 1))
    await (flow.cancel() if how == "cancel" else flow.terminate())
    assert await ended(world, 1) == "Failed"
    await world.resting("the last operation was canceled")

    world.mend("wait_etcds")
    await ask(world, asking(Action.RETRY))
    assert await ended(world) == "Succeeded"
    assert world.ran("init_secrets") == 1


async def test_repair_annotations_are_executed_and_removed(world: World) -> None:
    await failed(world)
    world.change(repairs=(asking(Action.SKIP, BROKEN),), operations=("retry",), asked_by="olga")
    await world.wake()
    assert await ended(world) == "Succeeded"
    assert world.ran(BROKEN) == 1
    assert world.view is not None
    assert world.view.repairs == ()
    texts = [each.text for each in (await shown(world, 2)).interventions]
    assert texts == [f"olga skipped {BROKEN}: it is night", "olga retried"]


async def test_annotations_reach_a_running_operation(world: World) -> None:
    world.hold("wait_etcds")
    await world.wake()
    await world.until(lambda: world.ran("wait_etcds") == 1)
    world.change(repairs=(asking(Action.CANCEL),))
    await world.wake()
    assert await ended(world, 1) == "Failed"
    await world.resting("the last operation was canceled")
    assert [(each.repair.action, each.refused) for each in world.repairs] == [(Action.CANCEL, "")]


async def test_an_annotation_that_cannot_be_followed_is_refused_in_an_event(world: World) -> None:
    await failed(world)
    world.change(repairs=(asking(Action.SKIP, "deploy_apisever"),))
    await world.wake()
    await world.until(lambda: bool(world.repairs))
    assert world.repairs[0].refused == "Create has no task 'deploy_apisever'; did you mean deploy_apiserver?" or (
        world.repairs[0].refused.startswith("Create has no task 'deploy_apisever'; did you mean deploy_apiserver or")
    )
    assert len(world.finished) == 1


@pytest.mark.parametrize(
    ("repair", "why"),
    [
        (asking(Action.SKIP, "nothing"), "Create has no task 'nothing'"),
        (asking(Action.SKIP, BROKEN, reason=""), "skip needs a reason"),
        (asking(Action.SKIP), "skip needs the name of a task"),
        (asking(Action.SKIP, "init_secrets"), "task init_secrets is finished already; `reset` makes it run again"),
        (asking(Action.PROVIDE, "init_secrets"), "task init_secrets is finished already"),
        (asking(Action.RESET, "nothing"), "Create has no task 'nothing'"),
        (asking(Action.RESUME), "is not paused"),
        (asking(Action.CANCEL), "no operation of Shoot garden-local/demo runs"),
    ],
)
async def test_invalid_repairs_are_refused_with_a_reason_and_leave_no_trace(
    world: World, repair: Repair, why: str
) -> None:
    await failed(world)
    assert why in await refused(world, repair)
    assert world.repairs == []


async def test_a_running_flow_refuses_impossible_repairs(world: World) -> None:
    gate = world.hold("wait_etcds")
    await world.wake()
    await world.until(lambda: world.ran("wait_etcds") == 1)
    done = await refused(world, asking(Action.SKIP, "init_secrets"))
    assert "task init_secrets of Create is done already (Finished)" in done
    assert "Create of Shoot garden-local/demo is running" in await refused(world, asking(Action.RETRY))
    gate.set()
    assert await ended(world, 1) == "Succeeded"


async def test_nothing_is_repaired_where_nothing_has_failed(world: World) -> None:
    await world.wake()
    await world.until(lambda: bool(world.finished))
    await world.resting("the last operation succeeded; the next regular sync is not due")
    assert "nothing to retry" in await refused(world, asking(Action.RESET, BROKEN))


async def test_a_failed_deletion_is_repaired_by_the_same_means(world: World) -> None:
    world.change(deleting=True, uid_recorded=True, status_seed="seed-1")
    world.fail_always("clean_kubernetes_resources", "ERR_CONFIGURATION_PROBLEM", "a finalizer is never dropped")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    await world.resting("the last operation failed")
    await ask(world, asking(Action.SKIP, "clean_kubernetes_resources"))
    await ask(world, asking(Action.RETRY))
    assert await ended(world) == "Succeeded"
    assert world.ran("clean_webhooks") == 1
