"""The credentials of one etcd's backups, against the landscape's object store: they open its own backups alone."""

import base64
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from temporalio.exceptions import ApplicationError

from activities.etcd.store import LocalStore, LocalStoreAdmin, StoreError, directory_token, open_store
from activities.provider_local.backup import BackupBucketActuator, BackupEntryActuator
from activities.provider_local.extension import Extension
from api.resources import BACKUP_BUCKET, BACKUP_ENTRY, SECRET
from tests.unit.provider_local.fake_cluster import FakeCluster
from workers.etcd.store_reader import StoreReader, Unreadable
from workers.object_store import application

BUCKET = "b1"
OWN = "shoot--dev--one--1234"
OTHERS = ["shoot--dev--two--99", f"{OWN}5", OWN[:-1]]
"""Entries of other Shoots; names that begin with the own one, or that the own one begins with, are among them."""


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def content(store: LocalStore, name: str) -> bytes:
    return b"".join([chunk async for chunk in store.get(name)])


def snapshot_of(entry: str) -> str:
    return f"{entry}/etcd-main/v2/Full-0"


class Seed:
    """A seed with a bucket, and what the etcds of its control planes get to reach their backups."""

    def __init__(self, endpoint: str) -> None:
        self.cluster = FakeCluster()
        self.endpoint = endpoint

    async def make(self, entries: Iterable[str], **credentials: str) -> None:
        admin = {"endpoint": self.endpoint, "token": "admin-token", **credentials}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in admin.items()}
        secret = {"name": "backup", "namespace": "garden"}
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

    def token(self, namespace: str, secret: str) -> str:
        return base64.b64decode(self.cluster.objects[SECRET, namespace, secret]["data"]["token"]).decode()

    def store(self, namespace: str, secret: str) -> LocalStore:
        """As the client of a Secret opens it."""
        return LocalStore(self.endpoint, BUCKET, self.token(namespace, secret))


@pytest.fixture
async def seed(tmp_path: Path) -> AsyncIterator[Seed]:
    """Each entry has one snapshot."""
    async with TestServer(application(tmp_path / "buckets", "admin-token")) as server:
        seed = Seed(str(server.make_url("/")))
        await seed.make([OWN])
        async with seed.store("garden", f"generated-bucket-{BUCKET}") as whole:
            for entry in (OWN, *OTHERS):
                await whole.put(snapshot_of(entry), pieces(entry.encode()))
        yield seed


@pytest.mark.attack(actor="T1", asset="A4", finding=20)
@pytest.mark.parametrize("secret", ["etcd-backup", "source-etcd-backup"])
async def test_the_token_of_one_etcd_does_nothing_to_the_backups_of_another_shoot(seed: Seed, secret: str) -> None:
    """A Shoot's owner who gets into its etcd has all Secrets that the pod has."""
    await seed.order(f"source-{OWN}")
    async with seed.store(OWN.rpartition("--")[0], secret) as stolen:
        for other in OTHERS:
            with pytest.raises(StoreError, match="401"):
                await content(stolen, snapshot_of(other))
            with pytest.raises(StoreError, match="401"):
                await stolen.put(snapshot_of(other), pieces(b"forged"))
            with pytest.raises(StoreError, match="401"):
                await stolen.delete(snapshot_of(other))
            with pytest.raises(StoreError, match="401"):
                await stolen.delete_prefix(f"{other}/")
            with pytest.raises(StoreError, match="401"):
                await stolen.list(f"{other}/")
        for prefix in ("", OWN, "shoot--dev--"):
            with pytest.raises(StoreError, match="401"):
                await stolen.list(prefix)
            with pytest.raises(StoreError, match=r"40[01]"):
                await stolen.delete_prefix(prefix)
        for crooked in (f"{OWN}/../{OTHERS[0]}/etcd-main/v2/Full-0", f"{OWN}/%2e%2e/{OTHERS[0]}/etcd-main/v2/Full-0"):
            with pytest.raises(StoreError, match=r"40[014]"):
                await content(stolen, crooked)

    async with seed.store("garden", f"generated-bucket-{BUCKET}") as whole:
        left = [item.name for item in await whole.list("")]
        assert left == sorted(snapshot_of(entry) for entry in (OWN, *OTHERS))
        assert await content(whole, snapshot_of(OTHERS[0])) == OTHERS[0].encode()


