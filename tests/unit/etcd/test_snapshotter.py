"""When a sidecar looks again after its etcd, played in a time that jumps."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from etcd.client import EtcdClient, EtcdError
from etcd.store import Store
from tests.simulation.machinery import Loop
from workers.etcd.snapshotter import Schedule, Snapshotter

SCHEDULE = Schedule("0 0 * * *", timedelta(seconds=10), 1 << 20, 1000, timedelta(hours=1))


class Following:
    """An etcd that does not answer."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def status(self) -> None:
        self.asked.append(asyncio.get_running_loop().time())
        raise EtcdError("etcd does not answer")


class NoStore:
    async def close(self) -> None:
        pass


def test_an_etcd_that_replicated_for_long_is_backed_up_soon_after_the_takeover() -> None:
    """Changes before its backups begin are not covered by the promise of the delta's period."""
    etcd = Following()

    etcd_client, store = cast(EtcdClient, etcd), cast(Store, NoStore())

    async def follow() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await Snapshotter(etcd_client, lambda: store, "entry/etcd-main", SCHEDULE).run()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(follow())
    waits = [later - earlier for earlier, later in zip(etcd.asked, etcd.asked[1:], strict=False)]
    assert sum(waits) > 50
    assert max(waits) <= 1.001
