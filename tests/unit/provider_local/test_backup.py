"""Buckets, users and keys in the landscape's object store."""

import asyncio
import base64
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local import accounts
from activities.provider_local.accounts import Account
from activities.provider_local.backup import MADE_BY, BackupBucketActuator, BackupEntryActuator
from api.resources import BACKUP_BUCKET, BACKUP_ENTRY, SECRET
from etcd.store import Store, StoreError, open_store
from kube.errors import Forbidden
from tests.object_stores import ObjectStore, encoded, versitygw
from tests.unit.kube.fake_cluster import FakeCluster

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("object_store_is_built")]

NAMESPACE = "shoot--dev--one"
ENTRY = f"{NAMESPACE}--1234"


@pytest.fixture
def server(object_store_is_built: None, tmp_path: Path) -> Iterator[ObjectStore]:
    with versitygw(tmp_path) as made:
        yield made


@pytest.fixture
async def seed(server: ObjectStore) -> FakeCluster:
    seed = FakeCluster()
    await give(seed, server.credentials)
    await seed.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return seed


async def give(seed: FakeCluster, credentials: dict[str, str]) -> None:
    """Write the Secret with an administrator's credentials."""
    metadata = {"name": "backup", "namespace": "garden"}
    await seed.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded(credentials)}, manager="operator"
    )


def bucket() -> Extension:
    spec = {"type": "local", "region": "local", "secretRef": {"name": "backup", "namespace": "garden"}}
    return Extension(BACKUP_BUCKET, {"metadata": {"name": "bucket-1", "uid": "u"}, "spec": spec}, None)


def entry(name: str = ENTRY) -> Extension:
    reference = {"name": "generated-bucket-bucket-1", "namespace": "garden"}
    spec = {"type": "local", "region": "local", "bucketName": "bucket-1", "secretRef": reference}
    return Extension(BACKUP_ENTRY, {"metadata": {"name": name, "uid": "u"}, "spec": spec}, None)


def credentials(seed: FakeCluster, namespace: str = NAMESPACE, name: str = "etcd-backup") -> dict[str, str]:
    data = seed.objects[SECRET, namespace, name]["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def of_bucket(seed: FakeCluster) -> dict[str, str]:
    return credentials(seed, "garden", "generated-bucket-bucket-1")


def opened(values: dict[str, str]) -> Store:
    return open_store("local", values, "bucket-1")


def users(server: ObjectStore) -> dict[str, list[str]]:
    """Ids of the keys of each user."""
    client = server.account._client("iam")
    names = [each["UserName"] for each in client.list_users()["Users"]]
    return {
        name: [key["AccessKeyId"] for key in client.list_access_keys(UserName=name)["AccessKeyMetadata"]]
        for name in names
    }


async def test_an_etcd_gets_a_key_of_its_own(seed: FakeCluster, server: ObjectStore) -> None:
    status = await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())

    assert status == {"generatedSecretRef": {"name": "generated-bucket-bucket-1", "namespace": "garden"}}
    own = credentials(seed)
    assert own["bucketName"] == "bucket-1"
    assert len({own["accessKeyID"], of_bucket(seed)["accessKeyID"], server.credentials["accessKeyID"]}) == 3
    assert "iamEndpoint" not in own
    await opened(own).create(f"{ENTRY}/etcd-main/v2/Full-0")


async def test_a_second_run_hands_out_the_same_keys(seed: FakeCluster, server: ObjectStore) -> None:
    for _ in range(2):
        await BackupBucketActuator(seed).reconcile(bucket())
        await BackupEntryActuator(seed).reconcile(entry())
        first = {name: dict(seed.objects[name]["data"]) for name in seed.objects if name[0] == SECRET}

    assert {name: seed.objects[name]["data"] for name in first} == first
    assert [len(keys) for keys in users(server).values()] == [1, 1]


