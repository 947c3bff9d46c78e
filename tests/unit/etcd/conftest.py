"""The store that etcds of the tests are backed up to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etcd.store import Store, open_store
from tests.object_stores import ObjectStore, as_mounted, versitygw

BUCKET = "seed-1"


@dataclass(frozen=True)
class Bucket:
    """One of a real object store."""

    server: ObjectStore
    credentials: Path
    """As a pod has them mounted."""

    def store(self, prefix: str) -> dict[str, Any]:
        """As a wrapper's configuration names it."""
        return {
            "provider": "local",
            "bucket": BUCKET,
            "prefix": prefix,
            "credentialsDirectory": str(self.credentials),
        }

    def open(self) -> Store:
        return open_store("local", self.server.credentials, BUCKET)


@pytest.fixture
def bucket(object_store_is_built: None, tmp_path: Path) -> Iterator[Bucket]:
    with versitygw(tmp_path) as server:
        server.make_bucket(BUCKET)
        yield Bucket(server, as_mounted(tmp_path / "credentials", server.credentials))
