"""Status, own operations and keys of the garden's BackupEntries, as the gardenlet of seed-1 keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from activities.clusters import Clusters
from api.times import timestamp
from tests.object_stores import encoded
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.backup_entries import BackupEntryController

CORE, EXTENSIONS = "/apis/core.gardener.cloud/v1beta1", "/apis/extensions.gardener.cloud/v1alpha1"
ENTRIES, OBJECTS, SECRETS = f"{CORE}/backupentries", f"{EXTENSIONS}/backupentries", "/api/v1/secrets"
KEYS, SHOOTS = f"{CORE}/internalsecrets", f"{CORE}/shoots"
NAMESPACE, NAME = "garden-local", "shoot--local--demo--uid-demo"
SOURCE = f"source-{NAME}"
OWNER = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "name": "demo", "uid": "uid-demo"}
ENTRY = {
    "metadata": {"name": NAME, "ownerReferences": [OWNER], "generation": 3},
    "spec": {"bucketName": "uid-seed-1", "seedName": "seed-1"},
}
LEFT = {
    "metadata": {"name": SOURCE, "ownerReferences": [OWNER], "finalizers": ["gardener"]},
    "spec": {"bucketName": "uid-seed-1", "seedName": "seed-2"},
}
SHOOT = {
    "kind": "Shoot",
    "metadata": {"name": "demo", "uid": "uid-demo"},
    "spec": {"seedName": "seed-1"},
    "status": {"seedName": "seed-1"},
}
FAILED = {"description": "the store is gone", "codes": ["ERR_RETRYABLE_INFRA_DEPENDENCIES"]}


class World:
    """The garden and the seed."""

    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed

    def entry(self, name: str = NAME) -> dict[str, Any] | None:
        return self.garden.find(ENTRIES, name, NAMESPACE)

    def status(self) -> dict[str, Any]:
        return dict((self.entry() or {}).get("status") or {})

    def object(self, name: str = NAME) -> dict[str, Any] | None:
        return self.seed.find(OBJECTS, name)

    def report(self, type_: str, state: str, error: dict[str, Any] | None = None, name: str = NAME) -> None:
        """The extension writes its status at the end of an operation."""
        operation = {"type": type_, "state": state, "progress": 100, "description": "said"}
        operation |= {"lastUpdateTime": timestamp()}
        seen = ((self.object(name) or {}).get("metadata") or {}).get("generation")
        annotations = {"metadata": {"annotations": {"gardener.cloud/operation": None}}}
        self.seed.change(
            OBJECTS,
            name,
            None,
            {**annotations, "status": {"lastOperation": operation, "lastError": error, "observedGeneration": seen}},
        )

    @property
    def key(self) -> dict[str, Any] | None:
        return self.garden.find(KEYS, "demo.etcd-backup", NAMESPACE)

    def asked(self, name: str = NAME) -> str:
        found = self.object(name) or {"metadata": {}}
        return str((found["metadata"].get("annotations") or {}).get("gardener.cloud/operation", ""))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        backup = {"provider": "local", "region": "local", "credentialsRef": {"name": "backup", "namespace": "garden"}}
        garden.put(f"{CORE}/seeds", {"metadata": {"name": "seed-1", "uid": "uid-seed-1"}, "spec": {"backup": backup}})
        garden.put(f"{CORE}/backupbuckets", {"metadata": {"name": "uid-seed-1"}, "spec": {}})
        garden.put(SHOOTS, SHOOT, NAMESPACE)
        spec = {"secretRef": {"name": "backup-bucket", "namespace": "garden"}, "providerConfig": {"kind": "Of"}}
        status = {"generatedSecretRef": {"name": "generated-bucket-uid-seed-1", "namespace": "garden"}}
        bucket = {"metadata": {"name": "uid-seed-1"}, "spec": spec, "status": status}
        seed.put(f"{EXTENSIONS}/backupbuckets", bucket)
        data = encoded({"bucketName": "uid-seed-1", "accessKeyID": "own"})
        seed.put(SECRETS, {"kind": "Secret", "metadata": {"name": "etcd-backup"}, "data": data}, "shoot--local--demo")
        yield World(garden, seed)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    async with world.garden.client() as garden, world.seed.client() as seed:
        clusters = Clusters(garden, seed, "seed-1")
        task = asyncio.create_task(BackupEntryController(clusters).run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await clusters.close()


def ordered(world: World, entry: dict[str, Any] = ENTRY) -> None:
    """Objects that a Shoot's flow has made."""
    world.garden.put(ENTRIES, entry, NAMESPACE)
    spec = {"type": "local", "bucketName": "uid-seed-1"}
    world.seed.put(OBJECTS, {"metadata": {"name": entry["metadata"]["name"]}, "spec": spec})


