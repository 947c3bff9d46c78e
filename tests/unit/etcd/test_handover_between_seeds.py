"""Real etcds of two seeds: the members of one join the cluster of the other, whose members then leave it."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from etcd.client import EtcdClient, EtcdError
from etcd.handover import Unsafe, let_others_lead, remove_all_but
from tests.unit.etcd.test_membership import NAMES, Several, pki  # noqa: F401
from tests.unit.kube.waiting import until
from workers.etcd.membership import Membership

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("etcd_is_built"), pytest.mark.timeout(240, func_only=True)]

PREFIX = "seed-2-"


class Seeds:
    """The etcds of the seed that a control plane leaves, and of the seed that it moves to."""

    def __init__(self, directory: Path, pki: Path) -> None:  # noqa: F811
        self.source, self.destination = Several(directory, pki), Several(directory, pki, prefix=PREFIX)
        self.failed: list[str] = []
        """Writes that failed."""
        self.written: dict[str, str] = {}
        self.source.written = self.destination.written = self.written

    def join(self) -> None:
        """Write the file by which the etcd controller of the destination tells its members of the source."""
        members = {each.name: each.url("peer") for each in self.source.members}
        clients = [each.url("client") for each in self.source.members]
        self.destination.existing.write_text(json.dumps({"members": members, "clients": clients}))

    @contextlib.asynccontextmanager
    async def clients(self, several: Several) -> AsyncIterator[dict[str, EtcdClient]]:
        async with contextlib.AsyncExitStack() as opened:
            yield {
                each.name: await opened.enter_async_context(EtcdClient(each.url("client"), several.tls))
                for each in several.members
            }

    @contextlib.asynccontextmanager
    async def written_to(self, several: Several, number: int) -> AsyncIterator[None]:
        """An API server of this seed writes all the time."""

        async def write() -> None:
            count = 0
            while True:
                try:
                    await several.put(number, f"{several.prefix}written-{count}")
                except Exception as error:
                    self.failed.append(f"{several.prefix}{number}: {type(error).__name__} {error}")
                count += 1
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def listed(self) -> list[str]:
        return sorted(await self.destination.listed(0))


@pytest.fixture
async def seeds(tmp_path: Path, pki: Path) -> AsyncIterator[Seeds]:  # noqa: F811
    made = Seeds(tmp_path, pki)
    made.source.start(0, 1, 2)
    await made.source.ready(0, 1, 2)
    await made.source.put(0, "before")
    yield made
    for member in (*made.source.members, *made.destination.members):
        member.kill()


async def leave(seeds: Seeds) -> list[str]:
    async with seeds.clients(seeds.source) as there, seeds.clients(seeds.destination) as here:
        await let_others_lead(there.values(), set(there))
        return await remove_all_but(here)


async def test_members_are_handed_over_without_a_failed_write(seeds: Seeds) -> None:
    """API servers of both seeds write while the members of the destination join, then only the destination's."""
    seeds.join()
    async with seeds.written_to(seeds.source, 0):
        seeds.destination.start(0, 1, 2)
        await seeds.destination.ready(0, 1, 2)
        assert len(await seeds.listed()) == 6
        async with seeds.written_to(seeds.destination, 1):
            count = len(seeds.written)
            await until(lambda: len(seeds.written) > count + 20)
    async with seeds.written_to(seeds.destination, 1):
        assert await leave(seeds) == NAMES
    assert await seeds.listed() == [f"{PREFIX}{name}" for name in NAMES]
    assert seeds.failed == []
    await seeds.destination.all_hold_everything()


@pytest.mark.slow
async def test_members_killed_while_they_join_join_again(seeds: Seeds) -> None:
    seeds.join()
    joining = seeds.destination
    async with seeds.written_to(seeds.source, 0):
        for after in (0.3, 0.6, 1.0, 1.5, 2.0, 2.6):
            joining.start(0, 1, 2)
            await asyncio.sleep(after)
            for member in joining.members:
                member.kill()
        joining.start(0, 1, 2)
        await joining.ready(0, 1, 2)
    assert seeds.failed == [], "the cluster of the source served all the time"
    assert len(await seeds.listed()) == 6
    assert not any(each.get("isLearner") for each in (await joining.listed(0)).values())
    await joining.all_hold_everything()


