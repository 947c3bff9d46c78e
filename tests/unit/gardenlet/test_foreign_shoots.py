"""A gardenlet costs the garden, and itself, the same however many Shoots other seeds have."""

import asyncio
import gc
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from activities.clusters import Clusters
from activities.seed.retention import Retention
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.bastions import BastionController
from workers.gardenlet.care import CareController, Watchdog
from workers.gardenlet.config import SeedConfig, ShootCareConfig, WatchdogConfig
from workers.gardenlet.garden_access import GardenAccessController
from workers.gardenlet.kept_backups import KeptBackupsController
from workers.gardenlet.remains import RemainsController
from workers.gardenlet.seed import SeedController
from workers.gardenlet.shoot_states import ShootStateController

CORE = "/apis/core.gardener.cloud/v1beta1"
SHOOTS, SEEDS, ENTRIES = f"{CORE}/shoots", f"{CORE}/seeds", f"{CORE}/backupentries"
READ = (SHOOTS, SEEDS, ENTRIES)
FOREIGN = 1000
POOLS = [{"name": f"pool-{number}", "annotations": {"a": "x" * 500}} for number in range(8)]
SPARE = 1 << 20
"""Bytes by which two runs of the same work may differ."""


def shoot(name: str, seed: str) -> dict[str, Any]:
    """About as large as a real one."""
    return {
        "metadata": {"name": name, "namespace": "garden-a", "uid": f"uid-of-{name}"},
        "spec": {
            "seedName": seed,
            "hibernation": {"enabled": True},
            "provider": {
                "workers": [{"name": f"pool-{number}", "annotations": {"a": "x" * 500}} for number in range(8)]
            },
        },
        "status": {"seedName": seed, "technicalID": f"shoot--a--{name}"},
    }


@dataclass
class Cost:
    """Requests of a gardenlet to the garden, and objects that it caches."""

    requests: Counter[str]
    """Lists, their further pages, and watches."""
    objects: int
    memory: int
    """Bytes."""


async def cost(foreign: int) -> Cost:
    """Cost of a gardenlet with one Shoot of its own, in which each foreign Shoot changes once."""
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        garden.put(SEEDS, {"metadata": {"name": "seed-1", "uid": "5eed"}, "status": {"conditions": []}})
        garden.put(SHOOTS, shoot("own", "seed-1"))
        for number in range(foreign):
            name = f"foreign-{number}"
            garden.put(SHOOTS, shoot(name, "seed-2"))
            spec = {"bucketName": "another", "seedName": "seed-2"}
            garden.put(ENTRIES, {"metadata": {"name": f"shoot--a--{name}--x", "namespace": "garden-a"}, "spec": spec})
            garden.put(SEEDS, {"metadata": {"name": f"seed-of-{name}"}, "spec": {"a": "x" * 1000}})
        gc.collect()
        tracemalloc.start()
        async with garden.client() as garden_client, seed.client() as seed_client:
            clusters = Clusters(garden_client, seed_client, "seed-1")
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(each.run())
                    for each in (
                        SeedController(clusters, SeedConfig(metadata={"name": "seed-1"}, spec={}), "gardenlet"),
                        GardenAccessController(clusters, None),
                        BastionController(clusters),
                        CareController(clusters, ShootCareConfig(sync_period=timedelta(hours=1))),
                        Watchdog(clusters, WatchdogConfig()),
                        RemainsController(clusters),
                        KeptBackupsController(clusters, Retention(timedelta(days=1))),
                        ShootStateController(clusters, timedelta(hours=6)),
                    )
                ]
                # Care has checked the Shoot.
                await until(lambda: garden.count("PATCH", f"{CORE}/namespaces/garden-a/shoots/own/status"))
                for number in range(foreign):
                    garden.change(SHOOTS, f"foreign-{number}", "garden-a", {"status": {"hibernated": True}})
                changed = garden.change(SHOOTS, "own", "garden-a", {"spec": {"purpose": "testing"}})
                version = changed["metadata"]["resourceVersion"]
                caches = clusters.garden_caches.started()
                shoots = [each for each in caches if each.resource.plural == "shoots"]

                def seen(cache: Any) -> bool:
                    own = cache.get("own", "garden-a")
                    return own is not None and own["metadata"]["resourceVersion"] >= version

                await until(lambda: all(seen(each) for each in shoots))
                found = Cost(
                    Counter(path for method, path in garden.requests if method == "GET" and path in READ),
                    sum(len(each.list()) for each in caches),
                    _kept_by_caches(tracemalloc.take_snapshot()),
                )
                tracemalloc.stop()
                for task in tasks:
                    task.cancel()
            await clusters.close()
        return found


def _kept_by_caches(snapshot: tracemalloc.Snapshot) -> int:
    """Bytes of the objects that a client has parsed and a cache still holds."""
    parsed = snapshot.filter_traces((tracemalloc.Filter(True, "*/json/decoder.py"),))
    return sum(each.size for each in parsed.statistics("filename"))


async def test_a_thousand_shoots_of_other_seeds_cost_a_gardenlet_as_much_as_none() -> None:
    alone, among_many = await cost(0), await cost(FOREIGN)

    assert among_many.requests == alone.requests
    assert among_many.objects == alone.objects
    assert among_many.memory - alone.memory < SPARE
