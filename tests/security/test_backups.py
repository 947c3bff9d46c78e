"""The credentials of one etcd's backups, against the landscape's object store: they open its own backups alone."""

import base64
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local.accounts import Account, User, path_of, rights_in
from activities.provider_local.backup import BackupBucketActuator, BackupEntryActuator
from api.resources import BACKUP_BUCKET, BACKUP_ENTRY, SECRET
from etcd.store import Store, StoreError, open_store
from tests import object_stores
from tests.object_stores import ObjectStore, as_mounted, encoded, versitygw
from tests.unit.kube.fake_cluster import FakeCluster
from workers.etcd.store_reader import StoreReader, Unreadable

pytestmark = pytest.mark.binaries

BUCKET = "bucket-1"
OWN = "shoot--dev--one--1234"
NAMESPACE = "shoot--dev--one"
OTHERS = ["shoot--dev--two--99", f"{OWN}5", OWN[:-1]]
"""Entries of other Shoots; names that begin with the own one, or that the own one begins with, are among them."""


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def content(store: Store, name: str) -> bytes:
    return b"".join([chunk async for chunk in store.get(name)])


def snapshot_of(entry: str) -> str:
    return f"{entry}/etcd-main/v2/Full-0"


class Seed:
    """A seed with a bucket, and what the etcds of its control planes get to reach their backups."""

    def __init__(self, server: ObjectStore) -> None:
        self.cluster = FakeCluster()
        self.server = server

    async def make(self, entries: Iterable[str], **credentials: str) -> None:
        secret = {"name": "backup", "namespace": "garden"}
        data = encoded(self.server.credentials | credentials)
        await self.cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": data})
        spec = {"type": "local", "region": "local", "secretRef": secret}
        await BackupBucketActuator(self.cluster).reconcile(
            Extension(BACKUP_BUCKET, {"metadata": {"name": BUCKET, "uid": "u"}, "spec": spec}, None)
        )
        for entry in entries:
            await self.order(entry)

    async def order(self, entry: str) -> None:
        """Reconcile a BackupEntry."""
        namespace = entry.removeprefix("source-").rpartition("--")[0]
        await self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, manager="t"
        )
        secret = {"name": f"generated-bucket-{BUCKET}", "namespace": "garden"}
        spec = {"type": "local", "region": "local", "bucketName": BUCKET, "secretRef": secret}
        await BackupEntryActuator(self.cluster).reconcile(
            Extension(BACKUP_ENTRY, {"metadata": {"name": entry, "uid": "u"}, "spec": spec}, None)
        )

    def credentials(self, namespace: str, secret: str) -> dict[str, str]:
        data = self.cluster.objects[SECRET, namespace, secret]["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def store(self, namespace: str, secret: str) -> Store:
        """As the client of a Secret opens it."""
        return open_store("local", self.credentials(namespace, secret), BUCKET)

    @property
    def whole(self) -> Store:
        return self.store("garden", f"generated-bucket-{BUCKET}")


@pytest.fixture(scope="module")
def is_built() -> None:
    object_stores.build()


@pytest.fixture
async def seed(is_built: None, tmp_path: Path) -> AsyncIterator[Seed]:
    """Each entry has one snapshot."""
    with versitygw(tmp_path) as server:
        seed = Seed(server)
        await seed.make([OWN])
        for entry in (OWN, *OTHERS):
            await seed.whole.put(snapshot_of(entry), pieces(entry.encode()))
        yield seed


@pytest.mark.attack(actor="T1", asset="A4", finding=20)
@pytest.mark.parametrize("secret", ["etcd-backup", "source-etcd-backup"])
async def test_the_key_of_one_etcd_does_nothing_to_the_backups_of_another_shoot(seed: Seed, secret: str) -> None:
    """A Shoot's owner who gets into its etcd has all Secrets that the pod has."""
    await seed.order(f"source-{OWN}")
    stolen = seed.store(OWN.rpartition("--")[0], secret)
    for other in OTHERS:
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await content(stolen, snapshot_of(other))
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.put(snapshot_of(other), pieces(b"forged"))
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.put(snapshot_of(other), pieces(b"forged" * (2 << 20)))
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.create(f"{other}/etcd-main/v2/Fence-0")
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.delete(snapshot_of(other))
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.list(f"{other}/")
    for prefix in ("", f"{OWN[:-1]}/", "shoot--dev--/"):
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.list(prefix)
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await stolen.delete_all(prefix)

    left = [item.name for item in await seed.whole.list("")]
    assert left == sorted(snapshot_of(entry) for entry in (OWN, *OTHERS))
    assert await content(seed.whole, snapshot_of(OTHERS[0])) == OTHERS[0].encode()


def botocore_client(seed: Seed, service: str, secret: str) -> Any:
    """A client that sends what it is asked to: obstore refuses some names by itself."""
    given = seed.server.credentials | seed.credentials(OWN.rpartition("--")[0], secret)
    return Account(given, "a stolen Secret")._client(service)


@pytest.mark.attack(actor="T1", asset="A4", finding=20)
async def test_no_name_of_an_object_leads_the_key_of_one_etcd_to_the_backups_of_another_shoot(seed: Seed) -> None:
    client, other = botocore_client(seed, "s3", "etcd-backup"), snapshot_of(OTHERS[0])
    for crooked in (
        f"{OWN}/../{other}",
        f"{OWN}/%2e%2e/{other}",
        f"{OWN}/./../{other}",
        f"/{other}",
        f"{OWN}//../{other}",
    ):
        with pytest.raises(ClientError):
            client.get_object(Bucket=BUCKET, Key=crooked)
        with contextlib.suppress(ClientError):
            client.put_object(Bucket=BUCKET, Key=crooked, Body=b"forged")
        with contextlib.suppress(ClientError):
            client.delete_object(Bucket=BUCKET, Key=crooked)
    with pytest.raises(ClientError):
        client.copy_object(Bucket=BUCKET, Key=f"{OWN}/copy", CopySource={"Bucket": BUCKET, "Key": other})
    for listing in ({"Prefix": f"{OTHERS[0]}/"}, {"Prefix": "", "StartAfter": OWN}, {"Delimiter": "/"}):
        with pytest.raises(ClientError, match="AccessDenied"):
            client.list_objects_v2(Bucket=BUCKET, **listing)
    for entry in OTHERS:
        assert await content(seed.whole, snapshot_of(entry)) == entry.encode()


@pytest.mark.attack(actor="T1", asset="A4", finding=20)
async def test_the_key_of_one_etcd_opens_no_other_bucket_and_makes_no_user(seed: Seed) -> None:
    seed.server.make_bucket("bucket-2")
    own = seed.credentials(OWN.rpartition("--")[0], "etcd-backup")
    for bucket, name in (("bucket-2", snapshot_of(OWN)), ("bucket-3", snapshot_of(OWN))):
        with pytest.raises(StoreError, match=r"40[34]"):
            await open_store("local", own, bucket).put(name, pieces(b"1"))
    objects, users = (botocore_client(seed, service, "etcd-backup") for service in ("s3", "iam"))
    rights = User("stranger", path_of(BUCKET), rights_in(BUCKET))
    asked: list[Callable[[], Any]] = [
        lambda: objects.create_bucket(Bucket="bucket-4"),
        lambda: objects.delete_bucket(Bucket=BUCKET),
        lambda: objects.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Statement": []})),
        lambda: users.create_user(UserName=rights.name, Path=rights.path),
        lambda: users.create_access_key(UserName=f"bucket-{BUCKET}"),
        lambda: users.create_access_key(),
        lambda: users.put_user_policy(UserName=f"bucket-{BUCKET}", PolicyName="backups", PolicyDocument=rights.policy),
        lambda: users.list_users(),
    ]
    for ask in asked:
        with pytest.raises(ClientError, match=r"AccessDenied|\(40[03]\)"):
            ask()


class Destination(Seed):
    """The seed that the control plane of OWN moves to, with its entry for the bucket of the source."""

    def __init__(self, source: Seed) -> None:
        super().__init__(source.server)
        self.source = source

    async def copy_key(self) -> None:
        """Copy the key that the source publishes, and have the extension reconcile the entry ``source-...``."""
        data = self.source.cluster.objects[SECRET, NAMESPACE, "etcd-backup"]["data"]
        copy = {"kind": "Secret", "metadata": {"name": f"source-{OWN}", "namespace": "garden"}, "data": dict(data)}
        await self.cluster.apply({"apiVersion": "v1", **copy}, manager="gardenlet")
        await self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, manager="t"
        )
        await BackupEntryActuator(self.cluster).reconcile(self.entry)

    @property
    def entry(self) -> Extension:
        secret = {"name": f"source-{OWN}", "namespace": "garden"}
        spec = {"type": "local", "region": "local", "bucketName": BUCKET, "secretRef": secret}
        return Extension(BACKUP_ENTRY, {"metadata": {"name": f"source-{OWN}", "uid": "u"}, "spec": spec}, None)

    @property
    def secrets(self) -> dict[str, dict[str, str]]:
        return {
            name: self.credentials(namespace, name) for kind, namespace, name in self.cluster.objects if kind == SECRET
        }


