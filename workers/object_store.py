"""The landscape's backup store: a directory per bucket, served over HTTP.

    PUT    /<bucket>               make a bucket; answers with its token     (administrator)
    DELETE /<bucket>               remove a bucket with all its objects      (administrator)
    GET    /<bucket>?prefix=P      names, sizes and times of objects
    DELETE /<bucket>?prefix=P      remove all objects whose names begin with P
    PUT, GET, HEAD, DELETE /<bucket>/<name>

A bucket's token is derived from its name and the administrator's token: a second request to make a bucket returns the
same token, and the store keeps no secrets of its own. A client with a bucket's token derives from it the tokens of the
bucket's directories, for etcds: such a token gives access to objects whose names begin with ``<directory>/``, and to no
others. An upload is atomic: clients never see a part of an object.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from aiohttp import web
from pydantic import field_validator

from activities.etcd.store import directory_token
from api.model import ApiModel
from workers.lib.runtime import load_config, run_until_signal

log = logging.getLogger(__name__)

_OWN_NETWORKS = (IPv4Network("127.0.0.0/8"), IPv4Network("198.18.0.0/15"))
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
# No part of a name may begin with a dot: that excludes "..", and the names of the store's temporary files.
_NAME = re.compile(r"(?=.{1,512}$)[A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*(/[A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*)*")
_PREFIX = re.compile(r"[A-Za-z0-9._=@+/-]{0,512}")
_CHUNK = 1 << 18
DIGEST_HEADER = "X-Content-SHA256"


class ObjectStoreConfig(ApiModel):
    """Configuration of the process."""

    address: IPv4Address
    """Address of the loopback or the benchmarking network: traffic of a landscape must not leave the machine."""
    port: int = 9000
    directory: Path
    admin_token_file: Path

    @field_validator("address")
    @classmethod
    def _own(cls, address: IPv4Address) -> IPv4Address:
        if not any(address in network for network in _OWN_NETWORKS):
            raise ValueError(f"must be in {' or '.join(map(str, _OWN_NETWORKS))}")
        return address


async def run(config_path: str) -> None:
    """Serve until SIGTERM. Uploads that are not complete by then are dropped and leave no object."""
    config = load_config(ObjectStoreConfig, config_path)
    token = config.admin_token_file.read_text().strip()
    runner = web.AppRunner(application(config.directory, token), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, str(config.address), config.port).start()
        log.info("serving buckets at http://%s:%d", config.address, config.port)
        await run_until_signal()
    finally:
        await runner.cleanup()


def application(directory: Path, admin_token: str) -> web.Application:
    """The server, as an aiohttp application."""
    if not admin_token:
        raise ValueError("the administrator's token is empty")
    store = _ObjectStore(directory, admin_token)
    app = web.Application()
    app.router.add_get("/healthz", store.healthz)
    app.router.add_put("/{bucket}", store.make_bucket)
    app.router.add_delete("/{bucket}", store.delete_many)
    app.router.add_get("/{bucket}", store.list_objects)
    app.router.add_put("/{bucket}/{name:.+}", store.put_object)
    app.router.add_get("/{bucket}/{name:.+}", store.get_object)
    app.router.add_delete("/{bucket}/{name:.+}", store.delete_object)
    return app


class _ObjectStore:
    def __init__(self, directory: Path, admin_token: str) -> None:
        self._directory = directory
        self._admin_token = admin_token
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in directory.glob(".*"):  # uploads and deletions that a crash interrupted
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._uploads = directory / ".uploads"
        self._uploads.mkdir()

    async def healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def make_bucket(self, request: web.Request) -> web.Response:
        bucket = self._bucket(request, administrator=True, must_exist=False)
        bucket.mkdir(exist_ok=True)
        return web.json_response({"token": self._token(bucket.name)})

    async def delete_many(self, request: web.Request) -> web.Response:
        if "prefix" in request.query:
            bucket, prefix = self._bucket(request), _prefix(request)
            if not prefix:
                raise web.HTTPBadRequest(text="prefix is empty; delete the bucket instead")
            for path, _ in await asyncio.to_thread(lambda: list(_objects(bucket, prefix))):
                self._remove(bucket, path)
            return web.Response(status=204)
        bucket = self._bucket(request, administrator=True, must_exist=False)
        if bucket.is_dir():
            doomed = self._directory / f".deleted-{secrets.token_hex(8)}"
            bucket.rename(doomed)
            await asyncio.to_thread(shutil.rmtree, doomed)
        return web.Response(status=204)

    async def list_objects(self, request: web.Request) -> web.Response:
        bucket, prefix = self._bucket(request), _prefix(request)

        def look() -> list[dict[str, str | int]]:
            return [
                {"name": path.relative_to(bucket).as_posix(), "size": stat.st_size, "modified": int(stat.st_mtime)}
                for path, stat in _objects(bucket, prefix)
            ]

        return web.json_response({"objects": sorted(await asyncio.to_thread(look), key=lambda item: item["name"])})

    async def put_object(self, request: web.Request) -> web.Response:
        bucket = self._bucket(request)
        target = self._object(bucket, request)
        temporary = self._uploads / secrets.token_hex(16)
        digest, size = hashlib.sha256(), 0
        try:
            with temporary.open("xb") as file:
                async for chunk in request.content.iter_chunked(_CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            if request.headers.get(DIGEST_HEADER, digest.hexdigest()) != digest.hexdigest():
                raise web.HTTPUnprocessableEntity(text=f"content does not have the {DIGEST_HEADER} it came with")
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(target)
            await asyncio.to_thread(_sync_directory, target.parent)
        finally:
            temporary.unlink(missing_ok=True)
        return web.json_response({"size": size, "sha256": digest.hexdigest()})

    async def get_object(self, request: web.Request) -> web.StreamResponse:
        target = self._object(self._bucket(request), request)
        if not target.is_file():
            raise web.HTTPNotFound(text="no such object")
        return web.FileResponse(target, headers={"Content-Type": "application/octet-stream"})

    async def delete_object(self, request: web.Request) -> web.Response:
        bucket = self._bucket(request)
        self._remove(bucket, self._object(bucket, request))
        return web.Response(status=204)

    def _bucket(self, request: web.Request, *, administrator: bool = False, must_exist: bool = True) -> Path:
        """Directory of the request's bucket, after the caller's token has been checked."""
        name = request.match_info["bucket"]
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        allowed = [self._admin_token, *([] if administrator else [self._token(name)])]
        directory, slash, _ = (request.match_info.get("name") or request.query.get("prefix", "")).partition("/")
        if slash and not administrator:
            allowed += [directory_token(token, name, directory) for token in allowed]
        # A list, not a generator: the comparison must take equally long whichever token matches.
        if not any([hmac.compare_digest(given, token.encode()) for token in allowed]):  # noqa: C419
            raise web.HTTPUnauthorized(text="the token does not open this bucket, or not this part of it")
        if not _BUCKET.fullmatch(name):
            raise web.HTTPBadRequest(text=f"bucket names must match {_BUCKET.pattern}")
        bucket = self._directory / name
        if must_exist and not bucket.is_dir():
            raise web.HTTPNotFound(text="no such bucket")
        return bucket

    def _object(self, bucket: Path, request: web.Request) -> Path:
        name = request.match_info["name"]
        if not _NAME.fullmatch(name):
            raise web.HTTPBadRequest(text="an object's name has letters, digits, ._=@+- and single slashes only")
        return bucket / name

    def _token(self, bucket: str) -> str:
        return hmac.new(self._admin_token.encode(), f"bucket/{bucket}".encode(), hashlib.sha256).hexdigest()

    def _remove(self, bucket: Path, path: Path) -> None:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # raised at the first parent that is not empty
            for parent in path.parents:
                if parent == bucket:
                    break
                parent.rmdir()


def _objects(bucket: Path, prefix: str) -> Iterator[tuple[Path, os.stat_result]]:
    for where, _, names in os.walk(bucket):
        for name in names:
            path = Path(where, name)
            if path.relative_to(bucket).as_posix().startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    yield path, path.stat()


def _prefix(request: web.Request) -> str:
    prefix = request.query.get("prefix", "")
    if not _PREFIX.fullmatch(prefix):
        raise web.HTTPBadRequest(text=f"prefix must match {_PREFIX.pattern}")
    return prefix


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
