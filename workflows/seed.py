"""Make a seed ready to host control planes: custom resources, gateway with its DNS records, backup bucket."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from activities.seed.bootstrap import SeedActivities
    from activities.seed.system import SeedSystemActivities
    from api.contracts.operations import SeedTask, TaskResult, seed_queue


def seed_workflow_id(task: SeedTask) -> str:
    """Id of the workflows that reconcile one generation of a Seed, one after the other."""
    return f"seed/{task.name}/{task.uid}/{task.generation}"


@workflow.defn
class ReconcileSeed:
    """Started by the controller-manager (``watchers.seeds``); its tasks are retried until they succeed.

    The gardenlet of the seed runs the tasks. While it does not run, they wait in the task queue of the seed.
    """

    @workflow.run
    async def run(self, task: SeedTask) -> None:
        # In an earlier version the gardenlet started this workflow, and wrote the status itself.
        reports = workflow.patched("seed-reports-itself")
        if reports:
            await self._step(SeedActivities.report_seed_processing, task, "Report that the seed is being reconciled")
        workflow.set_current_details(f"Seed `{task.name}`: custom resources, gateway with its names, and backup bucket")
        await self._step(SeedActivities.deploy_seed_crds, task, "Apply kinds")
        if workflow.patched("resource-manager-of-seed"):
            await self._step(SeedSystemActivities.deploy_seed_priority_classes, task, "Deploy priority classes")
            await self._step(SeedSystemActivities.deploy_seed_resource_manager, task, "Deploy resource manager")
        await asyncio.gather(
            self._gateway(task),
            self._step(SeedActivities.deploy_backup_bucket, task, "Deploy backup bucket"),
            *self._reservations(task),
        )
        if reports:
            await self._step(SeedActivities.report_seed_ready, task, "Report that the seed is ready")
        workflow.set_current_details(f"Seed `{task.name}` is ready")

    def _reservations(self, task: SeedTask) -> list[Awaitable[None]]:
        if not workflow.patched("excess-capacity-of-seed"):
            return []
        return [self._step(SeedSystemActivities.deploy_seed_excess_capacity, task, "Reserve excess capacity")]

    async def _gateway(self, task: SeedTask) -> None:
        await self._step(SeedActivities.deploy_seed_gateway, task, "Deploy gateway")
        if workflow.patched("ingress-dns-of-seed"):
            await self._step(SeedActivities.deploy_seed_ingress_dns, task, "Point ingress domain to gateway")

    async def _step(self, step: Callable[[Any, SeedTask], Awaitable[TaskResult]], task: SeedTask, summary: str) -> None:
        await workflow.execute_activity_method(
            step,
            task,
            task_queue=seed_queue(task.name),
            summary=summary,
            start_to_close_timeout=timedelta(minutes=15),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        )
