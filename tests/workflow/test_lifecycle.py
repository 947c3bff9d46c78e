"""The life of a Shoot as its lifecycle runs it, with everything that a garden can throw at it."""

import pytest
from temporalio.client import WorkflowUpdateFailedError

from api.contracts.flows import FlowInput, Survey
from api.contracts.operations import GARDEN_QUEUE, OperationType, ShootTask, lifecycle_id
from tests.workflow.world import DESTINATION, SEED, World, operation
from workflows.shoot.decision import FlowKind
from workflows.shoot.forget import ForgetShoot, forget_id
from workflows.shoot.lifecycle import OperationRequest, ShootLifecycle, operation_id

RETRY = OperationRequest(operation="retry", by="tester", reason="mended")


async def test_a_new_shoot_is_created_and_then_left_alone(world: World) -> None:
    handle = await world.wake()
    await world.until(lambda: bool(world.finished))

    assert world.finished[0].state == "Succeeded"
    assert "start Create 1" in world.log
    attempt = world.client.get_workflow_handle(operation_id(world.shoot, FlowKind.RECONCILE, 1, 1))
    begun, *_ = (await attempt.fetch_history()).events
    limit = begun.workflow_execution_started_event_attributes.workflow_task_timeout
    assert limit.seconds == 4, "it must continue within 5 s when its worker is killed in the middle of a task"
    await handle.signal(ShootLifecycle.wake)
    await handle.query(ShootLifecycle.progress)
    assert world.log.count("start Create 1") == 1
    assert not any(line.startswith("start Reconcile") for line in world.log)


async def test_a_shoot_without_a_seed_waits_for_the_scheduler(world: World) -> None:
    world.change(spec_seed=None)
    await world.wake()
    await world.resting("the scheduler has assigned no seed yet; an Event of the Shoot names the reason")
    assert not any(line.startswith("start") for line in world.log)

    world.change(spec_seed="seed-1", generation=2)
    await world.wake()
    await world.until(lambda: bool(world.finished))
    assert world.finished[0].task.generation == 2


