"""The garden's BackupBucket of seed-1, as its gardenlet reconciles it."""

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.seed.bootstrap import SeedActivities
from api.contracts.operations import SeedTask
from api.times import timestamp
from tests.object_stores import encoded
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.backup_buckets import BackupBucketController

CORE, EXTENSIONS = "/apis/core.gardener.cloud/v1beta1", "/apis/extensions.gardener.cloud/v1alpha1"
BUCKETS, OBJECTS, SECRETS = f"{CORE}/backupbuckets", f"{EXTENSIONS}/backupbuckets", "/api/v1/secrets"
UID = "uid-seed-1"
GENERATED = f"generated-bucket-{UID}"
REFERENCE = {"apiVersion": "v1", "kind": "Secret", "name": "backup", "namespace": "garden"}
SETTINGS = {"kind": "BucketConfig", "immutability": {"retentionPeriod": "96h"}}
SPEC = {
    "provider": {"type": "local", "region": "here"},
    "credentialsRef": REFERENCE,
    "seedName": "seed-1",
    "providerConfig": SETTINGS,
}
BUCKET = {"metadata": {"name": UID}, "spec": SPEC}


class World:
    """The garden and the seed."""

    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed

    @property
    def bucket(self) -> dict[str, Any] | None:
        return self.garden.find(BUCKETS, UID)

    @property
    def object(self) -> dict[str, Any] | None:
        return self.seed.find(OBJECTS, UID)

    @property
    def status(self) -> dict[str, Any]:
        return dict((self.bucket or {}).get("status") or {})

    def report(self, type_: str, how: str, **status: Any) -> None:
        """The extension ends an operation."""
        live = self.object
        assert live is not None
        operation = {"type": type_, "state": how, "progress": 100, "lastUpdateTime": timestamp()}
        seen = {"observedGeneration": live["metadata"]["generation"]}
        held = {"finalizers": ["extensions.gardener.cloud/backupbucket"]}
        metadata = {"annotations": {"gardener.cloud/operation": None}, **held}
        told = {"lastOperation": operation, "lastError": None, **seen, **status}
        self.seed.change(OBJECTS, UID, None, {"metadata": metadata, "status": told})

    def make_secret(self, key: str) -> dict[str, str]:
        """The extension writes the Secret of the bucket's own key; returns the reference to it."""
        data = encoded({"accessKeyID": key})
        self.seed.put(SECRETS, {"kind": "Secret", "metadata": {"name": GENERATED}, "data": data}, "garden")
        return {"name": GENERATED, "namespace": "garden"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        backup = {"provider": "local", "region": "here", "credentialsRef": REFERENCE, "providerConfig": SETTINGS}
        spec = {"backup": backup, "provider": {"type": "local", "region": "here"}}
        garden.put(f"{CORE}/seeds", {"metadata": {"name": "seed-1", "uid": UID}, "spec": spec})
        secret = {"kind": "Secret", "metadata": {"name": "backup"}, "data": encoded({"accessKeyID": "administrator"})}
        garden.put(SECRETS, secret, "garden")
        yield World(garden, seed)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Clusters]:
    async with world.garden.client() as garden, world.seed.client() as seed:
        clusters = Clusters(garden, seed, "seed-1")
        task = asyncio.create_task(BackupBucketController(clusters).run())
        try:
            yield clusters
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await clusters.close()


async def test_a_bucket_gets_its_extension_object_and_reports_on_it(world: World) -> None:
    world.garden.put(BUCKETS, BUCKET)
    async with running(world):
        await until(lambda: world.object)
        assert world.object is not None
        assert world.object["spec"] == {
            "type": "local",
            "region": "here",
            "secretRef": {"name": "backup-bucket", "namespace": "garden"},
            "providerConfig": SETTINGS,
        }
        copied = world.seed.find(SECRETS, "backup-bucket", "garden")
        assert copied is not None
        assert copied["data"] == encoded({"accessKeyID": "administrator"})
        assert world.bucket is not None
        assert world.bucket["metadata"]["finalizers"] == ["gardener"]

        error = {"description": "no such region", "codes": ["ERR_CONFIGURATION_PROBLEM"]}
        world.report("Create", "Error", lastError=error)
        await until(lambda: world.status.get("lastError") == error)
        assert "observedGeneration" not in world.status

        provider = {"kind": "BucketStatus"}
        world.report("Create", "Succeeded", generatedSecretRef=world.make_secret("own"), providerStatus=provider)
        await until(lambda: world.status.get("observedGeneration") == 1)
        status = world.status
        assert status["lastOperation"]["state"] == "Succeeded"
        assert status["generatedSecretRef"] == {"name": GENERATED, "namespace": "garden"}
        assert status["providerStatus"] == provider
        assert "lastError" not in status


async def test_the_generated_secret_is_copied_into_the_garden_and_follows_the_extension(world: World) -> None:
    world.garden.put(BUCKETS, BUCKET)
    async with running(world):
        await until(lambda: world.object)
        for key in ("own", "renewed"):
            world.report("Reconcile", "Succeeded", generatedSecretRef=world.make_secret(key), state={"run": key})
            await until(functools.partial(is_published, world, key))
        made = copy(world)
        assert made is not None
        assert [(each["kind"], each["name"]) for each in made["metadata"]["ownerReferences"]] == [("BackupBucket", UID)]


