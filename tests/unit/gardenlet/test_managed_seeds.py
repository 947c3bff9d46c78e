"""A gardenlet deploys another one into the Shoot of a ManagedSeed, and removes it after the Seed is gone."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from activities.clusters import Clusters
from api.decisions.conditions import find_condition
from tests.unit.api.shoots import SEED as SEED_1
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet import child_gardenlet
from workers.gardenlet.config import GardenletConfig
from workers.gardenlet.managed_seeds import ManagedSeedController

CORE = "/apis/core.gardener.cloud/v1beta1"
SHOOTS, SEEDS, SECRETS = f"{CORE}/shoots", f"{CORE}/seeds", "/api/v1/secrets"
MANAGED_SEEDS = "/apis/seedmanagement.gardener.cloud/v1alpha1/managedseeds"
DEPLOYMENTS, ROLES = "/apis/apps/v1/deployments", "/apis/rbac.authorization.k8s.io/v1/clusterroles"
FILES = {"caFile": "/ca", "certificateFile": "/crt", "privateKeyFile": "/key"}
PARENT: dict[str, Any] = {
    "gardenClientConnection": {"kubeconfig": "/x"},
    "seedConfig": {"metadata": {"name": "seed-1"}, "spec": {}},
    "temporal": {"address": "temporal.test:7233", "codecKeyFile": "/k", "tls": FILES},
    "etcd": {"deltaSnapshotPeriod": 10},
    "resources": {"capacity": {"shoots": 5}, "reserved": {"shoots": 4}},
    "leaderElection": {"leaseDuration": "15s"},
    "shootCare": {"syncPeriod": 60},
}
SHOOT: dict[str, Any] = {
    "metadata": {"name": "nested", "namespace": "garden", "uid": "u-1", "generation": 3},
    "spec": {"seedName": "seed-1"},
    "status": {
        "seedName": "seed-1",
        "technicalID": "shoot--garden--nested",
        "observedGeneration": 3,
        "lastOperation": {"type": "Create", "state": "Succeeded"},
    },
}
MANAGED_SEED: dict[str, Any] = {
    "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
    "kind": "ManagedSeed",
    "metadata": {"name": "child", "namespace": "garden", "finalizers": ["gardener"], "generation": 1},
    "spec": {
        "shoot": {"name": "nested"},
        "gardenlet": {
            "config": {
                "resources": {"capacity": {"shoots": 3}},
                "seedConfig": {"spec": {"provider": {"type": "local"}}},
            },
        },
    },
}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


IDENTITY = {
    "bootstrap-token": encoded("abcdef.SENTINEL-TOKEN"),
    "codec-key": encoded("SENTINEL-CODEC"),
    "tls.crt": encoded("certificate"),
    "tls.key": encoded("SENTINEL-KEY"),
    "ca.crt": encoded("authorities"),
}


class World:
    def __init__(self, garden: ApiServer, seed: ApiServer, shoot: ApiServer) -> None:
        self.garden, self.shoot = garden, shoot
        self.clusters = Clusters(garden.client(), seed.client(), "seed-1")
        self.client = shoot.client()

        async def connected(technical_id: str) -> Any:
            assert technical_id == "shoot--garden--nested"
            return self.client

        self.clusters.shoot = connected  # type: ignore[method-assign]
        garden.put(SHOOTS, SHOOT)
        garden.put(MANAGED_SEEDS, MANAGED_SEED)

    def identify(self, **changed: str | None) -> None:
        data = {key: value for key, value in {**IDENTITY, **changed}.items() if value is not None}
        self.garden.put(SECRETS, {"metadata": {"name": "child.managed-seed", "namespace": "garden"}, "data": data})

    def registered(self, ready: str = "True") -> None:
        status = {"conditions": [{"type": "GardenletReady", "status": ready, "message": "as tested"}]}
        self.garden.put(SEEDS, {**SEED_1, "metadata": {"name": "child"}, "status": status})

    @asynccontextmanager
    async def running(self, parent: dict[str, Any] = PARENT) -> AsyncIterator[None]:
        config = GardenletConfig.model_validate(parent)
        task = asyncio.create_task(ManagedSeedController(self.clusters, config).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def condition(self, type_: str) -> tuple[str, str, str]:
        found = find_condition(self.garden.find(MANAGED_SEEDS, "child", "garden"), type_)
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    async def becomes(self, type_: str, status: str, reason: str) -> str:
        await until(lambda: self.condition(type_)[:2] == (status, reason))
        return self.condition(type_)[2]

    def deployed(self, kind: str, name: str, namespace: str | None = "garden") -> Any:
        return self.shoot.find(kind, name, namespace)


@pytest.fixture
async def world():
    async with GardenServer().running() as garden, ApiServer().running() as seed, ApiServer().running() as shoot:
        made = World(garden, seed, shoot)
        try:
            yield made
        finally:
            await made.clusters.close()
            await made.client.close()


async def test_a_gardenlet_is_deployed_and_its_seed_registered(world):
    world.identify()
    async with world.running():
        assert "has not registered" in await world.becomes("SeedRegistered", "False", "GardenletDeployed")
        world.registered("Unknown")
        assert "as tested" in await world.becomes("SeedRegistered", "Progressing", "SeedNotReady")
        world.registered()
        await world.becomes("SeedRegistered", "True", "SeedRegistered")

    assert world.condition("ShootReconciled")[:2] == ("True", "Reconciled")
    assert world.garden.find(MANAGED_SEEDS, "child", "garden")["status"]["observedGeneration"] == 1
    assert world.deployed(DEPLOYMENTS, "gardenlet")["spec"]["replicas"] == 2
    kubeconfig = json.loads(base64.b64decode(world.deployed(SECRETS, "gardenlet-bootstrap")["data"]["kubeconfig"]))
    assert kubeconfig["clusters"][0]["cluster"]["server"] == world.garden.url
    assert kubeconfig["users"][0]["user"] == {"token": "abcdef.SENTINEL-TOKEN"}
    assert world.deployed(SECRETS, "gardenlet-codec-key")["data"] == {"key": IDENTITY["codec-key"]}
    assert set(world.deployed(SECRETS, "gardenlet-temporal-tls")["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    config = yaml.safe_load(world.deployed("/api/v1/configmaps", "gardenlet")["data"]["config.yaml"])
    assert config["seedConfig"]["metadata"] == {"name": "child"}
    assert config["temporal"]["address"] == "temporal.test:7233"


async def test_nothing_is_deployed_before_the_shoot_is_reconciled(world):
    world.identify()
    world.garden.change(SHOOTS, "nested", "garden", {"status": {"observedGeneration": 2}})
    async with world.running():
        await world.becomes("ShootReconciled", "False", "Reconciling")
        assert world.deployed(DEPLOYMENTS, "gardenlet") is None
        world.garden.change(SHOOTS, "nested", "garden", {"status": {"observedGeneration": 3}})
        await until(lambda: world.deployed(DEPLOYMENTS, "gardenlet"))


async def test_the_identity_is_awaited(world):
    async with world.running():
        await world.becomes("SeedRegistered", "False", "IdentityMissing")
    assert world.deployed(DEPLOYMENTS, "gardenlet") is None


async def test_a_missing_certificate_for_temporal_is_told(world):
    world.identify(**{"tls.crt": None})
    async with world.running():
        message = await world.becomes("SeedRegistered", "False", "TemporalCertificateMissing")
    assert "garden/child.managed-seed has no client certificate for Temporal" in message
    assert world.deployed(DEPLOYMENTS, "gardenlet") is None


async def test_a_configuration_that_no_gardenlet_accepts_is_told(world):
    world.identify()
    change = {"spec": {"gardenlet": {"config": {"shootCare": {"syncPeriode": 3}}}}}
    world.garden.change(MANAGED_SEEDS, "child", "garden", change)
    async with world.running():
        message = await world.becomes("SeedRegistered", "False", "GardenletInvalid")
    assert "spec.gardenlet.config: shootCare.syncPeriode: Extra inputs are not permitted" in message


async def test_values_that_the_chart_refuses_are_told(world):
    world.identify()
    change: dict[str, Any] = {"spec": {"gardenlet": {"deployment": {"resources": {"demands": {}}}}}}
    world.garden.change(MANAGED_SEEDS, "child", "garden", change)
    async with world.running():
        assert "demands" in await world.becomes("SeedRegistered", "False", "GardenletInvalid")


async def test_a_new_token_reaches_the_shoot_when_the_garden_requests_it(world):
    """The certificate of a gardenlet that was off has expired: it bootstraps again."""
    world.identify(**{"bootstrap-token": None})
    world.registered()
    async with world.running():
        await until(lambda: world.deployed(SECRETS, "gardenlet-bootstrap"))
        world.identify()
        asked = {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}}
        world.garden.change(MANAGED_SEEDS, "child", "garden", asked)
        await until(lambda: "SENTINEL" in _text(world.deployed(SECRETS, "gardenlet-bootstrap")))
        await until(lambda: not world.garden.find(MANAGED_SEEDS, "child", "garden")["metadata"].get("annotations"))


def _text(secret: dict[str, Any]) -> str:
    return base64.b64decode(secret["data"]["kubeconfig"]).decode()


async def test_the_seed_goes_first_and_then_the_gardenlet(world):
    world.identify()
    world.registered()
    async with world.running():
        await world.becomes("SeedRegistered", "True", "SeedRegistered")
        world.garden.change(
            MANAGED_SEEDS, "child", "garden", {"metadata": {"deletionTimestamp": "2026-11-26T00:00:00Z"}}
        )
        await world.becomes("SeedRegistered", "False", "DeletionInProgress")
        assert world.deployed(DEPLOYMENTS, "gardenlet"), "it must clean its seed up"
        world.garden.remove(SEEDS, "child")
        await until(lambda: world.garden.find(MANAGED_SEEDS, "child", "garden") is None)
    assert world.deployed("/api/v1/namespaces", "garden", None) is None
    assert world.deployed(ROLES, "gardener.cloud:system:gardenlet", None) is None


async def test_a_gardenlet_that_is_killed_anywhere_is_continued(world):
    """Each run ends in the middle of its writes: the next one does the rest."""
    world.identify()
    cuts: list[list[int]] = []
    for allowed in range(12):
        cuts.append(left := [allowed])

        def cut(request: Any, left: list[int] = left) -> Any:
            if request.method != "PATCH":
                return None
            left[0] -= 1
            return None if left[0] >= 0 else _gone()

        world.shoot.answer = cut
        async with world.running():
            await until(lambda: cuts[-1][0] < 0 or world.condition("SeedRegistered")[1] == "GardenletDeployed")
        if world.condition("SeedRegistered")[1] == "GardenletDeployed":
            break
    world.shoot.answer = lambda _: None
    async with world.running():
        await world.becomes("SeedRegistered", "False", "GardenletDeployed")
    assert world.deployed(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "gardener.cloud:system:gardenlet", None
    )


def _gone() -> Any:
    from aiohttp import web

    return web.json_response({"kind": "Status", "code": 503, "reason": "ServiceUnavailable"}, status=503)


async def test_a_managed_seed_of_another_seed_is_left_alone(world):
    world.identify()
    elsewhere = {"spec": {"seedName": "seed-2"}, "status": {"seedName": "seed-2"}}
    world.garden.change(SHOOTS, "nested", "garden", elsewhere)
    world.garden.put(SHOOTS, {**SHOOT, "metadata": {**SHOOT["metadata"], "name": "own", "uid": "u-2"}})
    own = {**MANAGED_SEED, "metadata": {**MANAGED_SEED["metadata"], "name": "own"}, "spec": {"shoot": {"name": "own"}}}
    world.garden.put(MANAGED_SEEDS, own)
    async with world.running():
        await until(lambda: world.garden.find(MANAGED_SEEDS, "own", "garden").get("status"))
    assert "status" not in world.garden.find(MANAGED_SEEDS, "child", "garden")


# What the gardenlet is deployed with


def managed(**gardenlet: Any) -> dict[str, Any]:
    return {"metadata": {"name": "child"}, "spec": {"shoot": {"name": "nested"}, "gardenlet": gardenlet}}


def test_the_configuration_of_the_parent_holds_where_the_child_has_none():
    parent = GardenletConfig.model_validate(PARENT)
    own = {"etcd": {"takeoverTolerance": 20}, "resources": {"capacity": {"shoots": 3}}}
    assert child_gardenlet.configuration(managed(config=own), parent) == {
        "etcd": {"deltaSnapshotPeriod": 10.0, "takeoverTolerance": 20},
        "resources": {"capacity": {"shoots": 3}},
        "shootCare": {"syncPeriod": 60.0},
    }
    assert child_gardenlet.configuration(managed(config=own, mergeWithParent=False), parent) == own


def test_the_deployment_is_that_of_the_author():
    parent = GardenletConfig.model_validate(PARENT)
    wanted = {
        "replicaCount": 1,
        "revisionHistoryLimit": 0,
        "serviceAccountName": "me",
        "image": {"repository": "example.org/g", "tag": "v1"},
        "podLabels": {"a": "b"},
        "env": [{"name": "A"}],
        "additionalVolumes": [{"name": "v"}],
        "enableHealthProbes": False,
    }
    values = child_gardenlet.values(managed(deployment=wanted), parent)
    assert (values["replicas"], values["revisionHistoryLimit"], values["healthProbes"]) == (1, 0, False)
    assert values["image"] == {"repository": "example.org/g", "tag": "v1", "pullPolicy": "IfNotPresent"}
    assert (values["serviceAccountName"], values["podLabels"], values["env"]) == ("me", {"a": "b"}, [{"name": "A"}])
    assert values["volumes"] == [{"name": "v"}]


def test_the_garden_may_have_another_address_for_the_child():
    connection = {"gardenClusterAddress": "https://garden.test", "gardenClusterCACert": "Q0E="}
    garden = ApiServer()
    garden.url = "https://inside.test"
    made = child_gardenlet.bootstrap_kubeconfig(
        managed(config={"gardenClientConnection": connection}), {}, garden.client().endpoint
    )
    cluster = json.loads(made)["clusters"][0]["cluster"]
    assert cluster == {"server": "https://garden.test", "certificate-authority-data": "Q0E="}