@pytest.fixture
async def destination(seed: Seed) -> Destination:
    made = Destination(seed)
    await made.copy_key()
    return made


@pytest.mark.attack(actor="T3", asset="A4", finding=20)
async def test_a_destination_of_a_move_does_nothing_to_the_backups_of_other_shoots_of_the_source(
    seed: Seed, destination: Destination
) -> None:
    """The operator of the seed that a control plane moves to has all Secrets of that seed."""
    assert set(destination.secrets) == {f"source-{OWN}", "source-etcd-backup"}
    for stolen in destination.secrets.values():
        store = open_store("local", stolen, BUCKET)
        for other in OTHERS:
            with pytest.raises(StoreError, match="403 AccessDenied"):
                await content(store, snapshot_of(other))
            with pytest.raises(StoreError, match="403 AccessDenied"):
                await store.put(snapshot_of(other), pieces(b"forged"))
            with pytest.raises(StoreError, match="403 AccessDenied"):
                await store.list(f"{other}/")
        with pytest.raises(StoreError, match="403 AccessDenied"):
            await store.list("")
        users = Account(seed.server.credentials | stolen, "a stolen Secret")._client("iam")
        with pytest.raises(ClientError, match="AccessDenied"):
            users.create_access_key(UserName=f"bucket-{BUCKET}")
    for entry in OTHERS:
        assert await content(seed.whole, snapshot_of(entry)) == entry.encode()


