"""The backups of a deleted Shoot: deleted with it, or kept for as long as the gardenlet is told."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from activities.seed.extensions import ExtensionActivities
from activities.seed.retention import Retention
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer

ENTRIES = "/apis/core.gardener.cloud/v1beta1/backupentries"
OBJECTS = "/apis/extensions.gardener.cloud/v1alpha1/backupentries"
NAME, NAMESPACE = "shoot--local--demo--0f3c", "garden-local"
DAY = timedelta(days=1)
FORCE = "backupentry.core.gardener.cloud/force-deletion"
PURPOSE = "shoot.gardener.cloud/purpose"
TASK = ShootTask(
    shoot=ShootRef(namespace=NAMESPACE, name="demo", uid="0f3c"),
    technical_id="shoot--local--demo",
    seed="seed-1",
    generation=1,
    operation=OperationType.DELETE,
    trigger="2026-11-21T10:00:00.000000Z",
)


class World:
    """Backups, in garden and seed, of a Shoot that is being deleted."""

    def __init__(self, garden: ApiServer, seed: ApiServer, clusters: Any) -> None:
        self._garden, self._seed, self._clusters = garden, seed, clusters
        seed.put(OBJECTS, {"metadata": {"name": NAME}, "spec": {"type": "local"}})

    def order(self, seed: str = "seed-1", **metadata: Any) -> None:
        entry = {"metadata": {"name": NAME, "finalizers": ["gardener"], **metadata}, "spec": {"seedName": seed}}
        self._garden.put(ENTRIES, entry, NAMESPACE)

    def annotate(self, **annotations: str) -> None:
        self._garden.change(ENTRIES, NAME, NAMESPACE, {"metadata": {"annotations": annotations}})

    async def delete(self, retention: Retention) -> str:
        """What the task says that waits."""
        activities: Any = ExtensionActivities(self._clusters, retention)
        await activities.delete_backup_entry(TASK)
        note: str = (await asyncio.wait_for(activities.wait_backup_entry_deleted(TASK), 10)).note
        return note

    @property
    def backups(self) -> bool:
        return self._seed.find(OBJECTS, NAME) is not None

    @property
    def entry(self) -> dict[str, Any] | None:
        return self._garden.find(ENTRIES, NAME, NAMESPACE)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    garden, seed = GardenServer(), ApiServer()
    async with garden.running(), seed.running(), garden.client() as garden_client, seed.client() as client:
        caches = Caches(client)
        yield World(garden, seed, SimpleNamespace(garden=garden_client, seed=client, seed_caches=caches))
        await caches.close()


@pytest.mark.parametrize(
    ("retention", "metadata"),
    [
        (Retention(), {}),
        (Retention(DAY, frozenset({"production"})), {"annotations": {PURPOSE: "testing"}}),
        (Retention(DAY), {"annotations": {FORCE: "true"}}),
    ],
    ids=["nothing is kept", "it is for testing only", "its owner says so"],
)
async def test_backups_go_with_their_shoot(world: World, retention: Retention, metadata: dict[str, Any]) -> None:
    world.order(**metadata)
    assert await world.delete(retention) == ""
    assert (world.backups, world.entry) == (False, None)
    assert await world.delete(retention) == ""


@pytest.mark.parametrize("metadata", [{}, {"finalizers": []}], ids=["", "of an earlier version"])
async def test_backups_are_kept_for_their_grace_period(world: World, metadata: dict[str, Any]) -> None:
    world.order(**metadata, annotations={PURPOSE: "production"})
    retention = Retention(DAY, frozenset({"production"}))
    said = await world.delete(retention)
    assert world.entry is not None
    marked = datetime.fromisoformat(world.entry["metadata"]["deletionTimestamp"])
    assert said == f"kept until {marked + DAY:%Y-%m-%d %H:%M:%S} UTC"
    assert await world.delete(retention) == said, "a second run counts from the first"
    assert world.backups


async def test_kept_backups_go_when_their_time_is_over_or_somebody_says_so(world: World) -> None:
    world.order()
    await world.delete(Retention(DAY))
    assert world.backups
    world.annotate(**{FORCE: "true"})
    assert await world.delete(Retention(DAY)) == ""
    assert (world.backups, world.entry) == (False, None)


async def test_the_time_counts_from_the_mark(world: World) -> None:
    long_ago = (datetime.now(UTC) - 2 * DAY).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.order(deletionTimestamp=long_ago)
    assert await world.delete(Retention(DAY)) == ""
    assert (world.backups, world.entry) == (False, None)


async def test_what_is_left_of_backups_in_a_lost_seed_is_not_kept(world: World) -> None:
    """The Shoot went on elsewhere: the backups there are those that count, and the entry is theirs."""
    world.order(seed="seed-2")
    assert await world.delete(Retention(DAY)) == ""
    assert not world.backups
    assert world.entry is not None
