"""Backups that a gardenlet has marked as expired are deleted by a workflow that the garden starts."""

import pytest

from tests.unit.garden_controllers.seed_requests import watched
from tests.unit.kube.waiting import until
from workers.controller_manager import seed_flows
from workers.controller_manager.watchers.kept_backups import KeptBackupsWatcher

ID = "shoot/garden-dev/gone/uid-of-gone/delete-backups"


async def test_marked_backups_are_deleted() -> None:
    async with watched(KeptBackupsWatcher) as world:
        world.entry("gone")
        flow = await world.only(ID)
    task = flow.request.task
    assert (flow.type, str(task.shoot), task.technical_id, task.seed) == (
        "DeleteBackups",
        "garden-dev/gone",
        "shoot--dev--gone",
        "seed-1",
    )


async def test_a_failure_is_tried_again_from_where_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_flows, "RETRY_SECONDS", 0.05)
    async with watched(KeptBackupsWatcher) as world:
        world.entry("gone")
        (await world.only(ID)).fail()
        await until(lambda: len(world.temporal.started) == 2)
    assert [each.request.attempt.number for each in world.temporal.started] == [1, 2]


async def test_their_shoot_goes_first() -> None:
    """An entry may be marked while the last Events of its Shoot are on their way."""
    async with watched(KeptBackupsWatcher) as world:
        world.shoot("gone", "seed-1")
        world.entry("gone")
        world.entry("other", seed="seed-2")
        await world.only("shoot/garden-dev/other/uid-of-other/delete-backups")
        world.garden.api.remove("/apis/core.gardener.cloud/v1beta1/shoots", "gone", "garden-dev")
        await until(lambda: ID in world.temporal.ids)


async def test_a_namespace_that_names_the_project_of_another_one_is_not_believed() -> None:
    """The label is written by people, too; the Project says which namespace is its own."""
    namespace = {"metadata": {"name": "garden-dev", "labels": {"project.gardener.cloud/name": "victim"}}}
    victim = {"metadata": {"name": "victim"}, "spec": {"namespace": "garden-victim"}}
    async with watched(KeptBackupsWatcher) as world:
        world.garden.api.put("/apis/core.gardener.cloud/v1beta1/projects", {"kind": "Project", **victim})
        world.garden.api.put("/api/v1/namespaces", {"kind": "Namespace", **namespace})
        world.entry("gone")
        flow = await world.only(ID)
    assert flow.request.task.technical_id == "shoot--dev--gone"
