"""Explanations of an operation that does not progress: task, object, reason, and a remedy."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.heartbeat import heartbeating
from api.contracts.flows import FlowInput, ShootFacts
from api.contracts.operations import OperationType, ShootTask, lifecycle_id
from api.contracts.repair import Action, Repair
from kube.waits import waiting_for
from tests.workflow.graphs import one_of_four
from tests.workflow.world import SEED, SHOOT, World
from workers.cli.explain import Explanation, explain, named_object
from workers.cli.flow_view import read_flow
from workflows.shoot.decision import FlowKind, RestKind
from workflows.shoot.lifecycle import LifecycleProgress, ShootLifecycle, operation_id
from workflows.shoot.reconcile import reconcile_flow

KINDS = ("Infrastructure", "Etcd", "Deployment", "Worker", "DNSRecord", "ManagedResource", "Secret")
CODES = ("ERR_INFRA_UNAUTHENTICATED", "ERR_CONFIGURATION_PROBLEM", "ERR_INFRA_QUOTA_EXCEEDED")


def _tasks() -> list[str]:
    task = ShootTask(shoot=SHOOT, technical_id="t", seed=SEED, generation=1, operation=OperationType.CREATE)
    flow = reconcile_flow(FlowInput(task=task, facts=ShootFacts(credentials="1")))
    return [name for name in flow.names if not flow.skipped(name)]


STALLS = [
    pytest.param(name, ("waits", "fails", "retries")[number % 3], number, marks=one_of_four(number))
    for number, name in enumerate(_tasks()[:47])
]


async def explained(world: World, later: timedelta = timedelta()) -> Explanation:
    lifecycle = world.client.get_workflow_handle(lifecycle_id(world.shoot))
    progress: LifecycleProgress = await lifecycle.query("progress", result_type=LifecycleProgress)
    flow = world.client.get_workflow_handle(operation_id(world.shoot, FlowKind.RECONCILE, 1, 1))
    view = None
    with contextlib.suppress(RPCError):  # it has not begun yet
        view = await read_flow(world.client, "garden-local/demo", flow.id, (await flow.describe()).run_id)
    return explain("garden-local/demo", view, progress, datetime.now(UTC) + later)


async def told(world: World, condition: Callable[[Explanation], bool], later: timedelta = timedelta()) -> Explanation:
    async with asyncio.timeout(60):
        while not condition(said := await explained(world, later)):  # noqa: ASYNC110 -- Temporal is asked
            await asyncio.sleep(0.1)
    return said


def stall(how: str, thing: str, reason: str, code: str) -> Callable[[], Awaitable[None]]:
    async def fails() -> None:
        raise ApplicationError(f"{thing}: {reason}", type=code, non_retryable=True)

    async def retries() -> None:
        raise ApplicationError(f"applying {thing}: {reason}", type="KubernetesApi")

    async def waits() -> None:
        async def for_ever() -> None:
            with waiting_for(thing):
                await asyncio.Event().wait()

        await heartbeating(for_ever(), interval=0.5, details=lambda: reason)

    return {"fails": fails, "retries": retries, "waits": waits}[how]


@pytest.mark.parametrize(("task", "how", "number"), STALLS, ids=lambda value: str(value))
async def test_each_stall_is_explained_with_task_object_and_reason(
    world: World, task: str, how: str, number: int
) -> None:
    thing, reason, code = (
        f"{KINDS[number % len(KINDS)]} shoot--local--demo/x-{number}",
        f"reason {number}",
        CODES[number % 3],
    )
    world.behaviours[task] = stall(how, thing, reason, code)
    begun = datetime.now(UTC)
    await world.wake()
    await world.until(lambda: world.runs[task] > 0)
    if how == "fails":
        await world.until(lambda: bool(world.finished))
    # Others run at the same time, and end.
    said = await told(world, lambda each: each.task == task and reason in each.error and not each.others)

    assert said.object == thing
    assert said.operation == "Create"
    assert said.since is not None
    assert begun - timedelta(seconds=1) <= said.since <= datetime.now(UTC)
    assert said.attempts >= 1
    assert said.state == {"fails": "Failed", "retries": "Stalled", "waits": "Running"}[how]
    assert said.code == {"fails": code, "retries": "KubernetesApi", "waits": ""}[how]
    for part in (task, thing, reason, "To do: "):
        assert part in said.text
    if how == "fails":
        assert "gardener flow retry garden-local/demo" in said.todo
    gone = asyncio.Event()
    world.behaviours[task] = gone.wait  # type: ignore[assignment]
    gone.set()


async def test_a_queue_without_a_worker_is_named(temporal: Client) -> None:
    world = World(temporal, uid="unserved", seed="elsewhere")
    async with world:
        await world.wake()
        said = await told(world, lambda each: bool(each.task), later=timedelta(minutes=1))
    assert (said.task, said.state) == ("sync_cluster", "Stalled")
    assert "no worker of queue seed-elsewhere has taken it yet" in said.text
    assert said.todo == "start the gardenlet that serves this queue"


async def test_a_lost_worker_is_explained(world: World) -> None:
    """Its heartbeats stop; ten seconds later another attempt begins."""

    async def dies_once() -> None:
        if activity.info().attempt == 1:
            await asyncio.sleep(30)
        await heartbeating(asyncio.Event().wait(), interval=0.5)

    world.behaviours["wait_etcds"] = dies_once
    await world.wake()
    said = await told(world, lambda each: each.task == "wait_etcds" and bool(each.error))
    assert said.error == "its worker was lost"
    assert said.attempts == 2
    assert said.todo.startswith("nothing: another worker continues")


async def test_a_pause_and_a_cancellation_are_explained_with_user_and_reason(world: World) -> None:
    world.hold("wait_etcds")
    await world.wake()
    await world.until(lambda: world.ran("wait_etcds") == 1)
    lifecycle = world.client.get_workflow_handle(lifecycle_id(world.shoot))
    await lifecycle.execute_update(ShootLifecycle.repair, Repair(action=Action.PAUSE, reason="a storm", by="olga"))
    said = await told(world, lambda each: each.state == "Paused")
    assert "olga paused: a storm" in said.text
    assert "gardener flow resume garden-local/demo" in said.todo

    await lifecycle.execute_update(ShootLifecycle.repair, Repair(action=Action.RESUME, by="olga"))
    await lifecycle.execute_update(ShootLifecycle.repair, Repair(action=Action.CANCEL, reason="a flood", by="piet"))
    await world.until(lambda: bool(world.finished))
    await world.resting("the last operation was canceled")
    said = await explained(world)
    assert said.state == "Canceled"
    assert "gardener flow retry garden-local/demo" in said.todo


async def test_the_reason_that_blocks_an_operation_is_explained(world: World) -> None:
    world.change(seed_fault="Seed seed-1 is not ready: condition GardenletReady is Unknown")
    await world.wake()
    progress = await world.resting("Seed seed-1 is not ready")
    said = explain("garden-local/demo", None, progress, datetime.now(UTC))
    assert said.state == "Resting"
    assert said.text == (
        "Nothing runs for Shoot garden-local/demo: Seed seed-1 is not ready: condition GardenletReady is Unknown."
    )


@pytest.mark.parametrize(("rest", "state"), [(RestKind.IDLE, "Succeeded"), (RestKind.WAITING, "Resting")])
def test_state_of_a_resting_shoot_follows_from_the_kind_of_the_rest(rest: RestKind, state: str) -> None:
    """The sentence is for people: a change of its words changes no state."""
    progress = LifecycleProgress(resting="whatever it says", rest=rest)
    said = explain("garden-local/demo", None, progress, datetime.now(UTC))
    assert said.state == state
    assert "whatever it says" in said.text


def test_only_kinds_that_we_know_are_objects() -> None:
    assert named_object("Infrastructure shoot--a--b/c: no rights") == "Infrastructure shoot--a--b/c"
    assert named_object("patching Secret x: API server answered 403 Forbidden") == "Secret x"
    assert named_object("Nothing here is named") == ""


def test_an_unknown_shoot_is_reported() -> None:
    assert (
        explain("a/b", None, None, datetime.now(UTC)).text == "There is no Shoot a/b, and no record of its operations."
    )
