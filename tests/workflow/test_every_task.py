"""Every task of creation and deletion: it fails for good, is mended, is retried, and nothing finished runs again."""

import pytest

from api.flows import FinishedTask, FlowInput, FlowOutcome, ShootFacts
from api.operations import OperationType, ShootRef, ShootTask, TaskResult
from tests.workflow.world import SEED, SHOOT, VERSION, World, operation
from workflows.flow import Flow
from workflows.shoot.decision import FlowKind, Memory
from workflows.shoot.delete import delete_flow
from workflows.shoot.lifecycle import THERE
from workflows.shoot.reconcile import reconcile_flow

FACTS = ShootFacts(credentials="1")
KINDS = {OperationType.CREATE: FlowKind.RECONCILE, OperationType.DELETE: FlowKind.DELETE}


def graph(what: OperationType, shoot: ShootRef = SHOOT) -> Flow:
    task = ShootTask(shoot=shoot, technical_id="shoot--local--demo", seed=SEED, generation=1, operation=what)
    request = FlowInput(task=task, facts=FACTS)
    return delete_flow(request, THERE) if what is OperationType.DELETE else reconcile_flow(request)


EVERY = [
    pytest.param(what, name, id=f"{what}-{name}")
    for what in KINDS
    for name in graph(what).names
    if not graph(what).skipped(name)
]


@pytest.mark.parametrize(("what", "task"), EVERY)
async def test_a_task_that_failed_for_good_is_retried_alone(world: World, what: OperationType, task: str) -> None:
    """What comes before it, or beside it, is finished when it fails; what comes after it waits."""
    flow = graph(what, world.shoot)
    later = {name for name in flow.names if flow.comes_after(name, task)}
    finished = [name for name in flow.names if name != task and name not in later and not flow.skipped(name)]
    named = {name: TaskResult(secrets=(f"secret-of-{name}",)) for name in finished}
    kept = [
        FinishedTask(name=name, digest=flow.digest(name), result=named[name], attempt=1, trigger="t")
        for name in finished
    ]
    world.facts = FACTS
    world.change(
        deleting=what is OperationType.DELETE,
        uid_recorded=True,
        observed_generation=1,
        gardener_version=VERSION,
        status_seed=SEED,
        last_operation=operation(what, "Processing"),
    )
    world.fail_always(task, "ERR_CONFIGURATION_PROBLEM")
    await world.wake(
        Memory(
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