async def test_a_retry_runs_the_failed_task_and_what_follows_and_nothing_else(world: World) -> None:
    """A failed operation continues from the failed task, which no other system of the field does."""
    world.fail_always("deploy_apiserver", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    assert world.finished[0].state == "Failed"
    assert [(each.name, each.codes) for each in world.finished[0].failed] == [
        ("deploy_apiserver", ("ERR_CONFIGURATION_PROBLEM",))
    ]
    before = list(world.log)

    world.mend("deploy_apiserver")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    again = world.log[len(before) :]
    assert again[0] == "start Create 2"
    assert again[1] == "deploy_apiserver"
    assert not set(again) & {task for task in before if task != "deploy_apiserver"}
    assert world.finished[1].state == "Succeeded"


async def test_a_wait_that_failed_asks_the_world_again(world: World) -> None:
    """An extension reconciles only when it is triggered: the wait alone would wait for ever."""
    world.fail_always("wait_infrastructure", "ERR_INFRA_UNAUTHENTICATED")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    world.mend("wait_infrastructure")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    assert world.ran("deploy_infrastructure") == 2
    assert world.ran("deploy_cloud_secret") == 1
    assert world.triggers["deploy_namespace"] == ["trigger-1-1"]
    assert world.triggers["deploy_infrastructure"] == ["trigger-1-1", "trigger-1-2"]
    assert world.triggers["wait_infrastructure"] == ["trigger-1-1", "trigger-1-2"]


async def test_new_credentials_are_copied_again_by_a_retry(world: World) -> None:
    world.fail_always("wait_infrastructure", "ERR_INFRA_UNAUTHENTICATED")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    world.mend("wait_infrastructure")
    world.facts = world.facts.model_copy(update={"credentials": "2"})
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    assert world.ran("deploy_cloud_secret") == 2
    assert world.ran("init_secrets") == 1


async def test_a_failed_shoot_ignores_reconcile_and_drops_the_annotation(world: World) -> None:
    world.fail_always("deploy_etcds", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: bool(world.finished))

    world.change(operations=("reconcile",))
    await world.wake()
    await world.until(lambda: bool(world.refusals))
    assert world.refusals[0].consume == ("reconcile",)
    assert len(world.finished) == 1


async def test_a_new_generation_of_a_failed_shoot_starts_from_the_beginning(world: World) -> None:
    world.fail_always("deploy_etcds", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    world.mend("deploy_etcds")
    world.change(generation=2)
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    assert world.ran("deploy_namespace") == 2
    assert world.log.count("start Create 1") == 2


async def test_a_transient_error_is_retried_in_place(world: World) -> None:
    world.fail_times("deploy_etcds", times=3)
    await world.wake()
    await world.until(lambda: bool(world.finished))

    assert world.finished[0].state == "Succeeded"
    assert world.runs["deploy_etcds"] == 4
    assert world.runs["deploy_namespace"] == 1


async def test_an_error_without_a_final_code_is_tried_again_by_the_lifecycle(world: World) -> None:
    """A 422 may come from a webhook that is being repaired; only codes of the table end the retrying."""
    world.fail_always("deploy_coredns", "KubernetesApi")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    assert world.finished[0].state == "Error"
    world.mend("deploy_coredns")
    handle = await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    assert world.finished[1].state == "Succeeded"
    assert world.ran("deploy_namespace") == 1
    assert (await handle.query(ShootLifecycle.progress)).memory.outcome.failed == ()


async def test_a_forced_deletion_makes_no_request_to_the_cloud(world: World) -> None:
    world.change(deleting=True, uid_recorded=True, status_seed="seed-1")
    world.fail_always("wait_worker_deleted", "ERR_INFRA_UNAUTHENTICATED")
    handle = await world.wake()
    await world.until(lambda: bool(world.finished))
    assert world.finished[0].state == "Failed"
    before = len(world.log)

    world.change(force_delete=True)
    await world.wake()
    await handle.result()
    forced = world.log[before:]
    assert forced[0] == "start Delete 1"
    assert "delete_extension_objects" in forced
    assert not set(forced) & {"wait_worker_deleted", "deploy_apiserver", "clean_kubernetes_resources"}
    assert forced[-2:] == ["Delete Succeeded", "release_shoot"]


async def test_a_deletion_that_retries_an_error_gives_way_to_a_forced_one(world: World) -> None:
    world.change(deleting=True, uid_recorded=True, status_seed="seed-1")
    world.fail_times("wait_worker_deleted", 10**6)
    handle = await world.wake()
    await world.until(lambda: world.runs["wait_worker_deleted"] > 1)
    world.change(force_delete=True)
    world.trouble.set()
    await world.wake()
    await handle.result()
    assert world.finished[-1].state == "Succeeded"
    assert "delete_extension_objects" in world.log


async def test_deletion_in_the_middle_of_a_creation_that_progresses_waits_for_its_end(world: World) -> None:
    gate = world.hold("wait_worker")
    await world.wake()
    await world.until(lambda: world.ran("wait_worker") == 1)
    world.change(deleting=True, generation=2)
    handle = await world.wake()
    gate.set()
    await handle.result()

    assert world.finished[0].task.operation is OperationType.CREATE
    assert [each.task.operation for each in world.finished] == [OperationType.CREATE, OperationType.DELETE]
    assert world.log[-1] == "release_shoot"


async def test_deletion_cancels_a_creation_that_retries_an_error(world: World) -> None:
    world.fail_times("wait_infrastructure", times=10**6)
    world.survey_result = Survey(namespace=True, cluster=False, control_plane=False, controller_manager=False)
    await world.wake()
    await world.until(lambda: world.runs["wait_infrastructure"] > 1)
    world.change(deleting=True, generation=2)
    world.trouble.set()
    handle = await world.wake()
    await handle.result()

    assert [each.task.operation for each in world.finished] == [OperationType.DELETE]
    assert "deploy_apiserver" not in world.log[world.log.index("start Delete 1") :]
    assert world.log[-1] == "release_shoot"


async def test_a_shoot_without_any_object_is_released_at_once(world: World) -> None:
    world.change(deleting=True)
    handle = await world.wake()
    await handle.result()

    assert world.log == ["await_earlier_operations", "release_shoot"]


async def test_a_shoot_that_is_gone_ends_its_lifecycle(world: World) -> None:
    world.view = None
    await (await world.wake()).result()


async def test_an_unready_seed_is_named_and_waited_for(world: World) -> None:
    world.change(seed_fault="Seed seed-1 is not ready: condition GardenletReady is Unknown")
    await world.wake()
    await world.until(lambda: bool(world.refusals))
    assert world.refusals[0].state == "Pending"
    assert "seed-1" in world.refusals[0].description

    world.change(seed_fault="")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    assert world.finished[0].state == "Succeeded"


async def test_retry_is_refused_while_nothing_has_failed(world: World) -> None:
    handle = await world.wake()
    await world.until(lambda: bool(world.finished))
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update(ShootLifecycle.request_operation, RETRY)
    assert "nothing to retry" in str(refused.value.cause)


async def test_retry_by_update_continues_at_the_failed_task(world: World) -> None:
    world.fail_always("deploy_vpn_server", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: bool(world.finished))
    world.mend("deploy_vpn_server")
    handle = world.client.get_workflow_handle(lifecycle_id(world.shoot))
    await handle.execute_update(ShootLifecycle.request_operation, RETRY)
    await world.until(lambda: len(world.finished) == 2)

    assert world.finished[1].state == "Succeeded"
    assert world.ran("init_secrets") == 1


async def test_a_reconcile_annotation_starts_a_reconciliation(world: World) -> None:
    """An annotation does not raise a custom resource's generation, so it is an event of its own."""
    world.change(
        observed_generation=1,
        gardener_version="v0",
        uid_recorded=True,
        last_operation=operation(OperationType.CREATE, "Succeeded"),
        operations=("reconcile",),
    )
    await world.wake()
    await world.until(lambda: bool(world.finished))
    assert world.finished[0].task.operation is OperationType.RECONCILE
    assert world.view is not None
    assert world.view.operations == ()


async def test_a_moved_control_plane_is_removed_from_the_source_and_then_restored(world: World) -> None:
    world.change(status_seed=SEED, observed_generation=1, uid_recorded=True, gardener_version="v0", generation=2,
                 spec_seed=DESTINATION, last_operation=operation(OperationType.RECONCILE, "Succeeded"))  # fmt: skip
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    assert [(each.task.operation, each.task.seed, each.state) for each in world.finished] == [
        (OperationType.MIGRATE, SEED, "Succeeded"),
        (OperationType.RESTORE, DESTINATION, "Succeeded"),
    ]
    order = [
        world.log.index(task)
        for task in ("persist_shootstate", "snapshot_etcd", "copy_etcd_backups", "migrate_backup_entry")
    ]
    assert order == sorted(order)
    activities = world.log[: world.log.index("Migrate Succeeded")]
    assert activities.count("init_secrets") == 2, "once in each seed"
    there = len(activities) - 1 - activities[::-1].index("init_secrets")
    assert there > order[0], "the destination makes no secret before it can know those of the source"
    both = tuple(sorted((SEED, DESTINATION)))
    assert world.resealed == [(SEED, both), (DESTINATION, both), (DESTINATION, both)]
    handed_over = len(activities) - 1 - activities[::-1].index("reseal_shoot_state")
    assert order[0] < handed_over < there, "the destination reads it once it is sealed for it"


async def test_a_failed_move_continues_from_the_failed_task(world: World) -> None:
    world.change(status_seed=SEED, observed_generation=1, uid_recorded=True, gardener_version="v0", generation=2,
                 spec_seed=DESTINATION, last_operation=operation(OperationType.RECONCILE, "Succeeded"))  # fmt: skip
    world.fail_always("snapshot_etcd", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1)
    assert world.finished[0].state == "Failed"
    assert world.ran("delete_etcds") == 0, "without the final snapshot nothing may go"

    world.mend("snapshot_etcd")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 3)
    assert world.finished[2].task.operation is OperationType.RESTORE
    assert world.ran("persist_shootstate") == 1


async def test_a_move_out_of_a_lost_seed_does_not_wait_for_it(world: World) -> None:
    world.change(status_seed=SEED, observed_generation=1, uid_recorded=True, gardener_version="v0", generation=2,
                 spec_seed=DESTINATION, last_operation=operation(OperationType.RECONCILE, "Succeeded"))  # fmt: skip
    gate = world.hold("wait_etcds")
    await world.wake()
    await world.until(lambda: world.ran("wait_etcds") == 1)
    world.change(source_lost=True)
    world.mend("wait_etcds")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1)
    gate.set()

    assert world.finished[0].task.operation is OperationType.RESTORE
    assert world.finished[0].task.seed == DESTINATION
    assert world.resealed[-1] == (DESTINATION, tuple(sorted((SEED, DESTINATION))))
    assert world.ran("abandon_source") == 1
    assert world.ran("snapshot_etcd") == 0


