"""When a gardenlet deletes backups that were kept: not before their time, and none that are not its own."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from activities.kube.cache import Caches, Key
from activities.kube.controller import Requeue
from activities.seed.retention import Retention
from tests.unit.gardenlet.test_remains import SHOOTS, Temporal
from tests.unit.kube.api_server import ApiServer
from tests.unit.seed.test_retention import DAY, ENTRIES, FORCE, NAME, NAMESPACE
from workers.gardenlet.flows import RETRY_SECONDS
from workers.gardenlet.kept_backups import KeptBackupsController

OWNER = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "name": "demo", "uid": "0f3c"}


def marked(ago: timedelta, seed: str = "seed-1", **metadata: Any) -> dict[str, Any]:
    at = (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = {"name": NAME, "finalizers": ["gardener"], "deletionTimestamp": at, "ownerReferences": [OWNER]}
    return {"metadata": kept | metadata, "spec": {"seedName": seed}}


async def look(entry: dict[str, Any], *shoots: dict[str, Any]) -> tuple[Requeue | None, list[Any]]:
    temporal = Temporal()
    async with ApiServer().running() as garden, garden.client() as client:
        garden.put(ENTRIES, entry, NAMESPACE)
        for each in shoots:
            garden.put(SHOOTS, each, NAMESPACE)
        caches = Caches(client)
        clusters: Any = SimpleNamespace(garden=client, garden_caches=caches, seed_name="seed-1")
        controller = KeptBackupsController(clusters, temporal, Retention(DAY))  # type: ignore[arg-type]
        await asyncio.wait_for(controller._entries.synced(10), 20)
        again = await controller._reconcile(Key(NAMESPACE, NAME))
        await caches.close()
    return again, temporal.started


@pytest.mark.parametrize(
    "entry",
    [marked(2 * DAY), marked(timedelta(0), annotations={FORCE: "true"})],
    ids=["their time is over", "somebody says so"],
)
async def test_backups_are_deleted_when_they_need_not_be_kept(entry: dict[str, Any]) -> None:
    again, [(request, options)] = await look(entry)
    assert again is None
    assert options["id"] == f"shoot/{NAMESPACE}/demo/0f3c/delete-backups"
    task = request.task
    assert (str(task.shoot), task.technical_id, task.seed) == (f"{NAMESPACE}/demo", "shoot--local--demo", "seed-1")


async def test_they_are_looked_at_again_when_their_time_is_over() -> None:
    again, started = await look(marked(DAY - timedelta(minutes=1)))
    assert again is not None
    assert 50 < again.after <= 60
    assert started == []


async def test_a_shoot_that_is_still_there_deletes_them_itself() -> None:
    shoot = {"metadata": {"name": "demo", "uid": "0f3c"}}
    assert await look(marked(2 * DAY), shoot) == (Requeue(RETRY_SECONDS), [])


async def test_one_of_the_same_name_has_others() -> None:
    shoot = {"metadata": {"name": "demo", "uid": "another"}}
    assert len((await look(marked(2 * DAY), shoot))[1]) == 1


@pytest.mark.parametrize(
    "entry",
    [marked(2 * DAY, seed="seed-2"), marked(2 * DAY, ownerReferences=[])],
    ids=["of another seed", "of nobody knows which Shoot"],
)
async def test_others_are_left_alone(entry: dict[str, Any]) -> None:
    assert await look(entry) == (None, [])