@pytest.mark.attack(actor="T3", asset="A4", finding=20)
async def test_a_destination_that_has_copied_the_backups_has_no_key_for_the_source_any_more(
    seed: Seed, destination: Destination
) -> None:
    """The source's extension deletes its BackupEntry, and with it the users that it has made for the entry."""
    stolen = destination.secrets[f"source-{OWN}"]
    assert await content(open_store("local", stolen, BUCKET), snapshot_of(OWN)) == OWN.encode()
    await BackupEntryActuator(destination.cluster).delete(destination.entry)
    assert set(destination.secrets) == {f"source-{OWN}"}

    await seed.order(f"source-{OWN}")
    secret = {"name": f"generated-bucket-{BUCKET}", "namespace": "garden"}
    spec = {"type": "local", "region": "local", "bucketName": BUCKET, "secretRef": secret}
    entry = {"metadata": {"name": f"source-{OWN}", "uid": "u"}, "spec": spec}
    await BackupEntryActuator(seed.cluster).delete(Extension(BACKUP_ENTRY, entry, None))

    with pytest.raises(StoreError, match="403"):
        await open_store("local", stolen, BUCKET).put(snapshot_of(OWN), pieces(b"later"))
    assert [item.name for item in await seed.whole.list("")] == sorted(map(snapshot_of, OTHERS))


async def test_a_destination_copies_and_deletes_the_backups_of_its_shoot(seed: Seed, destination: Destination) -> None:
    own = destination.store(NAMESPACE, "source-etcd-backup")
    assert [item.name for item in await own.list(f"{OWN}/")] == [snapshot_of(OWN)]
    await BackupEntryActuator(destination.cluster).delete(destination.entry)
    assert [item.name for item in await seed.whole.list("")] == sorted(map(snapshot_of, OTHERS))