async def test_an_entry_reports_what_its_extension_reports(world: World) -> None:
    ordered(world)
    async with running(world):
        world.report("Create", "Error", FAILED)
        await until(lambda: world.status().get("lastError") == FAILED)
        assert world.status()["lastOperation"]["state"] == "Error"
        assert "seedName" not in world.status()
        assert world.key is None

        world.garden.change(ENTRIES, NAME, NAMESPACE, {"status": {"migrationStartTime": "2026-11-25T10:00:00Z"}})
        world.report("Restore", "Succeeded")
        await until(lambda: world.status().get("seedName") == "seed-1")
        status = world.status()
        assert (status["lastOperation"]["type"], status["observedGeneration"]) == ("Restore", 3)
        assert "lastError" not in status
        assert "migrationStartTime" not in status


async def test_the_key_of_an_entry_is_published_and_follows_the_extension(world: World) -> None:
    ordered(world)
    async with running(world):
        world.report("Create", "Succeeded")
        await until(lambda: world.key is not None)
        assert world.key is not None
        assert world.key["data"] == encoded({"bucketName": "uid-seed-1", "accessKeyID": "own"})
        assert [each["name"] for each in world.key["metadata"]["ownerReferences"]] == ["demo"]

        renewed = encoded({"bucketName": "uid-seed-1", "accessKeyID": "renewed"})
        world.seed.change(SECRETS, "etcd-backup", "shoot--local--demo", {"data": renewed})
        world.report("Reconcile", "Succeeded")
        await until(lambda: (world.key or {}).get("data") == renewed)


@pytest.mark.parametrize(
    "spec", [{"bucketName": "uid-seed-2"}, {"seedName": "seed-2"}], ids=["of the source", "of another seed"]
)
async def test_no_key_is_published_for_backups_that_are_in_another_bucket(world: World, spec: dict[str, str]) -> None:
    """While a control plane comes to this seed, the garden has the key of the source."""
    ordered(world)
    world.garden.change(ENTRIES, NAME, NAMESPACE, {"spec": spec})
    other = {"metadata": {"name": "shoot--local--two--uid-two"}, "spec": ENTRY["spec"]}
    async with running(world):
        world.report("Create", "Succeeded")
        ordered(world, other)
        world.report("Create", "Error", FAILED, "shoot--local--two--uid-two")
        await until(lambda: "status" in (world.entry("shoot--local--two--uid-two") or {}))
        assert world.key is None
        assert "seedName" not in world.status()


@pytest.mark.parametrize("operation", ["reconcile", "retry"])
async def test_an_operation_is_passed_to_the_extension(world: World, operation: str) -> None:
    ordered(world)
    world.report("Create", "Succeeded")
    async with running(world):
        asked = {"metadata": {"annotations": {"gardener.cloud/operation": operation}}}
        world.garden.change(ENTRIES, NAME, NAMESPACE, asked)
        await until(lambda: world.asked() == "reconcile")
        await until(lambda: not ((world.entry() or {})["metadata"].get("annotations") or {}))


async def test_an_operation_waits_for_the_flow_of_the_shoot(world: World) -> None:
    """A reconciliation in place of a migration would make the objects that the source has to release."""
    ordered(world)
    world.seed.change(OBJECTS, NAME, None, {"metadata": {"annotations": {"gardener.cloud/operation": "migrate"}}})
    world.garden.change(
        ENTRIES, NAME, NAMESPACE, {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}}
    )
    async with running(world):
        await until(lambda: world.garden.watching > 0)
        assert world.asked() == "migrate"
        world.report("Reconcile", "Succeeded")
        await until(lambda: world.asked() == "reconcile")


