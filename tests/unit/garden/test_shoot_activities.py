"""Fields that an operation writes into its Shoot, and fields that it leaves to others."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.garden.shoots import ShootActivities
from api import resources
from api.contracts.flows import (
    FailedTask,
    FinishOperation,
    RecordRepair,
    Refusal,
    ShootRules,
    StartedOperation,
    StartOperation,
)
from api.contracts.operations import OperationType, ShootRef
from kube.cache import Caches
from kube.client import KubeClient
from tests.workflow.garden import FakeGarden, shoot, surroundings

REF = ShootRef(namespace="garden-local", name="demo", uid="0f3c")


class World:
    def __init__(self, rules: ShootRules | None = None, **metadata: Any) -> None:
        self.garden = FakeGarden(shoot(**metadata), *surroundings())
        self.activities = ShootActivities(cast(KubeClient, self.garden), cast(Caches, None), rules or ShootRules())

    async def shoot(self) -> dict[str, Any]:
        return await self.garden.get(resources.SHOOT, "demo", "garden-local")

    async def change(self, **fields: Any) -> None:
        live = await self.shoot()
        live.update(fields)
        self.garden.put(live)

    async def start(self, operation: OperationType = OperationType.CREATE, **fields: Any) -> StartedOperation:
        request = StartOperation(shoot=REF, operation=operation, attempt=1, **fields)
        return cast(StartedOperation, await ActivityEnvironment().run(self.activities.start_operation, request))

    async def finish(self, started: StartedOperation, state: str, *failed: FailedTask) -> dict[str, Any]:
        request = FinishOperation(task=started.task, attempt=1, state=state, description="text", failed=failed)
        await ActivityEnvironment().run(self.activities.finish_operation, request)
        return cast(dict[str, Any], (await self.shoot())["status"])


def failure(codes: tuple[str, ...] = ()) -> FailedTask:
    from datetime import UTC, datetime

    return FailedTask(name="wait_worker", message="no machine", codes=codes, at=datetime.now(UTC), attempt=1)


async def test_the_view_of_a_new_shoot_is_complete() -> None:
    view = await World(annotations={"gardener.cloud/operation": "reconcile;rotate-ca-start"}).activities.look_at_shoot(
        REF
    )
    assert view is not None
    assert view.last_operation is None
    assert view.operations == ("reconcile", "rotate-ca-start")
    assert (view.spec_seed, view.seed_exists, view.seed_fault) == ("seed-1", True, "")


async def test_objects_of_a_look_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lifecycle looks before each decision: one answer after the other would delay it."""
    world = World()
    live = await world.shoot()
    live["spec"]["seedName"] = "seed-2"
    last = {"type": "Migrate", "state": "Processing", "lastUpdateTime": "2026-11-21T09:00:00Z"}
    await world.change(spec=live["spec"], status={"seedName": "seed-1", "lastOperation": last})
    looking, waiting, all_wait = asyncio.current_task(), set[Any](), asyncio.Event()

    def together(read: Any) -> Any:
        async def reading(*arguments: Any, **options: Any) -> Any:
            if asyncio.current_task() is not looking:
                waiting.add(asyncio.current_task())
                if len(waiting) == 4:
                    all_wait.set()
                await all_wait.wait()
            return await read(*arguments, **options)

        return reading

    for name in ("get", "find", "list"):
        monkeypatch.setattr(world.garden, name, together(getattr(world.garden, name)))

    async with asyncio.timeout(5):
        view = await world.activities.look_at_shoot(REF)

    assert all_wait.is_set(), "both Seeds, the Bastions and the BackupEntries of a Shoot that moves"
    assert view is not None
    assert view.migration_fault == "Seed seed-2 does not exist"


async def test_a_shoot_of_the_same_name_is_not_this_one() -> None:
    assert await World(uid="another").activities.look_at_shoot(REF) is None


async def test_a_seed_that_is_not_ready_is_described() -> None:
    world = World()
    seed = await world.garden.get(resources.SEED, "seed-1")
    seed["status"]["conditions"][0] |= {"status": "Unknown", "message": "its lease is old"}
    world.garden.put(seed)
    view = await world.activities.look_at_shoot(REF)
    assert view is not None
    assert view.seed_fault == "Seed seed-1 is not ready: condition GardenletReady is Unknown: its lease is old"


