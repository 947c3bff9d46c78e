"""Journal of the activities that a process runs, for the process that is started after it.

Temporal notices the death of a worker by missing heartbeats, 7 to 10 s later (``workflows.options.HEARTBEAT``). A
process that is started again on the same machine knows earlier that its predecessor is dead. It reads the predecessor's
journal, and tells Temporal which activities ended with it. Temporal then starts the next attempts. If a machine or a
disk is lost, heartbeats remain.

A journal is a directory of a local disk with one file for each running activity, which holds the activity's task token.
A token names one attempt, so a late report of an attempt that has ended changes nothing. The file ``lock`` is locked
while the process lives. The kernel releases the lock when the last thread of the process has ended, also after SIGKILL.
So a process that gets the lock knows that its predecessor sends no request any more.
"""

import asyncio
import base64
import contextlib
import fcntl
import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from temporalio import activity
from temporalio.client import Client
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.errors import WORKER_LOST
from api.model import ApiModel

log = logging.getLogger(__name__)

_LOCK = "lock"
_CALL_SECONDS = 5.0
"""Time limit of one report. An activity that cannot be reported waits for its heartbeat timeout."""
_CALLS = 50
"""Maximum number of concurrent reports."""
_FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before the next attempt. The pause doubles with each attempt: an activity that kills its process each time,
for example because it needs too much memory, must leave other activities time to end."""


class Entry(ApiModel):
    """File of one running activity."""

    token: str
    """Task token in base64."""
    id: str
    type: str
    queue: str
    workflow_id: str
    attempt: int

    @property
    def pause(self) -> timedelta:
        """Time until the next attempt."""
        return timedelta(seconds=min(_FIRST_PAUSE * 2 ** min(self.attempt - 1, 16), LONGEST_PAUSE))


@dataclass(frozen=True)
class Journal(Interceptor):
    """Interceptor that notes running activities: ``Worker(interceptors=[journal, ...])``, as the first of the list."""

    directory: Path
    lock: TextIO
    """Open as long as the process lives."""
    inherited: Mapping[Path, Entry]
    """Activities that a killed process was running, by their files."""

    @classmethod
    def open(cls, directory: Path) -> "Journal | None":
        """Lock the journal in this directory; None if another process holds it.

        Raises OSError if the directory cannot be written.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            log.warning(
                "journal %s belongs to a running process: if this process is killed, its activities continue only after"
                " their heartbeat timeout. Give each process a directory of its own",
                directory,
            )
            return None
        return cls(directory, lock, dict(_entries(directory)))

    async def report(self, temporal: Client) -> None:
        """Tell Temporal which activities ended with the previous process. Call it before the worker runs.

        A report that Temporal does not accept is logged and not repeated.
        """
        limit = asyncio.Semaphore(_CALLS)

        async def one(file: Path, entry: Entry) -> None:
            async with limit:
                await _report(temporal, entry)
            _remove(file)

        await asyncio.gather(*(one(*each) for each in self.inherited.items()))

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self.directory)


async def open_journal(directory: Path | None, temporal: Client) -> list[Interceptor]:
    """Report activities that ended with the previous process, and return the interceptor that notes those of this one.

    Call it before the worker runs. Without a directory, or if another process holds the journal: no interceptor.
    """
    journal = Journal.open(directory) if directory is not None else None
    if journal is None:
        return []
    await journal.report(temporal)
    return [journal]


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, directory: Path) -> None:
        super().__init__(next)
        self._directory = directory

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        entry = Entry(
            token=base64.b64encode(info.task_token).decode(),
            id=info.activity_id,
            type=info.activity_type,
            queue=info.task_queue,
            workflow_id=info.workflow_id or "",
            attempt=info.attempt,
        )
        file = self._directory / uuid.uuid4().hex
        with contextlib.suppress(OSError):  # a full disk must not stop activities
            file.write_text(entry.model_dump_json(by_alias=True))
        try:
            return await super().execute_activity(input)
        finally:
            _remove(file)


def _entries(directory: Path) -> Iterator[tuple[Path, Entry]]:
    """Complete entries. An incomplete one is removed: its process was killed before the activity began."""
    for file in directory.iterdir():
        if file.name == _LOCK:
            continue
        try:
            yield file, Entry.model_validate_json(file.read_bytes())
        except ValueError:
            _remove(file)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):  # the next process reports it once more, which changes nothing
        file.unlink()


async def _report(temporal: Client, entry: Entry) -> None:
    name = f"attempt {entry.attempt} of {entry.type} in {entry.workflow_id}"
    try:
        await _end(temporal, entry)
        log.info("%s ended with the previous process", name)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            log.warning(
                "reporting that %s ended with the previous process: Temporal answered %s; the task continues after its"
                " heartbeat timeout",
                name,
                error.status.name,
            )


async def _end(temporal: Client, entry: Entry) -> None:
    """End one attempt: as canceled if the cancellation was requested, else as failed."""
    context = ActivitySerializationContext(
        namespace=temporal.namespace,
        activity_id=entry.id,
        activity_type=entry.type,
        activity_task_queue=entry.queue,
        workflow_id=entry.workflow_id,
        workflow_type=None,
        is_local=False,
    )
    handle = temporal.get_async_activity_handle(task_token=base64.b64decode(entry.token)).with_context(context)
    limit = timedelta(seconds=_CALL_SECONDS)
    try:
        await handle.report_cancellation(rpc_timeout=limit)
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
    else:
        return
    lost = ApplicationError("its worker was lost", type=WORKER_LOST, next_retry_delay=entry.pause)
    await handle.fail(lost, rpc_timeout=limit)
