"""All methods of Temporal's API, and requests for them that are aimed at a victim."""

import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from temporalio.api.operatorservice.v1 import service_pb2 as operator_service
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_service
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

CALL = timedelta(seconds=3)
OPEN = {"GetSystemInfo", "DescribeNamespace"}
"""Methods that name neither a queue nor a workflow; each worker calls them when it starts."""


async def status_of(call: Callable[..., Any], request: Message) -> RPCStatusCode | None:
    """Status of Temporal's refusal; None: it executed the request."""
    try:
        await call(request, timeout=CALL)
    except RPCError as error:
        return error.status
    return None


async def refused(call: Callable[..., Any], request: Message) -> bool:
    return await status_of(call, request) is RPCStatusCode.PERMISSION_DENIED


async def check_refused(*attempts: Awaitable[Any]) -> None:
    """Temporal refuses each of these calls because its caller lacks the permission."""
    for attempt in attempts:
        with pytest.raises(RPCError) as error:
            await attempt
        assert error.value.status is RPCStatusCode.PERMISSION_DENIED


def methods() -> Iterator[tuple[str, str, Any]]:
    """Service, name and descriptor of each method that Temporal's SDK knows."""
    for attribute, module, name in (
        ("workflow_service", workflow_service, "WorkflowService"),
        ("operator_service", operator_service, "OperatorService"),
    ):
        for method in module.DESCRIPTOR.services_by_name[name].methods:
            yield attribute, method.name, method


def call_of(client: Client, service: str, method: str) -> Callable[..., Any]:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method).lower()
    return getattr(getattr(client, service), name)


def aimed(message: Message, victim: WorkflowHandle[Any, Any], queue: str, token: bytes, depth: int = 0) -> Message:
    """Name a victim's queue, workflow and task in each field of the message that can."""
    texts = {
        "namespace": "default",
        "task_queue": queue,
        "sticky_task_queue": queue,
        "workflow_id": victim.id,
        "run_id": victim.first_execution_run_id or "",
        "activity_id": "1",
    }
    for field in message.DESCRIPTOR.fields:
        if field.name == "task_token":
            message.task_token = token  # type: ignore[attr-defined]
        elif field.type == FieldDescriptor.TYPE_STRING and field.name in texts and not field.is_repeated:
            setattr(message, field.name, texts[field.name])
        elif field.message_type is None or field.message_type.GetOptions().map_entry or depth > 2:
            continue
        elif field.message_type.full_name == TaskQueue.DESCRIPTOR.full_name and not field.is_repeated:
            getattr(message, field.name).CopyFrom(TaskQueue(name=queue))
        elif field.message_type.full_name.startswith("temporal.api."):
            inner = getattr(message, field.name)
            inner = inner.add() if field.is_repeated else inner
            aimed(inner, victim, queue, token, depth + 1)
    return message


async def not_refused(
    attacker: Client, victim: WorkflowHandle[Any, Any], queue: str, token: bytes
) -> dict[str, RPCStatusCode | None]:
    """Aim each method at the victim; those that Temporal did not refuse, with what it answered."""
    answered: dict[str, RPCStatusCode | None] = {}
    for service, name, method in methods():
        request = aimed(method.input_type._concrete_class(), victim, queue, token)
        status = await status_of(call_of(attacker, service, name), request)
        if status is not RPCStatusCode.PERMISSION_DENIED:
            answered[name] = status
    return answered


def plain_token(namespace_id: str, victim: WorkflowHandle[Any, Any], scheduled_event_id: int) -> bytes:
    """A task's token as upstream encodes it: namespace, workflow, run, event."""
    texts = namespace_id, victim.id, victim.run_id or victim.first_execution_run_id or ""
    fields = b"".join(bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in enumerate(texts, 1))
    return fields + bytes([4 << 3, scheduled_event_id])
