"""A Shoot's status while a flow runs, against a real Temporal server with encrypted histories."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio import activity
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

import activities.garden.flows as garden_flows
from activities.secrets.keyring import read_keyring, write_key_file
from api import resources
from api.contracts.flows import ShootRules
from api.contracts.operations import GARDEN_QUEUE, ShootRef, ShootTask, TaskResult, lifecycle_id, seed_queue
from kube.cache import Caches
from kube.client import KubeClient
from tests.workflow.garden import FakeGarden, shoot, surroundings
from workers.codec_server import application
from workers.lib.access import User
from workers.lib.codec import ReadingCodec, data_converter
from workers.lib.heartbeats import Heartbeats
from workers.lib.registry import garden_activities
from workflows import visibility
from workflows.garden import WORKFLOWS
from workflows.shoot.lifecycle import LifecycleInput, ShootLifecycle

SHOOT = ShootRef(namespace="garden-local", name="demo", uid="0f3c")
TEMPORAL = Path(sys.executable).parent / "temporal"


@dataclass
class Landscape:
    client: Client
    garden: FakeGarden
    failing: dict[str, ApplicationError] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))

    @activity.defn(dynamic=True)
    async def anything(self, args: Sequence[RawValue]) -> TaskResult:
        name = activity.info().activity_type
        if gate := self.gates.get(name):
            await gate.wait()
        if error := self.failing.get(name):
            raise error
        return TaskResult(secrets=("ca-0123",), note="SENTINEL-NOTE" if name == "init_secrets" else "")

    @activity.defn
    async def survey(self, task: ShootTask) -> dict[str, bool]:
        return {"namespace": True, "cluster": True, "controlPlane": True, "controllerManager": True}

    def seed_worker(self) -> Worker:
        return Worker(
            self.client,
            task_queue=seed_queue("seed-1"),
            activities=[self.anything, self.survey],
            interceptors=[Heartbeats()],
        )

    async def wake(self) -> "WorkflowHandle[ShootLifecycle, None]":
        return await self.client.start_workflow(
            ShootLifecycle.run,
            LifecycleInput(shoot=SHOOT),
            id=lifecycle_id(SHOOT),
            task_queue=GARDEN_QUEUE,
            start_signal="wake",
            search_attributes=visibility.of_shoot(SHOOT),
        )

    async def status(self, **wanted: Any) -> dict[str, Any]:
        """The Shoot's status once lastOperation has these values."""
        async with asyncio.timeout(60):
            while True:
                live = await self.garden.find(resources.SHOOT, "demo", "garden-local")
                status: dict[str, Any] = (live or {}).get("status", {})
                operation = status.get("lastOperation", {})
                if all(value in str(operation.get(key)) for key, value in wanted.items()):
                    return status
                await asyncio.sleep(0.1)

    async def delete(self, handle: "WorkflowHandle[ShootLifecycle, None]") -> None:
        """Like ``kubectl delete``, and the watcher's signal after it."""
        live = await self.garden.get(resources.SHOOT, "demo", "garden-local")
        live["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "generation": 2}
        self.garden.put(live)
        await handle.signal("wake")

    async def operations(self) -> list[WorkflowExecution]:
        """Operations of this test's Shoot, the oldest first; those of tests before have ended before it began."""
        query = f'GardenerOperation != "" AND StartTime > "{self.begun.isoformat()}"'
        found = [each async for each in self.client.list_workflows(query)]
        return sorted(found, key=lambda each: each.start_time)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL), search_attributes=visibility.ALL, dev_server_log_level="error"
    ) as environment:
        yield environment


