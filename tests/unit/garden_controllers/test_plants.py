"""The conditions of a Plant say whether its cluster answers, and its status what the cluster is."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from api import resources
from tests.foreign_cluster import ForeignCluster, reachable
from tests.unit.api.shoots import changed
from tests.unit.api.test_plants import PLANT, node
from tests.unit.garden_controllers.conftest import CORE
from tests.unit.kube.waiting import until
from workers.controller_manager import plants
from workers.controller_manager.plants import PlantConfig, run_plant_controller

CONFIG = PlantConfig(
    sync_period=timedelta(seconds=0.05),
    probe_timeout=timedelta(seconds=2),
    api_server_threshold=timedelta(),
    nodes_threshold=timedelta(),
)


@pytest.fixture
async def cluster() -> AsyncIterator[ForeignCluster]:
    async with ForeignCluster().running() as made:
        yield made


def put(garden: Any, cluster: ForeignCluster) -> None:
    garden.api.put("/api/v1/secrets", cluster.secret())
    garden.api.put(f"{CORE}/plants", PLANT)


def probing(garden: Any, config: PlantConfig = CONFIG) -> Any:
    return garden.running(run_plant_controller(garden.client, garden.caches, config, reachable()))


def conditions(plant: Any) -> dict[str, tuple[str, str]]:
    found = (plant.get("status") or {}).get("conditions") or []
    return {each["type"]: (each["status"], each["reason"]) for each in found}


async def becomes(garden: Any, server: tuple[str, str], nodes: tuple[str, str]) -> dict[str, Any]:
    """Wait for both conditions; returns their messages."""
    wanted = {"APIServerAvailable": server, "EveryNodeReady": nodes}
    await garden.becomes(resources.PLANT, "crazy", "garden-local", lambda plant: conditions(plant) == wanted)
    found = garden.api.find(f"{CORE}/plants", "crazy", "garden-local")["status"]
    return {"status": found, **{each["type"]: each["message"] for each in found["conditions"]}}


HEALTHY = ("True", "HealthzRequestSucceeded")
ALL_READY = ("True", "EveryNodeReady")
NOT_CHECKED = ("Unknown", "ConditionCheckError")


async def test_a_healthy_cluster_shows_its_facts(garden, cluster):
    cluster.nodes = [node(provider_id="gce://p/z/a", **{"topology.kubernetes.io/region": "europe-west1"})]
    put(garden, cluster)
    async with probing(garden):
        found = (await becomes(garden, HEALTHY, ALL_READY))["status"]
    assert found["observedGeneration"] == 1
    assert found["clusterInfo"] == {
        "provider": {"type": "gce", "region": "europe-west1"},
        "kubernetes": {"version": "v1.31.1"},
    }


async def test_a_cluster_without_change_gets_no_new_status(garden, cluster):
    """Otherwise each probe would be a write of the garden, and an event for each watcher."""
    put(garden, cluster)
    async with probing(garden):
        await becomes(garden, HEALTHY, ALL_READY)
        version = garden.api.find(f"{CORE}/plants", "crazy", "garden-local")["metadata"]["resourceVersion"]
        probes = cluster.asked.count("/healthz")
        await until(lambda: cluster.asked.count("/healthz") >= probes + 3)
        assert garden.api.find(f"{CORE}/plants", "crazy", "garden-local")["metadata"]["resourceVersion"] == version


async def test_a_node_that_is_not_ready_is_told_and_forgotten_when_it_is_ready_again(garden, cluster):
    cluster.nodes = [node("a"), node("b", "False")]
    put(garden, cluster)
    async with probing(garden):
        told = await becomes(garden, HEALTHY, ("False", "NodeUnhealthy"))
        assert "node b is not ready: kubelet stopped; 1 of 2 nodes" in told["EveryNodeReady"]
        cluster.nodes = [node("a"), node("b")]
        await becomes(garden, HEALTHY, ALL_READY)


async def test_a_failure_is_progressing_for_its_threshold(garden, cluster):
    put(garden, cluster)
    slow = CONFIG.model_copy(update={"api_server_threshold": timedelta(hours=1)})
    async with probing(garden, slow):
        await becomes(garden, HEALTHY, ALL_READY)
        info = garden.api.find(f"{CORE}/plants", "crazy", "garden-local")["status"]["clusterInfo"]
        cluster.answers["/healthz"] = answering(503)
        found = (await becomes(garden, ("Progressing", "HealthzRequestFailed"), NOT_CHECKED))["status"]
        assert found["clusterInfo"] == info, "the facts that were read last"


def answering(status: int, text: str = "") -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


async def test_a_missing_right_is_told_with_its_remedy(garden, cluster):
    cluster.answers["/api/v1/nodes"] = answering(403)
    put(garden, cluster)
    async with probing(garden):
        told = await becomes(garden, HEALTHY, NOT_CHECKED)
    assert "status 403; the credentials of the kubeconfig need this right" in told["EveryNodeReady"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "there is no Secret crazy-kubeconfig: create it with key kubeconfig"),
        ({}, "Secret crazy-kubeconfig has no key kubeconfig"),
        ({"kubeconfig": "e30="}, "Secret crazy-kubeconfig: kubeconfig: "),
    ],
)
async def test_a_secret_without_a_usable_kubeconfig_is_named(garden, cluster, data, told):
    if data is not None:
        garden.api.put("/api/v1/secrets", changed(cluster.secret(), "data", data))
    garden.api.put(f"{CORE}/plants", PLANT)
    async with probing(garden):
        found = await becomes(garden, ("False", "KubeconfigUnusable"), NOT_CHECKED)
    assert told in found["APIServerAvailable"]


async def test_a_plant_that_is_being_deleted_is_not_probed(garden, cluster):
    garden.api.put("/api/v1/secrets", cluster.secret())
    going = changed(PLANT, "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")
    garden.api.put(f"{CORE}/plants", changed(going, "metadata.finalizers", ["example.org/kept"]))
    garden.api.put(f"{CORE}/plants", changed(PLANT, "metadata.name", "other"))
    async with probing(garden):
        await garden.becomes(
            resources.PLANT, "other", "garden-local", lambda plant: HEALTHY in conditions(plant).values()
        )
    assert not garden.api.find(f"{CORE}/plants", "crazy", "garden-local").get("status")


async def test_slow_clusters_of_one_project_do_not_delay_those_of_another(garden, cluster, monkeypatch):
    monkeypatch.setattr(plants, "_TURN_SECONDS", 0.05)
    monkeypatch.setattr(plants, "_WORKERS", 3)
    stuck = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await stuck.wait()
        return web.Response(text="ok")

    slow_cluster = ForeignCluster(answers={"/healthz": slow})
    async with slow_cluster.running():
        garden.api.put("/api/v1/secrets", slow_cluster.secret())
        for number in range(6):
            garden.api.put(f"{CORE}/plants", changed(PLANT, "metadata.name", f"slow-{number}"))
        secret = changed(cluster.secret(), "metadata.namespace", "garden-other")
        garden.api.put("/api/v1/secrets", secret)
        garden.api.put(f"{CORE}/plants", changed(PLANT, "metadata.namespace", "garden-other"))
        async with probing(garden, CONFIG.model_copy(update={"probe_timeout": timedelta(minutes=1)})):
            await garden.becomes(
                resources.PLANT, "crazy", "garden-other", lambda plant: HEALTHY in conditions(plant).values()
            )
            assert len(slow_cluster.asked) <= 2
            stuck.set()
