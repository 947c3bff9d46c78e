"""Seeds get ControllerInstallations of the extensions that they need, and lose those that they need no more."""

import asyncio
from typing import Any

from api import resources
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.api.test_installations import DEPLOYMENT, registration
from tests.unit.garden_controllers.conftest import CORE
from tests.unit.garden_controllers.test_references import gone, held_by
from tests.unit.kube.waiting import until
from workers.controller_manager.installations import run_installation_controller
from workers.controller_manager.protection import run_protection_controllers

INSTALLATIONS = f"{CORE}/controllerinstallations"
SEED_NAME = SEED["metadata"]["name"]
NETWORK = SHOOT["spec"]["networking"]["type"]
WATCHED = (
    resources.SHOOT,
    resources.SEED,
    resources.CORE_BACKUP_BUCKET,
    resources.CORE_BACKUP_ENTRY,
    resources.CONTROLLER_REGISTRATION,
    resources.CONTROLLER_DEPLOYMENT,
    resources.CONTROLLER_INSTALLATION,
)
ON_SEED = changed(SHOOT, "spec.seedName", SEED_NAME)


def furnish(garden: Any, *registrations: dict[str, Any]) -> None:
    garden.api.put(resources.CONTROLLER_DEPLOYMENT.path(), changed(DEPLOYMENT))
    for each in registrations:
        garden.api.put(f"{CORE}/controllerregistrations", changed(each))


def running(garden: Any) -> Any:
    async def both() -> None:
        await asyncio.gather(
            run_installation_controller(garden.client, garden.caches),
            run_protection_controllers(garden.client, garden.caches),
        )

    return garden.running(both())


async def installations(garden: Any, *wanted: str) -> list[dict[str, Any]]:
    """The installations, once there is one of each of these registrations."""

    def found(cache: Any) -> list[dict[str, Any]] | None:
        objects = sorted(cache.list(), key=lambda each: each["spec"]["registrationRef"]["name"])
        return objects if [each["spec"]["registrationRef"]["name"] for each in objects] == sorted(wanted) else None

    cache = garden.caches.of(resources.CONTROLLER_INSTALLATION)
    answer: tuple[list[dict[str, Any]]] = await cache.wait_until(
        lambda cache: None if (objects := found(cache)) is None else (objects,), 10
    )
    return answer[0]


async def test_an_installation_comes_with_the_first_shoot_that_needs_it_and_goes_with_the_last(garden):
    furnish(garden, registration("Network", NETWORK), registration(policy="Always", name="always"))
    async with running(garden):
        await installations(garden, "always")
        garden.api.put(f"{CORE}/shoots", ON_SEED)
        _, made = await installations(garden, "always", "ext")
        assert made["spec"]["seedRef"]["name"] == SEED_NAME
        assert made["metadata"]["name"].startswith("ext-")
        garden.api.remove(f"{CORE}/shoots", "demo", SHOOT["metadata"]["namespace"])
        await installations(garden, "always")


async def test_both_seeds_of_a_move_have_the_extension(garden):
    furnish(garden, registration("Network", NETWORK))
    garden.api.put(f"{CORE}/seeds", changed(SEED, "metadata.name", "other"))
    moving = changed(ON_SEED, "status.seedName", "other")
    garden.api.put(f"{CORE}/shoots", moving)
    async with running(garden):
        both = await installations(garden, "ext", "ext")
        assert {each["spec"]["seedRef"]["name"] for each in both} == {SEED_NAME, "other"}
        garden.api.change(f"{CORE}/shoots", "demo", SHOOT["metadata"]["namespace"], {"status": {"seedName": SEED_NAME}})
        [left] = await installations(garden, "ext")
        assert left["spec"]["seedRef"]["name"] == SEED_NAME


