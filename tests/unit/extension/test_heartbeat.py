"""An extension is heard of as soon as its seed has a place for its Lease."""

import asyncio
from typing import cast

import pytest

from kube.client import KubeClient
from kube.errors import NotFound
from workers.extension import heartbeat


class Seed:
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.renewed = asyncio.Event()

    async def apply_blindly(self, lease, *, manager):
        if self.failures:
            self.failures -= 1
            raise NotFound(404, "NotFound", "applying a Lease", 'namespaces "garden" not found')
        assert lease["spec"]["holderIdentity"] == manager
        self.renewed.set()


async def test_a_heartbeat_that_could_not_be_written_is_soon_tried_again():
    seed = Seed(failures=2)
    running = heartbeat.run_heartbeat(cast(KubeClient, seed), "garden", holder="provider-local", retry_seconds=0.01)
    beating = asyncio.create_task(running)
    await asyncio.wait_for(seed.renewed.wait(), 2)
    assert not seed.failures
    beating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beating