async def test_a_start_removes_only_the_annotations_that_it_answers() -> None:
    world = World(annotations={"gardener.cloud/operation": "reconcile;rotate-ca-start", "mine": "kept"})
    await world.start(consume=("reconcile",))
    live = await world.shoot()
    assert live["metadata"]["annotations"] == {"gardener.cloud/operation": "rotate-ca-start", "mine": "kept"}


async def test_a_start_keeps_fields_of_other_writers() -> None:
    world = World()
    conditions = [{"type": "APIServerAvailable", "status": "True"}]
    await world.change(status={"conditions": conditions, "advertisedAddresses": [{"name": "x", "url": "y"}]})
    await world.start()
    status = (await world.shoot())["status"]
    assert status["conditions"] == conditions
    assert status["advertisedAddresses"] == [{"name": "x", "url": "y"}]


async def test_a_start_returns_the_facts_for_the_flow() -> None:
    world = World()
    started = await world.start()
    assert started.task.technical_id == "shoot--local--demo"
    assert started.facts.backup
    assert not started.facts.workerless
    assert not started.facts.managed_issuer
    secret = await world.garden.get(resources.SECRET, "local", "garden-local")
    assert started.facts.credentials == f"c/{secret['metadata']['resourceVersion']}"


@pytest.mark.parametrize(
    ("before", "wanted", "waking"), [(True, False, True), (True, True, False), (False, False, False)]
)
async def test_a_shoot_that_was_hibernated_wakes_up(before: bool, wanted: bool, waking: bool) -> None:
    world = World()
    live = await world.shoot()
    await world.change(status={"hibernated": before}, spec={**live["spec"], "hibernation": {"enabled": wanted}})
    assert (await world.start()).facts.waking is waking


async def test_a_managed_issuer_has_keys_to_be_published() -> None:
    world = World(annotations={"authentication.gardener.cloud/issuer": "managed"})
    assert (await world.start()).facts.managed_issuer


async def test_missing_credentials_are_left_to_the_task_that_copies_them() -> None:
    world = World()
    live = await world.shoot()
    live["spec"]["credentialsBindingName"] = "gone"
    world.garden.put(live)
    assert (await world.start()).facts.credentials == ""


async def test_a_deletion_adds_no_finalizer_and_keeps_the_seed() -> None:
    world = World(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["other"])
    await world.change(status={"seedName": "seed-1"})
    await world.start(OperationType.DELETE)
    live = await world.shoot()
    assert live["metadata"]["finalizers"] == ["other"]
    assert live["status"]["lastOperation"]["type"] == "Delete"


async def test_the_retry_cycle_lasts_for_a_generation_and_starts_again_with_the_next() -> None:
    world = World()
    first = await world.start()
    await world.finish(first, "Error", failure())
    live = await world.shoot()
    live["status"]["retryCycleStartTime"] = "2026-01-01T00:00:00Z"
    world.garden.put(live)
    assert (await world.start()).retry_cycle_start.isoformat() == "2026-01-01T00:00:00+00:00"

    live = await world.shoot()
    live["metadata"]["generation"] = 2
    world.garden.put(live)
    assert (await world.start()).retry_cycle_start.isoformat() != "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(("state", "cycle_goes_on"), [("Error", True), ("Failed", False)])
async def test_a_failure_names_task_codes_and_text(state: str, cycle_goes_on: bool) -> None:
    world = World()
    status = await world.finish(await world.start(), state, failure(("ERR_INFRA_QUOTA_EXCEEDED",)))
    [error] = status["lastErrors"]
    assert (error["taskID"], error["codes"], error["description"]) == (
        "wait_worker",
        ["ERR_INFRA_QUOTA_EXCEEDED"],
        "no machine",
    )
    assert ("retryCycleStartTime" in status) is cycle_goes_on


async def test_success_clears_errors() -> None:
    world = World()
    await world.finish(await world.start(), "Error", failure())
    status = await world.finish(await world.start(), "Succeeded")
    assert "lastErrors" not in status
    assert status["lastOperation"]["progress"] == 100
    assert status["hibernated"] is False