async def test_the_key_of_a_bucket_manages_the_users_of_its_own_etcds_only(seed: Seed) -> None:
    given = seed.server.credentials | seed.credentials("garden", f"generated-bucket-{BUCKET}")
    users = Account(given, "a stolen Secret")._client("iam")
    for path in ("/", "/buckets/", path_of("bucket-2")):
        with pytest.raises(ClientError, match="AccessDenied"):
            users.create_user(UserName="stranger", Path=path)
    with pytest.raises(ClientError, match="AccessDenied"):
        users.put_user_policy(UserName=f"bucket-{BUCKET}", PolicyName="more", PolicyDocument="{}")
    seed.server.make_bucket("bucket-2")
    with pytest.raises(StoreError, match="403"):
        await open_store("local", given, "bucket-2").list("")


@pytest.mark.parametrize("secret", ["etcd-backup", "source-etcd-backup"])
async def test_the_key_of_an_etcd_opens_its_own_backups(seed: Seed, secret: str) -> None:
    """A move reads the old bucket by the Secret of the source entry."""
    await seed.order(f"source-{OWN}")
    own = seed.store(OWN.rpartition("--")[0], secret)
    assert await content(own, snapshot_of(OWN)) == OWN.encode()
    await own.put(f"{OWN}/etcd-main/v2/Incr-1", pieces(b"2"))
    names = [item.name for item in await own.list(f"{OWN}/etcd-main/v2/")]
    assert names == [snapshot_of(OWN), f"{OWN}/etcd-main/v2/Incr-1"]
    await own.delete(snapshot_of(OWN))
    await own.delete_all(f"{OWN}/")
    assert await own.list(f"{OWN}/") == []


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """URL of a server that a client cannot distinguish from one of another machine, and its received requests."""
    arrived: list[bytes] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            arrived.append(str(self.headers).encode())
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_POST = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """The headers are kept."""

    server = ThreadingHTTPServer(("0.0.0.0", 0), Listener)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"http://{socket.gethostname()}:{server.server_address[1]}", arrived
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


async def use(client: str, endpoint: str, directory: Path, **permission: str) -> None:
    """Have one of the clients send a request to a store."""
    server = ObjectStore(endpoint, endpoint, directory)
    credentials = server.credentials | {"bucketName": BUCKET} | permission
    if client == "sidecar":
        await open_store("local", credentials, BUCKET).list("")
    elif client == "wrapper":
        place = as_mounted(directory / "credentials", credentials)
        StoreReader({"provider": "local", "prefix": OWN, "credentialsDirectory": str(place)}).names()
    else:
        await Seed(server).make([], **permission)


CLIENTS = ["sidecar", "wrapper", "provider-local"]
REFUSALS = (StoreError, Unreadable, ApplicationError)


@pytest.mark.attack(actor="T6", asset="A4", finding=20)
@pytest.mark.parametrize("client", CLIENTS)
async def test_no_backup_goes_to_a_store_without_tls(client: str, tmp_path: Path) -> None:
    """On the way each listener would read it, and could change it."""
    with listening() as (endpoint, arrived):
        with pytest.raises(REFUSALS, match="allowPlainHTTP"):
            await use(client, endpoint, tmp_path)
        assert not arrived


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_landscape_permits_its_store_without_tls(client: str, tmp_path: Path) -> None:
    """The secret key is not sent: requests are signed with it."""
    with listening() as (endpoint, arrived):
        with pytest.raises(REFUSALS, match="403"):
            await use(client, endpoint, tmp_path, allowPlainHTTP="true")
        assert arrived
        assert not any(object_stores.SECRET.encode() in each for each in arrived)


async def test_etcds_get_the_permission_with_the_credentials(is_built: None, tmp_path: Path) -> None:
    with versitygw(tmp_path) as server:
        seed = Seed(server)
        await seed.make([OWN], allowPlainHTTP="true")
    assert seed.credentials(OWN.rpartition("--")[0], "etcd-backup")["allowPlainHTTP"] == "true"
