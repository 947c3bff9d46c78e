"""Every task of every operation: it fails for good, is repaired, is retried, and nothing finished runs again."""

from datetime import timedelta

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from api.contracts.flows import Attempt, FinishedTask, FlowOutcome
from api.contracts.operations import GARDEN_QUEUE, OperationType, TaskResult
from tests.workflow.graphs import FACTS, NO_RETURN, asked, before_no_return, graph, one_of_four
from tests.workflow.world import DESTINATION, SEED, VERSION, World, operation
from workflows.flow import Flow, failed_outcome
from workflows.shoot.decision import FlowKind, LifecycleState
from workflows.shoot.forget import ForgetShoot, forget_flow, forget_id

AT_ONCE = timedelta(milliseconds=20)
KINDS = {OperationType.CREATE: FlowKind.RECONCILE, OperationType.DELETE: FlowKind.DELETE}
TYPES = {
    OperationType.CREATE: "ReconcileShoot",
    OperationType.DELETE: "DeleteShoot",
    OperationType.MIGRATE: "MigrateShoot",
    OperationType.RESTORE: "ReconcileShoot",
}


def begin(world: World, what: OperationType) -> None:
    """The Shoot as it is when a first attempt was interrupted."""
    world.facts = FACTS
    world.change(
        deleting=what is OperationType.DELETE,
        uid_recorded=True,
        observed_generation=1,
        gardener_version=VERSION,
        spec_seed=DESTINATION if what is OperationType.MIGRATE else SEED,
        status_seed=SEED,
        last_operation=operation(what, "Processing"),
    )


def runs_of(flow: Flow) -> dict[str, int]:
    """How often each task runs if each has to run twice: a wait triggers its other half again, too."""
    run = [name for name in flow.names if not flow.skipped(name)]
    return {name: 2 + sum(flow.completes(each) == name for each in run) for name in run}


def seen(world: World, type_: str) -> dict[str, int]:
    return {task: runs for (workflow, task), runs in world.tasks.items() if workflow == type_}


async def fail_for_good(run: int) -> None:
    if run == 1:
        raise ApplicationError("it does not work", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)


async def die(run: int) -> None:
    if run == 1:
        raise ApplicationError("its worker has died", type="WorkerShutdown", next_retry_delay=AT_ONCE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", TYPES)
async def test_finished_tasks_of_a_failing_flow_do_not_run_again(world: World, what: OperationType) -> None:
    """All tasks that can run fail, are repaired and retried, until the last of them has."""
    begin(world, what)
    world.every_task = fail_for_good
    await world.wake()
    attempts = 1
    await world.until(lambda: bool(world.finished))
    while (last := world.finished[-1]).state == "Failed":
        assert {each.type for each in last.failed} == {"ERR_CONFIGURATION_PROBLEM"}
        attempts += 1
        world.change(operations=("retry",))
        await world.wake()
        await world.until(lambda: len(world.finished) == attempts)
    assert (last.task.operation, last.state) == (what, "Succeeded")
    world.every_task = None
    assert seen(world, TYPES[what]) == runs_of(graph(what, world.shoot))


@pytest.mark.parametrize("what", TYPES)
async def test_tasks_continue_after_a_lost_worker_and_none_runs_twice(world: World, what: OperationType) -> None:
    """Tasks that a dead worker had begun run again; finished ones do not."""
    begin(world, what)
    world.every_task = die
    await world.wake()
    await world.until(lambda: bool(world.finished))
    assert (world.finished[0].task.operation, world.finished[0].state) == (what, "Succeeded")
    flow = graph(what, world.shoot)
    assert seen(world, TYPES[what]) == {name: 2 for name in flow.names if not flow.skipped(name)}


async def test_a_failed_cleanup_continues_from_the_failed_task(world: World) -> None:
    """It is no operation of the Shoot: the controller-manager keeps what an attempt leaves, for the next one."""
    request = asked(OperationType.MIGRATE, world.shoot)
    world.every_task = fail_for_good
    outcome: FlowOutcome | None = FlowOutcome()
    number = 0
    while outcome is not None:
        number += 1
        attempt = Attempt(number=number, kept=outcome)
        try:
            await world.client.execute_workflow(
                ForgetShoot.run,
                request.model_copy(update={"attempt": attempt}),
                id=forget_id(world.shoot, SEED),
                task_queue=GARDEN_QUEUE,
            )
            outcome = None
        except WorkflowFailureError as error:
            outcome = failed_outcome(error.cause)
            assert outcome is not None
            assert outcome.failed
    assert seen(world, "ForgetShoot") == runs_of(forget_flow(request))


EVERY = [
    pytest.param(what, name, id=f"{what}-{name}", marks=one_of_four(number))
    for what in KINDS
    for number, name in enumerate(name for name in graph(what).names if not graph(what).skipped(name))
]


@pytest.mark.parametrize(("what", "task"), EVERY)
async def test_a_task_that_failed_for_good_is_retried_alone(world: World, what: OperationType, task: str) -> None:
    """Tasks before and next to it are finished when it fails; tasks after it wait."""
    flow = graph(what, world.shoot)
    later = {name for name in flow.names if flow.comes_after(name, task)}
    finished = [name for name in flow.names if name != task and name not in later and not flow.skipped(name)]
    named = {name: TaskResult(secrets=(f"secret-of-{name}",)) for name in finished}
    kept = [
        FinishedTask(name=name, digest=flow.digest(name), result=named[name], attempt=1, trigger="t")
        for name in finished
    ]
    begin(world, what)
    world.fail_always(task, "ERR_CONFIGURATION_PROBLEM")
    await world.wake(
        LifecycleState(
            generation=1,
            operation=what,
            flow=KINDS[what],
            version=VERSION,
            attempts=1,
            outcome=FlowOutcome(finished=tuple(kept), canceled=True),
        )
    )
    await world.until(lambda: bool(world.finished))
    assert [each.name for each in world.finished[0].failed] == [task]
    assert dict(world.runs) == {task: 1}

    world.mend(task)
    for name in later:
        world.hold(name)
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: bool(set(world.runs) & later) or len(world.finished) == 2)

    again = {name for name in world.runs if name not in later}
    assert again == {task, flow.completes(task)} - {""}
    assert world.runs[task] == 2


