"""The object store and its client, over real HTTP."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiohttp import web

from activities.etcd.store import LocalStore, LocalStoreAdmin, StoreError, open_store
from workers.object_store import ObjectStoreConfig, application

ADMIN = "administrators-token"


class Served:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __aenter__(self):
        self.runner = web.AppRunner(application(self.directory, ADMIN), access_log=None, shutdown_timeout=0)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


@pytest.fixture
async def served(tmp_path):
    async with Served(tmp_path / "buckets") as server:
        yield server


@pytest.fixture
async def bucket(served):
    async with LocalStoreAdmin(served.endpoint, ADMIN) as admin:
        token = await admin.make_bucket("seed-1")
    async with LocalStore(served.endpoint, "seed-1", token) as store:
        yield store


async def pieces(*content: bytes):
    for piece in content:
        yield piece


async def content(store, name) -> bytes:
    return b"".join([chunk async for chunk in store.get(name)])


async def test_an_uploaded_object_is_listed_and_downloaded(bucket):
    assert await bucket.put("one/v2/Full-1", pieces(b"snap", b"shot")) == 8
    await bucket.put("one/v2/Incr-2", pieces(b"x"))
    await bucket.put("two/v2/Full-1", pieces(b"y"))

    assert await content(bucket, "one/v2/Full-1") == b"snapshot"
    assert [(item.name, item.size) for item in await bucket.list("one/")] == [
        ("one/v2/Full-1", 8),
        ("one/v2/Incr-2", 1),
    ]


async def test_making_a_bucket_twice_gives_the_same_token(served):
    async with LocalStoreAdmin(served.endpoint, ADMIN) as admin:
        assert await admin.make_bucket("seed-1") == await admin.make_bucket("seed-1")
        assert await admin.make_bucket("seed-2") != await admin.make_bucket("seed-1")


async def test_a_buckets_token_opens_no_other_bucket_and_makes_none(served, bucket):
    async with LocalStoreAdmin(served.endpoint, ADMIN) as admin:
        await admin.make_bucket("seed-2")
        token = await admin.make_bucket("seed-1")
    async with LocalStore(served.endpoint, "seed-2", token) as other:
        with pytest.raises(StoreError) as refused:
            await other.list("")
    assert refused.value.unauthenticated
    async with LocalStoreAdmin(served.endpoint, token) as impostor:
        with pytest.raises(StoreError, match="401"):
            await impostor.make_bucket("seed-3")
        with pytest.raises(StoreError, match="401"):
            await impostor.delete_bucket("seed-1")


async def test_errors_hold_no_token(served):
    async with LocalStore(served.endpoint, "seed-1", "SENTINEL-TOKEN") as store:
        with pytest.raises(StoreError) as refused:
            await store.list("")
    assert "SENTINEL-TOKEN" not in str(refused.value)
    assert refused.value.__cause__ is None


async def test_deleting_a_prefix_leaves_its_neighbours(bucket):
    await bucket.put("shoot--a/etcd-main/v2/Full", pieces(b"1"))
    await bucket.put("shoot--ab/etcd-main/v2/Full", pieces(b"2"))
    await bucket.delete_prefix("shoot--a/")
    await bucket.delete_prefix("shoot--a/")
    assert [item.name for item in await bucket.list("")] == ["shoot--ab/etcd-main/v2/Full"]
    with pytest.raises(StoreError, match="400"):
        await bucket.delete_prefix("")


async def test_a_bucket_is_deleted_with_its_objects(served, bucket):
    await bucket.put("a", pieces(b"1"))
    async with LocalStoreAdmin(served.endpoint, ADMIN) as admin:
        await admin.delete_bucket("seed-1")
        await admin.delete_bucket("seed-1")
    assert [path.name for path in served.directory.iterdir()] == [".uploads"]
    with pytest.raises(StoreError, match="404"):
        await bucket.list("")


async def test_an_upload_that_breaks_off_never_shows(served, bucket):
    """A half snapshot that looks complete would be restored."""
    before = await bucket.put("a", pieces(b"complete"))

    async def breaking_off():
        yield b"half"
        raise OSError("the pod was killed")

    with contextlib.suppress(StoreError, OSError):
        await bucket.put("a", breaking_off())
    with contextlib.suppress(StoreError, OSError):
        await bucket.put("b", breaking_off())

    for _ in range(100):
        if not list((served.directory / ".uploads").iterdir()):
            break
        await asyncio.sleep(0.01)
    assert [(item.name, item.size) for item in await bucket.list("")] == [("a", before)]
    assert await content(bucket, "a") == b"complete"
    assert list((served.directory / ".uploads").iterdir()) == []


async def test_a_truncated_body_of_known_length_never_shows(served, bucket):
    token = bucket._headers["Authorization"]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"PUT /seed-1/a HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 100\r\n\r\nhalf".encode()
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await reader.read()
    assert await bucket.list("") == []


async def test_leftovers_of_a_crash_are_removed_at_the_next_start(tmp_path):
    directory = tmp_path / "buckets"
    (directory / ".uploads").mkdir(parents=True)
    (directory / ".uploads" / "half").write_bytes(b"half")
    (directory / ".deleted-1").mkdir()
    (directory / "seed-1").mkdir()
    async with Served(directory):
        assert sorted(path.name for path in directory.rglob("*")) == [".uploads", "seed-1"]


@pytest.mark.parametrize(
    "path",
    [
        "/seed-1/../outside",
        "/seed-1/%2e%2e/outside",
        "/seed-1/a/%2e%2e/%2e%2e/%2e%2e/outside",
        "/seed-1/..%2f..%2foutside",
        "/seed-1//etc/passwd",
        "/seed-1/.uploads/x",
        "/%2e%2e/outside",
        "/.uploads/x",
        "/seed-1/a%00b",
        "/seed-1/a%5c..%5cb",
    ],
)
async def test_no_object_name_escapes_the_bucket(served, bucket, tmp_path, path):
    for method in (b"PUT", b"GET", b"DELETE"):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"%b %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
            % (method, path.encode(), ADMIN.encode())
        )
        answer = await reader.read()
        writer.close()
        assert answer.split(b" ")[1] in (b"400", b"404", b"405")
    assert sorted(found.name for found in tmp_path.rglob("*")) == [".uploads", "buckets", "seed-1"]


def test_other_addresses_than_our_own_are_refused():
    with pytest.raises(ValueError, match=r"must be in 127\.0\.0\.0/8 or 198\.18\.0\.0/15"):
        ObjectStoreConfig(address="0.0.0.0", directory="/tmp", admin_token_file="/tmp/token")


def test_credentials_that_lack_a_key_are_refused_without_quoting_the_rest():
    with pytest.raises(StoreError, match="lack token"):
        open_store("local", {"endpoint": "http://127.0.0.1:1", "token": ""}, "b")
    with pytest.raises(StoreError, match="'s3' is unknown"):
        open_store("s3", {}, "b")
