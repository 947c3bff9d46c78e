"""Control planes that moved.

A move runs as workflow, or its activities run against API servers in memory.
"""

from datetime import timedelta
from typing import Any

import pytest

from activities.seed.migration import MigrationActivities
from api import constants
from api.contracts.flows import FlowInput, ShootFacts, Survey
from api.contracts.operations import OperationType
from api.durations import parse_duration
from tests.unit.components.test_control_plane import TASK, World
from tests.unit.components.test_control_plane import world as control_plane
from tests.unit.kube.api_server import ApiServer
from tests.unit.seed import test_migration as moved
from tests.unit.seed.test_hibernation import asleep, replicas
from tests.unit.seed.test_migration import activities, clusters, garden, seed
from tests.workflow.conftest import temporal, temporal_address, world
from tests.workflow.world import DESTINATION, SEED, operation
from tests.workflow.world import World as Lifecycles
from workflows.shoot.migrate import migrate_flow

__all__ = ["activities", "clusters", "control_plane", "garden", "seed", "temporal", "temporal_address", "world"]

RESTORE = TASK.model_copy(update={"operation": OperationType.RESTORE})
WHOLE = Survey(namespace=True, cluster=True, control_plane=True, controller_manager=True, api_server=True, backups=True)


@pytest.mark.exhibit(
    threads=["gardener/gardener#4773"],
    happened="A control plane that was not hibernated got kube-controller-manager without replicas in its new seed, "
    "because the count was taken from the Deployment that had been left behind.",
    here="The count comes from the spec, and is 0 for a hibernated Shoot alone.",
)
async def test_gardener_4773_a_restored_control_plane_has_its_controller_manager(control_plane: World) -> None:
    name = "kube-controller-manager"
    await control_plane.control_plane.deploy_kube_controller_manager(RESTORE)
    assert replicas(control_plane.seed, name) == 1

    control_plane.pin(asleep())
    await control_plane.control_plane.deploy_kube_controller_manager(RESTORE)
    assert replicas(control_plane.seed, name) == 0

    control_plane.pin(asleep(False))
    await control_plane.control_plane.deploy_kube_controller_manager(RESTORE)
    assert replicas(control_plane.seed, name) == 1


@pytest.mark.exhibit(
    threads=["gardener/gardener#5993"],
    happened="A restoration waited 5 minutes for the copy of the backups, while the copy waited 30 minutes for the "
    "final snapshot of a lost source, so each attempt interrupted the copy and began it again.",
    here="The copy waits for a final snapshot a shorter time than its task waits for the copy, and only for seconds if "
    "the source is lost.",
)
@pytest.mark.parametrize(("lost", "at_most"), [(False, timedelta(minutes=10)), (True, timedelta(seconds=10))])
async def test_gardener_5993_a_copy_ends_before_the_wait_for_it(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer, lost: bool, at_most: timedelta
) -> None:
    await activities.deploy_source_backup_entry(moved.TASK)
    entry = {"metadata": {"name": moved.ENTRY}, "spec": {"type": "local", "bucketName": "uid-of-seed-2"}}
    seed.put(f"{moved.EXTENSIONS}/backupentries", entry)
    if lost:
        marked = {"metadata": {"annotations": {constants.BACKUP_ENTRY_TAKEN_OVER: "true"}}}
        garden.change(f"{moved.CORE}/backupentries", f"source-{moved.ENTRY}", "garden-local", marked)

    await activities.copy_etcd_backups(moved.TASK)

    found: Any = seed.find(moved.COPIES, "demo", moved.NAMESPACE)
    patience = parse_duration(found["spec"]["waitForFinalSnapshot"]["timeout"])
    migration = moved.TASK.model_copy(update={"operation": OperationType.MIGRATE, "destination": "seed-3"})
    flow = migrate_flow(FlowInput(task=migration, facts=ShootFacts()), WHOLE)
    wait = flow._tasks["wait_etcd_backups_copied_there"].options["start_to_close_timeout"]
    assert wait is not None
    assert patience + timedelta(minutes=5) < wait, "time for the copy itself"
    assert patience <= at_most


@pytest.mark.exhibit(
    threads=["gardener/gardener#7139"],
    happened="The BackupEntry of a hibernated Shoot still named the old seed when the restoration began, so the new "
    "seed did not find the backups.",
    here="The BackupEntry is handed over in the migration, also of a hibernated Shoot, and no restoration starts "
    "before the migration has succeeded.",
)
async def test_gardener_7139_a_hibernated_control_plane_is_restored_after_its_backups_are_handed_over(
    world: Lifecycles,
) -> None:
    world.facts = ShootFacts(credentials="1", hibernated=True)
    world.change(status_seed=SEED, observed_generation=1, uid_recorded=True, gardener_version="v0", generation=2,
                 spec_seed=DESTINATION, last_operation=operation(OperationType.RECONCILE, "Succeeded"))  # fmt: skip
    world.fail_always("migrate_backup_entry", "ERR_CONFIGURATION_PROBLEM")
    await world.wake()
    await world.until(lambda: len(world.finished) == 1)
    assert (world.finished[0].task.operation, world.finished[0].state) == (OperationType.MIGRATE, "Failed")
    assert not [each for each in world.log if each.startswith("start Restore")]

    world.mend("migrate_backup_entry")
    world.change(operations=("retry",))
    await world.wake()
    await world.until(lambda: len(world.finished) == 3)
    assert [(each.task.operation, each.state) for each in world.finished[1:]] == [
        (OperationType.MIGRATE, "Succeeded"),
        (OperationType.RESTORE, "Succeeded"),
    ]