# Turning round

_THERE_FIRST = "wait_required_extensions_there"


@pytest.mark.parametrize("task", before_no_return())
async def test_a_move_can_be_aborted_in_each_step_before_the_destination_is_prepared(world: World, task: str) -> None:
    """It ends at once, though it makes progress, and what it has dismantled is restored in place."""
    flow = graph(OperationType.MIGRATE, world.shoot)
    held = {task} if flow.comes_after(task, _THERE_FIRST) else {task, _THERE_FIRST}
    kept = [
        name
        for name in flow.names
        if name not in held and not any(flow.comes_after(name, each) for each in held) and not flow.skipped(name)
    ]
    finished = tuple(FinishedTask(name=name, digest=flow.digest(name), attempt=1, trigger="t") for name in kept)
    begin(world, OperationType.MIGRATE)
    for each in held:
        world.hold(each.removesuffix("_there"))
    remembered = LifecycleState(generation=1, operation=OperationType.MIGRATE, flow=FlowKind.MIGRATE, version=VERSION,
                        attempts=1, outcome=FlowOutcome(finished=finished, canceled=True))  # fmt: skip
    await world.wake(remembered)
    await world.until(lambda: world.tasks["MigrateShoot", task] == 1)

    world.hold("sync_cluster")
    world.change(spec_seed=SEED, generation=2)
    await world.wake()
    await world.until(lambda: "start Restore 1" in world.log)
    assert world.view is not None
    assert world.view.status_seed == SEED
    assert NO_RETURN not in seen(world, "MigrateShoot")
    assert world.finished == []


async def test_a_move_aborted_too_late_completes_and_then_moves_back(world: World) -> None:
    """Its destination may serve already: nothing is restored in the source next to it."""
    begin(world, OperationType.MIGRATE)
    gate = world.hold("flush_etcd")
    await world.wake()
    await world.until(lambda: world.ran("flush_etcd") == 1)
    assert world.view is not None
    assert world.view.prepared_at == DESTINATION
    world.change(spec_seed=SEED, generation=2)
    await world.wake()
    gate.set()
    await world.until(lambda: len(world.finished) == 3, 100)
    assert [(each.task.operation, each.task.seed, each.task.destination, each.state) for each in world.finished] == [
        (OperationType.MIGRATE, SEED, DESTINATION, "Succeeded"),
        (OperationType.RESTORE, DESTINATION, "", "Succeeded"),
        (OperationType.MIGRATE, DESTINATION, SEED, "Succeeded"),
    ]


async def test_a_move_that_failed_after_the_point_of_no_return_continues(world: World) -> None:
    begin(world, OperationType.MIGRATE)
    world.fail_always("snapshot_etcd", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1)
    world.mend("snapshot_etcd")
    world.change(spec_seed=SEED, generation=2)
    await world.wake()
    await world.until(lambda: len(world.finished) == 2)
    last = world.finished[1]
    assert (last.task.operation, last.task.destination, last.state) == (OperationType.MIGRATE, DESTINATION, "Succeeded")