async def test_a_run_that_could_not_store_its_key_leaves_room_for_the_next(
    seed: FakeCluster, server: ObjectStore
) -> None:
    """A user has two keys at most."""
    for _ in range(3):
        await BackupBucketActuator(seed).reconcile(bucket())
        await seed.delete(SECRET, "generated-bucket-bucket-1", "garden")
    await BackupBucketActuator(seed).reconcile(bucket())

    assert [len(keys) for keys in users(server).values()] == [2]
    await opened(of_bucket(seed)).list("")


async def test_another_key_of_the_administrator_renews_all_keys_while_etcds_write_on(
    seed: FakeCluster, tmp_path: Path, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())
    sidecar = opened(credentials(seed))
    await sidecar.create(f"{ENTRY}/etcd-main/v2/Full-0")
    before, bucket_before = credentials(seed), of_bucket(seed)

    # The landscape's processes restart with another key of the administrator, on the same data.
    with versitygw(tmp_path, key="another", secret="another-secret") as renewed:
        changed = renewed.credentials | {"accessKeyID": "another", "secretAccessKey": "another-secret"}
        await give(seed, changed)
        moved = {"endpoint": renewed.endpoint}
        await opened(before | moved).create(f"{ENTRY}/etcd-main/v2/Incr-1")
        await BackupBucketActuator(seed).reconcile(bucket())
        await BackupEntryActuator(seed).reconcile(entry())
        after = credentials(seed)
        assert after["accessKeyID"] != before["accessKeyID"]
        assert of_bucket(seed)["accessKeyID"] != bucket_before["accessKeyID"]
        # The etcd has not read its new key yet.
        await opened(before | moved).create(f"{ENTRY}/etcd-main/v2/Incr-2")
        await opened(after).create(f"{ENTRY}/etcd-main/v2/Incr-3")
        names = [each.name.rsplit("/")[-1] for each in await opened(after).list(f"{ENTRY}/")]
        assert names == ["Full-0", "Incr-1", "Incr-2", "Incr-3"]

        # An hour later.
        monkeypatch.setattr(accounts, "_OVERLAP", timedelta(seconds=-1))
        await BackupBucketActuator(seed).reconcile(bucket())
        await BackupEntryActuator(seed).reconcile(entry())
        assert credentials(seed) == after
        for outdated in (before, bucket_before):
            with pytest.raises(StoreError, match="403 InvalidAccessKeyId"):
                await opened(outdated | moved).list(f"{ENTRY}/")
        with pytest.raises(StoreError, match="403 InvalidAccessKeyId"):
            await opened(server.credentials | moved).list("")
        await opened(after).list(f"{ENTRY}/")


async def test_runs_that_could_not_store_their_key_leave_the_key_that_an_etcd_uses(
    seed: FakeCluster, server: ObjectStore
) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())
    used = credentials(seed)
    # The bucket's key has changed, so its etcds get other keys.
    seed.objects[SECRET, NAMESPACE, "etcd-backup"]["metadata"]["annotations"][MADE_BY] = "another"
    written = dict(seed.objects[SECRET, NAMESPACE, "etcd-backup"])
    for _ in range(3):
        await BackupEntryActuator(seed).reconcile(entry())
        assert credentials(seed)["accessKeyID"] != used["accessKeyID"]
        await opened(used).list(f"{ENTRY}/")
        seed.objects[SECRET, NAMESPACE, "etcd-backup"] = dict(written)


async def test_a_secret_of_an_earlier_version_is_replaced(seed: FakeCluster) -> None:
    """It has a token, which this store does not know; no key was made by the account that the bucket has now."""
    old = {"name": "etcd-backup", "namespace": NAMESPACE}
    data = encoded({"endpoint": "http://127.0.0.1:1", "token": "old", "bucketName": "bucket-1"})
    await seed.apply({"apiVersion": "v1", "kind": "Secret", "metadata": old, "data": data}, manager="provider-local")
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())

    await opened(credentials(seed)).create(f"{ENTRY}/etcd-main/v2/Full-0")


