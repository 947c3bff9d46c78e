"""Copying backups between two buckets of a real object store: all of them, once, whatever the target held before."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from etcd.snapshots import may_serve, parse_all
from etcd.store import open_store
from kube.cache import Caches, Key
from tests.object_stores import ObjectStore, encoded, versitygw
from tests.unit.kube.api_server import ApiServer
from workers.etcd.copy_backups import CopyBackupsController, lacks_final

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("object_store_is_built")]

NAMESPACE = "shoot--local--demo"
TASKS = "/apis/druid.gardener.cloud/v1alpha1/etcdcopybackupstasks"
DIRECTORY = "entry/etcd-main/v2/"
FULL, DELTA, FINAL = (
    "Full-00000000-00000010-100.gz",
    "Incr-00000011-00000020-200",
    "Full-00000000-00000020-300.gz.final",
)


async def _content(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


class World:
    def __init__(self, server: ObjectStore, api: ApiServer) -> None:
        self.api = api
        self.source, self.target = (open_store("local", server.credentials, each) for each in ("source", "target"))
        for bucket, secret in (("source", "source-etcd-backup"), ("target", "etcd-backup")):
            server.make_bucket(bucket)
            # As provider-local hands it out: for the directory of the entry, and for nothing else of the bucket.
            data = encoded(server.key_below(bucket, "entry"))
            api.put("/api/v1/secrets", {"kind": "Secret", "metadata": {"name": secret}, "data": data}, NAMESPACE)

    def order(self, **wait: Any) -> None:
        stores = {
            f"{side}Store": {"provider": "local", "container": side, "prefix": "entry/etcd-main",
                             "secretRef": {"name": secret}}
            for side, secret in (("source", "source-etcd-backup"), ("target", "etcd-backup"))
        }  # fmt: skip
        metadata = {"name": "demo", "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.api.put(TASKS, {"metadata": metadata, "spec": {**stores, "waitForFinalSnapshot": wait}}, NAMESPACE)

    async def run(self, tolerance: timedelta = timedelta(), looks: int = 1) -> Any:
        """So many looks of the controller; returns the status that it leaves."""
        async with self.api.client() as client:
            caches = Caches(client)
            controller = CopyBackupsController(client, caches, tolerance)
            await controller._tasks.synced()
            for _ in range(looks):
                await controller._reconcile(Key(NAMESPACE, "demo"))
                await asyncio.sleep(0.1)
            await caches.close()
        return (self.api.find(TASKS, "demo", NAMESPACE) or {}).get("status") or {}

    async def names(self) -> list[str]:
        return [each.name.removeprefix(DIRECTORY) for each in await self.target.list(DIRECTORY)]


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("workers.etcd.copy_backups.STOP_SECONDS", 0.0)
    with versitygw(tmp_path) as server:
        async with ApiServer().running() as api:
            yield World(server, api)


async def test_all_snapshots_are_copied_and_none_is_final_any_more(world: World) -> None:
    for name in (FULL, DELTA, FINAL):
        await world.source.put(DIRECTORY + name, _content(name))
    world.order(enabled=True, timeout="300s")
    status = await world.run()

    assert await world.names() == sorted([FULL, DELTA, FINAL.removesuffix(".final")])
    assert b"".join([chunk async for chunk in world.target.get(DIRECTORY + DELTA)]) == DELTA.encode()
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [("Succeeded", "True")]
    assert "revision 20" in status["conditions"][0]["message"]


async def test_snapshots_in_the_target_stay_unchanged(world: World) -> None:
    await world.source.put(DIRECTORY + FINAL, _content("new"))
    await world.target.put(DIRECTORY + FINAL.removesuffix(".final"), _content("copied before"))
    world.order(enabled=True)
    await world.run()
    kept = b"".join([chunk async for chunk in world.target.get(DIRECTORY + FINAL.removesuffix(".final"))])
    assert kept == b"copied before"


async def test_nothing_is_copied_before_the_final_snapshot_exists(world: World) -> None:
    await world.source.put(DIRECTORY + FULL, _content("full"))
    world.order(enabled=True, timeout="300s")
    status = await world.run()
    assert "there is no final snapshot yet" in status["lastError"]
    assert await world.names() == []


async def test_snapshots_after_the_takeover_marker_are_not_copied(world: World) -> None:
    """It may be cut off and not dead: the copy says where it ends before it begins."""
    await world.source.put(DIRECTORY + FULL, _content("full"))
    world.order(enabled=False)
    await world.run()
    assert "Fence-00000010" in [each.name.removeprefix(DIRECTORY) for each in await world.source.list(DIRECTORY)]
    for late in (DELTA, FINAL):
        await world.source.put(DIRECTORY + late, _content("late"))
    world.order(enabled=True, timeout="300s")
    await world.run()
    assert await world.names() == [FULL]


async def test_a_superseded_source_may_serve_until_the_takeover_tolerance_has_passed(world: World) -> None:
    """It looks for the mark now and then: what it accepted after the last look without one would be lost."""
    await world.source.put(DIRECTORY + FULL, _content("full"))
    world.order(enabled=False)
    status = await world.run(timedelta(seconds=60))
    assert "the source's etcd may still serve; it stops by" in status["lastError"]
    assert "conditions" not in status
    assert await world.names() == [FULL]
    there = [each.name for each in await world.source.list(DIRECTORY)]
    assert may_serve(there)
    status = await world.run(timedelta(seconds=0.15), looks=3)
    assert status["conditions"][0]["type"] == "Succeeded"
    assert not may_serve([each.name for each in await world.source.list(DIRECTORY)]), "no process needs to wait again"


async def test_a_source_with_a_final_snapshot_does_not_serve(world: World) -> None:
    for name in (FULL, DELTA, FINAL):
        await world.source.put(DIRECTORY + name, _content(name))
    world.order(enabled=True, timeout="300s")
    status = await world.run(timedelta(seconds=60))
    assert status["conditions"][0]["type"] == "Succeeded"


async def test_an_empty_bucket_is_no_success(world: World) -> None:
    """An etcd that started empty would be a cluster lost."""
    world.order(enabled=False)
    status = await world.run()
    assert "has no full snapshot" in status["lastError"]
    assert "conditions" not in status


async def test_a_clock_that_was_set_does_not_change_how_long_is_waited(world: World) -> None:
    """The time in the task counts by a clock that cannot be set."""
    await world.source.put(DIRECTORY + FULL, _content("full"))
    world.order(enabled=True, timeout="1s")
    task = world.api.find(TASKS, "demo", NAMESPACE) or {}
    task["metadata"]["creationTimestamp"] = "2099-01-01T00:00:00Z"
    status = await world.run(looks=1)
    assert "there is no final snapshot yet; the copy waits for it until" in status["lastError"]
    status = await world.run(looks=14)
    assert status["conditions"][0]["type"] == "Succeeded"


def test_a_final_snapshot_that_never_comes_is_waited_for_for_a_while() -> None:
    task = {"spec": {"waitForFinalSnapshot": {"enabled": True, "timeout": "5m"}}}
    assert lacks_final(task, parse_all([FULL, DELTA]))
    assert not lacks_final(task, parse_all([FULL, FINAL]))
    assert not lacks_final({"spec": {}}, parse_all([FULL, DELTA]))
