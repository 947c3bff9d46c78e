"""The client of backup stores and etcd's reader, on two real S3 servers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.provider_local.accounts import Account
from etcd.snapshots import directory
from etcd.store import Store, StoredObject, StoreError, open_store
from landscape.pki import Authority
from tests.object_stores import SECRET, ObjectStore, as_mounted, seaweedfs, versitygw
from tests.unit.kube.waiting import until
from workers.etcd.store_reader import StoreReader, Unreadable

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("object_store_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

BUCKET, OWN = "seed-1", "shoot--a--b--1"
PLACE = directory(f"{OWN}/etcd-main")
PART = 8 << 20


@dataclass(frozen=True)
class Served:
    server: ObjectStore
    limited: dict[str, str]
    """Credentials of a user that has rights below one directory only."""


@pytest.fixture(scope="module", params=["versitygw", "seaweedfs"])
def served(
    object_store_is_built: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    place = tmp_path_factory.mktemp(request.param)
    if request.param == "versitygw":
        with versitygw(place) as server:
            server.make_bucket(BUCKET)
            yield Served(server, server.key_below(BUCKET, OWN))
    else:
        with seaweedfs(place, {BUCKET: OWN}) as (server, limited):
            yield Served(server, limited[BUCKET])


@pytest.fixture
async def store(served: Served) -> AsyncIterator[Store]:
    whole = open_store("local", served.server.credentials, BUCKET)
    yield whole
    await whole.delete_all("")


def reader(served: Served, place: Path, **changes: str) -> StoreReader:
    credentials = as_mounted(place, served.limited | {"bucketName": BUCKET} | changes)
    return StoreReader({"provider": "local", "prefix": f"{OWN}/etcd-main", "credentialsDirectory": str(credentials)})


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def content(store: Store, name: str) -> bytes:
    return b"".join([chunk async for chunk in store.get(name)])


def names(objects: list[StoredObject]) -> list[str]:
    return [each.name for each in objects]


async def test_an_object_is_listed_and_read_as_it_was_put(served: Served, store: Store, tmp_path: Path) -> None:
    assert await store.put(f"{PLACE}Full-1", pieces(b"snap", b"shot")) == 8
    assert await store.put(f"{PLACE}Incr-2", pieces(b"")) == 0
    await store.put("two/v2/Full-1", pieces(b"y"))

    assert await content(store, f"{PLACE}Full-1") == b"snapshot"
    assert await content(store, f"{PLACE}Incr-2") == b""
    assert [(each.name, each.size) for each in await store.list(PLACE)] == [
        (f"{PLACE}Full-1", 8),
        (f"{PLACE}Incr-2", 0),
    ]
    found = reader(served, tmp_path)
    assert found.names() == ["Full-1", "Incr-2"]
    assert b"".join(found.read("Full-1")) == b"snapshot"


async def test_a_large_object_is_the_same_after_a_copy(store: Store) -> None:
    """It is sent in parts; the last one is shorter."""
    chunks = [bytes([number]) * (1 << 20) for number in range(19)] + [b"end"]
    assert await store.put("large", pieces(*chunks)) == 19 * (1 << 20) + 3
    assert await store.put("copy", store.get("large")) == 19 * (1 << 20) + 3
    assert await content(store, "copy") == b"".join(chunks)


@pytest.mark.parametrize("size", [PART - 1, PART, PART + 1])
async def test_an_object_of_about_one_part_is_whole(store: Store, size: int) -> None:
    assert await store.put("one", pieces(b"a" * (size - 1), b"b")) == size
    assert await content(store, "one") == b"a" * (size - 1) + b"b"


async def test_a_long_list_is_whole_and_in_order(store: Store) -> None:
    """S3 answers with 1000 names at most."""
    await asyncio.gather(*(store.create(f"many/{number:04d}") for number in range(1005)))
    await store.create("manyfold/0")
    assert names(await store.list("many/")) == [f"many/{number:04d}" for number in range(1005)]
    await store.delete_all("many/")
    assert names(await store.list("")) == ["manyfold/0"]


async def test_a_marker_is_created_once(store: Store) -> None:
    await store.create("Fence-00000005")
    [before] = await store.list("")
    await store.put("Fence-00000006", pieces(b"content"))
    await store.create("Fence-00000006")
    await store.create("Fence-00000005")
    assert [(each.name, each.size) for each in await store.list("")] == [(before.name, 0), ("Fence-00000006", 7)]


async def test_the_deletion_of_a_directory_leaves_its_neighbours(store: Store) -> None:
    await store.put("shoot--a/etcd-main/v2/Full", pieces(b"1"))
    await store.put("shoot--ab/etcd-main/v2/Full", pieces(b"2"))
    await store.delete_all("shoot--a/")
    await store.delete_all("shoot--a/")
    assert names(await store.list("")) == ["shoot--ab/etcd-main/v2/Full"]
    await store.delete("shoot--ab/etcd-main/v2/Full")
    await store.delete("shoot--ab/etcd-main/v2/Full")
    assert await store.list("") == []


class EtcdIsGone(Exception):
    """The content of an upload breaks off."""


@pytest.mark.parametrize("size", [4, 3 * PART])
async def test_an_upload_whose_content_breaks_off_leaves_nothing(store: Store, size: int) -> None:
    """A half snapshot that looks complete would be restored."""
    await store.put("a", pieces(b"complete"))

    async def breaking_off() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (size // 4)
        raise EtcdIsGone

    for name in ("a", "b"):
        with pytest.raises(EtcdIsGone):
            await store.put(name, breaking_off())
    assert names(await store.list("")) == ["a"]
    assert await content(store, "a") == b"complete"


@pytest.mark.parametrize(("size", "parts"), [(4, 0), (2 * PART + 4, 2)])
async def test_a_cancelled_upload_leaves_nothing(served: Served, store: Store, size: int, parts: int) -> None:
    name = f"cancelled-{size}"
    waits = asyncio.Event()
    client = served.server.account._client("s3")

    def uploads() -> list[str]:
        """Uploads of this test. The server may keep one of another test, whose part arrived after the upload's end."""
        found = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads") or ()
        return [each["UploadId"] for each in found if each["Key"] == name]

    def arrived() -> int:
        listed = (client.list_parts(Bucket=BUCKET, Key=name, UploadId=each) for each in uploads())
        return sum(len(each.get("Parts") or ()) for each in listed)

    async def standing() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (size // 4)
        waits.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(store.put(name, standing()))
    await waits.wait()
    await until(lambda: arrived() == parts)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert name not in names(await store.list(""))
    assert uploads() == []


async def test_a_missing_object_is_an_error_with_a_status(served: Served, store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="downloading seed-1/none: store answered 404 NoSuchKey") as refused:
        await content(store, "none")
    assert refused.value.status == 404
    with pytest.raises(Unreadable, match="404 NoSuchKey"):
        list(reader(served, tmp_path).read("none"))


async def test_a_missing_bucket_is_no_empty_one(served: Served) -> None:
    with pytest.raises(StoreError, match="404 NoSuchBucket"):
        await open_store("local", served.server.credentials, "seed-2").list("")


class Page(BaseHTTPRequestHandler):
    """A server that has the same page for each path, as a proxy with a login has."""

    def do_GET(self) -> None:
        body = b"<html><body>Welcome</body></html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """No request is logged."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def refusing_new_buckets() -> Iterator[tuple[str, list[str]]]:
    """A server without buckets that refuses new ones; yields the bodies of the requests, too."""
    bodies: list[str] = []

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(404, "NoSuchBucket")

        def do_PUT(self) -> None:
            bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
            self.answer(409, "BucketAlreadyExists")

        def answer(self, status: int, code: str) -> None:
            content = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """No request is logged."""

    with serving(Refusal) as url:
        yield url, bodies


def test_a_page_of_another_server_is_no_empty_store(served: Served, tmp_path: Path) -> None:
    """An etcd that took it for one would serve after a takeover, or start without its data."""
    assert reader(served, tmp_path / "store").names() == []
    with serving(Page) as url, pytest.raises(Unreadable, match="what answers is no store"):
        reader(served, tmp_path / "page", endpoint=url).names()


async def test_a_copy_of_backups_takes_no_page_for_an_empty_directory(served: Served) -> None:
    """The control plane would start without its data after the move."""
    assert await open_store("local", served.limited, BUCKET).list(f"{OWN}/other/") == []
    with serving(Page) as url, pytest.raises(StoreError, match="what answers is no store"):
        await open_store("local", served.limited | {"endpoint": url}, BUCKET).list(PLACE)


async def test_a_proxy_of_the_environment_is_not_used(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Page) as url:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, url)
        await open_store("local", served.limited, BUCKET).create(f"{PLACE}Fence-1")
        assert reader(served, tmp_path).names() == ["Fence-1"]
        assert await open_store("local", served.limited, BUCKET).list(PLACE)
        served.server.make_bucket(BUCKET)
        await open_store("local", served.limited, BUCKET).delete_all(f"{OWN}/")


