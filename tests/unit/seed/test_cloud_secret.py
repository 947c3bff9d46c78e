"""How the cloud credentials of a Shoot come into its control plane."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.seed.namespace import NamespaceActivities
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.seed.test_references import SECRETS, TASK

CORE, SECURITY = "/apis/core.gardener.cloud/v1beta1", "/apis/security.gardener.cloud/v1alpha1"
KEYS = {"key": "dmFsdWU="}


async def copied(spec: dict[str, str], *objects: tuple[str, dict[str, Any]]) -> Any:
    """Data of the Secret in the control plane, made from these objects of the garden."""
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        shoot = {"metadata": {"name": "demo", "namespace": "garden-local", "uid": TASK.shoot.uid}, "spec": spec}
        for path, each in ((f"{CORE}/shoots", shoot), *objects):
            garden.put(path, each)
        async with garden.client() as garden_client, seed.client() as seed_client:
            clusters: Any = SimpleNamespace(garden=garden_client, seed=seed_client)
            await ActivityEnvironment().run(NamespaceActivities(clusters).deploy_cloud_secret, TASK)
        copy = seed.find(SECRETS, "cloudprovider", TASK.technical_id)
        return copy and copy["data"]


def named(name: str, namespace: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, **fields}


async def test_either_kind_of_binding_resolves_to_its_secret_in_any_namespace() -> None:
    elsewhere = {"apiVersion": "v1", "kind": "Secret", "namespace": "garden-keys", "name": "key"}
    by_credentials = (f"{SECURITY}/credentialsbindings", named("cloud", "garden-local", credentialsRef=elsewhere))
    by_secret = (f"{CORE}/secretbindings", named("cloud", "garden-local", secretRef={"name": "key"}))

    there = (SECRETS, named("key", "garden-keys", data=KEYS))
    assert await copied({"credentialsBindingName": "cloud"}, by_credentials, there) == KEYS
    assert (
        await copied({"secretBindingName": "cloud"}, by_secret, (SECRETS, named("key", "garden-local", data=KEYS)))
        == KEYS
    )


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({}, "names no binding"), ({"secretBindingName": "gone"}, "gone"), ({"credentialsBindingName": "gone"}, "gone")],
)
async def test_missing_credentials_are_a_configuration_problem(spec: dict[str, str], reason: str) -> None:
    with pytest.raises(ApplicationError, match=f"garden-local/demo cannot be read: .*{reason}") as refused:
        await copied(spec)
    assert (refused.value.type, refused.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)
