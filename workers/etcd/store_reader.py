"""Reads the landscape's object store for etcd's wrapper, with the standard library alone."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from etcd import endpoint, snapshots

_TIMEOUT = 30.0
_CHUNK = 1 << 18


class Unreadable(Exception):
    """The store did not answer, or refused the request; the text holds no credentials."""


class StoreReader:
    """Reads the snapshots of one etcd; ``store`` is that field of the wrapper's configuration."""

    def __init__(self, store: dict[str, Any], timeout: float = _TIMEOUT) -> None:
        if store["provider"] != "local":
            raise Unreadable(f"backup provider {store['provider']!r} is unknown, must be 'local'")
        self._timeout = timeout
        self._directory = snapshots.directory(store["prefix"])
        try:
            credentials = Path(store["credentialsDirectory"])
            self._bucket = store.get("bucket") or (credentials / "bucketName").read_text().strip()
            url = (credentials / "endpoint").read_text().strip()
            self._token = (credentials / "token").read_text().strip()
            permission = credentials / endpoint.ALLOW_PLAIN
            allow_plain = permission.read_text() if permission.exists() else None
        except OSError as error:
            raise Unreadable(f"credentials of the backup store can't be read: {error.strerror}") from None
        if fault := endpoint.fault_of(url, allow_plain):
            raise Unreadable(fault)
        self._endpoint = urlsplit(url)

    def names(self) -> list[str]:
        """Names of all snapshots and of the other objects beside them, without directory."""
        path = f"/{self._bucket}?prefix={quote(self._directory, safe='')}"
        content = b"".join(self._get(path, f"listing {self._bucket}/{self._directory}"))
        try:
            return [item["name"].rsplit("/", 1)[-1] for item in json.loads(content)["objects"]]
        except (ValueError, KeyError, TypeError):
            raise Unreadable(f"listing {self._bucket}/{self._directory}: what answers is no store") from None

    def read(self, name: str) -> Iterator[bytes]:
        """Content of a snapshot. Raises Unreadable if the download breaks off."""
        path = f"/{self._bucket}/{self._directory}{name}"
        return self._get(path, f"downloading {self._bucket}/{self._directory}{name}")

    def _get(self, path: str, doing: str) -> Iterator[bytes]:
        kind = http.client.HTTPSConnection if self._endpoint.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._endpoint.hostname or "", self._endpoint.port, timeout=self._timeout)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            response = connection.getresponse()
            if response.status != 200:
                raise Unreadable(f"{doing}: store answered {response.status} {response.reason}")
            expected = response.length
            received = 0
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                yield chunk
            if expected is not None and received != expected:
                raise Unreadable(f"{doing}: broken off")
        except (OSError, http.client.HTTPException) as error:
            raise Unreadable(f"{doing}: no answer from the store: {type(error).__name__}") from None
        finally:
            connection.close()
