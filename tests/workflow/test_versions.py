"""Two versions of our code next to each other, on the real server: which one ends and which one starts workflows."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import VersioningBehavior
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from api import versioning
from workers.controller_manager.versioning import CONTROLLER_MANAGER, deployment_config
from workers.lib.temporal import VersioningConfig
from workers.promote import PromoteConfig, describe, draining_builds, promote
from workflows.garden import WORKFLOWS
from workflows.shoot.rotate import ROTATIONS

QUEUE = "versions"
PATCH = "check-dns-after-creation"


@pytest.fixture(autouse=True)
def versions_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioning, "enabled", False)


@activity.defn
async def step(name: str) -> str:
    return name


async def run(name: str) -> str:
    return await workflow.execute_activity(step, name, start_to_close_timeout=timedelta(seconds=10))


@workflow.defn(name="Flow")
class FlowV1:
    """Minutes long, pinned by default as our flows are."""

    def __init__(self) -> None:
        self.go_on = False

    @workflow.signal
    def proceed(self) -> None:
        self.go_on = True

    @workflow.run
    async def run(self) -> list[str]:
        first = await run("v1 first")
        await workflow.wait_condition(lambda: self.go_on)
        return [first, await run("v1 second")]


@workflow.defn(name="Flow")
class FlowV2:
    """In another order, without a patch: to replay a flow of version 1 with it would be an error."""

    def __init__(self) -> None:
        self.go_on = False

    @workflow.signal
    def proceed(self) -> None:
        self.go_on = True

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self.go_on)
        return [await run("v2 only")]


@workflow.defn(name="Lifecycle", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class LifecycleV1:
    """Lives for months."""

    def __init__(self) -> None:
        self.events = 0

    @workflow.signal
    def wake(self) -> None:
        self.events += 1

    @workflow.run
    async def run(self) -> list[str]:
        done = []
        for number in (1, 2):
            await workflow.wait_condition(lambda: self.events >= number)
            done.append(await run(f"v1 look {number}"))
        return done


@workflow.defn(name="Lifecycle", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class LifecycleV2(LifecycleV1):
    """One step more, behind a patch: steps of version 1 replay unchanged."""

    @workflow.run
    async def run(self) -> list[str]:
        done = []
        for number in (1, 2):
            await workflow.wait_condition(lambda: self.events >= number)
            if workflow.patched(f"{PATCH}-{number}"):
                done.append(await run(f"v2 check {number}"))
            done.append(await run(f"v1 look {number}"))
        return done


@pytest.fixture
async def server(dev_server: WorkflowEnvironment) -> Client:
    return dev_server.client


@asynccontextmanager
async def version(client: Client, build: str, *workflows: type) -> AsyncIterator[None]:
    """A worker of this build, as the controller-manager makes it."""
    config = VersioningConfig(enabled=True, build_id=build)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=workflows,
        activities=[step],
        deployment_config=deployment_config(config, CONTROLLER_MANAGER),
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield


async def make_current(client: Client, build: str) -> None:
    address = client.service_client.config.target_host
    await promote(PromoteConfig(address=address, deployment=CONTROLLER_MANAGER, build_id=build, wait_seconds=30))


async def test_a_flow_ends_on_the_version_that_it_began_on_and_a_lifecycle_moves(server: Client) -> None:
    async with version(server, "v1", FlowV1, LifecycleV1):
        await make_current(server, "v1")
        flow = await server.start_workflow("Flow", id="flow-1", task_queue=QUEUE)
        lifecycle = await server.start_workflow("Lifecycle", id="life", task_queue=QUEUE, start_signal="wake")
        await until_done(flow, 1)
        await until_done(lifecycle, 1)

        async with version(server, "v2", FlowV2, LifecycleV2):
            await make_current(server, "v2")
            assert draining_builds(await describe(server, CONTROLLER_MANAGER)) in ([], ["v1"])
            newer = await server.start_workflow("Flow", id="flow-2", task_queue=QUEUE, start_signal="proceed")
            assert await newer.result() == ["v2 only"]
            await flow.signal("proceed")
            await lifecycle.signal("wake")
            assert await flow.result() == ["v1 first", "v1 second"], "it was begun by version 1"
            assert await lifecycle.result() == ["v1 look 1", "v2 check 2", "v1 look 2"]


async def until_done(handle, activities: int) -> None:
    """So many activities of the workflow are done."""
    async with asyncio.timeout(30):
        while True:
            history = await handle.fetch_history()
            done = [each for each in history.events if each.HasField("activity_task_completed_event_attributes")]
            if len(done) >= activities:
                return
            await asyncio.sleep(0.1)  # the server informs only clients that poll


async def test_a_version_without_workers_does_not_become_current(server: Client) -> None:
    """New flows would wait for it for ever."""
    address = server.service_client.config.target_host
    nobody = PromoteConfig(address=address, deployment=CONTROLLER_MANAGER, build_id="v9", wait_seconds=1)
    with pytest.raises(TimeoutError, match="no worker of build v9 of gardener-controller-manager"):
        await promote(nobody)


async def test_only_long_lived_workflows_upgrade_while_running() -> None:
    """Workflows that are not listed here are pinned, and may change without a patch once no older flow runs."""
    program = (
        "from api import versioning; versioning.enabled = True\n"
        "from temporalio import workflow\n"
        "from workflows.garden import WORKFLOWS\n"
        "for each in map(workflow._Definition.must_from_class, WORKFLOWS):\n"
        "    if each.versioning_behavior: print(each.name, each.versioning_behavior.name)\n"
    )
    asked = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asked.communicate()
    moving = {"ShootLifecycle", *(each.__name__ for each in ROTATIONS.values())}
    assert set(printed.decode().splitlines()) == {f"{name} AUTO_UPGRADE" for name in moving}


def test_workflows_have_no_versioning_behavior_without_worker_versioning() -> None:
    """Temporal refuses it."""
    assert not any(workflow._Definition.must_from_class(each).versioning_behavior for each in WORKFLOWS)


def test_versioning_is_off_where_one_process_replaces_another() -> None:
    """A landscape that restarts its only worker with other code must not wait for the code before."""
    assert deployment_config(VersioningConfig(), CONTROLLER_MANAGER) is None
