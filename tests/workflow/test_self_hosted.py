"""The flow of ``gardener shoot init``: the order of its steps, and that it continues after its worker has ended."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.self_hosted.init import SelfHostedActivities
from tests.unit.kube.waiting import until
from workers.lib.sandbox import workflow_runner
from workflows.self_hosted.init import InitSelfHostedShoot

STEPS = [
    SelfHostedActivities.make_self_hosted_secrets,
    SelfHostedActivities.start_self_hosted_kubelet,
    SelfHostedActivities.deploy_self_hosted_control_plane,
    SelfHostedActivities.wait_self_hosted_apiserver,
    SelfHostedActivities.deploy_self_hosted_system,
    SelfHostedActivities.wait_self_hosted_node,
    SelfHostedActivities.deploy_self_hosted_exposure,
    SelfHostedActivities.wait_self_hosted_exposure,
    SelfHostedActivities.write_self_hosted_kubeconfig,
]
NAMES = [each.__name__ for each in STEPS]


def worker(client: Client, queue: str, done: list[str], stuck: str = "") -> Worker:
    """A worker whose steps note their names; one of them never ends."""

    def step(name: str) -> Callable[[], Awaitable[None]]:
        @activity.defn(name=name)
        async def run() -> None:
            if name == stuck:
                await asyncio.Event().wait()
            done.append(name)

        return run

    return Worker(
        client,
        task_queue=queue,
        workflows=[InitSelfHostedShoot],
        activities=[step(each) for each in NAMES],
        workflow_runner=workflow_runner(),
    )


@pytest.mark.parametrize("exposed", [True, False])
async def test_each_step_runs_after_the_one_before(temporal: Client, exposed: bool) -> None:
    done: list[str] = []
    queue = str(uuid.uuid4())
    async with worker(temporal, queue, done):
        await temporal.execute_workflow(InitSelfHostedShoot.run, exposed, id=queue, task_queue=queue)

    assert done == [each for each in NAMES if exposed or "exposure" not in each]


async def test_the_next_worker_continues_and_repeats_no_step(temporal: Client) -> None:
    done: list[str] = []
    queue = str(uuid.uuid4())
    handle = await temporal.start_workflow(InitSelfHostedShoot.run, True, id=queue, task_queue=queue)
    async with worker(temporal, queue, done, stuck="wait_self_hosted_apiserver"):
        await until(lambda: len(done) == 3, 30)
    async with worker(temporal, queue, done):
        await handle.result()

    assert done == NAMES