async def test_a_rate_limit_is_seen_by_the_codes_of_the_errors() -> None:
    world = World()
    await world.change(status={"lastErrors": [{"description": "x", "codes": ["ERR_INFRA_RATE_LIMITS_EXCEEDED"]}]})
    view = await ActivityEnvironment().run(world.activities.look_at_shoot, REF)
    assert view is not None
    assert view.rate_limited
    await world.change(status={"lastErrors": [{"description": "x"}]})
    view = await ActivityEnvironment().run(world.activities.look_at_shoot, REF)
    assert view is not None
    assert not view.rate_limited


async def test_the_hibernation_in_the_status_is_that_of_the_operation() -> None:
    world = World()
    started = await world.start()
    request = FinishOperation(task=started.task, attempt=1, state="Succeeded", description="text", hibernated=True)
    await ActivityEnvironment().run(world.activities.finish_operation, request)
    assert (await world.shoot())["status"]["hibernated"] is True


async def test_the_end_of_an_operation_whose_shoot_is_gone_is_no_error() -> None:
    world = World()
    started = await world.start()
    await world.change(metadata={**(await world.shoot())["metadata"], "uid": "another"})
    request = FinishOperation(task=started.task, attempt=1, state="Succeeded", description="text")
    await world.activities.finish_operation(request)


async def test_a_refusal_is_written_once() -> None:
    world = World()
    refusal = Refusal(shoot=REF, state="Pending", description="Seed seed-1 is not ready")
    await world.activities.refuse_operation(refusal)
    writes = len(world.garden.writes)
    await world.activities.refuse_operation(refusal)
    assert len(world.garden.writes) == writes == 1


async def test_two_runs_of_a_start_make_one_event() -> None:
    """An answer may be lost; the same operation is not recorded twice."""
    world = World()
    started = await world.start()
    await world.activities._event(started.task, 1, "Normal", "Reconciling", "Reconciling Shoot cluster")
    assert len(world.garden.events()) == 1


async def test_release_leaves_the_finalizers_of_others_and_may_run_twice() -> None:
    world = World(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["gardener", "other"])
    await world.activities.release_shoot(REF)
    assert (await world.shoot())["metadata"]["finalizers"] == ["other"]
    await world.activities.release_shoot(REF)

    alone = World(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["gardener"])
    await alone.activities.release_shoot(REF)
    assert await alone.garden.find(resources.SHOOT, "demo", "garden-local") is None


async def test_a_namespace_without_project_says_what_to_do() -> None:
    world = World()
    project = await world.garden.get(resources.PROJECT, "local")
    project["spec"]["namespace"] = "garden-another"
    world.garden.put(project)
    with pytest.raises(ApplicationError, match="belongs to no Project: create one"):
        await world.start()


async def test_the_view_shows_when_a_shoot_may_be_reconciled() -> None:
    world = World(annotations={"shoot.gardener.cloud/ignore": "true", "shoot.gardener.cloud/sync-period": "4h"})
    spec = (await world.shoot())["spec"]
    window = {"begin": "220000+0000", "end": "230000+0000"}
    await world.change(
        spec=spec
        | {"maintenance": {"timeWindow": window, "confineSpecUpdateRollout": True}, "hibernation": {"enabled": True}}
    )
    view = await world.activities.look_at_shoot(REF)

    assert view is not None
    assert (view.confined, view.in_window_only, view.window) == (True, True, ("220000+0000", "230000+0000"))
    assert view.hibernation_switched
    assert not view.ignored, "only in namespace garden, or where it is configured"
    assert view.sync_period == timedelta(hours=1)


@pytest.mark.parametrize(("written", "period"), [("4h", 4), ("30m", 1), ("often", 1)])
async def test_annotations_delay_reconciliations_if_configured(written: str, period: int) -> None:
    annotations = {"shoot.gardener.cloud/ignore": "true", "shoot.gardener.cloud/sync-period": written}
    rules = ShootRules(respect_sync_period_overwrite=True, reconcile_in_maintenance_only=True)
    view = await World(rules, annotations=annotations).activities.look_at_shoot(REF)

    assert view is not None
    assert view.ignored
    assert view.in_window_only
    assert view.sync_period == timedelta(hours=period)


