"""Prerequisites of the first Shoot, created by one command."""

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from api.crds import converted_crds, crds
from tests.temporal_dev_server import TEMPORAL
from tests.unit.kube.api_server import ApiServer
from workers.lib.runtime import ConfigError
from workers.setup import TemporalSetup, Webhooks, run, set_up_garden, set_up_temporal
from workflows import visibility

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ESTABLISHED = {"conditions": [{"type": "Established", "status": "True"}]}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


async def test_a_temporal_without_our_search_attributes_gets_them_and_a_second_run_finds_them():
    """An unknown search attribute stalls a workflow, so flows must not start before."""
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=str(TEMPORAL)) as server:
        wanted = TemporalSetup(address=server.client.service_client.config.target_host, namespace="gardener")
        await set_up_temporal(wanted)
        await set_up_temporal(wanted)
        client = await Client.connect(wanted.address, namespace="gardener")
        query = " AND ".join(f"{key.name} = 'x'" for key in visibility.ALL)
        assert (await client.count_workflows(query)).count == 0


async def test_webhooks_of_the_garden_point_to_where_admission_is(tmp_path):
    (tmp_path / "ca.crt").write_text("PEM")
    async with ApiServer().running() as api:
        for definition in (*crds("garden"), *converted_crds("garden", {})):
            api.put(CRDS, definition | {"status": ESTABLISHED})
        client = api.client()
        await set_up_garden(client, Webhooks(url="https://admission:9443", ca_file=tmp_path / "ca.crt"))
        await client.close()
        deployments = api.find(CRDS, "controllerdeployments.core.gardener.cloud", None)["spec"]
        assert deployments["conversion"]["webhook"]["clientConfig"]["url"] == "https://admission:9443/convert"
        [webhook] = api.find(f"{ADMISSION}/mutatingwebhookconfigurations", "gardener-admission", None)["webhooks"]
        assert webhook["clientConfig"]["url"] == "https://admission:9443/mutate"


async def test_objects_are_applied_after_their_namespaces_and_bindings_after_their_roles():
    """The API server refuses them otherwise, and a new garden has neither."""
    async with ApiServer().running() as api:
        for definition in crds("garden"):
            api.put(CRDS, definition | {"status": ESTABLISHED})
        client = api.client()
        await set_up_garden(client, None)
        await client.close()
    paths = [path for method, path in api.requests if method == "PATCH"]
    namespaces = [number for number, path in enumerate(paths) if path.rpartition("/")[0] == "/api/v1/namespaces"]
    roles = [number for number, path in enumerate(paths) if "roles/" in path]
    bindings = [number for number, path in enumerate(paths) if "bindings/" in path]
    assert max(namespaces) < min(roles)
    assert max(roles) < min(bindings)


async def test_gardenlets_have_a_role_only_while_an_operator_wants_them_unrestricted():
    """A right that a role grants is granted, whatever other authorizers answer."""
    async with ApiServer().running() as api:
        for definition in crds("garden"):
            api.put(CRDS, definition | {"status": ESTABLISHED})
        client = api.client()
        roles, bindings = (f"/apis/rbac.authorization.k8s.io/v1/clusterrole{end}" for end in ("s", "bindings"))
        await set_up_garden(client, None, unrestricted_gardenlets=True)
        assert api.find(roles, "gardener.cloud:system:seeds", None)

        await set_up_garden(client, None)
        await set_up_garden(client, None)
        await client.close()
        assert not api.find(roles, "gardener.cloud:system:seeds", None)
        assert not api.find(bindings, "gardener.cloud:system:seeds", None)
        assert api.find(roles, "gardener.cloud:system:operators", None)


async def test_a_configuration_that_asks_for_nothing_is_refused(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("{}")
    with pytest.raises(ConfigError, match="names neither a garden nor a Temporal"):
        await run(str(config))
