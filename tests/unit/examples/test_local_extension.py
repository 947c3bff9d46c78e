"""The example extension, with the controller that keeps the contract for it, against an API server in memory."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.core.v1beta1.controller_registration import ControllerRegistration
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from workers.extension.controller import ExtensionController

EXAMPLE = Path(__file__).parents[3] / "examples/local_extension"
NAMESPACE = "shoot--local--demo"
EXTENSIONS, CLUSTERS = (f"/apis/extensions.gardener.cloud/v1alpha1/{each}" for each in ("extensions", "clusters"))
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
CONFIG_MAPS, LEASES = "/api/v1/configmaps", "/apis/coordination.k8s.io/v1/leases"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("local_extension_example", EXAMPLE / "extension.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = _load()


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    """Its extension is running, for type ``local-ext``."""
    async with ApiServer().running() as server, server.client() as client:
        shoot = {"metadata": {"name": "demo", "generation": 1}, "spec": {}}
        server.put(CLUSTERS, {"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})
        caches = Caches(client)
        extension = example.LocalExtension(client, caches, "local-ext", in_shoot=True)
        running = asyncio.create_task(ExtensionController(client, caches, extension).run())
        yield server
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()


def ask(seed: ApiServer, **spec: Any) -> None:
    annotations = {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": "2026-11-21T10:00:00Z"}
    metadata = {"name": "local-ext", "namespace": NAMESPACE, "uid": "u-1", "annotations": annotations}
    seed.put(EXTENSIONS, {"metadata": metadata, "spec": {"type": "local-ext", **spec}})


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- what a server in memory holds is no event
            await asyncio.sleep(0.02)


def state(seed: ApiServer) -> str:
    live = seed.find(EXTENSIONS, "local-ext", NAMESPACE) or {}
    return str(((live.get("status") or {}).get("lastOperation") or {}).get("state"))


async def test_the_extension_applies_its_config_and_reports_success(seed: ApiServer) -> None:
    ask(seed, providerConfig={"greeting": "hi"})
    await until(lambda: state(seed) == "Succeeded")
    written = seed.find(CONFIG_MAPS, "extension-local-ext", NAMESPACE)
    assert written is not None
    assert (written["data"]["greeting"], written["data"]["apiServer"]) == ("hi", "false")
    assert seed.find(MANAGED_RESOURCES, "extension-local-ext", NAMESPACE)


async def test_deleted_it_leaves_nothing(seed: ApiServer) -> None:
    ask(seed)
    await until(lambda: state(seed) == "Succeeded")
    seed.change(EXTENSIONS, "local-ext", NAMESPACE, {"metadata": {"deletionTimestamp": "2026-11-21T11:00:00Z"}})
    await until(lambda: seed.find(EXTENSIONS, "local-ext", NAMESPACE) is None)
    assert not seed.find(CONFIG_MAPS, "extension-local-ext", NAMESPACE)
    assert not seed.find(MANAGED_RESOURCES, "extension-local-ext", NAMESPACE)


async def test_the_heartbeat_has_the_name_of_the_registration() -> None:
    registration = ControllerRegistration.of(yaml.safe_load((EXAMPLE / "controllerregistration.yaml").read_text()))
    async with ApiServer().running() as seed:
        running = asyncio.create_task(example.run(seed.kubeconfig(), "extension-local-ext"))
        await until(lambda: seed.find(LEASES, "gardener-extension-heartbeat", "extension-local-ext"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    lease = seed.find(LEASES, "gardener-extension-heartbeat", "extension-local-ext")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == registration.metadata.name