async def test_an_extension_object_that_is_gone_is_created_again(world: World) -> None:
    ordered(world)
    async with running(world):
        world.report("Create", "Succeeded")
        await until(lambda: world.status().get("seedName") == "seed-1")
        world.seed.remove(OBJECTS, NAME)
        await until(lambda: world.object() is not None)
        made = world.object()
        assert made is not None
        assert made["spec"] == {
            "type": "local",
            "region": "local",
            "bucketName": "uid-seed-1",
            "secretRef": {"name": "generated-bucket-uid-seed-1", "namespace": "garden"},
            "providerConfig": {"kind": "Of"},
        }


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"deletionTimestamp": "2026-11-25T10:00:00Z", "finalizers": ["gardener"]}},
        {"spec": {"seedName": "seed-2"}},
        {"metadata": {"uid": "another"}},
    ],
    ids=["is deleted", "moves", "is another one"],
)
async def test_an_extension_object_that_a_flow_has_deleted_stays_deleted(world: World, patch: dict[str, Any]) -> None:
    ordered(world)
    world.garden.change(SHOOTS, "demo", NAMESPACE, patch)
    async with running(world):
        world.report("Create", "Succeeded")
        await until(lambda: world.status().get("seedName") == "seed-1")
        reads = world.garden.count("GET", f"{SHOOTS.replace('/shoots', '')}/namespaces/{NAMESPACE}/shoots/demo")
        world.seed.remove(OBJECTS, NAME)
        path = f"{CORE}/namespaces/{NAMESPACE}/shoots/demo"
        await until(lambda: world.garden.count("GET", path) > reads)
        assert world.object() is None


async def test_the_key_of_a_destination_is_revoked_when_it_has_copied_the_backups(world: World) -> None:
    """The extension deletes the users of the entry with the BackupEntry."""
    moved = {"bucketName": "uid-seed-2", "seedName": "seed-2"}
    world.garden.put(ENTRIES, {**ENTRY, "spec": moved}, NAMESPACE)
    world.garden.put(ENTRIES, LEFT, NAMESPACE)
    async with running(world):
        await until(lambda: world.garden.watching > 0)
        assert world.object(SOURCE) is None
        delete(world)
        await until(lambda: world.asked(SOURCE) == "reconcile")
        made = world.object(SOURCE)
        assert made is not None
        assert made["spec"]["secretRef"]["name"] == "generated-bucket-uid-seed-1"
        held = {"metadata": {"finalizers": ["extensions.gardener.cloud/backupentry"]}}
        world.seed.change(OBJECTS, SOURCE, None, held)
        world.report("Create", "Succeeded", name=SOURCE)
        await until(lambda: "deletionTimestamp" in (world.object(SOURCE) or {})["metadata"])
        assert world.entry(SOURCE) is not None

        world.seed.change(OBJECTS, SOURCE, None, {"metadata": {"finalizers": None}})
        await until(lambda: world.entry(SOURCE) is None)


async def test_backups_that_are_still_ours_survive_the_deletion_of_the_entry_of_a_destination(world: World) -> None:
    """A destination has prepared a move that was aborted, or lies: the extension would delete the backups."""
    ordered(world)
    world.garden.put(ENTRIES, LEFT, NAMESPACE)
    async with running(world):
        delete(world)
        await until(lambda: world.entry(SOURCE) is None)
        assert world.object(SOURCE) is None


async def test_a_lost_seed_that_is_back_releases_its_entry_first(world: World) -> None:
    ordered(world)
    world.garden.change(ENTRIES, NAME, NAMESPACE, {"spec": {"bucketName": "uid-seed-2", "seedName": "seed-2"}})
    world.garden.put(ENTRIES, LEFT, NAMESPACE)
    delete(world)
    async with running(world):
        await until(lambda: world.garden.watching > 0)
        assert world.object(SOURCE) is None
        world.seed.remove(OBJECTS, NAME)
        await until(lambda: world.asked(SOURCE) == "reconcile")


async def test_an_entry_for_a_bucket_that_is_gone_is_released_by_its_own_seed(world: World) -> None:
    """The source was retired after the move: its bucket is deleted, with all keys."""
    spec = {"bucketName": "uid-of-a-retired-seed", "seedName": "seed-1"}
    world.garden.put(ENTRIES, {**LEFT, "spec": spec}, NAMESPACE)
    async with running(world):
        delete(world)
        await until(lambda: world.entry(SOURCE) is None)


def delete(world: World) -> None:
    """The destination deletes the entry: its finalizer keeps it."""
    world.garden.change(ENTRIES, SOURCE, NAMESPACE, {"metadata": {"deletionTimestamp": "2026-11-25T10:00:00Z"}})
