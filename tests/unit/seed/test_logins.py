"""The flow reads logins of a Shoot from the garden, and a webhook for tokens from beside the control plane."""

import base64
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.seed.logins import read_logins, read_token_webhook
from api.contracts.operations import OperationType, ShootRef, ShootTask
from tests.unit.admission.test_logins import ISSUERS, NAMESPACE, SERVER, WEBHOOK, WEBHOOKS
from tests.unit.api.test_logins import AUTHENTICATION, KUBECONFIG
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer

CONTROL_PLANE = "shoot--local--demo"
CONFIG_MAPS, SECRETS = "/api/v1/configmaps", "/api/v1/secrets"
REGISTRATIONS = "/apis/core.gardener.cloud/v1beta1/controllerregistrations"
PLUGIN = {"name": "ImagePolicyWebhook", "kubeconfigSecretName": "webhook"}


class Around:
    def __init__(self, garden: ApiServer, seed: ApiServer, clusters: Any) -> None:
        self.garden, self.seed, self.clusters = garden, seed, clusters
        self.server: dict[str, Any] = {**SERVER, "admissionPlugins": [PLUGIN]}
        self.extensions: list[dict[str, Any]] = []

    @property
    def view(self) -> ClusterView:
        spec = {
            "kubernetes": {"version": "1.37.1", "kubeAPIServer": self.server},
            "provider": {"type": "local", "workers": [{"name": "w"}]},
            "extensions": self.extensions,
        }
        shoot = {"metadata": {"name": "demo", "namespace": NAMESPACE, "uid": "u-1"}, "spec": spec}
        return ClusterView({"metadata": {"name": CONTROL_PLANE}, "spec": {"shoot": shoot}})

    async def read(self, operation: OperationType = OperationType.RECONCILE) -> Any:
        return await read_logins(self.clusters, task(operation), self.view, ["https://own.example.org"])


def task(operation: OperationType = OperationType.RECONCILE) -> ShootTask:
    return ShootTask(
        shoot=ShootRef(namespace=NAMESPACE, name="demo", uid="u-1"),
        technical_id=CONTROL_PLANE,
        seed="seed-1",
        generation=1,
        operation=operation,
    )


@pytest.fixture
async def around() -> AsyncIterator[Around]:
    async with (
        GardenServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as seed_client,
    ):
        made = Around(garden, seed, SimpleNamespace(garden=garden_client, seed=seed_client))
        garden.put(CONFIG_MAPS, ISSUERS)
        garden.put(CONFIG_MAPS, WEBHOOKS)
        garden.put(SECRETS, WEBHOOK)
        yield made


async def test_the_files_of_the_project_are_read(around: Around) -> None:
    found = await around.read()

    assert found.authentication["jwt"] == AUTHENTICATION["jwt"]
    [webhook] = found.webhooks
    assert (webhook.authorizer["name"], webhook.kubeconfig) == ("mine", KUBECONFIG)
    assert found.plugin_kubeconfigs == {"ImagePolicyWebhook": KUBECONFIG}
    assert "SENTINEL" not in repr(found)


async def test_a_shoot_without_such_fields_reads_nothing(around: Around) -> None:
    around.server = {"admissionPlugins": [{**PLUGIN, "disabled": True}]}
    found = await around.read()
    assert (found.authentication, found.webhooks, found.plugin_kubeconfigs) == ({}, (), {})
    assert around.garden.requests == []


@pytest.mark.parametrize(
    ("path", "name", "field"),
    [
        (CONFIG_MAPS, "issuers", "structuredAuthentication"),
        (CONFIG_MAPS, "webhooks", "structuredAuthorization"),
        (SECRETS, "webhook", "(structuredAuthorization.kubeconfigs|admissionPlugins)"),
    ],
)
async def test_a_missing_or_faulty_object_is_named_and_never_holds_a_deletion(
    around: Around, path: str, name: str, field: str
) -> None:
    """Its owner may have deleted it with the Shoot."""
    around.garden.change(path, name, NAMESPACE, {"data": None})
    with pytest.raises(ApplicationError, match=f"{NAMESPACE}/{name}, which .*{field}.* has faults in key") as faulty:
        await around.read()
    around.garden.remove(path, name, NAMESPACE)
    with pytest.raises(ApplicationError, match=f"{NAMESPACE}/{name}, which .*{field}.* does not exist") as missing:
        await around.read()

    for refused in (faulty, missing):
        assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"
        assert refused.value.non_retryable
    left = await around.read(OperationType.DELETE)
    assert left.left_out == (frozenset({"ImagePolicyWebhook"}) if path == SECRETS else frozenset())


def announce(around: Around, type_: str) -> None:
    labels = {"extensions.gardener.cloud/token-webhook-of": type_}
    data = {"kubeconfig": base64.b64encode(type_.encode()).decode()}
    around.seed.put(SECRETS, {"metadata": {"name": type_, "namespace": CONTROL_PLANE, "labels": labels}, "data": data})
    resource = {"kind": "Extension", "type": type_}
    around.garden.put(REGISTRATIONS, {"metadata": {"name": type_}, "spec": {"resources": [resource]}})


async def test_the_webhook_of_an_extension_counts_while_the_shoot_has_the_extension(around: Around) -> None:
    assert await read_token_webhook(around.clusters, task(), around.view) == ""
    announce(around, "oidc")
    assert await read_token_webhook(around.clusters, task(), around.view) == ""
    around.extensions = [{"type": "oidc"}]
    assert await read_token_webhook(around.clusters, task(), around.view) == "oidc"
    around.extensions = [{"type": "oidc", "disabled": True}]
    assert await read_token_webhook(around.clusters, task(), around.view) == ""


async def test_two_webhooks_for_tokens_are_refused(around: Around) -> None:
    for type_ in ("oidc", "other"):
        announce(around, type_)
        around.extensions.append({"type": type_})
    with pytest.raises(ApplicationError, match="extensions oidc, other of Shoot garden-local/demo"):
        await read_token_webhook(around.clusters, task(), around.view)
