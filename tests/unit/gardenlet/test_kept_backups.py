"""When a gardenlet marks backups that were kept: not before their time, and none that are not its own."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from activities.seed.retention import Retention
from kube.cache import Caches, Key
from kube.controller import Requeue
from tests.unit.kube.garden_server import GardenServer
from tests.unit.seed.test_retention import DAY, ENTRIES, FORCE, NAME, NAMESPACE
from workers.gardenlet.kept_backups import KeptBackupsController

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
EXPIRED = "backup.gardener.cloud/expired"
OWNER = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "name": "demo", "uid": "0f3c"}


def marked(ago: timedelta, seed: str = "seed-1", **metadata: Any) -> dict[str, Any]:
    at = (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = {"name": NAME, "finalizers": ["gardener"], "deletionTimestamp": at, "ownerReferences": [OWNER]}
    return {"metadata": kept | metadata, "spec": {"seedName": seed}}


async def look(entry: dict[str, Any], *shoots: dict[str, Any]) -> tuple[Requeue | None, str | None]:
    """The controller's requeue after two reconciliations, and since when the backups are marked as expired."""
    async with GardenServer().running() as garden, garden.client() as client:
        garden.put(ENTRIES, entry, NAMESPACE)
        for each in shoots:
            garden.put(SHOOTS, each, NAMESPACE)
        caches = Caches(client)
        clusters: Any = SimpleNamespace(garden=client, garden_caches=caches, seed_name="seed-1")
        controller = KeptBackupsController(clusters, Retention(DAY))
        await asyncio.wait_for(controller._entries.synced(10), 20)
        again = await controller._reconcile(Key(NAMESPACE, NAME))
        await caches.close()
        live = garden.find(ENTRIES, NAME, NAMESPACE)
    assert live is not None
    said: str | None = (live["metadata"].get("annotations") or {}).get(EXPIRED)
    return again, said


async def test_backups_are_marked_when_their_time_is_over() -> None:
    entry = marked(2 * DAY)
    end = datetime.fromisoformat(entry["metadata"]["deletionTimestamp"]) + DAY
    again, said = await look(entry)
    assert again is None
    assert said is not None
    assert datetime.fromisoformat(said) == end


async def test_backups_are_marked_on_request_of_an_operator() -> None:
    entry = marked(timedelta(0), annotations={FORCE: "true"})
    assert await look(entry) == (None, entry["metadata"]["deletionTimestamp"])


async def test_kept_backups_are_requeued_for_their_expiry() -> None:
    again, said = await look(marked(DAY - timedelta(minutes=1)))
    assert again is not None
    assert 50 < again.after <= 60
    assert said is None


async def test_a_longer_period_takes_the_mark_off_again() -> None:
    """The gardenlet keeps them now: a workflow would find nothing to do, again and again."""
    again, said = await look(marked(timedelta(0), annotations={EXPIRED: "2026-01-01T00:00:00Z"}))
    assert again is not None
    assert said is None


async def test_a_shoot_that_is_still_there_deletes_them_itself() -> None:
    shoot = {"metadata": {"name": "demo", "uid": "0f3c"}}
    assert await look(marked(2 * DAY), shoot) == (Requeue(60.0), None)


async def test_a_new_shoot_of_the_same_name_does_not_keep_earlier_backups() -> None:
    shoot = {"metadata": {"name": "demo", "uid": "another"}}
    assert (await look(marked(2 * DAY), shoot))[1] is not None


@pytest.mark.parametrize(
    "entry",
    [marked(2 * DAY, seed="seed-2"), marked(2 * DAY, ownerReferences=[])],
    ids=["of another seed", "of no Shoot"],
)
async def test_other_backup_entries_are_left_alone(entry: dict[str, Any]) -> None:
    assert await look(entry) == (None, None)