@pytest.mark.parametrize("changes", [{"endpoint": "http://[1"}, {"accessKeyID": b"\xff".decode("latin-1")}])
def test_credentials_that_are_no_text_or_url_are_unreadable(
    served: Served, tmp_path: Path, changes: dict[str, str]
) -> None:
    """Any other error would end the thread of etcd's wrapper that reads the store."""
    place = as_mounted(tmp_path, served.limited | {"bucketName": BUCKET})
    for key, value in changes.items():
        (place / key).write_bytes(value.encode("latin-1"))
    with pytest.raises(Unreadable, match="can't be used"):
        StoreReader({"provider": "local", "prefix": OWN, "credentialsDirectory": str(place)})


WRONG: list[tuple[dict[str, str], str]] = [
    ({"secretAccessKey": "wrong"}, "403 SignatureDoesNotMatch"),
    ({"accessKeyID": "unknown"}, "403 InvalidAccessKeyId"),
    ({"endpoint": "http://127.0.0.1:1"}, "no answer from the store"),
]


@pytest.mark.parametrize(("changes", "reason"), WRONG)
async def test_wrong_credentials_are_refused_with_the_reason_and_no_secret(
    served: Served, tmp_path: Path, changes: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etcd.store._RETRIES", 0)
    store = open_store("local", served.server.credentials | changes, BUCKET)
    asked: list[Callable[[], Any]] = [
        lambda: store.list(PLACE),
        lambda: content(store, f"{PLACE}Full-1"),
        lambda: store.put(f"{PLACE}Full-1", pieces(b"x")),
        lambda: store.put(f"{PLACE}Full-1", pieces(b"x" * PART, b"y")),
        lambda: store.create(f"{PLACE}Fence-1"),
        lambda: store.delete(f"{PLACE}Full-1"),
    ]
    for ask in asked:
        with pytest.raises(StoreError, match=reason) as refused:
            await ask()
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None
    with pytest.raises(Unreadable, match=reason) as unreadable:
        reader(served, tmp_path, **changes).names()
    assert unreadable.value.__cause__ is None


async def test_a_key_of_one_directory_is_refused_elsewhere(served: Served, store: Store) -> None:
    limited = open_store("local", served.limited, BUCKET)
    others = ["shoot--a--c--2/", f"{OWN}5/", f"{OWN[:-1]}/"]
    for other in others:
        await store.put(f"{other}etcd-main/v2/Full-1", pieces(b"of another"))
    await limited.put(f"{PLACE}Full-1", pieces(b"x" * PART, b"y"))
    await limited.create(f"{PLACE}Fence-1")
    assert names(await limited.list(f"{OWN}/")) == [f"{PLACE}Fence-1", f"{PLACE}Full-1"]

    for other in [*others, ""]:
        name = f"{other}etcd-main/v2/Full-1"
        asked: list[Callable[[], Any]] = [
            partial(limited.list, other),
            partial(content, limited, name),
            partial(limited.put, name, pieces(b"forged")),
            partial(limited.put, name, pieces(b"x" * PART, b"forged")),
            partial(limited.create, name + "0"),
            partial(limited.delete, name),
        ]
        for ask in asked:
            with pytest.raises(StoreError, match="403 AccessDenied"):
                await ask()
    assert [await content(store, f"{other}etcd-main/v2/Full-1") for other in others] == [b"of another"] * 3


async def test_objects_that_an_earlier_version_stored_as_files_are_read(tmp_path: Path) -> None:
    """A landscape's buckets stay where they were."""
    place = tmp_path / "buckets/seed-1" / PLACE
    place.mkdir(parents=True)
    (place / "Full-1").write_bytes(b"of an earlier version")
    with versitygw(tmp_path) as server:
        server.make_bucket(BUCKET)
        store = open_store("local", server.credentials, BUCKET)
        assert await content(store, f"{PLACE}Full-1") == b"of an earlier version"
        limited = open_store("local", server.key_below(BUCKET, OWN), BUCKET)
        await limited.put(f"{PLACE}Incr-2", pieces(b"new"))
        assert names(await limited.list(PLACE)) == [f"{PLACE}Full-1", f"{PLACE}Incr-2"]
        await limited.delete_all(f"{OWN}/")
    assert not place.exists()


async def test_a_store_with_a_certificate_of_its_own_authority_is_trusted_by_that_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pair = authority.issue("store", "store", names=["127.0.0.1"])
    with versitygw(tmp_path, tls=(pair.certificate, pair.key)) as server:
        strange = open_store("S3", server.credentials, BUCKET)
        with pytest.raises(StoreError, match="no answer"):
            await asyncio.wait_for(strange.list(""), 60)
        certificates = {"trustedCaCert": authority.files.certificate.read_text()}
        with pytest.raises(StoreError, match="404 NoSuchBucket"):
            await open_store("S3", server.credentials | certificates, BUCKET).list("")
        with pytest.raises(ApplicationError, match="does not answer"):
            await asyncio.to_thread(server.make_bucket, BUCKET)
        account = Account(server.credentials | certificates, "Secret garden/backup")
        await asyncio.to_thread(account.make_bucket, BUCKET)
        assert await open_store("S3", server.credentials | certificates, BUCKET).list("") == []


@pytest.mark.parametrize(("region", "body"), [("eu-west-1", "<LocationConstraint>eu-west-1<"), ("us-east-1", "")])
def test_a_new_bucket_names_its_region_as_aws_wants_it(region: str, body: str) -> None:
    with refusing_new_buckets() as (url, bodies):
        credentials = {
            "accessKeyID": "a",
            "secretAccessKey": "b",
            "region": region,
            "endpoint": url,
            "iamEndpoint": url,
        }
        with pytest.raises(ApplicationError, match="answered 409"):
            Account(credentials, "Secret garden/backup").make_bucket("b")
        assert body in bodies[0]
        assert bool(bodies[0]) is bool(body)


def test_incomplete_credentials_are_refused_without_a_value_in_the_error() -> None:
    given = {"endpoint": "http://127.0.0.1:1", "accessKeyID": "SENTINEL", "secretAccessKey": ""}
    with pytest.raises(StoreError, match=r"lack secretAccessKey$"):
        open_store("local", given, "b")
    with pytest.raises(StoreError, match=r"lack endpoint or region$"):
        open_store("aws", given | {"secretAccessKey": "x", "endpoint": ""}, "b")
    with pytest.raises(StoreError, match="'gcp' is unknown"):
        open_store("gcp", {}, "b")


@pytest.mark.parametrize("provider", ["local", "aws", "S3"])
def test_a_bucket_of_aws_needs_no_endpoint(provider: str) -> None:
    given = {"region": "eu-west-1", "accessKeyID": "x", "secretAccessKey": "x"}
    open_store(provider, given, "b")
    open_store(provider, given | {"endpoint": "https://s3.example.org", "s3ForcePathStyle": "false"}, "b")
