"""Tokens of WorkloadIdentities in Secrets of control planes: requested, kept, renewed, replaced, dropped."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from aiohttp import web
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.seed.namespace import NamespaceActivities
from activities.seed.references import ReferenceActivities
from activities.seed.workload_identity import renewal
from api.resources import SECRET
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from tests.unit.seed.test_references import NAMESPACE, SECRETS, TASK
from workers.gardenlet.token_requestor import TokenRequestor

CORE, SECURITY = "/apis/core.gardener.cloud/v1beta1", "/apis/security.gardener.cloud/v1alpha1"
IDENTITIES = f"{SECURITY}/workloadidentities"
PATH = f"{SECURITY}/namespaces/garden-local/workloadidentities/cloud/token"
SEEDS = f"{CORE}/seeds"
RENEW = "workloadidentity.security.gardener.cloud/token-renew-timestamp"
UID = "11111111-2222-3333-4444-555555555555"
SHOOT = {
    "metadata": {"name": "demo", "namespace": "garden-local", "uid": TASK.shoot.uid},
    "spec": {"credentialsBindingName": "by-token"},
}
BINDING = {
    "metadata": {"name": "by-token", "namespace": "garden-local"},
    "credentialsRef": {"apiVersion": "security.gardener.cloud/v1alpha1", "kind": "WorkloadIdentity", "name": "cloud"},
}


def identity(**target: Any) -> dict[str, Any]:
    return {
        "apiVersion": "security.gardener.cloud/v1alpha1",
        "kind": "WorkloadIdentity",
        "metadata": {"name": "cloud", "namespace": "garden-local", "uid": UID},
        "spec": {
            "audiences": ["cloud.example.org"],
            "targetSystem": {"type": "local", "providerConfig": {"server": "https://cloud"}, **target},
        },
    }


class Around:
    """A garden that issues tokens, a seed, and the activities and the controller of its gardenlet."""

    def __init__(self, garden: ApiServer, seed: ApiServer, clusters: Any) -> None:
        self.garden, self.seed, self.clusters = garden, seed, clusters
        self.asked: list[dict[str, Any]] = []
        self.lifetime = timedelta(hours=6)

    async def issue(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        expires = datetime.now(UTC) + self.lifetime
        context = body["spec"]["contextObject"]
        spec = self.garden.objects[IDENTITIES, "garden-local", "cloud"]["spec"]
        claims = {
            "sub": f"gardener.cloud:workloadidentity:garden-local:cloud:{UID}",
            "aud": spec["audiences"],
            "jti": str(len(self.asked)),
            "gardener.cloud": {"shoot": {"uid": context["uid"]}},
        }
        token = jwt.encode(claims, "k" * 32, "HS256")
        return web.json_response({"status": {"token": token, "expirationTimestamp": expires.isoformat()}}, status=201)

    async def deploy(self) -> None:
        await ActivityEnvironment().run(NamespaceActivities(self.clusters).deploy_cloud_secret, TASK)

    def secret(self, name: str = "cloudprovider") -> dict[str, Any]:
        found: dict[str, Any] = self.seed.objects[SECRETS, NAMESPACE, name]
        return found

    def jti(self, name: str = "cloudprovider") -> str:
        token = base64.b64decode(self.secret(name)["data"]["token"]).decode()
        return str(jwt.decode(token, options={"verify_signature": False})["jti"])

    @asynccontextmanager
    async def requestor(self) -> AsyncIterator[None]:
        task = asyncio.create_task(TokenRequestor(self.clusters).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class IssuingGarden(GardenServer):
    """A garden whose front door sends requests for tokens to the subresource server."""

    around: Around

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == PATH and request.method == "POST":
            return await self.around.issue(request)
        return await super()._handle(request)


@pytest.fixture
async def around() -> AsyncIterator[Around]:
    async with (
        IssuingGarden().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as seed_client,
    ):
        caches, garden_caches = Caches(seed_client), Caches(garden_client)
        clusters = SimpleNamespace(
            garden=garden_client,
            seed=seed_client,
            seed_caches=caches,
            garden_caches=garden_caches,
            seed_name="seed-1",
        )
        found = garden.around = Around(garden, seed, clusters)
        garden.put(f"{CORE}/shoots", json.loads(json.dumps(SHOOT)))
        garden.put(f"{SECURITY}/credentialsbindings", json.loads(json.dumps(BINDING)))
        garden.put(IDENTITIES, identity())
        annotations = {"shoot.gardener.cloud/uid": TASK.shoot.uid}
        seed.put("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "annotations": annotations}})
        yield found
        await caches.close()
        await garden_caches.close()


async def test_the_secret_of_an_identity_holds_its_configuration_and_a_token(around: Around) -> None:
    await around.deploy()

    secret = around.secret()
    assert json.loads(base64.b64decode(secret["data"]["config"])) == {"server": "https://cloud"}
    assert set(secret["data"]) == {"config", "token"}
    assert secret["metadata"]["labels"] == {
        "gardener.cloud/purpose": "cloudprovider",
        "security.gardener.cloud/purpose": "workload-identity-token-requestor",
        "workloadidentity.security.gardener.cloud/provider": "local",
    }
    prefix = "workloadidentity.security.gardener.cloud/"
    annotations = secret["metadata"]["annotations"]
    assert (annotations[f"{prefix}name"], annotations[f"{prefix}namespace"]) == ("cloud", "garden-local")
    context = json.loads(annotations[f"{prefix}context-object"])
    assert context == {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "name": "demo",
        "namespace": "garden-local",
        "uid": TASK.shoot.uid,
    }
    assert around.asked[0]["spec"] == {"contextObject": context, "expirationSeconds": 21600}
    due = datetime.fromisoformat(annotations[RENEW]) - datetime.now(UTC)
    assert timedelta(hours=4.4) < due <= timedelta(hours=4.8)


async def test_a_second_run_keeps_the_token(around: Around) -> None:
    await around.deploy()
    await around.deploy()
    assert (len(around.asked), around.jti()) == (1, "1")


async def test_new_audiences_replace_a_token_that_is_not_due(around: Around) -> None:
    await around.deploy()
    around.garden.objects[IDENTITIES, "garden-local", "cloud"]["spec"]["audiences"] = ["other"]
    await around.deploy()
    assert around.jti() == "2"


async def test_a_binding_to_a_secret_takes_the_token_away(around: Around) -> None:
    await around.deploy()
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "key"}
    around.garden.put(f"{SECURITY}/credentialsbindings", {**BINDING, "credentialsRef": reference})
    around.garden.put(SECRETS, {"metadata": {"name": "key", "namespace": "garden-local"}, "data": {"key": "dmFsdWU="}})

    await around.deploy()

    secret = around.secret()
    assert secret["data"] == {"key": "dmFsdWU="}
    assert secret["metadata"]["labels"] == {"gardener.cloud/purpose": "cloudprovider"}
    assert not secret["metadata"].get("annotations")


async def test_a_missing_identity_is_a_configuration_problem(around: Around) -> None:
    del around.garden.objects[IDENTITIES, "garden-local", "cloud"]
    with pytest.raises(ApplicationError, match=r"WorkloadIdentity garden-local/cloud.*create the binding") as refused:
        await around.deploy()
    assert (refused.value.type, refused.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)


async def test_a_referenced_identity_gets_a_secret_of_its_own(around: Around) -> None:
    reference = {"apiVersion": "security.gardener.cloud/v1alpha1", "kind": "WorkloadIdentity", "name": "cloud"}
    spec: dict[str, Any] = {"resources": [{"name": "x", "resourceRef": reference}]}

    async def cluster(_: str) -> Any:
        return SimpleNamespace(shoot={**SHOOT, "spec": spec})

    around.clusters.cluster = cluster
    activities = ReferenceActivities(around.clusters)
    await ActivityEnvironment().run(activities.deploy_references, TASK)

    secret = around.secret("workload-identity-ref-cloud")
    assert secret["metadata"]["labels"]["workloadidentity.security.gardener.cloud/referenced"] == "true"
    assert around.jti("workload-identity-ref-cloud") == "1"
    spec.clear()
    await ActivityEnvironment().run(activities.deploy_references, TASK)
    assert (SECRETS, NAMESPACE, "workload-identity-ref-cloud") not in around.seed.objects


async def test_the_controller_renews_a_token_at_its_time(around: Around) -> None:
    await around.deploy()
    async with around.requestor():
        past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
        patch = {"metadata": {"annotations": {RENEW: past}}}
        async with around.seed.client() as client:
            await client.patch(SECRET, "cloudprovider", NAMESPACE, patch)
        await until(lambda: around.jti() == "2")
    due = datetime.fromisoformat(around.secret()["metadata"]["annotations"][RENEW])
    assert due > datetime.now(UTC) + timedelta(hours=4)


async def test_a_short_token_is_renewed_again_and_again(around: Around) -> None:
    around.lifetime = timedelta(seconds=2)
    await around.deploy()
    async with around.requestor():
        await until(lambda: len(around.asked) >= 3, 10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context-object", None),
        ("context-object", "no json"),
        ("context-object", '{"apiVersion":"v","kind":"Shoot","name":"demo","namespace":"garden-local","uid":"other"}'),
        ("name", None),
    ],
)
async def test_a_secret_that_names_another_shoot_gets_no_token(
    around: Around, key: str, value: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    await around.deploy()
    metadata = around.secret()["metadata"]
    changed = {**metadata["annotations"], RENEW: None, f"workloadidentity.security.gardener.cloud/{key}": value}
    annotations = {name: text for name, text in changed.items() if text is not None}
    around.seed.put(
        SECRETS,
        {"metadata": {**metadata, "name": "forged", "annotations": annotations}, "data": {}},
    )
    async with around.requestor():
        await until(lambda: "gets no token of a WorkloadIdentity" in caplog.text)
    assert len(around.asked) == 1
    assert "token" not in around.secret("forged")["data"]


async def test_an_operator_has_all_tokens_of_a_seed_renewed(around: Around) -> None:
    await around.deploy()
    annotations = {"gardener.cloud/operation": "renew-workload-identity-tokens"}
    async with around.requestor():
        around.garden.put(SEEDS, {"metadata": {"name": "seed-1", "uid": "s", "annotations": annotations}})
        await until(lambda: around.jti() == "2")
        await until(lambda: not around.garden.objects[SEEDS, None, "seed-1"]["metadata"].get("annotations"))
        await until(lambda: any("/events" in path for _, path in around.garden.requests))
    assert len(around.asked) == 2


@pytest.mark.parametrize(("chance", "fraction"), [(0.0, 0.8), (1.0, 0.75)])
def test_a_token_is_renewed_at_three_quarters_to_four_fifths_of_its_lifetime(chance: float, fraction: float) -> None:
    issued = datetime(2026, 11, 26, tzinfo=UTC)
    assert renewal(issued, issued + timedelta(hours=10), chance) == issued + timedelta(hours=10) * fraction
