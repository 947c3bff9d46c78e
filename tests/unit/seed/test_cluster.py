"""The Cluster object, which pins the desired state of an operation."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.seed.namespace import NamespaceActivities
from tests.unit.api.profiles import BIG, CHILD
from tests.unit.api.shoots import PROFILE, SEED, SHOOT, changed
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.seed.test_references import TASK

CORE = "/apis/core.gardener.cloud/v1beta1"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"


async def pinned(profile: dict[str, str], *objects: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The cloud profile in the Cluster of a Shoot that names ``profile``."""
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        shoot = changed(changed(SHOOT, "spec.cloudProfile", profile), "metadata.uid", TASK.shoot.uid)
        named = changed(SEED, "metadata.name", TASK.seed)
        for path, each in ((f"{CORE}/shoots", shoot), (f"{CORE}/seeds", named), *objects):
            garden.put(path, changed(each))
        async with garden.client() as garden_client, seed.client() as seed_client:
            clusters: Any = SimpleNamespace(garden=garden_client, seed=seed_client)
            await ActivityEnvironment().run(NamespaceActivities(clusters).sync_cluster, TASK)
        found = seed.find(CLUSTERS, TASK.technical_id, None)
        assert found is not None
        return dict(found["spec"]["cloudProfile"])


async def test_extensions_see_the_merged_profile_as_a_cloud_profile() -> None:
    parent = (f"{CORE}/cloudprofiles", PROFILE)
    child = (f"{CORE}/namespacedcloudprofiles", changed(CHILD, "spec.machineTypes", [BIG]))

    found = await pinned({"kind": "NamespacedCloudProfile", "name": "mine"}, parent, child)
    assert (found["kind"], found["metadata"]["name"]) == ("CloudProfile", "mine")
    assert found["spec"]["machineTypes"] == [*PROFILE["spec"]["machineTypes"], BIG]

    found = await pinned({"kind": "CloudProfile", "name": "local"}, parent, child)
    assert found["spec"] == PROFILE["spec"]


@pytest.mark.parametrize("kind", ["CloudProfile", "NamespacedCloudProfile"])
async def test_a_missing_profile_is_a_configuration_problem(kind: str) -> None:
    with pytest.raises(ApplicationError, match=rf"{kind} .*gone of Shoot garden-local/demo does not exist") as refused:
        await pinned({"kind": kind, "name": "gone"})
    assert (refused.value.type, refused.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)