@pytest.mark.attack(actor="T1", asset="A4", finding=20)
async def test_the_token_of_one_etcd_opens_no_other_bucket_and_derives_no_token_that_opens_more(
    seed: Seed, tmp_path: Path
) -> None:
    (tmp_path / "buckets/b2").mkdir()
    token = seed.token(OWN.rpartition("--")[0], "etcd-backup")

    for bucket, stolen in (("b2", token), (BUCKET, directory_token(token, BUCKET, OTHERS[0])), (BUCKET, "")):
        async with LocalStore(seed.endpoint, bucket, stolen) as elsewhere:
            with pytest.raises(StoreError, match="401"):
                await elsewhere.put(snapshot_of(OTHERS[0]), pieces(b"1"))
    async with LocalStoreAdmin(seed.endpoint, token) as impostor:
        with pytest.raises(StoreError, match="401"):
            await impostor.make_bucket(OWN)
        with pytest.raises(StoreError, match="401"):
            await impostor.delete_bucket(BUCKET)


@pytest.mark.parametrize("secret", ["etcd-backup", "source-etcd-backup"])
async def test_the_token_of_an_etcd_opens_its_own_backups(seed: Seed, secret: str) -> None:
    """A move reads the old bucket by the Secret of the source entry."""
    await seed.order(f"source-{OWN}")
    async with seed.store(OWN.rpartition("--")[0], secret) as own:
        assert await content(own, snapshot_of(OWN)) == OWN.encode()
        await own.put(f"{OWN}/etcd-main/v2/Incr-1", pieces(b"2"))
        names = [item.name for item in await own.list(f"{OWN}/etcd-main/v2/")]
        assert names == [snapshot_of(OWN), f"{OWN}/etcd-main/v2/Incr-1"]
        await own.delete(snapshot_of(OWN))
        await own.delete_prefix(f"{OWN}/")
        assert await own.list(f"{OWN}/") == []


async def test_a_token_of_the_whole_bucket_from_an_earlier_version_still_opens_it(seed: Seed) -> None:
    """An etcd has it until its BackupEntry is reconciled again."""
    async with seed.store("garden", f"generated-bucket-{BUCKET}") as old:
        assert await content(old, snapshot_of(OWN)) == OWN.encode()
        assert len(await old.list("")) == 4


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """URL of a server that a client cannot distinguish from one of another machine, and its received requests."""
    arrived: list[bytes] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            arrived.append(str(self.headers).encode())
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_GET

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
    """Have one of the clients send a token to a store."""
    credentials = {"endpoint": endpoint, "token": "SENTINEL", "bucketName": BUCKET, **permission}
    if client == "sidecar":
        store = open_store("local", credentials, BUCKET)
        try:
            await store.list("")
        finally:
            await store.close()
    elif client == "wrapper":
        for key, value in credentials.items():
            (directory / key).write_text(value)
        StoreReader({"provider": "local", "prefix": OWN, "credentialsDirectory": str(directory)}).names()
    else:
        seed = Seed(endpoint)
        await seed.make([], **permission)


CLIENTS = ["sidecar", "wrapper", "provider-local"]
REFUSALS = (StoreError, Unreadable, ApplicationError)


@pytest.mark.attack(actor="T6", asset="A4", finding=20)
@pytest.mark.parametrize("client", CLIENTS)
async def test_no_token_goes_to_a_store_without_tls(client: str, tmp_path: Path) -> None:
    """On the way each listener would read it, and with it all backups."""
    with listening() as (endpoint, arrived):
        with pytest.raises(REFUSALS, match="allowPlainHTTP"):
            await use(client, endpoint, tmp_path)
        assert not arrived


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_landscape_permits_its_store_without_tls(client: str, tmp_path: Path) -> None:
    with listening() as (endpoint, arrived):
        with pytest.raises(REFUSALS, match="401"):
            await use(client, endpoint, tmp_path, allowPlainHTTP="true")
        assert arrived


async def test_etcds_get_the_permission_with_the_credentials(tmp_path: Path) -> None:
    async with TestServer(application(tmp_path / "buckets", "admin-token")) as server:
        seed = Seed(str(server.make_url("/")))
        await seed.make([OWN], allowPlainHTTP="true")
    secret = seed.cluster.objects[SECRET, OWN.rpartition("--")[0], "etcd-backup"]["data"]
    assert base64.b64decode(secret["allowPlainHTTP"]) == b"true"