@pytest_asyncio.fixture(loop_scope="module")
async def landscape(
    server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Landscape]:
    monkeypatch.setattr(garden_flows, "_LOOK_SECONDS", 0.2)
    write_key_file(tmp_path / "key")
    target = server.client.service_client.config.target_host
    client = await Client.connect(target, data_converter=data_converter(tmp_path / "key"))
    garden = FakeGarden(shoot(), *surroundings())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            Worker(
                client,
                task_queue=GARDEN_QUEUE,
                workflows=WORKFLOWS,
                activities=garden_activities(cast(KubeClient, garden), cast(Caches, None), ShootRules()),
                interceptors=[Heartbeats()],
            )
        )
        here = Landscape(client, garden)
        yield here
        # A list may be late: the lifecycle, whose name the next test's has, too, is ended without.
        running = [each.id async for each in client.list_workflows('ExecutionStatus = "Running"')]
        for left in {lifecycle_id(SHOOT), *running}:
            with contextlib.suppress(RPCError):  # it ended by itself
                await client.get_workflow_handle(left).terminate("end of test")


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_creation_ends_in_succeeded_with_all_of_its_fields(landscape: Landscape) -> None:
    async with landscape.seed_worker():
        await landscape.wake()
        status = await landscape.status(state="Succeeded")

    assert status["technicalID"] == "shoot--local--demo"
    assert status["uid"] == SHOOT.uid
    assert status["seedName"] == "seed-1"
    assert status["observedGeneration"] == 1
    assert status["lastOperation"]["progress"] == 100
    assert "retryCycleStartTime" not in status
    assert [reason for reason, _ in landscape.garden.events()] == ["Reconciling", "Reconciled"]
    live = await landscape.garden.get(resources.SHOOT, "demo", "garden-local")
    assert live["metadata"]["finalizers"] == ["gardener"]


async def test_running_tasks_and_retried_errors_are_shown_while_the_flow_runs(landscape: Landscape) -> None:
    landscape.gates["wait_etcds"] = asyncio.Event()
    landscape.failing["wait_infrastructure"] = ApplicationError(
        "the cloud has no machines left", type="ERR_INFRA_RESOURCES_DEPLETED"
    )
    async with landscape.seed_worker():
        await landscape.wake()
        status = await landscape.status(state="Processing", description="Wait for infrastructure (attempt")

        assert "Wait for etcds" in status["lastOperation"]["description"]
        assert 0 < status["lastOperation"]["progress"] < 100
        [error] = status["lastErrors"]
        assert error["taskID"] == "wait_infrastructure"
        assert error["codes"] == ["ERR_INFRA_RESOURCES_DEPLETED"]
        assert "no machines left" in error["description"]

        landscape.failing.clear()
        landscape.gates["wait_etcds"].set()
        status = await landscape.status(state="Succeeded")
        assert "lastErrors" not in status


async def test_a_permanent_error_ends_in_failed_with_its_code(landscape: Landscape) -> None:
    landscape.failing["deploy_etcds"] = ApplicationError(
        "the bucket's credentials are wrong", type="ERR_INFRA_UNAUTHENTICATED", non_retryable=True
    )
    async with landscape.seed_worker():
        await landscape.wake()
        status = await landscape.status(state="Failed")

    assert [error["taskID"] for error in status["lastErrors"]] == ["deploy_etcds"]
    assert landscape.garden.events()[-1] == ("ReconcileError", "deploy_etcds: the bucket's credentials are wrong")


async def test_a_seed_without_a_gardenlet_is_named(landscape: Landscape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garden_flows, "_UNANSWERED", timedelta(seconds=1))
    await landscape.wake()
    status = await landscape.status(description="no worker takes tasks from queue seed-seed-1")
    assert status["lastOperation"]["state"] == "Processing"
    async with landscape.seed_worker():
        await landscape.status(state="Succeeded")


async def test_nothing_readable_stands_in_a_history(landscape: Landscape) -> None:
    landscape.failing["deploy_coredns"] = ApplicationError("SENTINEL-ERROR", type="X", non_retryable=True)
    async with landscape.seed_worker():
        await landscape.wake()
        await landscape.status(state="Error")
    seen = b""
    async for each in landscape.client.list_workflows():
        history = await landscape.client.get_workflow_handle(each.id, run_id=each.run_id).fetch_history()
        seen += b"".join(event.SerializeToString() for event in history.events)

    assert b"deploy_coredns" in seen
    assert b"SENTINEL" not in seen
    assert b"shoot--local--demo" not in seen


