"""Remains that a gardenlet lists: control planes complete in another seed, and none that still moves."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from activities.clusters import Clusters
from api.constants import BACKUP_ENTRY_TAKEN_OVER
from api.constants import SEED_MOVED_CONTROL_PLANES_CLEANED_UP as CLEANED_UP
from etcd.store import StoredObject
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.remains import RemainsController

CORE = "/apis/core.gardener.cloud/v1beta1"
EXTENSIONS = "/apis/extensions.gardener.cloud/v1alpha1"
SHOOTS, SEEDS, ENTRIES = f"{CORE}/shoots", f"{CORE}/seeds", f"{CORE}/backupentries"
NAMESPACES, CLUSTERS, OWN_ENTRIES = "/api/v1/namespaces", f"{EXTENSIONS}/clusters", f"{EXTENSIONS}/backupentries"
REMAINS = "seed.gardener.cloud/remains"
LEFT = {"namespace": "garden-a", "name": "b", "uid": "0f3c", "technicalID": "shoot--a--b", "deleted": False}
DELETED = LEFT | {"deleted": True}
READY = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady", "message": "it is"}
TOLD = {
    "type": CLEANED_UP,
    "status": "Progressing",
    "reason": "CleanupRunning",
    "message": "Their remains are being deleted.",
}


def shoot(type_: str = "Restore", state: str = "Succeeded", **metadata: Any) -> Any:
    return {
        "metadata": {"name": "b", "namespace": "garden-a", "uid": "0f3c", **metadata},
        "spec": {"seedName": "seed-2"},
        "status": {
            "seedName": "seed-2",
            "technicalID": "shoot--a--b",
            "lastOperation": {"type": type_, "state": state},
        },
    }


def mark(bucket: str = "5eed", taken_over: bool = True) -> dict[str, Any]:
    """The garden's BackupEntry of the bucket that the other seed continues from."""
    annotations = {BACKUP_ENTRY_TAKEN_OVER: "true"} if taken_over else {}
    metadata = {
        "name": "source-shoot--a--b--0f3c",
        "namespace": "garden-a",
        "annotations": annotations,
        "ownerReferences": [{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "name": "b", "uid": "0f3c"}],
    }
    return {"metadata": metadata, "spec": {"bucketName": bucket, "seedName": "seed-2"}}


@dataclass
class World:
    """A seed that is back, and its garden."""

    garden: ApiServer
    seed: ApiServer

    def __post_init__(self) -> None:
        self.garden.put(SEEDS, {"metadata": {"name": "seed-1", "uid": "5eed"}, "status": {"conditions": [READY]}})

    def namespace(self, uid: str, name: str = "b") -> None:
        annotations = {"shoot.gardener.cloud/uid": uid}
        labels = {"shoot.gardener.cloud/name": name, "shoot.gardener.cloud/namespace": "garden-a"}
        metadata = {"name": f"shoot--a--{name}", "annotations": annotations, "labels": labels}
        self.seed.put(NAMESPACES, {"metadata": metadata})

    def control_plane(self) -> None:
        """Objects of a Shoot in the seed that the garden does not have."""
        self.namespace("0f3c")
        self.seed.put(CLUSTERS, {"metadata": {"name": "shoot--a--b"}, "spec": {"shoot": shoot()}})
        spec = {"type": "local", "bucketName": "bucket-1"}
        self.seed.put(OWN_ENTRIES, {"metadata": {"name": "shoot--a--b--0f3c"}, "spec": spec})
        secret = {"metadata": {"name": "etcd-backup"}, "data": {"token": "dA=="}}
        self.seed.put("/api/v1/secrets", secret, "shoot--a--b")

    @property
    def listed(self) -> list[Any] | None:
        """Remains in the annotation of the Seed."""
        live = self.garden.find(SEEDS, "seed-1") or {}
        text = (live["metadata"].get("annotations") or {}).get(REMAINS)
        return json.loads(text) if text is not None else None

    @property
    def conditions(self) -> set[str]:
        return {each["type"] for each in (self.garden.find(SEEDS, "seed-1") or {})["status"]["conditions"]}

    @asynccontextmanager
    async def gardenlet(self) -> AsyncIterator[RemainsController]:
        async with self.garden.client() as garden_client, self.seed.client() as client:
            clusters = Clusters(garden_client, client, "seed-1")
            controller = RemainsController(clusters)
            running = asyncio.create_task(controller.run())
            try:
                yield controller
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await clusters.close()

    async def settled(self) -> None:
        """Return once the gardenlet has seen everything that was there before this call.

        It lists one more Shoot, that is whole elsewhere, last.
        """
        other = shoot(uid="1ast")
        other["metadata"]["name"] = "z"
        other["status"]["technicalID"] = "shoot--a--z"
        self.garden.put(SHOOTS, other)
        self.namespace("1ast", "z")
        await until(lambda: "1ast" in str(self.listed))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        yield World(garden, seed)


