"""The care controller against API servers in memory: what it writes, and what it puts right."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from activities.clusters import Clusters
from activities.components import gateway
from activities.components.gateway import ApiServerExposure, Upstream
from api import resources
from api.names import in_place_hash_of
from kube.cache import Key
from kube.client import WatchEvent
from tests.unit.care.test_checks import DEPLOYMENTS, ETCDS
from tests.unit.care.test_constraints import configuration, pod, webhook
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.care import controller, watchdog
from workers.gardenlet.care.controller import CareController, changes_health
from workers.gardenlet.care.watchdog import Watchdog
from workers.gardenlet.config import ShootCareConfig, WatchdogConfig

NAMESPACE = "shoot--local--demo"
SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
PODS, NODES, LEASES = "/api/v1/pods", "/api/v1/nodes", "/apis/coordination.k8s.io/v1/leases"
DEPLOYMENTS_PATH = "/apis/apps/v1/deployments"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SHOOT: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Shoot",
    "metadata": {"name": "demo", "namespace": "garden-local", "uid": "c0ffee", "labels": {}},
    "spec": {"provider": {"type": "local"}, "kubernetes": {"version": "1.37.1"}},
    "status": {
        "seedName": "seed-1",
        "technicalID": NAMESPACE,
        "lastOperation": {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": "2026-11-21T09:00:00Z"},
    },
}


@dataclass
class World:
    garden: ApiServer
    seed: ApiServer
    shoot: ApiServer
    clusters: Clusters

    def status(self) -> dict[str, Any]:
        return dict((self.garden.find(SHOOTS, "demo", "garden-local") or {})["status"])

    def conditions(self, field: str = "conditions") -> dict[str, tuple[str, str]]:
        return {each["type"]: (each["status"], each["reason"]) for each in self.status().get(field) or ()}

    @contextlib.asynccontextmanager
    async def running(self, part: CareController | Watchdog) -> AsyncIterator[None]:
        task = asyncio.create_task(part.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(controller, "_NOT_SOONER_SECONDS", 0.05)
    async with GardenServer().running() as garden, ApiServer().running() as seed, ApiServer().running() as shoot:
        clusters = Clusters(garden.client(), seed.client(), "seed-1")
        client = shoot.client()

        async def of(_: str) -> Any:
            return client

        monkeypatch.setattr(clusters, "shoot", of)
        for each in DEPLOYMENTS:
            seed.put(DEPLOYMENTS_PATH, each, NAMESPACE)
        for each in ETCDS:
            seed.put("/apis/druid.gardener.cloud/v1alpha1/etcds", each, NAMESPACE)
        yield World(garden, seed, shoot, clusters)
        await clusters.close()
        await client.close()


async def test_all_conditions_and_the_label_are_written_once(world: World) -> None:
    world.garden.put(SHOOTS, SHOOT)
    async with world.running(CareController(world.clusters, ShootCareConfig(sync_period=timedelta(seconds=0.1)))):
        await until(lambda: world.garden.count("PATCH", f"{_path()}/status"))
        await until(lambda: world.shoot.count("GET", "/healthz") > 3)

    assert world.conditions() == {
        "APIServerAvailable": ("True", "HealthzRequestSucceeded"),
        "ControlPlaneHealthy": ("True", "ControlPlaneRunning"),
        "ObservabilityComponentsHealthy": ("True", "ObservabilityComponentsRunning"),
        "SystemComponentsHealthy": ("True", "SystemComponentsRunning"),
    }
    assert set(world.conditions("constraints")) == {"HibernationPossible", "MaintenancePreconditionsSatisfied"}
    assert world.garden.count("PATCH", f"{_path()}/status") == 1, "a check without news writes nothing"
    live = world.garden.find(SHOOTS, "demo", "garden-local") or {}
    assert live["metadata"]["labels"]["shoot.gardener.cloud/status"] == "healthy"


@pytest.mark.parametrize(
    ("updated", "state"), [("1.0.1", "Succeeded"), ("1.0.0", "Succeeded"), ("1.0.1", "Processing")]
)
async def test_a_pool_is_not_pending_once_its_owner_has_updated_the_last_node(
    world: World, updated: str, state: str
) -> None:
    def pool(version: str) -> dict[str, Any]:
        machine = {"type": "local", "image": {"name": "local", "version": version}}
        size = {"minimum": 1, "maximum": 1}
        return {"name": "a", "updateStrategy": "ManualInPlaceUpdate", "machine": machine, **size}

    spec = {**SHOOT["spec"], "provider": {"type": "local", "workers": [pool("1.0.1")]}}
    pending = {"pendingWorkerUpdates": {"manualInPlaceUpdate": ["a"]}}
    operation = {**SHOOT["status"]["lastOperation"], "state": state}
    status = {**SHOOT["status"], "lastOperation": operation, "inPlaceUpdates": pending}
    world.garden.put(SHOOTS, {**SHOOT, "spec": spec, "status": status})
    hashes = {"a": in_place_hash_of({"spec": spec}, pool(updated))}
    worker = {"metadata": {"name": "demo"}, "spec": {}, "status": {"inPlaceUpdates": {"workerPoolToHashMap": hashes}}}
    world.seed.put("/apis/extensions.gardener.cloud/v1alpha1/workers", worker, NAMESPACE)
    async with world.running(CareController(world.clusters, ShootCareConfig(sync_period=timedelta(seconds=0.1)))):
        if updated == "1.0.1" and state == "Succeeded":
            await until(lambda: not world.status().get("inPlaceUpdates"))
            await until(lambda: "ManualInPlaceWorkersUpdated" not in world.conditions("constraints"))
        else:
            await until(lambda: "ManualInPlaceWorkersUpdated" in world.conditions("constraints"))
            await until(lambda: world.shoot.count("GET", "/healthz") > 5)
            assert world.status()["inPlaceUpdates"] == pending


def _path() -> str:
    return "/apis/core.gardener.cloud/v1beta1/namespaces/garden-local/shoots/demo"


def test_only_a_change_of_health_is_a_reason_for_a_check() -> None:
    """Otherwise a control plane whose objects are written all the time would be checked all the time."""
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", **DEPLOYMENTS[0]}
    annotated = {**deployment, "metadata": {**deployment["metadata"], "annotations": {"a": "b"}, "generation": 99}}
    broken = {**annotated, "status": {"conditions": [{"type": "Available", "status": "False", "reason": "x"}]}}

    assert not changes_health(WatchEvent("MODIFIED", annotated, old=deployment))
    assert changes_health(WatchEvent("MODIFIED", broken, old=annotated))
    assert not changes_health(WatchEvent("MODIFIED", broken, old=broken))
    assert changes_health(WatchEvent("DELETED", deployment, old=deployment))
    assert changes_health(WatchEvent("ADDED", deployment))


async def test_a_lost_seed_is_named_until_it_has_cleaned_up(world: World) -> None:
    """Whether the Shoot is asleep or not: its API server is not asked."""
    world.garden.put(SHOOTS, {**SHOOT, "spec": {**SHOOT["spec"], "hibernation": {"enabled": True}}})
    core = "/apis/core.gardener.cloud/v1beta1"
    world.garden.put(f"{core}/backupbuckets", {"metadata": {"name": "5eed"}, "spec": {"seedName": "seed-2"}})
    annotations = {"backupentry.core.gardener.cloud/taken-over": "true"}
    name = f"source-{NAMESPACE}--c0ffee"
    spec = {"bucketName": "5eed", "seedName": "seed-1"}
    entry = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    world.garden.put(f"{core}/backupentries", entry, "garden-local")

    async with world.running(CareController(world.clusters, ShootCareConfig())):
        await until(lambda: "SourceSeedCleanedUp" in world.conditions())
        assert world.conditions()["SourceSeedCleanedUp"] == ("Progressing", "SourceSeedLost")
        assert any("Seed seed-2 was lost" in each["message"] for each in world.status()["conditions"])

        def label() -> str | None:
            live = world.garden.find(SHOOTS, "demo", "garden-local") or {}
            said: str | None = live["metadata"]["labels"].get("shoot.gardener.cloud/status")
            return said

        await until(lambda: label() is not None)
        assert label() == "healthy"
        world.garden.remove(f"{core}/backupentries", name, "garden-local")
        await until(lambda: "SourceSeedCleanedUp" not in world.conditions())
    assert len(world.conditions()) == 4


async def test_a_name_that_routes_to_another_control_plane_is_reported_until_it_routes_here(world: World) -> None:
    world.garden.put(SHOOTS, SHOOT)
    older = {"creationTimestamp": "2026-11-01T00:00:00Z"}
    for namespace, metadata in (("shoot--aaa--x", older), (NAMESPACE, {"creationTimestamp": "2026-11-02T00:00:00Z"})):
        what = ApiServerExposure(hosts=("api.example.org",), api_server=Upstream(service="kube-apiserver", port=443))
        exposure = gateway.exposure(gateway.EXPOSURE, namespace, what)
        exposure["metadata"] |= metadata
        world.seed.put("/api/v1/configmaps", exposure)

    async with world.running(CareController(world.clusters, ShootCareConfig(sync_period=timedelta(seconds=0.1)))):
        await until(lambda: world.conditions("constraints").get("HostNamesUnique") == ("False", "NamesTaken"))
        world.seed.remove("/api/v1/configmaps", gateway.EXPOSURE, "shoot--aaa--x")
        await until(lambda: "HostNamesUnique" not in world.conditions("constraints"))


async def test_a_hibernated_shoot_is_not_checked(world: World) -> None:
    world.garden.put(SHOOTS, {**SHOOT, "spec": {**SHOOT["spec"], "hibernation": {"enabled": True}}})
    async with world.running(CareController(world.clusters, ShootCareConfig())):
        await until(lambda: len(world.conditions()) == 4)

    assert {reason for _, reason in world.conditions().values()} == {"ConditionNotChecked"}
    assert not world.shoot.requests


async def test_leftover_pods_are_deleted_and_webhooks_remedied_if_enabled(world: World) -> None:
    world.garden.put(SHOOTS, SHOOT)
    for name, namespace in (("evicted", "kube-system"), ("mine", "default")):
        evicted = pod("Evicted", "Failed")
        evicted["metadata"]["name"] = name
        world.shoot.put(PODS, evicted, namespace)
    world.shoot.put(WEBHOOKS, configuration(webhook(["pods"])))

    async with world.running(CareController(world.clusters, ShootCareConfig())):
        await until(lambda: world.shoot.find(PODS, "evicted", "kube-system") is None)
        await until(lambda: "HibernationPossible" in world.conditions("constraints"))

    assert world.shoot.find(PODS, "mine", "default"), "the owner's namespaces are the owner's"
    assert world.conditions("constraints")["HibernationPossible"][1] == "ProblematicWebhooks"
    assert not [path for method, path in world.shoot.requests if method == "PATCH"]
    config = ShootCareConfig(webhook_remediator_enabled=True)
    async with world.running(CareController(world.clusters, config)):
        await until(lambda: [path for method, path in world.shoot.requests if method == "PATCH"])


async def test_stale_pods_of_a_control_plane_are_deleted_in_its_namespace_alone(world: World) -> None:
    """Also while the cluster is hibernated: an evicted pod in the seed needs no API server of the Shoot."""
    world.garden.put(SHOOTS, {**SHOOT, "spec": {**SHOOT["spec"], "hibernation": {"enabled": True}}})
    for name, namespace in (("evicted", NAMESPACE), ("of-the-seed", "garden")):
        evicted = pod("Evicted", "Failed")
        evicted["metadata"]["name"] = name
        world.seed.put(PODS, evicted, namespace)
    since = (datetime.now(UTC) - timedelta(minutes=6)).isoformat()
    stuck = {"name": "stuck", "deletionTimestamp": since, "finalizers": ["kept/by-this-test"]}
    world.seed.put(PODS, {"metadata": stuck, "status": {"phase": "Running"}}, NAMESPACE)
    world.seed.put(PODS, {"metadata": {"name": "runs"}, "status": {"phase": "Running"}}, NAMESPACE)

    async with world.running(CareController(world.clusters, ShootCareConfig())):
        await until(lambda: world.seed.find(PODS, "evicted", NAMESPACE) is None)
        await until(lambda: ("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/stuck") in world.seed.requests)

    assert world.seed.find(PODS, "runs", NAMESPACE)
    assert world.seed.find(PODS, "of-the-seed", "garden")


async def test_a_pod_that_does_not_end_is_removed(world: World) -> None:
    """Its node is gone, so no kubelet confirms that it has ended."""
    world.garden.put(SHOOTS, SHOOT)
    for name, minutes in (("stuck", 6), ("ends", 4)):
        since = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
        metadata = {"name": name, "deletionTimestamp": since, "finalizers": ["kept/by-this-test"]}
        world.shoot.put(PODS, {"metadata": metadata, "status": {"phase": "Running"}}, "kube-system")

    async with world.running(CareController(world.clusters, ShootCareConfig())):
        await until(lambda: ("DELETE", "/api/v1/namespaces/kube-system/pods/stuck") in world.shoot.requests)
        await until(lambda: world.conditions())

    assert world.shoot.count("DELETE", "/api/v1/namespaces/kube-system/pods/ends") == 0


async def test_a_check_lists_little_of_the_shoot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners decide how many objects there are, and a gardenlet checks each Shoot every minute."""
    monkeypatch.setattr(controller, "_NOT_SOONER_SECONDS", 0)
    workers = {
        **SHOOT["spec"]["provider"],
        "workers": [{"name": "a", "minimum": 1, "maximum": 1, "machine": {"type": "local"}}],
    }
    world.garden.put(SHOOTS, {**SHOOT, "spec": {**SHOOT["spec"], "provider": workers}})
    asked: list[tuple[str, str]] = []

    def record(request: web.Request) -> None:
        selected = request.query.get("fieldSelector") or request.query.get("labelSelector") or ""
        what = "metadata" if "PartialObjectMetadata" in request.headers["Accept"] else selected
        asked.append((request.path, what))

    def record_of_namespace(request: web.Request) -> None:
        if f"/namespaces/{NAMESPACE}/" in request.path:
            record(request)

    world.shoot.answer, world.seed.answer = record, record_of_namespace
    care = CareController(world.clusters, ShootCareConfig(webhook_remediator_enabled=True))
    await until(lambda: care._shoots.get("demo", "garden-local"))

    await care._check(Key("garden-local", "demo"))
    first = sorted(asked)
    asked.clear()
    await care._check(Key("garden-local", "demo"))

    pods, webhooks = "/api/v1/namespaces/kube-system/pods", "/apis/admissionregistration.k8s.io/v1"
    coordination = "/apis/coordination.k8s.io/v1/namespaces"
    signer = "spec.signerName=kubernetes.io/kube-apiserver-client"
    always = [
        ("/healthz", ""),
        ("/api/v1/nodes", ""),
        (f"{coordination}/kube-node-lease/leases", ""),
        (f"{coordination}/kube-system/leases", ""),
        ("/api/v1/namespaces/kube-system/secrets", "metadata"),
        (pods, "app=vpn-shoot"),
        (f"/api/v1/namespaces/{NAMESPACE}/secrets", "metadata"),
        ("/apis/certificates.k8s.io/v1/certificatesigningrequests", signer),
        (f"{webhooks}/mutatingwebhookconfigurations", ""),
        (f"{webhooks}/validatingwebhookconfigurations", ""),
        (pods, "status.phase!=Pending,status.phase!=Running"),
    ]
    ended = "status.phase!=Pending,status.phase!=Running"
    of_seed = [(f"/api/v1/namespaces/{NAMESPACE}/pods", each) for each in ("metadata", ended)]
    seldom = [("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ""), (pods, "metadata"), *of_seed]
    assert sorted(asked) == sorted(always)
    assert first == sorted([*always, *seldom])


async def test_missing_credentials_make_conditions_unknown_or_false(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kube.errors import NotFound

    async def none(_: str) -> Any:
        raise NotFound(404, "NoCredentialsYet", "reading access")

    monkeypatch.setattr(world.clusters, "shoot", none)
    world.garden.put(SHOOTS, SHOOT)
    async with world.running(CareController(world.clusters, ShootCareConfig())):
        await until(lambda: len(world.conditions()) == 4)

    assert world.conditions()["APIServerAvailable"][1] == "APIServerDown"
    assert world.conditions("constraints")["HibernationPossible"] == ("Unknown", "ConditionCheckError")


async def test_the_watchdog_stops_and_starts_by_what_nodes_have_written(world: World) -> None:
    workers = {**SHOOT["spec"]["provider"], "workers": [{"name": "a"}]}
    world.garden.put(SHOOTS, {**SHOOT, "spec": {**SHOOT["spec"], "provider": workers}})
    world.shoot.put(NODES, {"metadata": {"name": "n1"}})

    def beat(ago: float) -> None:
        renewed = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
        spec = {"leaseDurationSeconds": 40, "renewTime": renewed}
        world.shoot.put(LEASES, {"metadata": {"name": "n1"}, "spec": spec}, "kube-node-lease")

    def replicas() -> list[int]:
        found = (world.seed.find(DEPLOYMENTS_PATH, name, NAMESPACE) for name in watchdog.STOPPED[:2])
        return [each["spec"]["replicas"] for each in found if each]

    beat(ago=100)
    await world.clusters.seed_caches.of(resources.DEPLOYMENT).synced()
    config = WatchdogConfig(probe_interval=timedelta(seconds=0.05), failures=2)
    async with world.running(Watchdog(world.clusters, config)):
        await until(lambda: replicas() == [0, 0])
        beat(ago=1)
        await until(lambda: replicas() == [1, 1])


async def test_a_watchdog_that_is_switched_off_starts_what_it_has_stopped(world: World) -> None:
    """No other component starts these controllers."""
    workers = {**SHOOT["spec"]["provider"], "workers": [{"name": "a"}]}
    world.garden.put(SHOOTS, {**SHOOT, "spec": {**SHOOT["spec"], "provider": workers}})
    world.garden.put(SEEDS, {"metadata": {"name": "seed-1"}, "spec": {}})
    world.shoot.put(NODES, {"metadata": {"name": "n1"}})
    spec = {"leaseDurationSeconds": 40, "renewTime": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}
    world.shoot.put(LEASES, {"metadata": {"name": "n1"}, "spec": spec}, "kube-node-lease")

    def replicas() -> int:
        found = world.seed.find(DEPLOYMENTS_PATH, watchdog.STOPPED[0], NAMESPACE)
        return int((found or {})["spec"]["replicas"])

    await world.clusters.seed_caches.of(resources.DEPLOYMENT).synced()
    config = WatchdogConfig(probe_interval=timedelta(seconds=0.05), failures=1)
    async with world.running(Watchdog(world.clusters, config)):
        await until(lambda: replicas() == 0)
        settings = {"dependencyWatchdog": {"prober": {"enabled": False}}}
        world.garden.change(SEEDS, "seed-1", None, {"spec": {"settings": settings}})
        await until(lambda: replicas() == 1)
