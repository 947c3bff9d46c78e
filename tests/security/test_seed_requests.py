"""Gardenlets that ask for operations of their seed, and lie: nothing is started that the garden does not bear out.

Beside each lie stands a request that is true. The test waits for the workflow of that one, so a watcher that starts
nothing fails as well.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import workers.gardenlet
from api import resources
from tests.unit.garden_controllers.seed_requests import OURS, THEIRS, remnant, watched
from tests.unit.kube.waiting import until
from workers.controller_manager.watchers.kept_backups import KeptBackupsWatcher
from workers.controller_manager.watchers.remains import RemainsWatcher

TRUE = "zz-true"
"""Name of the Shoot of the true request; it is looked at last."""
FORGOTTEN = f"shoot/garden-dev/{TRUE}/uid-of-{TRUE}/forget/{OURS}"
DELETED = f"shoot/garden-dev/{TRUE}/uid-of-{TRUE}/delete-backups"


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
def test_a_gardenlet_has_no_code_that_starts_or_changes_a_workflow() -> None:
    """Its certificate may poll its own queue alone, so what it needs it asks for in the garden."""
    forbidden = {"start_workflow", "execute_workflow", "get_workflow_handle", "create_schedule", "signal"}
    for path in Path(workers.gardenlet.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        used = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
        imported = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
        assert not used & forbidden, path
        assert "temporalio.client" not in imported, path


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
@pytest.mark.parametrize(
    "lie",
    [
        remnant("home"),
        remnant("home", deleted=True),
        remnant("home", name="other", technicalID="shoot--dev--other", deleted=True),
        remnant("moving"),
        remnant("there", technicalID="shoot--dev--home"),
        remnant("there", deleted=True),
        remnant("gone", technicalID="shoot--dev--home", deleted=True),
        remnant("gone", namespace="garden-nowhere", technicalID="shoot--dev--home", deleted=True),
        remnant("gone"),
    ],
    ids=[
        "of a Shoot that is at home in this seed",
        "of a live Shoot as if it were deleted",
        "of a live Shoot under another name",
        "of a Shoot that another seed has not restored yet",
        "with the technical id of another Shoot",
        "of a live Shoot of another seed as if it were deleted",
        "of a deleted Shoot with the technical id of a live one",
        "of a deleted Shoot of no Project with the technical id of a live one",
        "of a Shoot that the garden does not know",
    ],
)
async def test_a_gardenlet_cannot_have_the_control_plane_of_a_live_shoot_forgotten(
    lie: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The cleaning deletes a whole control plane, so the garden decides by its own record what is left over."""
    async with watched(RemainsWatcher) as world:
        world.shoot("home", OURS)
        world.shoot("there", THEIRS)
        world.shoot("moving", THEIRS, "Restore", "Processing")
        world.shoot(TRUE, THEIRS)
        world.claim(lie, remnant(TRUE))
        await until(lambda: "asks for a cleaning that is refused" in caplog.text)
        flow = await world.only(FORGOTTEN)
    task = flow.request.task
    assert (task.technical_id, task.seed, task.destination) == (f"shoot--dev--{TRUE}", OURS, THEIRS)


@pytest.mark.attack(actor="T3", asset="A4", finding=6)
@pytest.mark.parametrize(
    ("made_by", "bucket", "taken_over", "deletes"),
    [
        (THEIRS, "uid-of-seed-3", True, False),
        (THEIRS, "uid-of-seed-3", False, False),
        (OURS, "uid-of-seed-3", True, False),
        (THEIRS, f"uid-of-{OURS}", True, True),
    ],
    ids=["lost seed", "move that is under way", "lost seed that it took over from", "its own mark"],
)
async def test_a_gardenlet_cannot_have_the_mark_of_another_lost_seed_deleted(
    made_by: str, bucket: str, taken_over: bool, deletes: bool
) -> None:
    """Without that mark the etcds of the lost seed would serve again when it is back."""
    async with watched(RemainsWatcher) as world:
        world.shoot(TRUE, THEIRS)
        annotations = {"backupentry.core.gardener.cloud/taken-over": "true"} if taken_over else {}
        source = f"source-shoot--dev--{TRUE}--uid-of-{TRUE}"
        spec = {"seedName": made_by, "bucketName": bucket}
        world.put(resources.CORE_BACKUP_ENTRY, source, "garden-dev", annotations=annotations, spec=spec)
        world.claim(remnant(TRUE))
        flow = await world.only(FORGOTTEN)
    assert flow.request.source_entry is deletes