class Bucket:
    """A bucket that holds these objects."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.opened: list[tuple[Any, ...]] = []

    def __call__(self, *place: Any) -> "Bucket":
        self.opened.append(place)
        return self

    async def list(self, prefix: str) -> list[StoredObject]:
        assert prefix == "shoot--a--b--0f3c/etcd-main/v2/"
        return [StoredObject(prefix + name, 0, 0) for name in self._names]


FULL, FENCE, FINAL = "Full-00000000-00000007-1.gz", "Fence-00000007", "Full-00000000-00000007-1.gz.final"


@pytest.mark.parametrize(
    ("there", "names", "listed"),
    [
        (False, (FULL, FENCE), True),
        (False, (FULL,), False),
        (False, (FINAL, FENCE), False),
        (True, (FULL, FENCE), False),
    ],
    ids=["taken over", "not taken over", "it was handed over", "it is in the garden"],
)
async def test_the_takeover_marker_of_a_deleted_shoot_permits_its_cleanup(
    monkeypatch: pytest.MonkeyPatch, world: World, there: bool, names: tuple[str, ...], listed: bool
) -> None:
    """That the garden does not know it is not enough: it may have been restored from before the Shoot was made."""
    bucket = Bucket(*names)
    monkeypatch.setattr("workers.gardenlet.remains.open_store", bucket)
    if there:
        world.garden.put(SHOOTS, shoot("Migrate", "Aborted"))
    world.control_plane()
    async with world.gardenlet():
        await until(lambda: bucket.opened or there)
        if listed:
            await until(lambda: world.listed == [DELETED])
        else:
            await world.settled()
            assert [each["name"] for each in world.listed or ()] == ["z"]
    assert all(place == ("local", {"token": "t"}, "bucket-1") for place in bucket.opened)


async def test_a_deleted_shoot_is_listed_until_its_backups_are_gone_as_well(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    """The cleaning deletes them after the namespace, and may fail there."""
    monkeypatch.setattr("workers.gardenlet.remains.open_store", Bucket(FULL, FENCE))
    world.control_plane()
    async with world.gardenlet():
        await until(lambda: world.listed == [DELETED])
        world.seed.remove(NAMESPACES, "shoot--a--b")
        await world.settled()
        assert [each["name"] for each in world.listed or ()] == ["b", "z"]
        world.seed.remove(OWN_ENTRIES, "shoot--a--b--0f3c")
        await until(lambda: [each["name"] for each in world.listed or ()] == ["z"])


async def test_a_restarted_gardenlet_continues_the_cleanup_list(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """The cleaning has deleted the credentials of the bucket by then, where the mark is."""
    monkeypatch.setattr("workers.gardenlet.remains.open_store", Bucket(FULL, FENCE))
    world.control_plane()
    async with world.gardenlet():
        await until(lambda: world.listed == [DELETED])
    world.seed.remove("/api/v1/secrets", "etcd-backup", "shoot--a--b")
    async with world.gardenlet():
        await world.settled()
        assert [each["name"] for each in world.listed or ()] == ["b", "z"]
        world.seed.remove(NAMESPACES, "shoot--a--b")
        world.seed.remove(OWN_ENTRIES, "shoot--a--b--0f3c")
        await until(lambda: [each["name"] for each in world.listed or ()] == ["z"])


@pytest.mark.parametrize(
    ("uid", "expected"), [("0f3c", ["b", "z"]), ("another", ["z"]), (None, ["z"])], ids=["its own", "another's", "none"]
)
async def test_a_shoot_is_listed_where_its_namespace_is_left(
    world: World, uid: str | None, expected: list[str]
) -> None:
    """A namespace of the same name may be that of an earlier Shoot, which was deleted."""
    world.garden.put(SHOOTS, shoot())
    if uid:
        world.namespace(uid)
    async with world.gardenlet():
        await world.settled()
        await until(lambda: [each["name"] for each in world.listed or ()] == expected)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [(mark(), ["b", "z"]), (mark(bucket="another"), ["z"]), (mark(taken_over=False), ["z"])],
    ids=["our bucket", "another seed's", "handed over"],
)
async def test_a_shoot_is_listed_until_its_mark_is_gone(
    world: World, entry: dict[str, Any], expected: list[str]
) -> None:
    """Were the cleaning to end between the namespace and the mark, the Shoot could never move again."""
    world.garden.put(SHOOTS, shoot())
    world.garden.put(ENTRIES, entry)
    async with world.gardenlet():
        await world.settled()
        await until(lambda: [each["name"] for each in world.listed or ()] == expected)


async def test_list_and_condition_go_when_nothing_is_left(world: World) -> None:
    world.garden.put(SHOOTS, shoot())
    world.garden.put(ENTRIES, mark())
    world.namespace("0f3c")
    async with world.gardenlet():
        await until(lambda: world.listed == [LEFT])
        world.garden.change(SEEDS, "seed-1", None, {"status": {"conditions": [READY, TOLD]}})
        world.seed.remove(NAMESPACES, "shoot--a--b")
        await world.settled()
        assert CLEANED_UP in world.conditions, "the mark is left"
        world.garden.remove(ENTRIES, "source-shoot--a--b--0f3c", "garden-a")
        world.seed.remove(NAMESPACES, "shoot--a--z")
        await until(lambda: world.listed is None and world.conditions == {"GardenletReady"})