def is_published(world: World, key: str) -> bool:
    return (copy(world) or {}).get("data") == encoded({"accessKeyID": key})


def copy(world: World) -> dict[str, Any] | None:
    return world.garden.find(SECRETS, GENERATED, "garden")


@pytest.mark.parametrize("operation", ["reconcile", "retry"])
async def test_an_operation_reconciles_once(world: World, operation: str) -> None:
    world.garden.put(BUCKETS, BUCKET)
    async with running(world):
        await until(lambda: world.object)
        world.report("Create", "Succeeded")
        await until(lambda: world.status.get("observedGeneration"))
        asked = {"metadata": {"annotations": {"gardener.cloud/operation": operation}}}
        world.garden.change(BUCKETS, UID, None, asked)
        await until(lambda: requested(world) == "reconcile")
        await until(lambda: not ((world.bucket or {})["metadata"].get("annotations") or {}))
        world.report("Reconcile", "Succeeded", state={"run": 2})
        await until(lambda: world.status["lastOperation"]["type"] == "Reconcile")
        assert requested(world) == ""


def requested(world: World) -> str:
    annotations = (world.object or {"metadata": {}})["metadata"].get("annotations") or {}
    return str(annotations.get("gardener.cloud/operation") or "")


async def test_new_credentials_and_settings_reach_the_extension(world: World) -> None:
    world.garden.put(BUCKETS, BUCKET)
    async with running(world):
        await until(lambda: world.object)
        world.report("Create", "Succeeded")
        await until(lambda: world.status.get("observedGeneration"))
        world.garden.change(SECRETS, "backup", "garden", {"data": encoded({"accessKeyID": "next"})})
        world.garden.change(BUCKETS, UID, None, {"spec": {"providerConfig": {"immutability": None}}})
        await until(lambda: (world.object or {})["spec"]["providerConfig"] == {"kind": "BucketConfig"})
        assert requested(world) == "reconcile"
        copied = world.seed.find(SECRETS, "backup-bucket", "garden") or {}
        assert copied["data"] == encoded({"accessKeyID": "next"})


async def test_a_bucket_whose_credentials_are_gone_says_so_and_recovers(world: World) -> None:
    world.garden.put(BUCKETS, BUCKET)
    secret = world.garden.find(SECRETS, "backup", "garden")
    assert secret is not None
    world.garden.remove(SECRETS, "backup", "garden")
    async with running(world):
        await until(lambda: "Secret garden/backup" in (world.status.get("lastError") or {}).get("description", ""))
        assert world.status["lastOperation"]["state"] == "Error"
        assert world.status["lastError"]["codes"] == ["ERR_RETRYABLE_CONFIGURATION_PROBLEM"]
        assert world.object is None
        world.garden.put(SECRETS, {"kind": "Secret", "metadata": {"name": "backup"}, "data": secret["data"]}, "garden")
        await until(lambda: world.object)


async def test_the_end_of_a_bucket_waits_for_the_extension_and_leaves_nothing(world: World) -> None:
    world.garden.put(BUCKETS, BUCKET)
    async with running(world):
        await until(lambda: world.object)
        world.report("Create", "Succeeded", generatedSecretRef=world.make_secret("own"))
        await until(lambda: copy(world))

        world.garden.change(BUCKETS, UID, None, {"metadata": {"deletionTimestamp": "2026-11-25T10:00:00Z"}})
        await until(lambda: "deletionTimestamp" in (world.object or {"metadata": {}})["metadata"])
        annotations = (world.object or {})["metadata"]["annotations"]
        assert annotations["confirmation.gardener.cloud/deletion"] == "true"
        world.report("Delete", "Error", lastError={"description": "not empty"})
        await until(lambda: (world.status.get("lastError") or {}).get("description") == "not empty")
        assert world.bucket is not None

        world.seed.change(OBJECTS, UID, None, {"metadata": {"finalizers": None}})
        await until(lambda: world.bucket is None)
        assert copy(world) is None
        assert world.seed.find(SECRETS, "backup-bucket", "garden") is None


async def test_the_reconciliation_of_a_seed_waits_for_its_bucket(world: World) -> None:
    task = SeedTask(name="seed-1", uid=UID, generation=1, trigger="2026-11-25T10:00:00.000000Z")
    async with running(world) as clusters:
        deploying = asyncio.create_task(SeedActivities(clusters).deploy_backup_bucket(task))
        await until(lambda: world.object)
        assert world.bucket is not None
        assert world.bucket["spec"] == SPEC
        await until(lambda: requested(world))
        assert not deploying.done()
        world.report("Create", "Succeeded")
        assert (await asyncio.wait_for(deploying, 20)).note == f"bucket {UID}"
        # A second run, after the answer of the first one was lost.
        again = asyncio.create_task(SeedActivities(clusters).deploy_backup_bucket(task))
        await until(lambda: requested(world))
        world.report("Reconcile", "Succeeded")
        await asyncio.wait_for(again, 20)
