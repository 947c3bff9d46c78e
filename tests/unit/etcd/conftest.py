"""The store that etcds of the tests are backed up to."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from etcd.store import LocalStoreAdmin
from workers.object_store import application

BUCKET = "seed-1"


@dataclass(frozen=True)
class Bucket:
    """One of a real object store."""

    endpoint: str
    token: str
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


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[Bucket]:
    runner = web.AppRunner(application(tmp_path / "buckets", "admin"), access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with LocalStoreAdmin(endpoint, "admin") as admin:
        token = await admin.make_bucket(BUCKET)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "endpoint").write_text(endpoint)
    (credentials / "token").write_text(token)
    yield Bucket(endpoint, token, credentials)
    await runner.cleanup()
