"""Clients of backup stores: put and get whole objects, list and delete by prefix.

Providers other than ``local`` add a class with the methods of ``Store`` and a line in ``open_store``.
"""

import hashlib
import hmac
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import quote

import aiohttp

from etcd import endpoint

_CHUNK = 1 << 18
# No timeout for the whole: a snapshot of 8 GiB takes long. sock_read ends a request if the store stops answering.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)


class StoreError(Exception):
    """The store refused a request or did not answer; the text never holds credentials or contents."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 if no answer came."""

    @property
    def unauthenticated(self) -> bool:
        """Whether the credentials are wrong, which only their owner can fix."""
        return self.status in (401, 403)


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

    def get(self, name: str) -> AsyncIterator[bytes]: ...

    async def list(self, prefix: str) -> list[StoredObject]:
        """Objects whose names begin with ``prefix``, sorted by name."""
        ...

    async def delete(self, name: str) -> None:
        """Delete an object. An object that does not exist counts as deleted."""
        ...

    async def delete_prefix(self, prefix: str) -> None: ...

    async def close(self) -> None: ...


def open_store(provider: str, credentials: Mapping[str, str], bucket: str) -> Store:
    """Client of a bucket, from the data of the Secret with its credentials.

    Raises:
        StoreError: the provider is unknown, a key is missing in the credentials, or the endpoint has no TLS and the
            credentials do not permit that.
    """
    if provider != "local":
        raise StoreError(f"backup provider {provider!r} is unknown, must be 'local'")
    missing = [key for key in ("endpoint", "token") if not credentials.get(key)]
    if missing:
        raise StoreError(f"credentials of the backup store lack {', '.join(missing)}")
    if fault := endpoint.fault_of(credentials["endpoint"], credentials.get(endpoint.ALLOW_PLAIN)):
        raise StoreError(fault)
    return LocalStore(credentials["endpoint"], bucket, credentials["token"])


def directory_token(token: str, bucket: str, directory: str) -> str:
    """Token of the landscape's store for the objects of a bucket whose names begin with ``<directory>/``.

    It is derived from the bucket's token, or from the administrator's, and reveals neither of them.
    """
    return hmac.new(token.encode(), f"directory/{bucket}/{directory}".encode(), hashlib.sha256).hexdigest()


class _Connection:
    """HTTP with a bearer token to one object store of ``workers.object_store``."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        content: AsyncIterable[bytes] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT, trust_env=False)
        try:
            response = await self._session.request(
                method, f"{self._endpoint}/{quote(path)}", data=content, params=query, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StoreError(f"{doing}: no answer from {self._endpoint}: {type(error).__name__}") from None
        if response.status >= 300:
            response.release()
            raise StoreError(f"{doing}: store answered {response.status} {response.reason}", response.status)
        return response


class LocalStore(_Connection):
    """One bucket of the landscape's object store."""

    def __init__(self, endpoint: str, bucket: str, token: str) -> None:
        super().__init__(endpoint, token)
        self._bucket = bucket

    async def put(self, name: str, content: AsyncIterable[bytes]) -> int:
        digest = hashlib.sha256()

        async def passing() -> AsyncIterator[bytes]:
            async for chunk in content:
                digest.update(chunk)
                yield chunk

        doing = f"uploading {self._bucket}/{name}"
        async with await self._send("PUT", f"{self._bucket}/{name}", doing, content=passing()) as response:
            answer = await response.json()
        if answer["sha256"] != digest.hexdigest():
            await self.delete(name)
            raise StoreError(f"{doing}: what arrived is not what was sent")
        return int(answer["size"])

    async def get(self, name: str) -> AsyncIterator[bytes]:
        doing = f"downloading {self._bucket}/{name}"
        async with await self._send("GET", f"{self._bucket}/{name}", doing) as response:
            try:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    yield chunk
            except (aiohttp.ClientError, TimeoutError) as error:
                raise StoreError(f"{doing}: broken off: {type(error).__name__}") from None

    async def list(self, prefix: str) -> list[StoredObject]:
        doing = f"listing {self._bucket}/{prefix}"
        async with await self._send("GET", self._bucket, doing, query={"prefix": prefix}) as response:
            answer = await response.json()
        return [StoredObject(item["name"], item["size"], item["modified"]) for item in answer["objects"]]

    async def delete(self, name: str) -> None:
        (await self._send("DELETE", f"{self._bucket}/{name}", f"deleting {self._bucket}/{name}")).release()

    async def delete_prefix(self, prefix: str) -> None:
        doing = f"deleting {self._bucket}/{prefix}*"
        (await self._send("DELETE", self._bucket, doing, query={"prefix": prefix})).release()


class LocalStoreAdmin(_Connection):
    """Creates and deletes buckets with the administrator's token; for the BackupBucket controller."""

    async def make_bucket(self, bucket: str) -> str:
        """Create a bucket and return its token; a second call returns the same token."""
        async with await self._send("PUT", bucket, f"making bucket {bucket}") as response:
            return str((await response.json())["token"])

    async def delete_bucket(self, bucket: str) -> None:
        """Delete a bucket with all its objects. A bucket that does not exist counts as deleted."""
        (await self._send("DELETE", bucket, f"deleting bucket {bucket}")).release()
