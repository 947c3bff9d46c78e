"""Extensions read in the Cluster how the operation of their Shoot has ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.clusters import Clusters
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.extension.controller import _is_failed
from workers.gardenlet.cluster_status import ClusterStatusController

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
TECHNICAL_ID = "shoot--a--b"


def status(state: str, progress: int = 0, **fields: Any) -> dict[str, Any]:
    last = {"type": "Reconcile", "state": state, "progress": progress}
    return {
        "seedName": "seed-1",
        "technicalID": TECHNICAL_ID,
        "observedGeneration": 1,
        "lastOperation": last,
        "lastErrors": None,
        **fields,
    }


class World:
    """A Shoot in the garden, and its Cluster in the seed."""

    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed
        metadata = {"name": "b", "uid": "1", "generation": 1}
        garden.put(
            SHOOTS, {"metadata": metadata, "spec": {"purpose": "new"}, "status": status("Processing")}, "garden-a"
        )
        self.pin("1")

    def pin(self, uid: str) -> None:
        shoot = {
            "metadata": {"name": "b", "uid": uid, "generation": 1},
            "spec": {"purpose": "pinned"},
            "status": status("Processing") | {"hibernated": True},
        }
        self.seed.put(CLUSTERS, {"metadata": {"name": TECHNICAL_ID}, "spec": {"shoot": shoot}})

    def report(self, state: str, **fields: Any) -> None:
        self.garden.change(SHOOTS, "b", "garden-a", {"status": status(state, **fields)})

    @property
    def cluster(self) -> dict[str, Any]:
        found = self.seed.find(CLUSTERS, TECHNICAL_ID)
        assert found is not None
        return found

    @property
    def state(self) -> str:
        return str(self.cluster["spec"]["shoot"]["status"]["lastOperation"]["state"])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        made = World(garden, seed)
        async with garden.client() as garden_client, seed.client() as seed_client:
            clusters = Clusters(garden_client, seed_client, "seed-1")
            running = asyncio.create_task(ClusterStatusController(clusters).run())
            yield made
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await clusters.close()


async def test_extensions_stop_when_their_shoot_has_failed_and_go_on_with_the_next_operation(world: World) -> None:
    world.report("Failed", lastErrors=[{"description": "no quota"}])
    await until(lambda: _is_failed(world.cluster))
    shoot = world.cluster["spec"]["shoot"]
    assert shoot["status"]["lastErrors"] == [{"description": "no quota"}]
    world.report("Processing")
    await until(lambda: world.state == "Processing")
    assert not world.cluster["spec"]["shoot"]["status"].get("lastErrors")


async def test_only_the_status_changes_in_the_cluster(world: World) -> None:
    """A newer spec is for the next operation; its first task pins it."""
    world.report("Succeeded")
    await until(lambda: world.state == "Succeeded")
    shoot = world.cluster["spec"]["shoot"]
    assert shoot["spec"] == {"purpose": "pinned"}
    assert shoot["status"]["hibernated"] is True


async def test_progress_alone_writes_nothing(world: World) -> None:
    for progress in (10, 50):
        world.report("Processing", progress=progress)
    world.report("Succeeded")
    await until(lambda: world.state == "Succeeded")
    assert world.seed.count("PATCH", f"{CLUSTERS}/{TECHNICAL_ID}") == 1


async def test_the_cluster_of_another_shoot_stays_as_it_is(world: World) -> None:
    world.pin("2")
    world.report("Failed")
    await until(lambda: world.seed.count("GET", f"{CLUSTERS}/{TECHNICAL_ID}"))
    assert world.state == "Processing"