@pytest.mark.parametrize(
    ("metadata", "status", "fault"),
    [
        ({"generation": 2}, {"observedGeneration": 1}, "has changed and its gardenlet has not seen it yet"),
        ({}, {"gardener": {"version": "v0.0.9"}}, "is served by a gardenlet v0.0.9, and this is v0.1.0"),
        ({"generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"}, {"observedGeneration": 1}, ""),
    ],
)
async def test_a_seed_takes_operations_once_its_gardenlet_is_ours_and_has_seen_it(
    metadata: dict[str, Any], status: dict[str, Any], fault: str
) -> None:
    world = World()
    seed = await world.garden.get(resources.SEED, "seed-1")
    seed["metadata"] |= metadata
    seed["status"] |= status
    world.garden.put(seed)
    view = await world.activities.look_at_shoot(REF)

    assert view is not None
    assert fault in view.seed_fault
    assert bool(view.seed_fault) is bool(fault)


async def test_a_stopped_seed_and_bastions_are_seen() -> None:
    world = World(deletionTimestamp="2026-01-01T00:00:00Z")
    seed = await world.garden.get(resources.SEED, "seed-1")
    seed["metadata"]["annotations"] = {"shoot.gardener.cloud/emergency-stop-reconciliations": ""}
    world.garden.put(seed)
    for name, owner, seed_name in (("b-1", "demo", "seed-1"), ("b-2", "another", "seed-1"), ("b-3", "demo", "lost")):
        world.garden.put(
            {
                "apiVersion": "operations.gardener.cloud/v1alpha1",
                "kind": "Bastion",
                "metadata": {"name": name, "namespace": "garden-local"},
                "spec": {"shootRef": {"name": owner}, "seedName": seed_name},
            }
        )
    view = await world.activities.look_at_shoot(REF)

    assert view is not None
    assert view.emergency_stop
    assert view.bastions == ("b-1",)