async def test_what_the_seed_still_requires_stays_with_its_registration_and_its_seed(garden):
    """The order of a deletion: extension objects, installation, registration and Seed."""
    furnish(garden, registration(policy="Always"))
    async with running(garden):
        [made] = await installations(garden, "ext")
        name = made["metadata"]["name"]
        garden.api.change(
            INSTALLATIONS, name, None, {"status": {"conditions": [{"type": "Required", "status": "True"}]}}
        )
        for resource, held in ((resources.CONTROLLER_REGISTRATION, "ext"), (resources.SEED, SEED_NAME)):
            await garden.becomes(resource, held, None, held_by("core.gardener.cloud/controllerregistration"))
            await garden.client.delete(resource, held)
            await garden.becomes(resource, held, None, lambda obj: "deletionTimestamp" in obj["metadata"])
        # A registration that the controller handles later than the deletions.
        furnish(garden, registration("DNSRecord", "unused", name="later"))
        await garden.becomes(resources.CONTROLLER_REGISTRATION, "later", None, lambda obj: obj is not None)
        assert garden.api.find(INSTALLATIONS, name)
        garden.api.change(
            INSTALLATIONS, name, None, {"status": {"conditions": [{"type": "Required", "status": "False"}]}}
        )
        for resource, held in (
            (resources.CONTROLLER_INSTALLATION, name),
            (resources.CONTROLLER_REGISTRATION, "ext"),
            (resources.SEED, SEED_NAME),
        ):
            await garden.becomes(resource, held, None, gone)


async def test_an_installation_that_a_user_deletes_is_made_again(garden):
    furnish(garden, registration(policy="Always"))
    async with running(garden):
        [first] = await installations(garden, "ext")
        await garden.client.delete(resources.CONTROLLER_INSTALLATION, first["metadata"]["name"])
        await garden.becomes(resources.CONTROLLER_INSTALLATION, first["metadata"]["name"], None, gone)
        [second] = await installations(garden, "ext")
        assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_late_cache_makes_no_second_installation(garden):
    """The name is generated, so the API server would accept a second creation."""

    def made() -> int:
        return sum(place[0] == INSTALLATIONS for place in garden.api.objects)

    furnish(garden, registration(policy="Always"))
    for each in WATCHED:
        await garden.caches.of(each).synced()
    garden.api.watches_flow.clear()
    async with garden.running(run_installation_controller(garden.client, garden.caches)):
        await until(lambda: made() == 1)
    assert not garden.caches.of(resources.CONTROLLER_INSTALLATION).list()
    lists = garden.api.count("GET", INSTALLATIONS)
    async with garden.running(run_installation_controller(garden.client, garden.caches)):
        await until(lambda: garden.api.count("GET", INSTALLATIONS) > lists or made() > 1)
        assert made() == 1


async def test_a_new_chart_changes_the_installation(garden):
    furnish(garden, registration(policy="Always"))
    async with running(garden):
        [made] = await installations(garden, "ext")
        newer = garden.api.change(
            resources.CONTROLLER_DEPLOYMENT.path(), "chart", None, {"helm": {"values": {"replicas": 2}}}
        )
        version = newer["metadata"]["resourceVersion"]
        changed_one = await garden.becomes(
            resources.CONTROLLER_INSTALLATION,
            made["metadata"]["name"],
            None,
            lambda obj: obj if obj["spec"]["deploymentRef"]["resourceVersion"] >= version else None,
        )
        assert changed_one["metadata"]["labels"]["deployment-hash"] != made["metadata"]["labels"]["deployment-hash"]


async def test_a_missing_extension_is_told_at_the_seed(garden):
    garden.api.put(f"{CORE}/shoots", ON_SEED)
    async with running(garden):
        message = f"no ControllerRegistration offers Network of type {NETWORK}: register an extension that does"
        await garden.caches.of(resources.EVENT).wait_until(
            lambda cache: ("ExtensionNotInstalled", message) in [(e["reason"], e["message"]) for e in cache.list()], 10
        )


async def test_a_change_of_a_shoot_lists_nothing(garden):
    furnish(garden, registration("Network", NETWORK))
    garden.api.put(f"{CORE}/shoots", ON_SEED)
    async with running(garden):
        await installations(garden, "ext")
        before = len(garden.api.requests)
        change = {"spec": {"networking": {"type": "x"}}}
        garden.api.change(f"{CORE}/shoots", "demo", SHOOT["metadata"]["namespace"], change)
        await installations(garden)
        lists = {("GET", each.path()) for each in WATCHED}
        assert not lists.intersection(garden.api.requests[before:])
