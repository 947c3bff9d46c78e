"""A tenant fills a Shoot's API server, so that the gardenlet that all tenants of a seed share runs out of memory."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from activities.clusters import SHOOT_KUBECONFIG, Clusters
from api import resources
from kube.errors import ApiError
from tests.security.memory import less_memory_than
from tests.unit.care.test_checks import DEPLOYMENTS, ETCDS
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.care import controller
from workers.gardenlet.care.controller import CareController
from workers.gardenlet.care.watchdog import Verdict, Watchdog
from workers.gardenlet.config import ShootCareConfig, WatchdogConfig

NAMESPACE = "shoot--local--demo"
SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
SHOOT: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Shoot",
    "metadata": {"name": "demo", "namespace": "garden-local", "uid": "c0ffee", "labels": {}},
    "spec": {
        "provider": {"type": "local", "workers": [{"name": "pool", "minimum": 1, "maximum": 2}]},
        "kubernetes": {"version": "1.37.1"},
    },
    "status": {
        "seedName": "seed-1",
        "technicalID": NAMESPACE,
        "lastOperation": {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": "2026-11-21T09:00:00Z"},
    },
}
ROOM_BYTES = 120 << 20
"""Memory that one check of a Shoot may take, however much its API server sends. Each list has 200 MB."""


@pytest.fixture
def flood() -> Iterator[str]:
    """Address of an API server whose lists have 200 MB."""
    command = [sys.executable, "-m", "tests.security.flooding_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        server.put(SHOOTS, SHOOT)
        yield server


@pytest.fixture
async def clusters(garden: ApiServer, flood: str) -> AsyncIterator[Clusters]:
    async with ApiServer().running() as seed:
        for each in DEPLOYMENTS:
            seed.put("/apis/apps/v1/deployments", each, NAMESPACE)
        for each in ETCDS:
            seed.put("/apis/druid.gardener.cloud/v1alpha1/etcds", each, NAMESPACE)
        kubeconfig = {
            "current-context": "shoot",
            "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": "shoot"}}],
            "clusters": [{"name": "shoot", "cluster": {"server": flood}}],
            "users": [{"name": "shoot", "user": {"token": "token"}}],
        }
        data = {"kubeconfig": base64.b64encode(json.dumps(kubeconfig).encode()).decode()}
        seed.put("/api/v1/secrets", {"metadata": {"name": SHOOT_KUBECONFIG}, "data": data}, NAMESPACE)
        seed.put("/api/v1/services", {"metadata": {"name": "kube-apiserver"}, "spec": {}}, NAMESPACE)
        clusters = Clusters(garden.client(), seed.client(), "seed-1")
        yield clusters
        await clusters.close()


@pytest.mark.attack(actor="T1", asset="A2", finding=15)
async def test_care_for_a_shoot_with_huge_lists_takes_little_memory_and_says_what_to_do(
    garden: ApiServer, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, Leases, Pods, webhooks and CRDs have 200 MB each."""
    # The subject is memory: on a busy machine such lists take longer than care waits.
    monkeypatch.setattr(controller, "_CHECK_SECONDS", 100.0)
    care = CareController(clusters, ShootCareConfig(sync_period=timedelta(hours=1)))
    with less_memory_than(ROOM_BYTES):
        running = asyncio.create_task(care.run())
        try:
            await until(lambda: "conditions" in (garden.find(SHOOTS, "demo", "garden-local") or {})["status"], 110)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    status = (garden.find(SHOOTS, "demo", "garden-local") or {})["status"]
    conditions = {each["type"]: each for each in status["conditions"]}
    found = conditions["EveryNodeReady"]
    assert (found["status"], found["reason"]) == ("False", "AnswerTooLarge")
    assert "delete" in found["message"]
    constraints = {each["reason"] for each in status["constraints"]}
    assert constraints == {"AnswerTooLarge"}


@pytest.mark.attack(actor="T1", asset="A2", finding=15)
async def test_the_watchdog_takes_little_memory_for_a_shoot_with_huge_lists(clusters: Clusters) -> None:
    """The watchdog probes all Shoots of a seed every few seconds."""
    with less_memory_than(ROOM_BYTES):
        assert await Watchdog(clusters, WatchdogConfig())._ask(NAMESPACE) in (Verdict.UNKNOWN, Verdict.REPORTING)


@pytest.mark.attack(actor="T1", asset="A2", finding=15)
@pytest.mark.parametrize("query", ["", "?compressed"])
async def test_one_endless_answer_is_cut_off(clusters: Clusters, query: str) -> None:
    """A tenant's aggregated API answers what it likes, compressed or not."""
    client = await clusters.shoot(NAMESPACE)
    with less_memory_than(ROOM_BYTES), pytest.raises(ApiError, match=r"more than|compressed"):
        await client.request("GET", f"/endless{query}")


@pytest.mark.attack(actor="T1", asset="A2", finding=15)
async def test_a_flow_that_lists_too_many_objects_of_a_tenant_fails_with_the_reason(clusters: Clusters) -> None:
    """Flows keep what they list."""
    client = await clusters.shoot(NAMESPACE)
    with (
        less_memory_than(ROOM_BYTES),
        pytest.raises(ApiError, match=r"listing configmaps: the list has more than 32 MiB"),
    ):
        await client.list(resources.CONFIG_MAP)


@pytest.mark.attack(actor="T2", asset="A2", finding=8)
async def test_a_redirect_of_a_node_is_not_followed(clusters: Clusters, garden: ApiServer) -> None:
    """The gardenlet asks kubelets through the API server. A redirect would let the node choose another server."""
    client = await clusters.shoot(NAMESPACE)
    asked = len(garden.requests)
    with pytest.raises(ApiError, match="302"):
        await client.request("GET", "/redirect", query={"to": f"{garden.url}/healthz"})
    assert garden.requests[asked:] == []
