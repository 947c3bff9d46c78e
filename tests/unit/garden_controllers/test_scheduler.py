"""The scheduler as a process: what it writes, and when it looks again."""

from api import resources
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE
from workers.lib.runtime import Health
from workers.scheduler import Scheduler, ShootSchedulerConfig

NAMESPACE = "garden-local"


def bound(shoot):
    return bool(shoot and shoot["spec"].get("seedName"))


async def test_a_new_shoot_gets_a_seed_and_an_event(garden):
    async with garden.running(Scheduler(garden.client, garden.caches).run(Health())):
        garden.api.put(f"{CORE}/shoots", changed(SHOOT))
        await garden.becomes(resources.SHOOT, "demo", NAMESPACE, bound)
        assert garden.api.find(f"{CORE}/shoots", "demo", NAMESPACE)["spec"]["seedName"] == "seed-1"
        assert await garden.events(1) == [("SchedulingSuccessful", "Scheduled to seed 'seed-1'")]


async def test_a_shoot_that_fits_nowhere_says_why_and_is_placed_once_a_seed_fits(garden):
    """Its owner reads the reason in the status; the Shoot is scheduled later without a change."""
    garden.api.change(f"{CORE}/seeds", "seed-1", None, {"spec": {"settings": {"scheduling": {"visible": False}}}})
    async with garden.running(Scheduler(garden.client, garden.caches).run(Health())):
        garden.api.put(f"{CORE}/shoots", changed(SHOOT))
        pending = await garden.becomes(
            resources.SHOOT, "demo", NAMESPACE, lambda shoot: (shoot or {}).get("status", {}).get("lastOperation")
        )
        assert (pending["type"], pending["state"]) == ("Create", "Pending")
        assert "accepts new shoots (settings.scheduling.visible) (not seed-1)" in pending["description"]

        garden.api.change(f"{CORE}/seeds", "seed-1", None, {"spec": {"settings": {"scheduling": {"visible": True}}}})
        await garden.becomes(resources.SHOOT, "demo", NAMESPACE, bound)
        withdrawn = await garden.becomes(
            resources.SHOOT, "demo", NAMESPACE, lambda shoot: not shoot["status"].get("lastOperation")
        )
        assert withdrawn


async def test_shoots_that_come_at_once_are_spread(garden):
    """Each decision must count the earlier ones, though the cache has not seen them."""
    garden.api.put(f"{CORE}/seeds", changed(SEED, "metadata.name", "seed-2"))
    names = [f"s{number}" for number in range(6)]
    for name in names:
        garden.api.put(f"{CORE}/shoots", changed(SHOOT, "metadata", {"name": name, "namespace": NAMESPACE}))
    async with garden.running(Scheduler(garden.client, garden.caches).run(Health())):
        for name in names:
            await garden.becomes(resources.SHOOT, name, NAMESPACE, bound)
    seeds = [garden.api.find(f"{CORE}/shoots", name, NAMESPACE)["spec"]["seedName"] for name in names]
    assert sorted(seeds) == ["seed-1"] * 3 + ["seed-2"] * 3


async def test_a_shoot_waits_for_distances_that_an_operator_gives(garden):
    """With MinimalDistance a region ConfigMap decides; a change of it counts for the next Shoot."""
    for name, region in (("seed-2", "asia"), ("seed-3", "america")):
        seed = changed(SEED, "metadata.name", name)
        seed["spec"]["provider"]["region"] = region
        garden.api.put(f"{CORE}/seeds", seed)
    garden.api.change(f"{CORE}/seeds", "seed-1", None, {"spec": {"settings": {"scheduling": {"visible": False}}}})
    garden.api.put(
        "/api/v1/configmaps",
        {
            "metadata": {
                "name": "regions",
                "namespace": "garden",
                "labels": {"scheduling.gardener.cloud/purpose": "region-config"},
                "annotations": {"scheduling.gardener.cloud/cloudprofiles": "local"},
            },
            "data": {"local": "asia: 9\namerica: 3"},
        },
    )
    config = ShootSchedulerConfig.model_validate({"candidateDeterminationStrategy": "MinimalDistance"})
    async with garden.running(Scheduler(garden.client, garden.caches, config).run(Health())):
        garden.api.put(f"{CORE}/shoots", changed(SHOOT))
        shoot = await garden.becomes(resources.SHOOT, "demo", NAMESPACE, bound)
        assert shoot
    assert garden.api.find(f"{CORE}/shoots", "demo", NAMESPACE)["spec"]["seedName"] == "seed-3"


async def test_shoots_of_other_schedulers_are_left_alone(garden):
    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "spec.schedulerName", "mine"))
    going = changed(SHOOT, "metadata", {"name": "going", "namespace": NAMESPACE, "finalizers": ["x"]})
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    garden.api.put(f"{CORE}/shoots", going)
    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "metadata", {"name": "ours", "namespace": NAMESPACE}))
    async with garden.running(Scheduler(garden.client, garden.caches).run(Health())):
        await garden.becomes(resources.SHOOT, "ours", NAMESPACE, bound)
    for name in ("demo", "going"):
        assert "seedName" not in garden.api.find(f"{CORE}/shoots", name, NAMESPACE)["spec"]
