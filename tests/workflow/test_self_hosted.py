"""The flow of ``gardener shoot init``: the order of its steps, and that it continues after its worker has ended."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.self_hosted.init import SelfHostedActivities
from tests.sandbox import SANDBOX
from tests.unit.kube.waiting import until
from workers.self_hosted.process import tell_progress
from workflows.self_hosted.init import InitSelfHostedShoot
from workflows.self_hosted.renew import RenewSelfHostedShoot

STEPS = [
    SelfHostedActivities.restore_self_hosted_keys,
    SelfHostedActivities.make_self_hosted_secrets,
    SelfHostedActivities.back_up_self_hosted_keys,
    SelfHostedActivities.start_self_hosted_kubelet,
    SelfHostedActivities.deploy_self_hosted_control_plane,
    SelfHostedActivities.wait_self_hosted_apiserver,
    SelfHostedActivities.deploy_self_hosted_system,
    SelfHostedActivities.wait_self_hosted_node,
    SelfHostedActivities.deploy_self_hosted_exposure,
    SelfHostedActivities.wait_self_hosted_exposure,
    SelfHostedActivities.name_self_hosted_apiserver,
    SelfHostedActivities.write_self_hosted_kubeconfig,
]
NAMES = [each.__name__ for each in STEPS]
EXPOSURE = ("deploy_self_hosted_exposure", "wait_self_hosted_exposure")


def worker(client: Client, queue: str, done: list[str], stuck: str = "", fails: str = "") -> Worker:
    """A worker whose steps note their names; one of them never ends, and one fails each time."""

    def step(name: str) -> Callable[[], Awaitable[None]]:
        @activity.defn(name=name)
        async def run() -> None:
            if name == stuck:
                await asyncio.Event().wait()
            if name == fails:
                raise ApplicationError("the cloud does not answer")
            done.append(name)

        return run

    return Worker(
        client,
        task_queue=queue,
        workflows=[InitSelfHostedShoot, RenewSelfHostedShoot],
        activities=[step(each) for each in (*NAMES, SelfHostedActivities.wait_self_hosted_pods.__name__)],
        workflow_runner=SANDBOX,
    )


@pytest.mark.parametrize(
    "switches", [(True, False), (False, True), (False, False), (True,)], ids=["exposed", "named", "neither", "earlier"]
)
async def test_each_step_runs_after_the_one_before(temporal: Client, switches: tuple[bool, ...]) -> None:
    """A flow that an earlier version has started has one switch."""
    done: list[str] = []
    queue = str(uuid.uuid4())
    async with worker(temporal, queue, done):
        await temporal.execute_workflow(InitSelfHostedShoot.run, args=switches, id=queue, task_queue=queue)

    exposed, named = (*switches, False)[:2]
    left = [*(() if exposed else EXPOSURE), *(() if named else ("name_self_hosted_apiserver",))]
    assert done == [each for each in NAMES if each not in left]


@pytest.mark.parametrize("exposed", [True, False])
async def test_a_renewal_writes_no_file_of_a_pod_before_its_certificate_is_made(
    temporal: Client, exposed: bool
) -> None:
    done: list[str] = []
    queue = str(uuid.uuid4())
    async with worker(temporal, queue, done):
        await temporal.execute_workflow(RenewSelfHostedShoot.run, exposed, id=queue, task_queue=queue)

    assert done == [
        "make_self_hosted_secrets",
        "deploy_self_hosted_control_plane",
        "start_self_hosted_kubelet",
        "wait_self_hosted_apiserver",
        "wait_self_hosted_pods",
        *(["wait_self_hosted_exposure"] if exposed else []),
        "write_self_hosted_kubeconfig",
    ]


async def test_the_next_worker_continues_and_repeats_no_step(temporal: Client) -> None:
    done: list[str] = []
    queue = str(uuid.uuid4())
    handle = await temporal.start_workflow(InitSelfHostedShoot.run, args=[True, True], id=queue, task_queue=queue)
    async with worker(temporal, queue, done, stuck="wait_self_hosted_apiserver"):
        await until(lambda: len(done) == 5, 30)
    async with worker(temporal, queue, done):
        await handle.result()

    assert done == NAMES


async def test_a_step_that_takes_long_or_fails_is_told(temporal: Client) -> None:
    told: list[tuple[str, str]] = []
    queue = str(uuid.uuid4())
    async with worker(temporal, queue, [], fails="start_self_hosted_kubelet"):
        handle = await temporal.start_workflow(InitSelfHostedShoot.run, True, id=queue, task_queue=queue)
        telling = asyncio.create_task(tell_progress(handle, lambda step, error: told.append((step, error))))
        try:
            await until(lambda: ("start kubelet", "the cloud does not answer") in told, 30)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await handle.terminate()
