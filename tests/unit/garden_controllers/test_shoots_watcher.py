"""A lifecycle is signalled when its Shoot changes, and when an object changes that it waits for."""

from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from api import resources
from api.images import OWN_VERSION
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.garden_controllers.temporal import TASK_LIMIT
from tests.unit.kube.waiting import until
from workers.controller_manager.watchers.shoots import ShootWatcher

SEEDS, SHOOTS, BASTIONS = (each.path() for each in (resources.SEED, resources.SHOOT, resources.OPERATIONS_BASTION))
NAMESPACE = "garden-local"
READY = {
    "observedGeneration": 1,
    "gardener": {"version": OWN_VERSION},
    "conditions": [{"type": type_, "status": "True"} for type_ in ("GardenletReady", "SeedSystemComponentsHealthy")],
}
UNREADY = {"conditions": [{"type": "GardenletReady", "status": "Unknown", "message": "the lease is old"}]}
SETTLED = {"observedGeneration": 1, "lastOperation": {"type": "Reconcile", "state": "Succeeded"}}


class Signals(Counter[str]):
    """Number of signals by the name of the Shoot."""

    async def start_workflow(self, run: Any, request: Any, **options: Any) -> None:
        assert options["start_signal"] == "wake"
        assert options["task_timeout"] == TASK_LIMIT
        assert options["priority"].fairness_key == request.shoot.namespace
        self[request.shoot.name] += 1


class World:
    def __init__(self, garden: Garden, signals: Signals) -> None:
        self.garden = garden
        self.signals = signals
        self._numbers = count()

    def shoot(self, name: str, seed: str = "seed-1", annotations: dict[str, str] | None = None, **status: Any) -> None:
        made = changed(changed(SHOOT, "metadata.name", name), "metadata.uid", f"uid-{name}")
        made["metadata"]["annotations"] = annotations or {}
        made["spec"]["seedName"] = seed
        self.garden.api.put(SHOOTS, {**made, "status": SETTLED | {"seedName": seed} | status})

    def seed(self, status: dict[str, Any]) -> None:
        self.garden.api.change(SEEDS, "seed-1", None, {"status": status})

    async def settle(self) -> None:
        """Wait for the signals of all events so far, by a Shoot that is put last; then count from zero."""
        self.shoot(last := f"last-{next(self._numbers)}", "none")
        await until(lambda: self.signals[last])
        self.signals.clear()


@pytest.fixture
async def world(garden: Garden) -> AsyncIterator[World]:
    signals = Signals()
    watcher = ShootWatcher(garden.caches, signals)  # type: ignore[arg-type]
    async with garden.running(watcher.run()):
        made = World(garden, signals)
        made.seed(UNREADY)
        made.shoot("settled")
        made.shoot("waits", lastOperation={"type": "Reconcile", "state": "Error"})
        made.shoot("new", lastOperation=None)
        made.shoot("changed", observedGeneration=0)
        made.shoot("moves-here", seedName="seed-2")
        made.shoot("elsewhere", "seed-2", seedName="seed-2", lastOperation={"type": "Reconcile", "state": "Error"})
        await made.settle()
        yield made


async def test_shoots_that_may_wait_for_a_seed_are_signalled_when_it_gets_ready(world: World) -> None:
    """A lifecycle does not read the Seed again and again."""
    world.seed(READY)
    await until(lambda: len(world.signals) == 4)

    assert world.signals == {"waits": 1, "new": 1, "changed": 1, "moves-here": 1}


async def test_a_seed_that_stays_as_ready_as_it_was_signals_no_shoot(world: World) -> None:
    world.seed({"conditions": [{"type": "GardenletReady", "status": "False", "message": "another reason"}]})
    await world.settle()
    world.seed(READY)
    await until(lambda: len(world.signals) == 4)
    await world.settle()

    world.seed({"kubernetesVersion": "1.37.1"})
    world.shoot("last", "none")
    await until(lambda: world.signals["last"])

    assert world.signals == {"last": 1}


async def test_a_shoot_is_signalled_when_one_of_its_bastions_is_deleted(world: World) -> None:
    """Its deletion or its move waits for that."""
    spec = {"shootRef": {"name": "waits"}, "seedName": "seed-1"}
    world.garden.api.put(BASTIONS, {"metadata": {"name": "b-1", "namespace": NAMESPACE}, "spec": spec})
    await world.garden.becomes(resources.OPERATIONS_BASTION, "b-1", NAMESPACE, lambda live: live is not None)
    world.garden.api.remove(BASTIONS, "b-1", NAMESPACE)
    await until(lambda: world.signals)

    assert world.signals == {"waits": 1}


async def test_a_shoot_is_signalled_when_the_update_is_over_that_a_user_has_forced(world: World) -> None:
    """The lifecycle then removes the operation. Without the operation, this part of the status does not concern it."""
    pending: dict[str, Any] = {"inPlaceUpdates": {"pendingWorkerUpdates": {"manualInPlaceUpdate": ["pool"]}}}
    forced = {"gardener.cloud/operation": "force-in-place-update"}
    world.shoot("forced", annotations=forced, **pending)
    world.shoot("waits", **pending)
    await world.settle()

    world.shoot("forced", annotations=forced)
    world.shoot("waits")
    await until(lambda: world.signals["forced"])
    world.shoot("last", "none")
    await until(lambda: world.signals["last"])

    assert world.signals == {"forced": 1, "last": 1}
