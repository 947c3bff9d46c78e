"""Record the histories that ``test_histories.py`` replays: ``python -m tests.replay.record [NAME...]``.

Run it when a flow was changed on purpose, with another name for the new history: the old ones stay, behind
``workflow.patched``, as long as such flows may be running somewhere.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from temporalio import activity
from temporalio.client import Client, WorkflowExecution, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from api.contracts.flows import Attempt, FlowInput, FlowOutcome, LastOperation, SeedFlowInput, ShootFacts, Survey
from api.contracts.operations import GARDEN_QUEUE, OperationType, SeedTask, ShootTask, TaskResult, seed_queue
from api.contracts.rotation import CompleteRotation, Kind, Phase, User
from api.contracts.schedules import ScheduledShoot
from tests.temporal_dev_server import TEMPORAL
from tests.workflow.world import DESTINATION, SHOOT, VERSION, World
from tests.workflow.world import SEED as SOURCE
from workflows import visibility
from workflows.flow import failed_outcome
from workflows.seed import BootstrapSeed, DeleteSeed, seed_workflow_id
from workflows.shoot.delete_backups import DeleteBackups, delete_backups_id
from workflows.shoot.forget import ForgetShoot, forget_id
from workflows.shoot.hibernation import SwitchHibernation
from workflows.shoot.maintenance import MaintainShoot
from workflows.shoot.rotate import RotateCertificateAuthorities

_ROOT = Path(__file__).parents[2]
HISTORIES = Path(__file__).parent / "histories"


async def created(world: World) -> None:
    """A creation with retries in place."""
    world.fail_times("wait_etcds", 2)
    await world.wake()
    await world.until(lambda: len(world.finished) == 1, seconds=90)


async def failed_and_resumed(world: World) -> None:
    """Two attempts: the first fails in two branches, the second continues from there."""
    world.fail_always("wait_infrastructure", "ERR_INFRA_UNAUTHENTICATED", "the cloud refused the credentials")
    world.fail_always("wait_backup_entry", "ERR_CONFIGURATION_PROBLEM", "no such bucket")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1, seconds=90)
    world.mend("wait_infrastructure")
    world.mend("wait_backup_entry")
    world.facts = ShootFacts(credentials="2")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 2, seconds=90)


async def deleted(world: World) -> None:
    """A deletion that overtakes a creation which retries an error, of a cluster that is half there."""
    world.survey_result = Survey(namespace=True, cluster=False, control_plane=False, controller_manager=False)
    world.fail_times("wait_worker", 10**6)
    await world.wake()
    await world.until(lambda: world.runs["wait_worker"] > 1, seconds=90)
    world.change(deleting=True, generation=2)
    world.trouble.set()
    await (await world.wake()).result()


async def deleted_whole(world: World) -> None:
    """A deletion of a cluster that is all there, failed once and resumed."""
    world.change(deleting=True, uid_recorded=True, status_seed="seed-1")
    world.fail_always("clean_kubernetes_resources", "ERR_CONFIGURATION_PROBLEM", "a finalizer is never dropped")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1, seconds=90)
    world.mend("clean_kubernetes_resources")
    world.change(operations=("retry",))
    await (await world.wake()).result()


async def force_deleted(world: World) -> None:
    """A deletion fails because of its credentials, and its owner has it forced."""
    world.change(deleting=True, uid_recorded=True, status_seed="seed-1")
    world.fail_always("wait_worker_deleted", "ERR_INFRA_UNAUTHENTICATED", "the cloud refused the credentials")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1, seconds=90)
    world.change(force_delete=True)
    await (await world.wake()).result()


async def rotated(world: World) -> None:
    """A rotation of certificate authorities, completed although a node would be left behind."""
    kind, rotation = Kind.CERTIFICATE_AUTHORITIES, world.rotation
    rotation.turn(kind, Phase.PREPARING)
    rotation.users = (User(who="node n-1", why="has an old certificate", remedy="roll its pool"),)
    handle = await rotation.start(world.client, kind)
    rotation.turn(kind, Phase.PREPARED)
    await rotation.until(lambda: rotation.reports)
    forced = CompleteRotation(by="ann", force=True, reason="it is burnt")
    await handle.execute_update(RotateCertificateAuthorities.complete, forced)
    rotation.turn(kind, None)
    await handle.result()


async def scheduled(world: World) -> None:
    """Run the workflows that Temporal's schedules start."""
    request = ScheduledShoot(shoot=SHOOT)
    for run, id_ in (
        (SwitchHibernation.run, "hibernation/demo/start-0"),
        (MaintainShoot.run, "maintenance/demo/window"),
    ):
        await world.client.execute_workflow(run, request, id=id_, task_queue=GARDEN_QUEUE)


async def moved(world: World) -> None:
    """A move whose last snapshot fails at first."""
    succeeded = LastOperation(type=OperationType.RECONCILE, state="Succeeded", updated=datetime.now(UTC))
    world.change(generation=2, observed_generation=1, gardener_version=VERSION, uid_recorded=True, status_seed=SOURCE,
                 spec_seed=DESTINATION, last_operation=succeeded)  # fmt: skip
    world.fail_always("snapshot_etcd", "ERR_CONFIGURATION_PROBLEM", "the bucket is gone")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1, seconds=90)
    world.mend("snapshot_etcd")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 3, seconds=90)


async def resealed(world: World) -> None:
    """A move whose ShootState is sealed again for the destination, which once fails to read it."""
    world.fail_always("init_secrets", "ERR_CONFIGURATION_PROBLEM", "it is sealed for another seed")
    succeeded = LastOperation(type=OperationType.RECONCILE, state="Succeeded", updated=datetime.now(UTC))
    world.change(generation=2, observed_generation=1, gardener_version=VERSION, uid_recorded=True, status_seed=SOURCE,
                 spec_seed=DESTINATION, last_operation=succeeded)  # fmt: skip
    await world.wake()
    await world.until(lambda: len(world.finished) == 1, seconds=90)
    world.mend("init_secrets")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 3, seconds=90)


