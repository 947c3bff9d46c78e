"""The audit log: one JSON line for each operation, with its user, its times and its result.

A line is written after the operation's end has been recorded. If the worker dies in between, the line is written again:
lines with the same ``id`` are about the same attempt.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from api import constants, resources
from api.contracts.flows import FinishOperation, FlowProgress
from api.contracts.operations import OperationType
from kube.client import KubeClient
from kube.errors import ApiError

log = logging.getLogger(__name__)


class AuditLog(Interceptor):
    """Interceptor for the worker that records operations: ``Worker(interceptors=[AuditLog(path, garden), ...])``."""

    def __init__(self, path: Path, garden: KubeClient) -> None:
        self._path = path
        self._garden = garden

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self)

    async def ended(self, request: FinishOperation, temporal: Client) -> None:
        """Append the record. Data that cannot be read is left out; a file that cannot be written is an error."""
        shoot = request.task.shoot
        try:
            live = await self._garden.find(resources.SHOOT, shoot.name, shoot.namespace) or {}
        except ApiError:
            live = {}
        progress: FlowProgress | None = None
        try:
            flow = temporal.get_workflow_handle(request.workflow_id)
            progress = await flow.query("progress", result_type=FlowProgress)
        except RPCError as error:
            log.warning("tasks of %s for the audit log: %s", request.workflow_id, error.status.name)
        line = json.dumps(record(request, live, progress, datetime.now(UTC)), ensure_ascii=False)
        await asyncio.to_thread(_append, self._path, line)


def _append(path: Path, line: str) -> None:
    # One write of one line: several processes may share the file.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def record(
    request: FinishOperation, shoot: Mapping[str, Any], progress: FlowProgress | None, now: datetime
) -> dict[str, Any]:
    """The line's content."""
    task = request.task
    return {
        "id": request.workflow_id,
        "time": now.isoformat(timespec="milliseconds"),
        "user": _user(task.operation, (shoot.get("metadata") or {}).get("annotations") or {}),
        "operation": str(task.operation),
        "shoot": {"namespace": task.shoot.namespace, "name": task.shoot.name, "uid": task.shoot.uid},
        "seed": task.seed,
        "generation": task.generation,
        "attempt": request.attempt,
        "started": task.trigger,
        "result": request.state,
        "description": request.description,
        "errors": [{"task": each.name, "message": each.message, "codes": list(each.codes)} for each in request.failed],
        "tasks": [
            {
                "name": each.name,
                "state": str(each.state),
                "started": each.started.isoformat() if each.started else None,
                "ended": each.ended.isoformat() if each.ended else None,
            }
            for each in (progress.tasks if progress else ())
        ],
    }


def _user(operation: OperationType, annotations: Mapping[str, str]) -> str:
    """Name of the user who requested the operation, as admission has recorded it; empty if no user did."""
    if operation is OperationType.DELETE:
        return annotations.get(constants.DELETION_CONFIRMED_BY, "")
    return annotations.get(constants.CHANGED_BY) or annotations.get(constants.CREATED_BY, "")


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, audit: AuditLog) -> None:
        super().__init__(next)
        self._audit = audit

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        result = await super().execute_activity(input)
        request = input.args[0] if input.args else None
        if isinstance(request, FinishOperation):
            await self._audit.ended(request, activity.client())
        return result
