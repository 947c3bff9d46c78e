"""What is deleted of a Shoot whose cloud is given up, against an API server in memory."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from activities.seed import force_deletion as module
from activities.seed.force_deletion import ForceDeletionActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer

NAMESPACE = "shoot--local--demo"
EXTENSIONS = "/apis/extensions.gardener.cloud/v1alpha1"
MACHINE = "/apis/machine.sapcloud.io/v1alpha1"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.DELETE,
    trigger="2026-11-21T10:00:00.000000Z",
)


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def activities(seed: ApiServer) -> AsyncIterator[ForceDeletionActivities]:
    async with seed.client() as client:
        caches = Caches(client)
        clusters: Any = SimpleNamespace(seed=client, seed_caches=caches)
        yield ForceDeletionActivities(clusters)
        await caches.close()


def stored(seed: ApiServer, path: str, name: str, *finalizers: str, namespace: str = NAMESPACE, **spec: Any) -> None:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "finalizers": list(finalizers)}
    seed.put(path, {"metadata": metadata, "spec": spec})


def left(seed: ApiServer, namespace: str = NAMESPACE) -> set[tuple[str, str]]:
    return {(path.rpartition("/")[2], name) for path, place, name in seed.objects if place == namespace}


async def test_objects_of_all_kinds_go_once_their_controllers_have_let_them_go(
    activities: ForceDeletionActivities, seed: ApiServer
) -> None:
    """Names in the DNS and the place for backups have tasks of their own."""
    stored(seed, f"{EXTENSIONS}/workers", "demo", "extensions.gardener.cloud/worker")
    stored(seed, f"{EXTENSIONS}/extensions", "local-ext")
    stored(seed, f"{EXTENSIONS}/operatingsystemconfigs", "former-init")
    stored(seed, f"{EXTENSIONS}/dnsrecords", "demo-internal")
    await activities.delete_extension_objects(TASK)
    waiting = asyncio.create_task(activities.wait_extension_objects_deleted(TASK))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    worker = seed.find(f"{EXTENSIONS}/workers", "demo", NAMESPACE)
    assert worker is not None
    assert worker["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"] == "true"
    seed.remove(f"{EXTENSIONS}/workers", "demo", NAMESPACE)
    await asyncio.wait_for(waiting, 10)
    assert left(seed) == {("dnsrecords", "demo-internal")}


async def test_machines_go_though_the_cloud_keeps_them(activities: ForceDeletionActivities, seed: ApiServer) -> None:
    for plural in ("machines", "machinesets", "machinedeployments", "machineclasses"):
        stored(seed, f"{MACHINE}/{plural}", "pool-z1", "machine.sapcloud.io/machine-controller")
    stored(seed, f"{MACHINE}/machines", "of-another-shoot", "machine.sapcloud.io/machine-controller", namespace="other")
    await asyncio.wait_for(activities.force_delete_machine_objects(TASK), 10)
    assert left(seed) == set()
    assert left(seed, "other") == {("machines", "of-another-shoot")}
    await asyncio.wait_for(activities.force_delete_machine_objects(TASK), 10)


async def test_what_was_brought_into_the_shoot_is_forgotten_what_is_in_the_seed_is_removed(
    activities: ForceDeletionActivities, seed: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shoot's API server may be dead; the seed's is not, and its resource manager does its work."""
    monkeypatch.setattr(module, "_RELEASE_SECONDS", 0.3)
    stored(seed, MANAGED_RESOURCES, "in-the-shoot", "resources.gardener.cloud/gardener-resource-manager")
    stored(seed, MANAGED_RESOURCES, "kept", "resources.gardener.cloud/gardener-resource-manager", keepObjects=True)
    stored(seed, MANAGED_RESOURCES, "in-the-seed", "resources.gardener.cloud/gardener-resource-manager-seed",
           **{"class": "seed", "keepObjects": True})  # fmt: skip
    with pytest.raises(TimeoutError, match="in-the-seed"):
        await activities.force_delete_managed_resources(TASK)
    assert left(seed) == {("managedresources", "in-the-seed")}
    rest = seed.find(MANAGED_RESOURCES, "in-the-seed", NAMESPACE)
    assert rest is not None
    assert rest["metadata"]["deletionTimestamp"]
    assert rest["spec"]["keepObjects"] is False
    seed.remove(MANAGED_RESOURCES, "in-the-seed", NAMESPACE)
    await activities.force_delete_managed_resources(TASK)


async def test_secrets_and_config_maps_go_whoever_holds_them(
    activities: ForceDeletionActivities, seed: ApiServer
) -> None:
    stored(seed, "/api/v1/secrets", "pool-z1", "machine.sapcloud.io/machine-controller")
    stored(seed, "/api/v1/configmaps", "policy")
    await activities.force_delete_configmaps_and_secrets(TASK)
    assert left(seed) == set()


async def test_the_machine_controller_manager_has_ended_when_its_pods_have(
    activities: ForceDeletionActivities, seed: ApiServer
) -> None:
    labels = {"app": "machine-controller-manager"}
    seed.put("/api/v1/pods", {"metadata": {"name": "mcm", "namespace": NAMESPACE, "labels": labels}})
    waiting = asyncio.create_task(activities.wait_machine_controller_manager_deleted(TASK))
    await asyncio.sleep(0.2)
    seed.remove("/api/v1/pods", "mcm", NAMESPACE)
    await asyncio.wait_for(waiting, 10)