@pytest.mark.attack(actor="T3", asset="A1", finding=4)
@pytest.mark.parametrize(
    "text",
    [
        "{",
        json.dumps({"all": True}),
        json.dumps([remnant("a/../b", deleted=True)]),
        json.dumps([remnant("gone", uid="x/forget/seed-2", deleted=True)]),
        json.dumps([remnant(f"gone-{number}", deleted=True) for number in range(101)]),
    ],
    ids=["no JSON", "no list", "a name with slashes", "a uid with slashes", "more than 100 entries"],
)
async def test_a_list_that_cannot_be_read_starts_nothing_and_stops_no_other_seed(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Names become part of workflow ids, and each entry may become a workflow."""
    async with watched(RemainsWatcher) as world:
        world.shoot(TRUE, THEIRS)
        bad = {"metadata": {"annotations": {"seed.gardener.cloud/remains": text}}}
        world.garden.api.change(resources.SEED.path(), THEIRS, None, bad)
        await until(lambda: f"seed {THEIRS}: its gardenlet asks for a cleaning that is refused" in caplog.text)
        world.claim(remnant(TRUE))
        await world.only(FORGOTTEN)


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_gardenlet_that_makes_up_shoots_and_does_no_work_holds_up_no_other_seed() -> None:
    """Its workflows wait for it; only three of them run at a time."""
    async with watched(RemainsWatcher) as world:
        world.shoot(TRUE, THEIRS)
        world.claim(*(remnant(f"gone-{number:02}", deleted=True) for number in range(50)))
        await until(lambda: len(world.temporal.started) == 3)
        world.put(resources.SEED, "seed-3", uid="uid-of-seed-3", spec={},
                  annotations={"seed.gardener.cloud/remains": json.dumps([remnant(TRUE)])})  # fmt: skip
        await until(lambda: len(world.temporal.started) == 4)
    assert world.temporal.ids[3] == f"shoot/garden-dev/{TRUE}/uid-of-{TRUE}/forget/seed-3"


@pytest.mark.attack(actor="T3", asset="A4", finding=6)
@pytest.mark.parametrize(
    "lie",
    [
        {"shoot": "live"},
        {"shoot": "live", "seed": THEIRS},
        {"shoot": "gone", "uid": "uid-of-live"},
        {"shoot": "gone", "name": "shoot--dev--live--uid-of-live"},
        {"shoot": "gone", "name": "shoot--dev--live--uid-of-gone"},
        {"shoot": "gone", "seed": THEIRS, "bucket": f"uid-of-{OURS}"},
        {"shoot": "gone", "bucket": f"uid-of-{THEIRS}"},
        {"shoot": "gone", "seed": "seed-of-nobody"},
    ],
    ids=[
        "of a live Shoot",
        "of a live Shoot of another seed",
        "of a deleted Shoot with the uid of a live one",
        "under the name of a live Shoot's backups",
        "under the name of a live Shoot",
        "of another seed, with its own bucket",
        "of its own, with the bucket of another seed",
        "of a seed that does not exist",
    ],
)
async def test_a_gardenlet_cannot_have_the_backups_of_a_live_shoot_or_another_seed_deleted(
    lie: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A gardenlet marks its own BackupEntries when their time is over, and the garden checks whose they are."""
    async with watched(KeptBackupsWatcher) as world:
        world.shoot("live", THEIRS)
        world.entry(**lie)
        world.entry(TRUE)
        await until(lambda: "asks for a deletion that is refused" in caplog.text)
        flow = await world.only(DELETED)
    assert (flow.request.task.technical_id, flow.request.task.seed) == (f"shoot--dev--{TRUE}", OURS)
