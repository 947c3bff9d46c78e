"""Seeds whose gardenlets are silent: what the garden says of them, and what becomes of moves that wait for them."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from api import resources
from kube.cache import Key
from kube.controller import Requeue
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE, Garden
from workers.controller_manager import gardenlet_lifecycle
from workers.controller_manager.gardenlet_lifecycle import GardenletLifecycleConfig, _LifecycleReconciler

LEASES = "/apis/coordination.k8s.io/v1/leases"
NAME = SEED["metadata"]["name"]
BAD_CASE = "shoot.gardener.cloud/control-plane-migration"
WELL = {"status": "True", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}


class World:
    """A garden in which a test moves the time, and a Shoot on the seed."""

    def __init__(self, garden: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
        self.garden = garden
        self._now = 0.0
        monkeypatch.setattr(gardenlet_lifecycle, "time", SimpleNamespace(monotonic=lambda: self._now))
        status = {"conditions": [{"type": "GardenletReady", **WELL}, {"type": "BackupBucketsReady", **WELL}]}
        garden.api.put(f"{CORE}/seeds", changed(changed(SEED, "status", status), "metadata.uid", "5eed"))
        self.renew("1")
        self.reconciler = _LifecycleReconciler(garden.client, garden.caches, GardenletLifecycleConfig())

    def renew(self, at: str) -> None:
        lease = {"metadata": {"name": NAME}, "spec": {"renewTime": at}}
        self.garden.api.put(LEASES, lease, "gardener-system-seed-lease")

    def order(self, wanted: str = NAME, **metadata: Any) -> None:
        shoot = changed(SHOOT, "spec.seedName", wanted)
        shoot["metadata"] |= {"uid": "u", **metadata}
        shoot["status"] = {
            "seedName": NAME,
            "conditions": [{"type": "APIServerAvailable", **WELL}],
            "constraints": [{"type": "HibernationPossible", **WELL}],
            "lastOperation": {"type": "Reconcile", "state": "Succeeded"},
        }
        self.garden.api.put(f"{CORE}/shoots", shoot)

    async def look(self, seconds: float = 0.0, steps: int = 1) -> None:
        """At the end of each step of so many seconds."""
        for _ in range(steps):
            self._now += seconds
            for resource, live in ((resources.SEED, self.seed), (resources.SHOOT, self.shoot)):
                await self.garden.caches.of(resource).synced()
                if live is not None:
                    metadata = live["metadata"]
                    await self.garden.becomes(resource, metadata["name"], metadata.get("namespace"), live.__eq__)
            assert await self.reconciler.reconcile(Key(None, NAME)) == Requeue(10.0)

    @property
    def seed(self) -> Any:
        return self.garden.api.find(f"{CORE}/seeds", NAME)

    @property
    def shoot(self) -> Any:
        return self.garden.api.find(f"{CORE}/shoots", "demo", "garden-local")

    @property
    def conditions(self) -> dict[str, str]:
        return {each["type"]: each["status"] for each in self.seed["status"]["conditions"]}

    @property
    def abandoned(self) -> bool:
        return (self.shoot["metadata"].get("annotations") or {}).get(BAD_CASE) == "bad-case"


@pytest.fixture
async def world(garden: Garden, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(garden, monkeypatch)


async def test_a_gardenlet_that_does_not_renew_its_lease_is_not_ready(world: World) -> None:
    await world.look()
    await world.look(10, 3)
    assert world.conditions == {"GardenletReady": "True", "BackupBucketsReady": "True"}
    await world.look(10)
    assert world.conditions == {"GardenletReady": "Unknown", "BackupBucketsReady": "True"}
    assert ("SeedStatusUnknown", "Gardenlet stopped posting seed status.") in await world.garden.events(1)
    version = world.seed["metadata"]["resourceVersion"]
    await world.look(10)
    assert world.seed["metadata"]["resourceVersion"] == version, "it is said once"


async def test_a_renewed_lease_counts_whatever_its_clock_shows(world: World) -> None:
    for number in range(8):
        world.renew(f"1970-01-01T00:00:{number:02}Z")
        await world.look(10)
    assert world.conditions["GardenletReady"] == "True"


async def test_time_without_a_controller_does_not_count_as_silence(world: World) -> None:
    """As after an outage of the garden: all leases are old, and none for its gardenlet's sake."""
    await world.look()
    await world.look(3600)
    assert world.conditions["GardenletReady"] == "True"


async def test_conditions_of_shoots_of_a_silent_seed_become_unknown(world: World) -> None:
    world.order()
    await world.look()
    await world.look(10, 19)
    assert world.shoot["status"]["conditions"][0]["status"] == "True"
    await world.look(10)
    assert [each["status"] for each in world.shoot["status"]["conditions"]] == ["Unknown"]
    assert [each["status"] for each in world.shoot["status"]["constraints"]] == ["Unknown"]
    assert world.shoot["metadata"]["labels"]["shoot.gardener.cloud/status"] == "unknown"


async def test_a_move_that_waits_for_a_silent_source_continues_without_it(world: World) -> None:
    world.order(wanted="seed-2")
    await world.look()
    await world.look(10, 59)
    assert not world.abandoned
    await world.look(10)
    assert world.abandoned
    events = await world.garden.events(2)
    text = f"The gardenlet of Seed {NAME} is silent for 10 min: seed-2 takes over"
    assert ("SourceSeedLost", text) in events


@pytest.mark.parametrize(
    ("wanted", "metadata"),
    [(NAME, {}), ("seed-2", {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["gardener"]})],
    ids=["it does not move", "it is being deleted"],
)
async def test_other_shoots_wait_for_it(world: World, wanted: str, metadata: dict[str, Any]) -> None:
    world.order(wanted, **metadata)
    await world.look()
    await world.look(10, 61)
    assert not world.abandoned


async def test_no_source_is_abandoned_automatically_if_disabled(world: World) -> None:
    config = GardenletLifecycleConfig(lost_source_patience=timedelta())
    world.reconciler = _LifecycleReconciler(world.garden.client, world.garden.caches, config)
    world.order(wanted="seed-2")
    await world.look()
    await world.look(10, 61)
    assert not world.abandoned
