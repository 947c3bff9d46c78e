"""Buckets and entries against the landscape's own object store."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from temporalio.exceptions import ApplicationError

from activities.provider_local.backup import BackupBucketActuator, BackupEntryActuator
from activities.provider_local.extension import Extension
from api.resources import BACKUP_BUCKET, BACKUP_ENTRY, SECRET
from kube.errors import Forbidden
from tests.unit.provider_local.fake_cluster import FakeCluster
from workers.object_store import application

NAMESPACE = "shoot--dev--one"
ENTRY = f"{NAMESPACE}--1234"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TestServer]:
    server = TestServer(application(tmp_path / "buckets", "admin-token"))
    async with server:
        yield server


@pytest.fixture
async def seed(store: TestServer) -> FakeCluster:
    seed = FakeCluster()
    await seed.create(_secret("backup", "garden", endpoint=str(store.make_url("/")), token="admin-token"))
    await seed.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return seed


def _secret(name: str, namespace: str, **data: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": encoded}


def bucket() -> Extension:
    spec = {"type": "local", "region": "local", "secretRef": {"name": "backup", "namespace": "garden"}}
    return Extension(BACKUP_BUCKET, {"metadata": {"name": "b1", "uid": "u"}, "spec": spec}, None)


def entry(name: str = ENTRY) -> Extension:
    reference = {"name": "generated-bucket-b1", "namespace": "garden"}
    spec = {"type": "local", "region": "local", "bucketName": "b1", "secretRef": reference}
    return Extension(BACKUP_ENTRY, {"metadata": {"name": name, "uid": "u"}, "spec": spec}, None)


async def put(secret: dict[str, str], name: str) -> int:
    data = {key: base64.b64decode(value).decode() for key, value in secret.items()}
    headers = {"Authorization": f"Bearer {data['token']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.put(f"{data['endpoint'].rstrip('/')}/b1/{name}", data=b"snapshot") as answer,
    ):
        return answer.status


async def test_an_etcd_gets_a_token_for_its_bucket_and_not_the_administrators(seed: FakeCluster) -> None:
    status = await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())

    assert status == {"generatedSecretRef": {"name": "generated-bucket-b1", "namespace": "garden"}}
    secret = seed.objects[SECRET, NAMESPACE, "etcd-backup"]["data"]
    assert base64.b64decode(secret["bucketName"]) == b"b1"
    assert base64.b64decode(secret["token"]) != b"admin-token"
    assert await put(secret, f"{ENTRY}/etcd-main/v2/Full-0") == 200


async def test_a_second_run_hands_out_the_same_token(seed: FakeCluster) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    first = dict(seed.objects[SECRET, "garden", "generated-bucket-b1"]["data"])
    await BackupBucketActuator(seed).reconcile(bucket())

    assert seed.objects[SECRET, "garden", "generated-bucket-b1"]["data"] == first


async def test_deleting_an_entry_removes_its_objects_and_no_others(seed: FakeCluster, tmp_path: Path) -> None:
    """One name may begin with another."""
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())
    secret = seed.objects[SECRET, "garden", "generated-bucket-b1"]["data"]
    await put(secret, f"{ENTRY}/etcd-main/v2/Full-0")
    await put(secret, f"{ENTRY}5/etcd-main/v2/Full-0")
    await BackupEntryActuator(seed).delete(entry())

    left = {path.relative_to(tmp_path / "buckets/b1").parts[0] for path in (tmp_path / "buckets/b1").rglob("Full-0")}
    assert left == {f"{ENTRY}5"}
    assert (SECRET, NAMESPACE, "etcd-backup") not in seed.objects


async def test_an_entry_outlives_the_namespace_of_its_shoot(seed: FakeCluster) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry("shoot--dev--gone--99"))

    assert not [place for place in seed.objects if place[1] == "shoot--dev--gone"]


async def test_an_entry_is_deleted_though_its_namespace_and_rights_are_gone(seed: FakeCluster) -> None:
    """Kept backups are deleted long after their Shoot. The API server then answers Forbidden, and not NotFound."""
    await BackupBucketActuator(seed).reconcile(bucket())
    seed.refuse("delete", SECRET, Forbidden(403, "Forbidden", "deleting Secret etcd-backup"))

    await BackupEntryActuator(seed).delete(entry("shoot--dev--gone--99"))
    await BackupEntryActuator(seed).migrate(entry("shoot--dev--gone--99"))


async def test_an_entry_without_rights_in_a_living_control_plane_reports_it(seed: FakeCluster) -> None:
    """It is not bound there yet, and tries again."""
    await BackupBucketActuator(seed).reconcile(bucket())
    seed.refuse("delete", SECRET, Forbidden(403, "Forbidden", "deleting Secret etcd-backup"))

    with pytest.raises(Forbidden):
        await BackupEntryActuator(seed).delete(entry())


async def test_the_source_of_a_migration_has_a_secret_of_its_own(seed: FakeCluster) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry(f"source-{ENTRY}"))

    assert (SECRET, NAMESPACE, "source-etcd-backup") in seed.objects


async def test_a_wrong_token_is_reported_to_operators(seed: FakeCluster, store: TestServer) -> None:
    await seed.delete(SECRET, "backup", "garden")
    await seed.create(_secret("backup", "garden", endpoint=str(store.make_url("/")), token="wrong"))
    with pytest.raises(ApplicationError) as refused:
        await BackupBucketActuator(seed).reconcile(bucket())

    assert refused.value.type == "ERR_INFRA_UNAUTHENTICATED"
    assert "wrong" not in str(refused.value)


async def test_a_deleted_bucket_is_gone_and_a_second_deletion_no_error(seed: FakeCluster, tmp_path: Path) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    for _ in range(2):
        await BackupBucketActuator(seed).delete(bucket())

    assert not (tmp_path / "buckets/b1").exists()
    assert (SECRET, "garden", "generated-bucket-b1") not in seed.objects
