"""Of two replicas one runs the controllers; the other follows at once, or when the first is not heard of any more."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.unit.kube.api_server import ApiServer
from workers.lib.leader import LeaderElectionConfig, LostLeadership, run_as_leader

LEASES = "/apis/coordination.k8s.io/v1/leases"
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
    """One process: says when it leads."""

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


async def test_a_leader_whose_lease_another_one_has_taken_ends(api):
    async with replicas(api, 1) as [replica]:
        await asyncio.wait_for(replica.leads.wait(), 5)
        lease = api.find(LEASES, "manager", "garden")
        api.change(LEASES, "manager", "garden", {"spec": lease["spec"] | {"holderIdentity": "usurper"}})
        with pytest.raises(LostLeadership):
            await asyncio.wait_for(replica.task, 5)
        assert api.find(LEASES, "manager", "garden")["spec"]["holderIdentity"] == "usurper"


async def test_without_election_a_process_leads_and_asks_nobody(api):
    replica = Replica(api, LeaderElectionConfig())
    await asyncio.wait_for(replica.leads.wait(), 5)
    await replica.stop()
    assert api.requests == []


def test_durations_are_written_as_in_go():
    config = LeaderElectionConfig.model_validate({"leaderElect": True, "leaseDuration": "1m30s"})
    assert config.lease_duration == timedelta(seconds=90)