async def test_the_cleanup_of_a_lost_seed_runs_next_to_all_operations(world: World) -> None:
    """Its last step is the other seed's: nothing is left that would have to find the mark in the bucket."""
    task = ShootTask(shoot=world.shoot, technical_id="shoot--local--demo", seed=SEED, generation=3,
                     operation=OperationType.MIGRATE, destination=DESTINATION, trigger="t")  # fmt: skip
    world.fail_times("wait_worker_migrated", 1)
    await world.client.execute_workflow(
        ForgetShoot.run,
        FlowInput(task=task, facts=world.facts),
        id=forget_id(world.shoot, SEED),
        task_queue=GARDEN_QUEUE,
    )
    order = [
        world.log.index(name)
        for name in ("delete_machine_controller_manager", "shallow_delete_machine_objects", "delete_worker",
                     "delete_etcds", "delete_namespace",
                     "delete_source_backup_entry")
    ]  # fmt: skip
    assert order == sorted(order)
    assert world.finished == [], "it is no operation of the Shoot"


async def test_a_sleeping_control_plane_is_woken_to_leave_and_sleeps_on_where_it_goes(world: World) -> None:
    world.facts = world.facts.model_copy(update={"hibernated": True})
    world.change(status_seed=SEED, observed_generation=1, uid_recorded=True, gardener_version="v0", generation=2,
                 spec_seed=DESTINATION, last_operation=operation(OperationType.RECONCILE, "Succeeded"))  # fmt: skip
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)

    assert [(each.state, each.hibernated) for each in world.finished] == [("Succeeded", True)] * 2
    left = world.log.index("Migrate Succeeded")
    order = [
        world.log.index(task)
        for task in ("wait_etcds", "wait_apiserver", "wait_resource_manager", "delete_apiserver", "snapshot_etcd",
                     "wait_etcd_backups_copied", "migrate_backup_entry", "delete_etcds")
    ]  # fmt: skip
    assert order == sorted(order)
    assert world.log[:left].count("deploy_etcds") == world.log[:left].count("deploy_apiserver") == 1
    assert "wait_etcds" not in world.log[left:]
    assert "hibernate_control_plane" in world.log[left:]


async def test_a_hibernated_shoot_is_reported_as_hibernated(world: World) -> None:
    """The status shows the goal of the operation, not the present spec."""
    world.facts = world.facts.model_copy(update={"hibernated": True})
    await world.wake()
    await world.until(lambda: bool(world.finished))

    assert (world.finished[0].state, world.finished[0].hibernated) == ("Succeeded", True)
    order = [world.log.index(task) for task in ("wait_worker", "hibernate_control_plane", "delete_internal_dns")]
    assert order == sorted(order)
