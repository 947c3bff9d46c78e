"""Bastions end in time: an hour after somebody has said that they are needed, and with what they were for."""

from datetime import UTC, datetime, timedelta

import pytest

from api import resources
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE
from workers.controller_manager.bastions import BastionConfig, run_bastion_controller

NAMESPACE = "garden-local"
BASTIONS = "/apis/operations.gardener.cloud/v1alpha1/bastions"
KEEPALIVE = {"gardener.cloud/operation": "keepalive"}
HOME = changed(SHOOT, "spec.seedName", "seed-1")


def now():
    return datetime.now(UTC)


def text(time):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


SINCE = text(now())


def furnish(garden, shoot=HOME, age=timedelta(), expires=None, **metadata):
    """A Bastion that is held as by a gardenlet; ``expires``: from now, None for one that nobody has seen yet."""
    if shoot is not None:
        garden.api.put(f"{CORE}/shoots", {**shoot, "metadata": {**shoot["metadata"], "finalizers": ["gardener"]}})
    known = {
        "name": "alice",
        "namespace": NAMESPACE,
        "creationTimestamp": text(now() - age),
        "finalizers": ["gardener"],
    }
    kind = {"apiVersion": resources.OPERATIONS_BASTION.api_version, "kind": "Bastion"}
    bastion = {**kind, "metadata": known | metadata, "spec": {"shootRef": {"name": "demo"}, "seedName": "seed-1"}}
    if expires is not None:
        bastion["status"] = {"expirationTimestamp": text(now() + expires), "lastHeartbeatTimestamp": text(now() - age)}
    garden.api.put(BASTIONS, bastion)


def running(garden, **config):
    return garden.running(run_bastion_controller(garden.client, garden.caches, BastionConfig(**config)))


async def becomes(garden, wanted):
    return await garden.becomes(resources.OPERATIONS_BASTION, "alice", NAMESPACE, lambda obj: wanted(obj) and obj)


def going(bastion):
    return "deletionTimestamp" in bastion["metadata"]


def expires(bastion):
    return datetime.fromisoformat(bastion["status"]["expirationTimestamp"])


@pytest.mark.parametrize("metadata", [{}, {"annotations": KEEPALIVE}], ids=["new", "asked for at once"])
async def test_a_new_one_is_needed_for_an_hour(garden, metadata):
    furnish(garden, **metadata)
    async with running(garden):
        bastion = await becomes(
            garden, lambda obj: obj.get("status") and obj["metadata"].get("annotations", {}) != KEEPALIVE
        )
    assert timedelta(minutes=59) < expires(bastion) - now() <= timedelta(hours=1)
    assert expires(bastion) - datetime.fromisoformat(bastion["status"]["lastHeartbeatTimestamp"]) == timedelta(hours=1)
    assert not going(bastion)


async def test_who_says_so_has_it_for_another_hour(garden):
    furnish(garden, age=timedelta(hours=2), expires=timedelta(minutes=1), annotations=KEEPALIVE)
    async with running(garden):
        bastion = await becomes(garden, lambda obj: not obj["metadata"].get("annotations"))
    assert expires(bastion) - now() > timedelta(minutes=59)
    assert not going(bastion)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"expires": -timedelta(minutes=1)}, "nobody needs it any more"),
        ({"expires": timedelta(minutes=9), "age": timedelta(hours=25)}, "it is too old"),
        ({"annotations": KEEPALIVE, "age": timedelta(hours=25)}, "it is too old"),
        ({"shoot": None}, "its Shoot is gone"),
        ({"shoot": changed(HOME, "metadata.deletionTimestamp", SINCE)}, "its Shoot is being deleted"),
        ({"shoot": changed(HOME, "spec.seedName", "seed-2")}, "its Shoot is for seed seed-2 now"),
        (
            {"shoot": changed(HOME, "spec.provider.workersSettings.sshAccess.enabled", False)},
            "its Shoot takes no SSH any more",
        ),
    ],
)
async def test_its_end(garden, state, why):
    furnish(garden, **state)
    async with running(garden):
        bastion = await becomes(garden, going)
        [event] = await garden.events(1)
    assert event == ("BastionEnded", f"{why}: deleting it")
    assert "confirmation.gardener.cloud/force-deletion" not in bastion["metadata"].get("annotations", {})


async def test_it_ends_when_its_time_is_over_though_nothing_happens(garden):
    furnish(garden, expires=timedelta(seconds=2))
    async with running(garden):
        bastion = await becomes(garden, going)
    assert now() >= expires(bastion)


async def test_what_happens_to_the_shoot_ends_it(garden):
    furnish(garden, expires=timedelta(minutes=30))
    async with running(garden):
        await garden.caches.of(resources.SHOOT).synced()
        off = {"spec": {"provider": {"workersSettings": {"sshAccess": {"enabled": False}}}}}
        garden.api.change(f"{CORE}/shoots", "demo", NAMESPACE, off)
        assert await becomes(garden, going)


@pytest.mark.parametrize("already", [{}, {"deletionTimestamp": SINCE}], ids=["before", "while it goes"])
async def test_with_a_shoot_that_is_given_up_its_cloud_is_given_up(garden, already):
    confirmed = {"confirmation.gardener.cloud/force-deletion": "true"}
    doomed = changed(changed(HOME, "metadata.deletionTimestamp", SINCE), "metadata.annotations", confirmed)
    furnish(garden, shoot=doomed, expires=timedelta(minutes=30), **already)
    async with running(garden):
        bastion = await becomes(garden, lambda obj: going(obj) and obj["metadata"].get("annotations"))
    assert bastion["metadata"]["annotations"] == confirmed