async def test_a_rejected_operation_is_removed_and_reported_once() -> None:
    world = World(annotations={"gardener.cloud/operation": "recnocile;reconcile"})
    request = Refusal(
        shoot=REF, description="operation recnocile is unknown", consume=("recnocile",), event="OperationRejected"
    )
    for _ in range(2):
        await ActivityEnvironment().run(world.activities.refuse_operation, request)

    live = await world.shoot()
    assert live["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
    assert "status" not in live or "lastOperation" not in live["status"]
    assert world.garden.events() == [("OperationRejected", "operation recnocile is unknown")]


async def test_a_rotation_advances_with_each_operation() -> None:
    world = World(annotations={"gardener.cloud/operation": "rotate-ca-start"})
    started = await world.start(OperationType.RECONCILE, consume=("rotate-ca-start",))

    (rotation,) = started.facts.rotations
    assert (rotation.kind, rotation.phase) == ("certificateAuthorities", "Preparing")
    status = (await world.finish(started, "Succeeded"))["credentials"]["rotation"]["certificateAuthorities"]
    assert status["phase"] == "Prepared"
    assert status["lastInitiationTime"] == rotation.initiated

    completing = await world.start(OperationType.RECONCILE, consume=("rotate-ca-complete",))
    assert completing.facts.rotations[0].phase == "Completing"
    status = (await world.finish(completing, "Succeeded"))["credentials"]["rotation"]["certificateAuthorities"]
    assert status["phase"] == "Completed"
    assert "lastInitiationFinishedTime" not in status
    assert "gardener.cloud/operation" not in (await world.shoot())["metadata"]["annotations"]
    events = [each["reason"] for each in await world.garden.list(resources.EVENT, "garden-local")]
    assert {f"CertificateAuthorities{phase}" for phase in ("Preparing", "Prepared", "Completing", "Completed")} <= set(
        events
    )


async def test_a_changed_encryption_provider_starts_a_rotation() -> None:
    world = World()

    async def want(provider: str) -> None:
        live = await world.shoot()
        live["spec"]["kubernetes"]["kubeAPIServer"] = {"encryptionConfig": {"provider": {"type": provider}}}
        world.garden.put(live)

    async def at_rest() -> str:
        found: str = (await world.shoot())["status"]["credentials"]["encryptionAtRest"]["provider"]["type"]
        return found

    await want("secretbox")
    created = await world.start(OperationType.CREATE)
    assert created.facts.rotations == ()
    assert await at_rest() == "secretbox"
    await world.finish(created, "Succeeded")

    await want("aesgcm")
    for move in (OperationType.MIGRATE, OperationType.RESTORE):
        assert (await world.start(move)).facts.rotations == ()
    preparing = await world.start(OperationType.RECONCILE)
    (rotation,) = preparing.facts.rotations
    assert (rotation.kind, rotation.phase, rotation.automatic) == ("etcdEncryptionKey", "Preparing", True)
    await world.finish(preparing, "Succeeded")
    assert await at_rest() == "secretbox"
    completing = await world.start(OperationType.RECONCILE)
    assert completing.facts.rotations[0].phase == "Completing"
    await world.finish(completing, "Succeeded")
    assert await at_rest() == "aesgcm"
    assert (await world.start(OperationType.RECONCILE)).facts.rotations == ()


async def test_the_next_success_records_the_encryption_of_an_older_shoot() -> None:
    world = World()
    await world.change(status={"seedName": "seed-1"})
    started = await world.start(OperationType.RECONCILE)
    status = await world.finish(started, "Succeeded")
    assert status["credentials"] == {"encryptionAtRest": {"provider": {"type": "aescbc"}, "resources": []}}


async def test_a_failed_reconcile_keeps_the_phase() -> None:
    world = World()
    started = await world.start(OperationType.RECONCILE, consume=("rotate-ca-start",))
    status = await world.finish(started, "Error", failure())
    assert status["credentials"]["rotation"]["certificateAuthorities"]["phase"] == "Preparing"
    again = await world.start(OperationType.RECONCILE)
    assert again.facts.rotations == started.facts.rotations


async def test_an_end_that_is_recorded_twice_advances_a_rotation_once() -> None:
    """From preparing to waiting for the pools, and not on to prepared, although no pool is left to wait for."""
    world = World()
    started = await world.start(OperationType.RECONCILE, consume=("rotate-ca-start-without-workers-rollout",))
    live = await world.shoot()
    del live["status"]["credentials"]["rotation"]["certificateAuthorities"]["pendingWorkersRollouts"]
    world.garden.put(live)
    await world.finish(started, "Succeeded")
    status = await world.finish(started, "Succeeded")
    assert status["credentials"]["rotation"]["certificateAuthorities"]["phase"] == "WaitingForWorkersRollout"


async def test_a_repair_is_recorded_once_and_its_annotation_removed() -> None:
    name, by = "repair.shoot.gardener.cloud/skip", "repair.shoot.gardener.cloud/by"
    world = World(annotations={name: "wait_worker:broken", by: "olga", "mine": "kept"})
    view = await world.activities.look_at_shoot(REF)
    assert view is not None
    [wish] = view.repairs
    made = wish.model_copy(update={"at": datetime(2026, 1, 1, tzinfo=UTC)})
    for _ in range(2):
        await ActivityEnvironment().run(world.activities.record_repair, RecordRepair(shoot=REF, repair=made))

    assert (await world.shoot())["metadata"]["annotations"] == {"mine": "kept"}
    assert world.garden.events() == [("RepairSkip", "olga skipped wait_worker: broken")]


async def test_a_refused_repair_is_recorded_with_the_reason() -> None:
    world = World(annotations={"repair.shoot.gardener.cloud/cancel": "night"})
    view = await world.activities.look_at_shoot(REF)
    assert view is not None
    request = RecordRepair(shoot=REF, repair=view.repairs[0], refused="no operation runs")
    await ActivityEnvironment().run(world.activities.record_repair, request)

    assert world.garden.events() == [
        ("RepairRefused", "cancel, asked for by an unknown user, is refused: no operation runs")
    ]
    assert not (await world.shoot())["metadata"]["annotations"]


async def test_the_author_of_a_retry_is_recorded_and_removed_with_the_annotation() -> None:
    world = World(annotations={"gardener.cloud/operation": "retry", "repair.shoot.gardener.cloud/by": "olga"})
    await world.start(consume=("retry",), asked_by="olga")
    assert ("RepairRetry", "olga retried") in world.garden.events()
    assert not (await world.shoot())["metadata"]["annotations"]


async def test_tasks_of_maintenance_are_removed_once_they_are_done() -> None:
    """Tasks requested during the operation, or unknown to a reconciliation, stay."""
    annotation = "shoot.gardener.cloud/tasks"
    world = World(annotations={annotation: "deployInfrastructure,unknownTask"})
    started = await world.start(OperationType.RECONCILE)
    assert started.facts.tasks == ("deployInfrastructure",)
    metadata = (await world.shoot())["metadata"]
    asked = {**metadata["annotations"], annotation: f"{metadata['annotations'][annotation]},restartControlPlanePods"}
    await world.change(metadata={**metadata, "annotations": asked})

    for state, left in (
        ("Error", "deployInfrastructure,unknownTask,restartControlPlanePods"),
        ("Succeeded", "unknownTask,restartControlPlanePods"),
        ("Succeeded", "unknownTask,restartControlPlanePods"),
    ):
        request = FinishOperation(
            task=started.task, attempt=1, state=state, description="text", tasks=started.facts.tasks
        )
        await ActivityEnvironment().run(world.activities.finish_operation, request)
        assert (await world.shoot())["metadata"]["annotations"][annotation] == left


async def test_a_migration_ends_with_the_destination_in_charge() -> None:
    world = World()
    live = await world.shoot()
    await world.change(spec={**live["spec"], "seedName": "seed-2"}, status={"seedName": "seed-1"})
    started = await world.start(OperationType.MIGRATE)
    assert (started.task.seed, started.task.destination) == ("seed-1", "seed-2")
    assert (await world.finish(started, "Succeeded"))["seedName"] == "seed-2"


async def test_a_migration_aborted_too_late_ends_at_the_destination() -> None:
    """The source's etcd may not serve next to the destination's, whatever the spec says now."""
    world = World()
    live = await world.shoot()
    status = {"seedName": "seed-1", "technicalID": "shoot--local--demo"}
    await world.change(spec={**live["spec"], "seedName": "seed-2"}, status=status)
    started = await world.start(OperationType.MIGRATE)
    await world.change(spec={**live["spec"], "seedName": "seed-1"})
    view = await world.activities.look_at_shoot(REF)
    assert view is not None
    assert view.prepared_at == ""

    entry = {
        "apiVersion": resources.CORE_BACKUP_ENTRY.api_version,
        "kind": "BackupEntry",
        "metadata": {"name": "source-shoot--local--demo--0f3c", "namespace": "garden-local"},
        "spec": {"bucketName": "bucket-1", "seedName": "seed-2"},
    }
    world.garden.put(entry)
    view = await world.activities.look_at_shoot(REF)
    assert view is not None
    assert view.prepared_at == "seed-2"
    again = await world.start(OperationType.MIGRATE)
    assert (again.task.seed, again.task.destination) == ("seed-1", "seed-2")
    assert (await world.finish(started, "Succeeded"))["seedName"] == "seed-2"


def is_to_move(**annotations: str) -> World:
    return World(annotations={f"migration.gardener.cloud/{name}": value for name, value in annotations.items()})


async def _leave(world: World, **status: Any) -> None:
    live = await world.shoot()
    plane = {"highAvailability": {"failureTolerance": {"type": "node"}}}
    await world.change(spec={**live["spec"], "seedName": "seed-2", "controlPlane": plane}, status=status)


_RECONCILED = {"type": "Reconcile", "state": "Succeeded"}


async def test_a_live_move_is_recorded_and_stays_one_whatever_annotations_say_later() -> None:
    world = is_to_move(**{"live-migrate": "true"})
    await _leave(world, seedName="seed-1", lastOperation=_RECONCILED)
    started = await world.start(OperationType.MIGRATE)
    assert (started.facts.live, started.facts.fell_back) == (True, False)
    live = await world.shoot()
    assert (started.task.operation, live["status"]["lastOperation"]["type"]) == ("LiveMigrate", "LiveMigrate")
    view = await world.activities.look_at_shoot(REF)
    assert view is not None
    assert view.last_operation is not None
    assert view.last_operation.type is OperationType.MIGRATE
    [told] = live["status"]["liveMigration"]["conditions"]
    assert (told["type"], told["status"], told["reason"]) == ("LiveMigration", "Unknown", "Moving")
    live["metadata"]["annotations"] = {}
    await world.change(metadata=live["metadata"])
    assert (await world.start(OperationType.MIGRATE)).facts.live

    request = FinishOperation(task=started.task, attempt=1, state="Succeeded", description="text", live=True)
    await ActivityEnvironment().run(world.activities.finish_operation, request)
    status = (await world.shoot())["status"]
    [told] = status["liveMigration"]["conditions"]
    assert (told["status"], told["reason"], status["seedName"]) == ("True", "Moved", "seed-2")
    assert not (await world.start(OperationType.RESTORE)).facts.fell_back


async def test_a_live_move_that_falls_back_says_why_until_the_next_move() -> None:
    world = is_to_move(**{"live-migrate": "true"})
    await _leave(world, seedName="seed-1", lastOperation=_RECONCILED)
    started = await world.start(OperationType.MIGRATE)
    request = FinishOperation(task=started.task, attempt=1, state="Error", description="text", failed=(failure(),),
                              live=True, falls_back=True)  # fmt: skip
    for _ in range(2):
        await ActivityEnvironment().run(world.activities.finish_operation, request)
        [told] = (await world.shoot())["status"]["liveMigration"]["conditions"]
        assert (told["status"], told["reason"], told["message"]) == ("False", "FellBack", "wait_worker: no machine")
        again = await world.start(OperationType.MIGRATE)
        assert (again.facts.live, again.facts.fell_back) == (False, True)

    live = await world.shoot()
    live["metadata"]["annotations"] = {}
    await world.change(metadata=live["metadata"], status={**live["status"], "lastOperation": _RECONCILED})
    assert not (await world.start(OperationType.MIGRATE)).facts.fell_back
    assert not (await world.shoot())["status"].get("liveMigration")


async def test_a_restoration_knows_that_its_source_was_lost_in_a_live_move() -> None:
    world = is_to_move(**{"live-migrate": "true"})
    await _leave(world, seedName="seed-1", lastOperation=_RECONCILED)
    await world.start(OperationType.MIGRATE)
    await ActivityEnvironment().run(world.activities.abandon_source, REF)
    [told] = (await world.shoot())["status"]["liveMigration"]["conditions"]
    assert (told["status"], told["reason"], told["message"]) == ("False", "FellBack", "seed seed-1 is lost")
    for _ in range(2):
        again = await world.start(OperationType.RESTORE)
        assert (again.task.operation, again.facts.live, again.facts.fell_back) == (OperationType.RESTORE, False, True)


async def test_only_an_awake_control_plane_with_several_members_moves_live() -> None:
    world = is_to_move(**{"live-migrate": "true"})
    for change in ({"controlPlane": None}, {"hibernation": {"enabled": True}}):
        await _leave(world, seedName="seed-1", lastOperation=_RECONCILED)
        live = await world.shoot()
        await world.change(spec={**live["spec"], **change})
        assert not (await world.start(OperationType.MIGRATE)).facts.live


async def test_a_lost_seed_is_abandoned_once_and_its_annotation_removed() -> None:
    world = World(annotations={"shoot.gardener.cloud/control-plane-migration": "bad-case"})
    live = await world.shoot()
    await world.change(spec={**live["spec"], "seedName": "seed-2"}, status={"seedName": "seed-1"})
    for _ in range(2):
        await ActivityEnvironment().run(world.activities.abandon_source, REF)
    live = await world.shoot()

    last = live["status"]["lastOperation"]
    assert (live["status"]["seedName"], last["type"], last["state"]) == ("seed-2", "Migrate", "Aborted")
    assert "seed-1 is lost" in last["description"]
    assert not live["metadata"]["annotations"]
