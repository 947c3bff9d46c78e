"""One of two replicas runs the controllers; the other follows at once, or when the first renews its lease no more."""

import asyncio
import functools
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.lib.leader import LeaderElectionConfig, LostLeadership, run_as_leader, run_while_leader

LEASES = "/apis/coordination.k8s.io/v1/leases"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/garden/leases/manager"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/garden/leases/manager"
CONFIG = LeaderElectionConfig(
    leader_elect=True,
    lease_duration=timedelta(seconds=1),
    renew_deadline=timedelta(seconds=0.6),
    retry_period=timedelta(seconds=0.05),
)


@pytest.fixture
async def api():
    async with ApiServer().running() as api:
        yield api


class Replica:
    """One process, which records when it leads."""

    def __init__(self, api: ApiServer, config: LeaderElectionConfig = CONFIG) -> None:
        self.client = api.client()
        self.leads = asyncio.Event()
        self.task = asyncio.create_task(run_as_leader(self.client, config, "manager", self._controller()))

    async def _controller(self) -> None:
        self.leads.set()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()


@asynccontextmanager
async def replicas(api: ApiServer, count: int):
    started = [Replica(api) for _ in range(count)]
    try:
        yield started
    finally:
        for each in started:
            await each.stop()


async def leader_of(started: list[Replica]) -> Replica:
    waiting = [asyncio.create_task(each.leads.wait()) for each in started]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    for each in waiting:
        each.cancel()
    [leader] = [each for each in started if each.leads.is_set()]
    return leader


async def test_one_of_three_leads_and_the_next_follows_at_once_when_it_ends(api):
    async with replicas(api, 3) as started:
        leader = await leader_of(started)
        await leader.stop()
        rest = [each for each in started if each is not leader]
        async with asyncio.timeout(0.9):  # less than the lease lasts: it was given away
            await leader_of(rest)
        lease = api.find(LEASES, "manager", "garden")
        assert lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_died_is_replaced_when_its_lease_expires(api):
    dead = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}
    metadata = {"name": "manager", "namespace": "garden"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": dead}
    api.put(LEASES, lease)
    async with replicas(api, 1) as [replica]:
        with pytest.raises(TimeoutError):  # by our own clock: that of the dead one may have been wrong
            await asyncio.wait_for(replica.leads.wait(), 0.8)
        await asyncio.wait_for(replica.leads.wait(), 5)


async def test_a_leader_ends_if_another_process_has_its_lease(api):
    async with replicas(api, 1) as [replica]:
        await asyncio.wait_for(replica.leads.wait(), 5)
        lease = api.find(LEASES, "manager", "garden")
        api.change(LEASES, "manager", "garden", {"spec": lease["spec"] | {"holderIdentity": "usurper"}})
        with pytest.raises(LostLeadership):
            await asyncio.wait_for(replica.task, 5)
        assert api.find(LEASES, "manager", "garden")["spec"]["holderIdentity"] == "usurper"


async def test_a_process_that_lost_its_lease_ends_its_work_and_works_again_with_the_lease(api):
    """It has other work, such as webhooks, that must go on meanwhile."""
    works: list[asyncio.Event] = []

    async def work() -> None:
        works.append(asyncio.Event())
        try:
            await asyncio.Event().wait()
        finally:
            works[-1].set()

    def hold(holder: str, seconds: int) -> None:
        spec = api.find(LEASES, "manager", "garden")["spec"]
        held = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
        api.change(LEASES, "manager", "garden", {"spec": spec | held})

    async with api.client() as client:
        task = asyncio.create_task(run_while_leader(client, CONFIG, "manager", work))
        await until(lambda: works)
        for number in (1, 2):
            hold("usurper", 3600)
            await asyncio.wait_for(works[-1].wait(), 5)
            asked = api.count("GET", LEASE)
            await until(functools.partial(lambda last: api.count("GET", LEASE) > last + 1, asked))
            assert len(works) == number, "it worked while another process held the lease"
            assert api.find(LEASES, "manager", "garden")["spec"]["holderIdentity"] == "usurper"
            hold("", 1)
            await until(functools.partial(lambda wanted: len(works) == wanted, number + 1))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert works[-1].is_set()
        assert api.find(LEASES, "manager", "garden")["spec"]["holderIdentity"] == ""


async def test_an_error_of_the_work_ends_a_process_that_leads(api):
    async def work() -> None:
        raise ValueError("broken")

    async with api.client() as client:
        with pytest.raises(ValueError, match="broken"):
            await asyncio.wait_for(run_while_leader(client, CONFIG, "manager", work), 5)


async def test_without_election_a_process_leads_without_a_lease(api):
    replica = Replica(api, LeaderElectionConfig())
    await asyncio.wait_for(replica.leads.wait(), 5)
    await replica.stop()
    assert api.requests == []


def test_durations_are_written_as_in_go():
    config = LeaderElectionConfig.model_validate({"leaderElect": True, "leaseDuration": "1m30s"})
    assert config.lease_duration == timedelta(seconds=90)