async def test_a_deleted_shoot_goes_away_and_its_lifecycle_ends(landscape: Landscape) -> None:
    async with landscape.seed_worker():
        handle = await landscape.wake()
        await landscape.status(state="Succeeded")
        await landscape.delete(handle)
        await landscape.client.get_workflow_handle(lifecycle_id(SHOOT)).result()

    assert await landscape.garden.find(resources.SHOOT, "demo", "garden-local") is None
    assert landscape.garden.events()[-1][0] == "Deleted"


async def test_a_deletion_ends_a_creation_that_retries_an_error(landscape: Landscape) -> None:
    landscape.failing["wait_infrastructure"] = ApplicationError("the cloud is full", type="NotReady")
    async with landscape.seed_worker():
        handle = await landscape.wake()
        await landscape.status(description="Wait for infrastructure (attempt")
        await landscape.delete(handle)
        await handle.result()

    operations = await landscape.operations()
    assert [(each.workflow_type, each.status) for each in operations] == [
        ("ReconcileShoot", WorkflowExecutionStatus.CANCELED),
        ("DeleteShoot", WorkflowExecutionStatus.COMPLETED),
    ]


async def test_two_operations_never_meet_even_if_a_lifecycle_is_terminated(landscape: Landscape) -> None:
    landscape.gates["wait_etcds"] = asyncio.Event()
    async with landscape.seed_worker():
        handle = await landscape.wake()
        await landscape.status(description="Wait for etcds")
        await handle.terminate("an operator made a mistake")
        landscape.gates.clear()
        await landscape.wake()
        await landscape.status(state="Succeeded")

    first, second = await landscape.operations()
    assert first.status == WorkflowExecutionStatus.CANCELED
    assert first.close_time is not None
    assert first.close_time <= second.start_time


class Readers:
    """Lets the holder of one token read histories."""

    async def user(self, request: web.Request) -> User | None:
        return User("reader") if request.headers.get("Authorization") == "Bearer a-token" else None

    async def may_read(self, user: User) -> bool:
        return True


async def test_the_cli_reads_a_flow_through_a_codec_endpoint_without_a_key(
    landscape: Landscape, server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command shows the endpoint the credentials of the user's kubeconfig for the garden."""
    kubeconfig = tmp_path / "garden.yaml"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "garden",
                "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "me"}}],
                "clusters": [{"name": "garden", "cluster": {"server": "https://127.0.0.1:6443"}}],
                "users": [{"name": "me", "user": {"token": "a-token"}}],
            }
        )
    )
    monkeypatch.setenv("GARDEN_KUBECONFIG", str(kubeconfig))
    landscape.failing["deploy_etcds"] = ApplicationError(
        "the bucket's credentials are wrong", type="ERR_INFRA_UNAUTHENTICATED", non_retryable=True
    )
    async with landscape.seed_worker():
        await landscape.wake()
        await landscape.status(state="Failed")

    codec = ReadingCodec(read_keyring(tmp_path / "key"))
    async with TestServer(application(codec, Readers(), ())) as endpoint:
        where = [
            f"--temporal-address={server.client.service_client.config.target_host}",
            f"--codec-endpoint={endpoint.make_url('/')}",
        ]
        shown = await gardener("flow", "show", "garden-local/demo", "--output=json", *where)
        listed = await gardener("flow", "list", "garden-local/demo", "--output=json", *where)
        text = await gardener("flow", "show", "garden-local/demo", *where)

    tasks = {task["name"]: task for task in json.loads(shown)["tasks"]}
    assert tasks["deploy_etcds"]["state"] == "Failed"
    assert tasks["deploy_etcds"]["error"] == "the bucket's credentials are wrong"
    assert tasks["wait_etcds"]["state"] == "Blocked"
    assert json.loads(listed)[0]["state"] == "Failed"
    assert "✘ deploy_etcds" in text


async def gardener(*arguments: str) -> str:
    command = Path(sys.executable).parent / "gardener"
    process = await asyncio.create_subprocess_exec(
        command, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()
