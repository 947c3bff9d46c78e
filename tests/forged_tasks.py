"""Tasks that an attacker writes by hand: by the key file that it holds, on the queue of its choice."""

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.command.v1 import Command, ScheduleActivityTaskCommandAttributes
from temporalio.api.common.v1 import ActivityType, Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import CommandType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import ActivitySerializationContext, SerializationContext

from activities.secrets.keyring import read_keyring
from workers.lib.codec import EncryptionCodec, data_converter

_POLL = timedelta(seconds=30)


def of_activity(queue: str, kind: str) -> ActivitySerializationContext:
    """The place of an activity's payloads, as Temporal's SDK tells it to the codec."""
    return ActivitySerializationContext(
        namespace="default",
        activity_id="1",
        activity_type=kind,
        activity_task_queue=queue,
        workflow_id="w",
        workflow_type="Operation",
        is_local=False,
    )


async def sealed(value: Any, key_file: Path, queue: str, context: SerializationContext, claims: str = "") -> Payload:
    """What the holder of the key file of a queue's worker encrypts, and ``claims`` as the payload's destination."""
    codec = EncryptionCodec(read_keyring(key_file), queue).with_context(context)
    [payload] = await codec.encode(await data_converter(None).encode([value]))
    if claims:
        payload.metadata["encryption-destination"] = claims.encode()
    return payload


async def schedule(client: Client, queue: str, kind: str, argument: Payload) -> "WorkflowHandle[Any, Any]":
    """Have a workflow of the attacker schedule an activity on any queue, with any argument; returns that workflow."""
    service, namespace, own = client.workflow_service, client.namespace, f"attacker-{uuid.uuid4()}"
    await service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=namespace,
            workflow_id=own,
            workflow_type=WorkflowType(name="Attack"),
            task_queue=TaskQueue(name=own),
            request_id=own,
        )
    )
    task = await service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=own)), timeout=_POLL
    )
    command = ScheduleActivityTaskCommandAttributes(
        activity_id="1",
        activity_type=ActivityType(name=kind),
        task_queue=TaskQueue(name=queue),
        input=Payloads(payloads=[argument]),
        start_to_close_timeout=Duration(seconds=60),
    )
    await service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            namespace=namespace,
            task_token=task.task_token,
            commands=[
                Command(
                    command_type=CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK,
                    schedule_activity_task_command_attributes=command,
                )
            ],
        )
    )
    return client.get_workflow_handle(own)
