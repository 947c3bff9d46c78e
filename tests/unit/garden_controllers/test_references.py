"""Objects that a Shoot needs stay until the Shoot is gone, also if a user deletes them."""

from aiohttp import web

from api import resources
from tests.unit.admission.webhooks import BINDING, SECRET
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE, SECURITY
from tests.unit.kube.waiting import until
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


def first_list_lacks_shoots(garden):
    """The list with which a cache begins lacks the Shoots that exist, and no watch brings them."""
    lists = []

    def answer(request):
        if request.method != "GET" or request.path != f"{CORE}/shoots" or "watch" in request.query:
            return None
        lists.append(request.path)
        version = str(garden.api._version)
        return web.json_response({"metadata": {"resourceVersion": version}, "items": []}) if len(lists) == 1 else None

    garden.api.answer = answer
    return lists


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


async def test_a_cloud_profile_stays_while_a_shoot_uses_it_that_the_cache_lacks(garden):
    """A cache may be behind; a cloud profile that is released is gone."""
    furnish(garden)
    lists = first_list_lacks_shoots(garden)
    patch = {"metadata": {"finalizers": ["gardener"]}}
    await garden.client.patch(resources.CLOUD_PROFILE, "local", None, patch)
    await garden.client.delete(resources.CLOUD_PROFILE, "local")
    async with garden.running(run_reference_controllers(garden.client, garden.caches)):
        await until(lambda: len(lists) > 2)
        assert held_by("gardener")(garden.api.find(f"{CORE}/cloudprofiles", "local"))
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(resources.CLOUD_PROFILE, "local", None, gone)
