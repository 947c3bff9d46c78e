"""A worker is killed, and the next process tells Temporal which activities ended with it.

The heartbeat timeout of these activities is an hour: if a test ends, their heartbeats did not cause it.
"""

import asyncio
import contextlib
import shutil
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.secrets.keyring import write_key_file
from api.contracts.operations import GARDEN_QUEUE
from tests.unit.kube.waiting import until
from tests.workflow.journaled_worker import QUEUE, Steps
from workers.lib.codec import data_converter
from workers.lib.journal import Entry, Journal

pytestmark = pytest.mark.timeout(300)
HOUR = timedelta(hours=1)
SECONDS = 120.0


@workflow.defn
class OneStep:
    @workflow.run
    async def run(self, deadly: bool) -> list[Any]:
        return await workflow.execute_activity_method(
            Steps.step,
            deadly,
            activity_id="step",
            task_queue=QUEUE,
            start_to_close_timeout=HOUR,
            heartbeat_timeout=HOUR,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


@dataclass
class Scene:
    client: Client
    argv: tuple[str, ...]
    directory: Path
    handle: WorkflowHandle[OneStep, list[Any]]
    processes: list[Process] = field(default_factory=list)

    async def start_process(self) -> Process:
        process = await asyncio.create_subprocess_exec(*self.argv)
        self.processes.append(process)
        return process

    async def begun(self, attempt: int) -> None:
        async def there() -> bool:
            await asyncio.sleep(0.05)  # the clock of a poll
            return (self.directory / f"attempt-{attempt}").exists()

        await until(there, SECONDS)

    async def events(self, type_: "EventType.ValueType") -> list[Any]:
        return [each async for each in self.handle.fetch_history_events() if each.event_type == type_]


@contextlib.asynccontextmanager
async def scene(address: str, directory: Path, *, deadly: bool) -> AsyncIterator[Scene]:
    """A workflow whose step waits for a process that serves it."""
    key = directory / "key"
    write_key_file(key)
    client = await Client.connect(address, data_converter=data_converter(key))
    argv = (sys.executable, "-m", "tests.workflow.journaled_worker", address, str(key), str(directory))
    async with Worker(
        client, task_queue=GARDEN_QUEUE, workflows=[OneStep], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        handle = await client.start_workflow(OneStep.run, deadly, id=f"step/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        made = Scene(client, argv, directory, handle)
        try:
            yield made
        finally:
            for each in made.processes:
                with contextlib.suppress(ProcessLookupError):
                    each.kill()
                await each.wait()
            with contextlib.suppress(Exception):
                await handle.terminate()


async def test_an_activity_continues_when_the_next_process_runs(temporal_address: str, tmp_path: Path) -> None:
    """The next attempt has the position of the lost one, and the loss is recorded as such."""
    async with scene(temporal_address, tmp_path, deadly=True) as world:
        killed = await world.start_process()
        await killed.wait()
        assert len(list((tmp_path / "journal").iterdir())) == 2, "the lock, and the activity"
        (tmp_path / "go").touch()
        await world.start_process()

        assert await world.handle.result() == [2, ["half done"]]
        [started] = await world.events(EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)

    failure = started.activity_task_started_event_attributes.last_failure
    assert failure.application_failure_info.type == "WorkerLost"
    assert "lost" not in failure.message, "it is encrypted for the garden's queue and the seed's"


async def test_an_activity_that_has_ended_is_not_in_the_journal(temporal_address: str, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    async with scene(temporal_address, tmp_path, deadly=False) as world:
        await world.start_process()
        assert await world.handle.result() == [1, []]
        assert [each.name for each in (tmp_path / "journal").iterdir()] == ["lock"]


async def test_a_late_report_does_not_end_the_attempt_that_runs(temporal_address: str, tmp_path: Path) -> None:
    """Else an activity would run twice at the same time."""
    async with scene(temporal_address, tmp_path, deadly=True) as world:
        killed = await world.start_process()
        await killed.wait()
        shutil.copytree(tmp_path / "journal", tmp_path / "copy")
        await world.start_process()
        await world.begun(2)

        late = Journal.open(tmp_path / "copy")
        assert late is not None
        assert [each.attempt for each in late.inherited.values()] == [1]
        await late.report(world.client)
        (tmp_path / "go").touch()

        assert (await world.handle.result())[0] == 2
        assert not (tmp_path / "attempt-3").exists()


async def test_an_activity_that_was_to_be_canceled_ends_as_canceled(temporal_address: str, tmp_path: Path) -> None:
    """A canceled operation must not show a task as failed because a process was killed."""
    async with scene(temporal_address, tmp_path, deadly=False) as world:
        first = await world.start_process()
        await world.begun(1)
        await world.handle.cancel()

        async def requested() -> bool:
            await asyncio.sleep(0.05)  # the clock of a poll
            return bool(await world.events(EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED))

        await until(requested, SECONDS)
        first.kill()
        await first.wait()
        await world.start_process()

        with pytest.raises(WorkflowFailureError) as ended:
            await world.handle.result()
        assert isinstance(ended.value.cause, CancelledError)
        assert len(await world.events(EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED)) == 1
        assert not (tmp_path / "attempt-2").exists()


# Without Temporal

ENTRY = Entry(token="dG9rZW4=", id="deploy_etcd", type="deploy_etcd", queue="seed-a", workflow_id="w", attempt=1)


def test_a_journal_belongs_to_one_live_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A process must not report the activities of another one that still runs them."""
    owner = Journal.open(tmp_path)
    assert owner is not None
    (tmp_path / "1").write_text(ENTRY.model_dump_json())
    assert Journal.open(tmp_path) is None
    assert "belongs to a running process" in caplog.text
    assert (tmp_path / "1").exists()
    owner.lock.close()

    successor = Journal.open(tmp_path)
    assert successor is not None
    assert list(successor.inherited.values()) == [ENTRY]
    successor.lock.close()


def test_an_incomplete_entry_is_removed(tmp_path: Path) -> None:
    """The process was killed while it wrote the file, so the activity had not begun."""
    (tmp_path / "1").write_text(ENTRY.model_dump_json()[:20])
    journal = Journal.open(tmp_path)
    assert journal is not None
    assert journal.inherited == {}
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]
    journal.lock.close()


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 0.1), (2, 0.2), (6, 3.2), (9, 25.6), (10, 30), (100_000, 30)])
def test_attempts_that_die_again_and_again_come_ever_slower(attempt: int, seconds: float) -> None:
    """An activity that kills its process each time must leave others time to end."""
    assert ENTRY.model_copy(update={"attempt": attempt}).pause == timedelta(seconds=seconds)
