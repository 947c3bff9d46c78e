"""The status of cloud profiles follows their specs, their parents and the time."""

from datetime import UTC, datetime, timedelta

from api import resources
from tests.unit.api.profiles import BIG, CHILD
from tests.unit.api.shoots import PROFILE, SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE
from tests.unit.garden_controllers.test_references import gone, held_by
from workers.controller_manager.profiles import run_profile_controllers
from workers.controller_manager.references import run_reference_controllers
from workers.lib.runtime import Health
from workers.scheduler import Scheduler

NAMESPACE = "garden-local"
PROFILES, CHILDREN = f"{CORE}/cloudprofiles", f"{CORE}/namespacedcloudprofiles"
NAMESPACED = {"kind": "NamespacedCloudProfile", "name": "mine"}


def stages(profile):
    """Stage of each version of Kubernetes in the status."""
    versions = ((profile.get("status") or {}).get("kubernetes") or {}).get("versions") or ()
    return {each["version"]: each["classification"] for each in versions}


async def test_a_cloud_profile_shows_the_stages_of_its_versions(garden):
    async with garden.running(run_profile_controllers(garden.client, garden.caches)):
        found = await garden.becomes(resources.CLOUD_PROFILE, "local", None, lambda obj: bool(stages(obj)) and obj)
    assert stages(found)["1.35.9"] == "expired"
    assert found["status"]["machineImages"][1]["versions"][0] == {"version": "1.2.0", "classification": "preview"}
    assert found["spec"] == PROFILE["spec"]


async def test_a_stage_is_written_when_it_begins(garden):
    """Nothing else changes the CloudProfile at this moment."""
    soon = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    begun = [{"classification": "preview"}, {"classification": "supported", "startTime": soon}]
    garden.api.change(
        PROFILES, "local", None, {"spec": {"kubernetes": {"versions": [{"version": "1.38.0", "lifecycle": begun}]}}}
    )
    async with garden.running(run_profile_controllers(garden.client, garden.caches)):
        await garden.becomes(resources.CLOUD_PROFILE, "local", None, lambda obj: stages(obj) == {"1.38.0": "preview"})
        await garden.becomes(resources.CLOUD_PROFILE, "local", None, lambda obj: stages(obj) == {"1.38.0": "supported"})


async def test_the_merged_spec_follows_parent_and_child(garden):
    def types(obj):
        spec = ((obj or {}).get("status") or {}).get("cloudProfileSpec") or {"machineTypes": []}
        return [each["name"] for each in spec["machineTypes"]]

    async def become(wanted):
        return await garden.becomes(
            resources.NAMESPACED_CLOUD_PROFILE, "mine", NAMESPACE, lambda obj: types(obj) == wanted and obj
        )

    garden.api.put(CHILDREN, changed(CHILD))
    async with garden.running(run_profile_controllers(garden.client, garden.caches)):
        assert (await become(["local", "old"]))["status"]["observedGeneration"] == 1
        garden.api.change(CHILDREN, "mine", NAMESPACE, {"spec": {"machineTypes": [BIG], "caBundle": "x"}})
        assert (await become(["local", "old", "big"]))["status"]["cloudProfileSpec"]["caBundle"] == "x\n"
        garden.api.change(PROFILES, "local", None, {"spec": {"machineTypes": PROFILE["spec"]["machineTypes"][:1]}})
        await become(["local", "big"])
        garden.api.change(CHILDREN, "mine", NAMESPACE, {"spec": {"machineTypes": None, "caBundle": None}})
        assert "caBundle" not in (await become(["local"]))["status"]["cloudProfileSpec"]


async def test_a_settled_status_is_not_written_again(garden):
    garden.api.put(CHILDREN, changed(CHILD, "spec.machineTypes", [BIG]))
    for _ in range(2):
        garden.api.requests.clear()
        async with garden.running(run_profile_controllers(garden.client, garden.caches)):
            await garden.becomes(resources.CLOUD_PROFILE, "local", None, lambda obj: bool(stages(obj)) and obj)
            await garden.becomes(
                resources.NAMESPACED_CLOUD_PROFILE, "mine", NAMESPACE, lambda obj: (obj or {}).get("status")
            )
    assert not [each for each in garden.api.requests if each[0] == "PUT"]


async def test_a_profile_stays_while_shoots_use_it_and_its_parent_while_it_exists(garden):
    garden.api.put(CHILDREN, changed(CHILD))
    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "spec.cloudProfile", NAMESPACED))
    kind = resources.NAMESPACED_CLOUD_PROFILE
    async with garden.running(run_reference_controllers(garden.client, garden.caches)):
        await garden.becomes(kind, "mine", NAMESPACE, held_by("gardener"))
        await garden.becomes(resources.CLOUD_PROFILE, "local", None, held_by("gardener"))
        await garden.client.delete(resources.CLOUD_PROFILE, "local")
        await garden.client.delete(kind, "mine", NAMESPACE)
        deleting = await garden.becomes(
            kind, "mine", NAMESPACE, lambda obj: obj["metadata"].get("deletionTimestamp") and obj
        )
        assert held_by("gardener")(deleting)
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(kind, "mine", NAMESPACE, gone)
        await garden.becomes(resources.CLOUD_PROFILE, "local", None, gone)


async def test_the_scheduler_reads_the_profile_of_the_shoots_namespace(garden):
    def place(obj):
        return ((obj or {}).get("status") or {}).get("lastOperation") or (obj or {}).get("spec", {}).get("seedName")

    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "spec.cloudProfile", NAMESPACED))
    async with garden.running(Scheduler(garden.client, garden.caches).run(Health())):
        pending = await garden.becomes(resources.SHOOT, "demo", NAMESPACE, place)
        assert "NamespacedCloudProfile garden-local/mine does not exist" in pending["description"]
        garden.api.put(CHILDREN, changed(CHILD))
        await garden.becomes(resources.SHOOT, "demo", NAMESPACE, lambda obj: obj["spec"].get("seedName") == "seed-1")
