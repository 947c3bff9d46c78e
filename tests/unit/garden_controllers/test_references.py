"""What a Shoot needs outlives every wish to delete it, until the Shoot is gone."""

from api import resources
from tests.unit.admission.webhooks import BINDING, SECRET
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE, SECURITY
from workers.controller_manager.references import run_reference_controllers

NAMESPACE = "garden-local"


def held_by(finalizer):
    return lambda obj: finalizer in ((obj or {}).get("metadata", {}).get("finalizers") or [])


def gone(obj):
    return obj is None


def furnish(garden, *, second_binding=False):
    garden.api.put("/api/v1/secrets", SECRET)
    garden.api.put(f"{SECURITY}/credentialsbindings", BINDING)
    garden.api.put(f"{CORE}/shoots", changed(SHOOT))
    if second_binding:
        garden.api.put(f"{SECURITY}/credentialsbindings", changed(BINDING, "metadata.name", "other"))


async def all_held(garden):
    await garden.becomes(resources.CREDENTIALS_BINDING, "local", NAMESPACE, held_by("gardener"))
    await garden.becomes(resources.SECRET, "local", NAMESPACE, held_by("gardener.cloud/gardener"))
    await garden.becomes(resources.CLOUD_PROFILE, "local", None, held_by("gardener"))


async def test_credentials_are_held_and_labelled(garden):
    furnish(garden)
    async with garden.running(run_reference_controllers(garden.client, garden.caches)):
        await all_held(garden)
    assert garden.api.find("/api/v1/secrets", "local", NAMESPACE)["metadata"]["labels"] == {
        "provider.shoot.gardener.cloud/local": "true",
        "reference.gardener.cloud/credentialsbinding": "true",
    }


async def test_deletions_wait_for_the_last_shoot(garden):
    furnish(garden)
    async with garden.running(run_reference_controllers(garden.client, garden.caches)):
        await all_held(garden)
        await garden.client.delete(resources.CREDENTIALS_BINDING, "local", NAMESPACE)
        await garden.client.delete(resources.SECRET, "local", NAMESPACE)
        await garden.client.delete(resources.CLOUD_PROFILE, "local")
        deleting = await garden.becomes(
            resources.CLOUD_PROFILE, "local", None, lambda obj: obj["metadata"].get("deletionTimestamp") and obj
        )
        assert held_by("gardener")(deleting)
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(resources.CREDENTIALS_BINDING, "local", NAMESPACE, gone)
        await garden.becomes(resources.SECRET, "local", NAMESPACE, gone)
        await garden.becomes(resources.CLOUD_PROFILE, "local", None, gone)


async def test_a_secret_of_two_bindings_is_held_by_both(garden):
    furnish(garden, second_binding=True)
    async with garden.running(run_reference_controllers(garden.client, garden.caches)):
        await all_held(garden)
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.client.delete(resources.CREDENTIALS_BINDING, "local", NAMESPACE)
        await garden.becomes(resources.CREDENTIALS_BINDING, "local", NAMESPACE, gone)
        assert held_by("gardener.cloud/gardener")(garden.api.find("/api/v1/secrets", "local", NAMESPACE))
        await garden.client.delete(resources.CREDENTIALS_BINDING, "other", NAMESPACE)
        await garden.becomes(
            resources.SECRET, "local", NAMESPACE, lambda obj: not held_by("gardener.cloud/gardener")(obj)
        )