@pytest.mark.slow
async def test_a_removal_that_is_killed_goes_on(seeds: Seeds) -> None:
    seeds.join()
    seeds.destination.start(0, 1, 2)
    await seeds.destination.ready(0, 1, 2)
    async with seeds.clients(seeds.source) as there:
        await let_others_lead(there.values(), set(there))
    async with seeds.written_to(seeds.destination, 2):
        for _ in range(20):
            # An error is what a second run may get whose first run's request is still under way: Temporal tries again.
            with contextlib.suppress(TimeoutError, EtcdError):
                async with asyncio.timeout(0.03):
                    await leave(seeds)
        await leave(seeds)
        assert await leave(seeds) == []
    assert await seeds.listed() == [f"{PREFIX}{name}" for name in NAMES]
    await seeds.destination.all_hold_everything()


async def test_no_member_leaves_before_all_that_stay_serve(seeds: Seeds) -> None:
    seeds.join()
    seeds.destination.start(0, 1)
    await seeds.destination.ready(0, 1)
    with pytest.raises(Unsafe, match=f"{PREFIX}etcd-main-2 has no vote"):
        await leave(seeds)
    seeds.destination.start(2)
    await seeds.destination.ready(2)
    seeds.destination.members[1].kill()
    with pytest.raises(Unsafe, match=f"{PREFIX}etcd-main-1 does not answer"):
        await leave(seeds)
    assert len(await seeds.listed()) == 6


async def test_a_handover_that_has_begun_can_be_aborted(seeds: Seeds) -> None:
    """The members of the destination leave, also one that was killed while it joined. The source serves meanwhile."""
    seeds.join()
    async with seeds.written_to(seeds.source, 0):
        seeds.destination.start(0, 1)
        await seeds.destination.ready(0, 1)
        added = seeds.destination.members[2]
        config = seeds.destination.config(added)
        await asyncio.to_thread(Membership(config, added.name).join, backed_up=False)
        for member in seeds.destination.members:
            member.kill()
        async with seeds.clients(seeds.source) as stay:
            assert len(await remove_all_but(stay)) == 3
    assert sorted(await seeds.source.listed(0)) == NAMES
    assert seeds.failed == []
    await seeds.source.all_hold_everything()


@pytest.mark.slow
async def test_no_member_begins_a_cluster_of_its_own_while_the_source_does_not_answer(seeds: Seeds) -> None:
    """It would serve clients, without the data."""
    for member in seeds.source.members:
        member.kill()
    seeds.join()
    seeds.destination.start(0, 1, 2)
    await asyncio.sleep(4)
    assert not any(member.data.exists() for member in seeds.destination.members)
    seeds.source.start(0, 1, 2)
    await seeds.destination.ready(0, 1, 2)
    await seeds.destination.all_hold_everything()


@pytest.mark.slow
async def test_a_member_that_loses_its_data_after_the_handover_joins_the_others(seeds: Seeds) -> None:
    seeds.join()
    seeds.destination.start(0, 1, 2)
    await seeds.destination.ready(0, 1, 2)
    await leave(seeds)
    seeds.destination.existing.unlink()
    lost = seeds.destination.members[0]
    lost.kill()
    shutil.rmtree(lost.data)
    seeds.destination.start(0)
    await seeds.destination.ready(0)
    assert await seeds.listed() == [f"{PREFIX}{name}" for name in NAMES]
    await seeds.destination.all_hold_everything()


@pytest.mark.slow
async def test_a_removed_member_does_not_come_back(seeds: Seeds) -> None:
    """Its etcd ends each time, until the source deletes it."""
    seeds.join()
    seeds.destination.start(0, 1, 2)
    await seeds.destination.ready(0, 1, 2)
    await leave(seeds)
    for _ in range(2):
        for number, member in enumerate(seeds.source.members):
            member.kill()
            seeds.source.start(number)
        await until(lambda: all(each.process and each.process.poll() is not None for each in seeds.source.members), 30)
    assert await seeds.listed() == [f"{PREFIX}{name}" for name in NAMES]
