"""Shoots whose quota limits their life: they know their end, and it comes."""

from datetime import UTC, datetime, timedelta

import pytest

from api import resources
from tests.unit.admission.webhooks import BINDING
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE, SECURITY
from tests.unit.kube.api_server import refuse
from workers.controller_manager.lifetime import run_lifetime_controller

NAMESPACE = "garden-local"
EXPIRATION = "shoot.gardener.cloud/expiration-timestamp"
NOW = datetime.now(UTC)


def text(time):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def furnish(garden, *days, age=0, **annotations):
    names = [f"quota-{number}" for number in range(len(days))]
    for name, each in zip(names, days, strict=True):
        spec = {"metrics": {}, **({"clusterLifetimeDays": each} if each else {})}
        garden.api.put(f"{CORE}/quotas", {"metadata": {"name": name, "namespace": "garden"}, "spec": spec})
    references = [{"name": name, "namespace": "garden"} for name in names]
    garden.api.put(f"{SECURITY}/credentialsbindings", {**BINDING, "quotas": references})
    shoot = changed(SHOOT)
    shoot["metadata"] |= {
        "creationTimestamp": text(NOW - timedelta(days=age)),
        "annotations": {EXPIRATION if key == "expires" else key: value for key, value in annotations.items()},
        "finalizers": ["gardener"],
    }
    garden.api.put(f"{CORE}/shoots", shoot)


def annotation(garden):
    return garden.api.find(f"{CORE}/shoots", "demo", NAMESPACE)["metadata"].get("annotations", {}).get(EXPIRATION)


def running(garden):
    return garden.running(run_lifetime_controller(garden.client, garden.caches))


async def becomes(garden, expected):
    def seen(obj):
        return (obj["metadata"].get("annotations") or {}).get(EXPIRATION) == expected

    await garden.becomes(resources.SHOOT, "demo", NAMESPACE, seen)


async def test_the_shortest_life_counts_from_the_creation(garden):
    furnish(garden, 30, 14, None)
    async with running(garden):
        await becomes(garden, text(NOW + timedelta(days=14)))


async def test_a_second_binding_to_the_same_credentials_gives_no_longer_life(garden):
    furnish(garden, 14)
    garden.api.put(f"{SECURITY}/credentialsbindings", changed(BINDING, "metadata.name", "second"))
    garden.api.change(f"{CORE}/shoots", "demo", NAMESPACE, {"spec": {"credentialsBindingName": "second"}})
    async with running(garden):
        await becomes(garden, text(NOW + timedelta(days=14)))


async def test_an_extended_expiration_is_kept(garden):
    furnish(garden, 14, age=20, expires=text(NOW + timedelta(days=3)))
    async with running(garden):
        await garden.caches.of(resources.SHOOT).synced()
    shoot = garden.api.find(f"{CORE}/shoots", "demo", NAMESPACE)
    assert "deletionTimestamp" not in shoot["metadata"]
    assert annotation(garden) == text(NOW + timedelta(days=3))


async def test_without_a_quota_a_shoot_does_not_expire(garden):
    furnish(garden, None, expires=text(NOW))
    async with running(garden):
        await becomes(garden, None)


@pytest.mark.parametrize("expires", [text(NOW - timedelta(minutes=1)), None, "soon"], ids=["set", "counted", "broken"])
async def test_at_its_end_a_shoot_is_confirmed_and_deleted(garden, expires):
    furnish(garden, 14, age=15, **({"expires": expires} if expires else {}))
    async with running(garden):
        gone = await garden.becomes(
            resources.SHOOT, "demo", NAMESPACE, lambda obj: obj["metadata"].get("deletionTimestamp") and obj
        )
        events = await garden.events(1)
    assert gone["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"] == "true"
    assert events[0][0] == "ClusterLifetimeExpired"


async def test_a_shortened_quota_does_not_shorten_a_recorded_expiration(garden):
    furnish(garden, 30, age=20)
    async with running(garden):
        await becomes(garden, text(NOW + timedelta(days=10)))
        garden.api.change(f"{CORE}/quotas", "quota-0", "garden", {"spec": {"clusterLifetimeDays": 5}})
        garden.api.change(f"{CORE}/shoots", "demo", NAMESPACE, {"metadata": {"annotations": {"seen": "true"}}})
        await garden.becomes(resources.SHOOT, "demo", NAMESPACE, lambda obj: "seen" in obj["metadata"]["annotations"])
    assert annotation(garden) == text(NOW + timedelta(days=10))


async def test_a_refused_deletion_is_told_to_the_owner_by_an_event(garden):
    """A Project may require two users for a deletion, and this controller confirms the deletion."""
    furnish(garden, 14, age=15)
    garden.api.answer = lambda request: (
        refuse(403, "Forbidden", "another user must delete it") if request.method == "DELETE" else None
    )
    async with running(garden):
        [(reason, message)] = await garden.events(1)

    assert reason == "ClusterLifetimeExpired"
    assert "another user must delete it" in message
    annotations = garden.api.find(f"{CORE}/shoots", "demo", NAMESPACE)["metadata"]["annotations"]
    assert annotations["confirmation.gardener.cloud/deletion"] == "true"
