"""Actuators that run a Temporal workflow: they start it, or find it running, and wait for its end."""

import asyncio
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError
from temporalio.service import RPCError

from activities.errors import transient
from activities.extension import Extension
from activities.provider_local.cloud import Clouds
from activities.provider_local.infrastructure import InfrastructureActuator
from activities.provider_local.operations import ExtensionTask
from activities.provider_local.provider import LocalActuator
from api import constants
from api.errors import ErrorCode
from api.resources import INFRASTRUCTURE, WORKER
from kube.client import KubeClient
from workflows.provider_local import DeleteInfrastructure, DeleteWorker, ReconcileWorker, RestoreWorker
from workflows.provider_local.options import WORKFLOW_TASK, queue


class Operations:
    """Starts provider-local's workflows for one seed."""

    def __init__(self, temporal: Client, seed_name: str) -> None:
        self._temporal = temporal
        self._seed_name = seed_name

    async def run(
        self,
        workflow: type[DeleteInfrastructure] | type[DeleteWorker] | type[ReconcileWorker] | type[RestoreWorker],
        extension: Extension,
        verb: str,
    ) -> None:
        """Run a workflow for an object and wait for its end. If cancelled, cancel the workflow and wait for its end.

        There is one workflow per request: after a restart, the process finds the workflow that it started before.

        Raises ApplicationError: the error of the activity that failed, or that Temporal does not answer.
        """
        try:
            await self._run(workflow, extension, verb)
        except WorkflowFailureError as error:
            raise _root(error) from None
        except RPCError as error:
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"Temporal does not answer: {error.status.name}"
            ) from None

    async def _run(
        self,
        workflow: type[DeleteInfrastructure] | type[DeleteWorker] | type[ReconcileWorker] | type[RestoreWorker],
        extension: Extension,
        verb: str,
    ) -> None:
        metadata = extension.object["metadata"]
        request = (metadata.get("annotations") or {}).get(constants.TIMESTAMP) or metadata["generation"]
        task = ExtensionTask(namespace=extension.namespace, name=extension.name, uid=extension.uid)
        place = f"{extension.resource.kind.lower()}/{extension.namespace}/{extension.name}"
        handle: WorkflowHandle[Any, None] = await self._temporal.start_workflow(
            workflow.run,
            task,
            id=f"provider-local/{self._seed_name}/{place}/{verb}/{request}",
            task_queue=queue(self._seed_name),
            task_timeout=WORKFLOW_TASK,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=f"{verb} {extension}",
        )
        try:
            await handle.result()
        except asyncio.CancelledError:
            await _cancel(handle)
            raise


def _root(error: BaseException) -> ApplicationError:
    """The error that made a workflow fail, without the errors that Temporal wraps around it."""
    while isinstance(error, WorkflowFailureError | ActivityError | ChildWorkflowError) and error.cause:
        error = error.cause
    return error if isinstance(error, ApplicationError) else ApplicationError(str(error) or type(error).__name__)


async def _cancel(handle: WorkflowHandle[Any, None]) -> None:
    """Cancel the workflow and wait for its end: two runs must not work on one object at the same time."""
    try:
        await handle.cancel()
        async with asyncio.timeout(30):
            await handle.result()
    except Exception:
        # The workflow ends as cancelled, or has ended already. While Temporal is down, no other workflow can start.
        return


class WorkerActuator(LocalActuator):
    """Actuator of Worker: the machines of a shoot."""

    resource = WORKER

    def __init__(self, seed: KubeClient, operations: Operations) -> None:
        super().__init__(seed)
        self._operations = operations

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        await self._operations.run(ReconcileWorker, extension, "reconcile")
        return {}

    async def delete(self, extension: Extension) -> None:
        await self._operations.run(DeleteWorker, extension, "delete")

    async def restore(self, extension: Extension) -> dict[str, Any]:
        await self._operations.run(RestoreWorker, extension, "restore")
        return {"state": None}  # the machine objects hold the state again


class InfrastructureOperations(InfrastructureActuator):
    """``InfrastructureActuator`` whose deletion runs in a workflow."""

    resource = INFRASTRUCTURE

    def __init__(self, seed: KubeClient, clouds: Clouds, operations: Operations) -> None:
        super().__init__(seed, clouds)
        self._operations = operations

    async def delete(self, extension: Extension) -> None:
        await self._operations.run(DeleteInfrastructure, extension, "delete")