async def forgotten(world: World) -> None:
    """A seed that was lost cleans up."""
    task = ShootTask(shoot=world.shoot, technical_id="shoot--local--demo", seed=SOURCE, generation=2,
                     operation=OperationType.MIGRATE, destination=DESTINATION, trigger="t")  # fmt: skip
    world.fail_times("wait_worker_migrated", 1)
    request = FlowInput(task=task, facts=world.facts)
    id_ = forget_id(world.shoot, SOURCE)
    await world.client.execute_workflow(ForgetShoot.run, request, id=id_, task_queue=GARDEN_QUEUE)


async def backups_deleted(world: World) -> None:
    """Backups are deleted that were kept for a while."""
    task = ShootTask(shoot=world.shoot, technical_id="shoot--local--demo", seed=SOURCE, generation=0,
                     operation=OperationType.DELETE, trigger="t")  # fmt: skip
    world.fail_times("wait_backup_entry_deleted", 1)
    request = FlowInput(task=task, facts=world.facts)
    id_ = delete_backups_id(world.shoot)
    await world.client.execute_workflow(DeleteBackups.run, request, id=id_, task_queue=GARDEN_QUEUE)


SCENES: dict[str, Callable[[World], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        created,
        failed_and_resumed,
        deleted,
        deleted_whole,
        force_deleted,
        rotated,
        scheduled,
        moved,
        resealed,
        forgotten,
        backups_deleted,
    )
}


# Operations of seeds, next to those of a Shoot.

SEED = SeedTask(name="seed-1", uid="5eed", generation=1, trigger="2026-01-01T00:00:00Z")


DELETED = SEED.model_copy(update={"operation": OperationType.DELETE})


async def seed_bootstrapped(client: Client) -> None:
    """A seed is made ready; each task fails once."""
    async with played(client, GARDEN_QUEUE, [BootstrapSeed]), played(client, seed_queue(SEED.name)):
        await client.execute_workflow(
            BootstrapSeed.run, SeedFlowInput(task=SEED), id=seed_workflow_id(SEED), task_queue=GARDEN_QUEUE
        )


async def seed_deleted(client: Client) -> None:
    """A deletion fails at its gateway, and is retried."""
    attempt, failing = Attempt(), {"delete_seed_gateway"}
    async with played(client, GARDEN_QUEUE, [DeleteSeed]), played(client, seed_queue(SEED.name), failing=failing):
        try:
            await client.execute_workflow(
                DeleteSeed.run, SeedFlowInput(task=DELETED), id=seed_workflow_id(SEED), task_queue=GARDEN_QUEUE
            )
        except WorkflowFailureError as error:
            attempt = Attempt(number=2, kept=failed_outcome(error.cause) or FlowOutcome())
        failing.clear()
        request = SeedFlowInput(task=DELETED, attempt=attempt)
        await client.execute_workflow(DeleteSeed.run, request, id=seed_workflow_id(SEED), task_queue=GARDEN_QUEUE)


_RECORDS = ("report_seed_progress", "record_seed_failure")
"""Activities that write to the Seed's status, and have no result."""


def played(client: Client, queue: str, workflows: Sequence[type] = (), *, failing: Collection[str] = ()) -> Worker:
    """A worker whose activities do nothing, and fail at their first attempt. Those of ``failing`` fail for good."""

    @activity.defn(dynamic=True)
    async def play(args: Sequence[RawValue]) -> TaskResult | None:
        if activity.info().activity_type in failing:
            raise ApplicationError("it does not work", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)
        if activity.info().attempt == 1:
            raise ApplicationError("not yet", type="NotReady")
        return None if activity.info().activity_type in _RECORDS else TaskResult()

    return Worker(client, task_queue=queue, workflows=workflows, activities=[play])


OTHERS: dict[str, Callable[[Client], Awaitable[None]]] = {
    each.__name__: each for each in (seed_bootstrapped, seed_deleted)
}


async def record(names: list[str]) -> None:
    HISTORIES.mkdir(exist_ok=True)
    for name in names:
        async with await WorkflowEnvironment.start_local(
            dev_server_existing_path=str(TEMPORAL),
            data_converter=pydantic_data_converter,
            search_attributes=visibility.ALL,
            dev_server_log_level="error",
        ) as server:
            if name in OTHERS:
                await OTHERS[name](server.client)
            else:
                async with World(server.client) as world:
                    await SCENES[name](world)
            # The last event of an operation may be on its way still.
            await asyncio.sleep(1)
            await _save(server.client, name)


async def _save(client: Client, scene: str) -> None:
    found = [each async for each in client.list_workflows()]
    for number, each in enumerate(sorted(found, key=lambda item: item.start_time)):
        history = await client.get_workflow_handle(each.id, run_id=each.run_id).fetch_history()
        path = HISTORIES / f"{scene}-{number}-{_kind(each)}.json"
        # Stack traces name files of the checkout: where it lies on this machine is of no use to others.
        text = history.to_json().replace(f"{_ROOT}/", "")
        path.write_text(json.dumps(json.loads(text), separators=(",", ":")) + "\n")
        print(path.name, len(history.events), "events", path.stat().st_size, "bytes")


def _kind(each: WorkflowExecution) -> str:
    state = each.status.name.lower() if each.status else "running"
    return f"{each.workflow_type}-{state}"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(record(sys.argv[1:] or [*SCENES, *OTHERS]))
