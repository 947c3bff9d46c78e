"""How a Seed is reconciled, from its watcher to the gardenlet's activities, on a real Temporal server."""

import asyncio
from collections.abc import Sequence

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.worker import Worker

from api import resources
from api.contracts.operations import GARDEN_QUEUE, TaskResult, seed_queue
from kube.cache import Key
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.controller_manager.watchers.seeds import SeedWatcher
from workflows.seed import ReconcileSeed

SEEDS = resources.SEED.path()
NAME = "seed-w"
DEPLOYED = {
    "deploy_seed_crds",
    "deploy_seed_resource_manager",
    "deploy_seed_gateway",
    "deploy_seed_ingress_dns",
    "deploy_backup_bucket",
}


class Gardenlet:
    """Answers the queue of a seed, and writes the Seed's status as the activities do."""

    def __init__(self, client: Client, garden: ApiServer) -> None:
        self.done: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

        @activity.defn(dynamic=True)
        async def play(args: Sequence[RawValue]) -> TaskResult:
            name = activity.info().activity_type
            if name == "report_seed_processing":
                garden.change(SEEDS, NAME, None, {"metadata": {"annotations": {"gardener.cloud/operation": None}}})
            if name == "report_seed_ready":
                await self.may_end.wait()
                status = {"observedGeneration": 1, "lastOperation": {"state": "Succeeded"}}
                garden.change(SEEDS, NAME, None, {"status": status})
            self.done.append(name)
            return TaskResult()

        self.worker = Worker(client, task_queue=seed_queue(NAME), activities=[play])

    def ends(self) -> int:
        return self.done.count("report_seed_ready")


async def test_a_seed_waits_for_its_gardenlet_and_is_reconciled_once_for_each_request(temporal: Client) -> None:
    """A request that comes while a workflow runs is for the next one: the first may be past what it is about."""
    async with ApiServer().running() as api:
        garden, gardenlet = Garden(api), Gardenlet(temporal, api)
        watcher = SeedWatcher(garden.client, garden.caches, temporal)
        workflows = Worker(temporal, task_queue=GARDEN_QUEUE, workflows=[ReconcileSeed])

        seed = api.put(SEEDS, {"metadata": {"name": NAME, "uid": f"5eed-{id(api)}"}, "spec": {}})
        handle = temporal.get_workflow_handle(f"seed/{NAME}/{seed['metadata']['uid']}/1")
        try:
            async with workflows, garden.running(watcher.run()):
                await until(lambda: Key(None, NAME) in watcher._running)
                assert (await handle.describe()).status is not None
                gardenlet.may_end.clear()
                async with gardenlet.worker:
                    await until(lambda: set(gardenlet.done) >= DEPLOYED)
                    asked = {"gardener.cloud/operation": "reconcile"}
                    api.change(SEEDS, NAME, None, {"metadata": {"annotations": asked}})
                    gardenlet.may_end.set()
                    await until(lambda: gardenlet.ends() == 2)
                    await until(lambda: Key(None, NAME) not in watcher._running)
                    assert gardenlet.done.count("report_seed_processing") == 2
                    assert gardenlet.done[0] == "report_seed_processing"
                    assert gardenlet.done[-1] == "report_seed_ready"
        finally:
            await garden.caches.close()
            await garden.client.close()
