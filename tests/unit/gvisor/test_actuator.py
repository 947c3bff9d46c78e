"""The extension runtime-gvisor against an API server in memory: one RuntimeClass for all pools of a Shoot."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.resources import MANAGED_RESOURCE
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.extension.controller import ExtensionController
from workers.gvisor.actuator import GvisorActuator

NAMESPACE = "shoot--local--demo"
RUNTIMES, CLUSTERS = (f"/apis/extensions.gardener.cloud/v1alpha1/{each}" for each in ("containerruntimes", "clusters"))
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
NAME = "extension-runtime-gvisor"


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server, server.client() as client:
        shoot = {"metadata": {"name": "demo", "generation": 1}, "spec": {}}
        server.put(CLUSTERS, {"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})
        caches = Caches(client)
        running = asyncio.create_task(ExtensionController(client, caches, GvisorActuator(client, caches)).run())
        yield server
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()


async def reconciled(seed: ApiServer, pool: str) -> None:
    """Write the ContainerRuntime of a pool as a flow does, and wait for its success."""
    name = f"gvisor-{pool}"
    annotations = {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": "2026-11-25T10:00:00Z"}
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"u-{pool}", "annotations": annotations}
    seed.put(RUNTIMES, {"metadata": metadata, "spec": {"type": "gvisor", "workerPool": {"name": pool}}})

    def done() -> bool:
        status = (seed.find(RUNTIMES, name, NAMESPACE) or {}).get("status") or {}
        return (status.get("lastOperation") or {}).get("state") == "Succeeded"

    await until(done, 20)


async def deleted(seed: ApiServer, pool: str) -> None:
    async with seed.client() as client:
        await client.delete(GvisorActuator.resource, f"gvisor-{pool}", NAMESPACE)
    await until(lambda: seed.find(RUNTIMES, f"gvisor-{pool}", NAMESPACE) is None, 20)


def shoot_objects(seed: ApiServer) -> list[dict[str, Any]]:
    resource = seed.find(MANAGED_RESOURCES, NAME, NAMESPACE)
    assert resource is not None
    [reference] = resource["spec"]["secretRefs"]
    secret = seed.find("/api/v1/secrets", reference["name"], NAMESPACE)
    assert secret is not None
    return [json.loads(base64.b64decode(each)) for each in secret["data"].values()]


async def test_pods_of_the_runtime_class_go_to_nodes_that_have_gvisor(seed: ApiServer) -> None:
    await reconciled(seed, "a")

    [runtime_class] = shoot_objects(seed)
    assert (runtime_class["kind"], runtime_class["metadata"]["name"]) == ("RuntimeClass", "gvisor")
    assert runtime_class["handler"] == "runsc"
    selector = runtime_class["scheduling"]["nodeSelector"]
    assert selector == {"containerruntime.worker.gardener.cloud/gvisor": "true"}


async def test_the_runtime_class_stays_until_no_pool_asks_for_gvisor(seed: ApiServer) -> None:
    for pool in ("a", "b"):
        await reconciled(seed, pool)
    await deleted(seed, "a")
    assert seed.find(MANAGED_RESOURCES, NAME, NAMESPACE) is not None

    await deleted(seed, "b")
    assert seed.find(MANAGED_RESOURCES, NAME, NAMESPACE) is None
    assert seed.find("/api/v1/secrets", f"managedresource-{NAME}", NAMESPACE) is None


async def test_a_deletion_names_the_objects_of_the_shoot_that_stay_and_goes_on(
    seed: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.extension.managed_resource._DELETION_SECONDS", 0.05)
    await reconciled(seed, "a")
    async with seed.client() as client:
        await client.patch(MANAGED_RESOURCE, NAME, NAMESPACE, {"metadata": {"finalizers": ["resources/held"]}})
        await client.delete(GvisorActuator.resource, "gvisor-a", NAMESPACE)

        def told() -> bool:
            status = (seed.find(RUNTIMES, "gvisor-a", NAMESPACE) or {})["status"]
            return f"ManagedResource {NAMESPACE}/{NAME} is not gone" in (status.get("lastError") or {}).get(
                "description", ""
            )

        await until(told, 20)
        await client.patch(MANAGED_RESOURCE, NAME, NAMESPACE, {"metadata": {"finalizers": None}})
    await until(lambda: seed.find(RUNTIMES, "gvisor-a", NAMESPACE) is None, 20)
