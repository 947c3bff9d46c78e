"""Client of a backup store: put and get whole objects, list and delete those of a directory."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from etcd.s3 import FAILURES, NO_OBJECT, StoreError, check_store, failure, open_bucket

__all__ = ["S3", "Store", "StoreError", "StoredObject", "open_store"]

_CHUNK = 1 << 18
_PART = 8 << 20
"""Bytes of one part of an upload. Smaller objects take one request."""
_PARALLEL = 2
"""Parts that are sent at the same time; all of them are in memory."""
_PATIENCE = timedelta(seconds=60)
_RETRIES = 3


@dataclass(frozen=True)
class StoredObject:
    """One object of a bucket; ``modified`` is in Unix seconds."""

    name: str
    size: int
    modified: int


class Store(Protocol):
    """One bucket."""

    async def put(self, name: str, content: AsyncIterable[bytes]) -> int:
        """Store an object and return its size. Readers find the whole object or none."""
        ...

    async def create(self, name: str) -> None:
        """Store an empty object, unless there is an object of this name already, which stays as it is."""
        ...

    def get(self, name: str) -> AsyncIterator[bytes]: ...

    async def list(self, directory: str) -> list[StoredObject]:
        """Objects of a directory, whose name ends with a slash, and of those below it; sorted by name."""
        ...

    async def delete(self, name: str) -> None:
        """Delete an object. An object that does not exist counts as deleted."""
        ...

    async def delete_all(self, directory: str) -> None:
        """Delete the objects that ``list`` finds."""
        ...


def open_store(provider: str, credentials: Mapping[str, str], bucket: str) -> Store:
    """Client of a bucket, from the data of the Secret with its credentials.

    Raises:
        StoreError: the provider is unknown, the credentials are not complete, or the endpoint has no TLS and the
            credentials do not permit that.
    """
    return S3(open_bucket(provider, credentials, bucket, patience=_PATIENCE, retries=_RETRIES), bucket)


class S3:
    """One bucket of an S3 store."""

    def __init__(self, store: S3Store, bucket: str) -> None:
        self._store = store
        self._bucket = bucket

    async def put(self, name: str, content: AsyncIterable[bytes]) -> int:
        """Store an object and return its size. Readers find the whole object or none.

        The signature of each request contains the SHA-256 of its body, so the store refuses what did not arrive whole.
        """
        doing = f"uploading {self._bucket}/{name}"
        feed = _Feed(content)
        start = await feed.start(_PART)
        if len(start) < _PART:
            try:
                await obstore.put_async(self._store, name, start, use_multipart=False)
            except FAILURES as error:
                raise failure(doing, error) from None
            return len(start)
        upload = asyncio.ensure_future(
            obstore.put_async(self._store, name, feed, chunk_size=_PART, max_concurrency=_PARALLEL)
        )
        try:
            await asyncio.shield(upload)
        except asyncio.CancelledError:
            # If the upload itself were cancelled, the store would keep its parts.
            feed.break_off()
            await asyncio.gather(upload, return_exceptions=True)
            raise
        except FAILURES as error:
            if feed.error is not None:
                raise feed.error from None
            raise failure(doing, error) from None
        return feed.size

    async def create(self, name: str) -> None:
        try:
            await obstore.put_async(self._store, name, b"", mode="create")
        except AlreadyExistsError:
            return
        except FAILURES as error:
            raise failure(f"creating {self._bucket}/{name}", error) from None

    async def get(self, name: str) -> AsyncIterator[bytes]:
        try:
            found = await obstore.get_async(self._store, name)
            async for chunk in found.stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except FAILURES as error:
            raise failure(f"downloading {self._bucket}/{name}", error) from None

    async def list(self, directory: str) -> list[StoredObject]:
        doing = f"listing {self._bucket}/{directory}"
        try:
            found = await obstore.list(self._store, directory or None).collect_async()
        except FAILURES as error:
            raise failure(doing, error) from None
        if not found:
            check_store(doing, await self._missing(directory))
        objects = (StoredObject(each["path"], each["size"], int(each["last_modified"].timestamp())) for each in found)
        return sorted(objects, key=lambda each: each.name)

    async def _missing(self, directory: str) -> Exception | None:
        try:
            await obstore.head_async(self._store, directory + NO_OBJECT)
        except FAILURES as error:
            return error
        return None

    async def delete(self, name: str) -> None:
        await self._delete([name], name)

    async def delete_all(self, directory: str) -> None:
        await self._delete([each.name for each in await self.list(directory)], f"{directory}*")

    async def _delete(self, names: Sequence[str], what: str) -> None:
        if not names:
            return
        try:
            await obstore.delete_async(self._store, names)
        except FileNotFoundError:
            return
        except FAILURES as error:
            raise failure(f"deleting {self._bucket}/{what}", error) from None


class _Feed:
    """The content of an upload. After ``break_off`` it ends with an error, for which obstore drops the upload."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = aiter(content)
        self._start = b""
        self._reading: asyncio.Future[bytes] | None = None
        self._broken_off = False
        self.size = 0
        self.error: Exception | None = None
        """Error of the content."""

    async def start(self, limit: int) -> bytes:
        """The first bytes of the content: all of them, or at least ``limit``. The feed begins with these, too."""
        pieces, size = [], 0
        while size < limit:
            try:
                pieces.append(await anext(self._content))
            except StopAsyncIteration:
                break
            size += len(pieces[-1])
        self._start = b"".join(pieces)
        return self._start

    def break_off(self) -> None:
        self._broken_off = True
        if self._reading is not None:
            self._reading.cancel()

    def __aiter__(self) -> "_Feed":
        return self

    async def __anext__(self) -> bytes:
        chunk, self._start = self._start, b""
        if not chunk:
            chunk = await self._next()
        self.size += len(chunk)
        return chunk

    async def _next(self) -> bytes:
        if self._broken_off:
            raise _BrokenOff
        self._reading = asyncio.ensure_future(anext(self._content))
        try:
            return await self._reading
        except asyncio.CancelledError:
            raise _BrokenOff from None
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.error = error
            raise


class _BrokenOff(Exception):
    """The upload was cancelled."""
