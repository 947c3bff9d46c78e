"""Reads a backup store for etcd's wrapper, without asyncio, whose import would delay etcd's start."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore

from etcd import s3, snapshots
from etcd.s3 import FAILURES, StoreError, failure, open_bucket

_TIMEOUT = 30.0
_CHUNK = 1 << 18


class Unreadable(Exception):
    """The store did not answer, or refused the request; the text holds no credentials."""


class StoreReader:
    """Reads the snapshots of one etcd; ``store`` is that field of the wrapper's configuration."""

    def __init__(self, store: dict[str, Any], timeout: float = _TIMEOUT) -> None:
        self._directory = snapshots.directory(store["prefix"])
        try:
            credentials = s3.mounted(Path(store["credentialsDirectory"]))
            self._bucket = store.get("bucket") or credentials.get(s3.BUCKET, "").strip()
            self._store = open_bucket(
                store["provider"], credentials, self._bucket, patience=timedelta(seconds=timeout), retries=0
            )
        except StoreError as error:
            raise Unreadable(str(error)) from None
        except ValueError as error:  # not UTF-8, or no URL
            raise Unreadable(f"credentials of the backup store can't be used: {type(error).__name__}") from None

    def names(self) -> list[str]:
        """Names of all snapshots and of the other objects beside them, without directory."""
        doing = f"listing {self._bucket}/{self._directory}"
        try:
            found = obstore.list(self._store, self._directory).collect()
        except FAILURES as error:
            raise _unreadable(doing, error) from None
        if not found:
            try:
                s3.check_store(doing, self._missing())
            except StoreError as error:
                raise Unreadable(str(error)) from None
        return sorted(item["path"].rsplit("/", 1)[-1] for item in found)

    def _missing(self) -> Exception | None:
        try:
            obstore.head(self._store, self._directory + s3.NO_OBJECT)
        except FAILURES as error:
            return error
        return None

    def read(self, name: str) -> Iterator[bytes]:
        """Content of a snapshot. Raises Unreadable if the download breaks off."""
        path = self._directory + name
        try:
            for chunk in obstore.get(self._store, path).stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except FAILURES as error:
            raise _unreadable(f"downloading {self._bucket}/{path}", error) from None


def _unreadable(doing: str, error: Exception) -> Unreadable:
    return Unreadable(str(failure(doing, error)))