async def test_an_abandoned_upload_is_removed_and_a_fresh_one_stays(
    seed: FakeCluster, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    client = server.account._client("s3")
    client.create_multipart_upload(Bucket="bucket-1", Key=f"{ENTRY}/half")
    await BackupBucketActuator(seed).reconcile(bucket())
    assert len(client.list_multipart_uploads(Bucket="bucket-1")["Uploads"]) == 1
    monkeypatch.setattr(accounts, "_ABANDONED", timedelta(seconds=-5))
    await BackupBucketActuator(seed).reconcile(bucket())
    assert not client.list_multipart_uploads(Bucket="bucket-1").get("Uploads")


async def test_the_deletion_of_an_entry_removes_its_objects_and_users_and_no_others(
    seed: FakeCluster, server: ObjectStore
) -> None:
    """One name may begin with another."""
    await BackupBucketActuator(seed).reconcile(bucket())
    for each in (entry(), entry(f"source-{ENTRY}"), entry(f"{ENTRY}5")):
        await BackupEntryActuator(seed).reconcile(each)
    whole = opened(of_bucket(seed))
    await whole.create(f"{ENTRY}/etcd-main/v2/Full-0")
    await whole.create(f"{ENTRY}5/etcd-main/v2/Full-0")
    assert len(users(server)) == 4
    for _ in range(2):
        await BackupEntryActuator(seed).delete(entry())

    assert [each.name for each in await whole.list("")] == [f"{ENTRY}5/etcd-main/v2/Full-0"]
    assert len(users(server)) == 2
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


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"secretAccessKey": "SENTINEL"}, "ERR_INFRA_UNAUTHENTICATED", "does not know the key"),
        ({"accessKeyID": "SENTINEL"}, "ERR_INFRA_UNAUTHENTICATED", "does not know the key"),
        ({"secretAccessKey": ""}, "ERR_CONFIGURATION_PROBLEM", "lacks secretAccessKey"),
        ({"endpoint": "http://127.0.0.1:1"}, "ERR_RETRYABLE_INFRA_DEPENDENCIES", "does not answer"),
    ],
)
async def test_wrong_credentials_are_an_error_with_a_code_and_no_secret(
    seed: FakeCluster, server: ObjectStore, changes: dict[str, str], code: str, reason: str
) -> None:
    await give(seed, server.credentials | changes)
    with pytest.raises(ApplicationError, match=reason) as refused:
        await BackupBucketActuator(seed).reconcile(bucket())

    assert refused.value.type == code
    assert "SENTINEL" not in str(refused.value)


async def test_a_deleted_bucket_is_gone_with_its_users_and_a_second_deletion_no_error(
    seed: FakeCluster, server: ObjectStore
) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    await BackupEntryActuator(seed).reconcile(entry())
    await opened(credentials(seed)).create(f"{ENTRY}/etcd-main/v2/Full-0")
    for _ in range(2):
        await BackupBucketActuator(seed).delete(bucket())

    assert not (server.buckets / "bucket-1").exists()
    assert users(server) == {}
    assert (SECRET, "garden", "generated-bucket-bucket-1") not in seed.objects


async def test_keys_of_several_entries_are_made_at_the_same_time(seed: FakeCluster, server: ObjectStore) -> None:
    await BackupBucketActuator(seed).reconcile(bucket())
    names = [f"{NAMESPACE}--{number}" for number in range(8)]
    await asyncio.gather(*(BackupEntryActuator(seed).reconcile(entry(name)) for name in names))
    assert len(users(server)) == 9


def test_the_address_of_iam_is_needed() -> None:
    given: dict[str, Any] = {"accessKeyID": "a", "secretAccessKey": "b", "endpoint": "https://s3.example.org"}
    with pytest.raises(ApplicationError, match="Secret garden/backup lacks iamEndpoint"):
        Account(given, "Secret garden/backup")
