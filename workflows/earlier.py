"""Workflows of earlier versions, which start no more: their code stays until no run of them is left."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from activities.seed.bootstrap import SeedActivities
    from api.contracts.operations import SeedTask, TaskResult, seed_queue


@workflow.defn
class ReconcileSeed:
    """Made a seed ready, before ``workflows.seed.BootstrapSeed`` did; its tasks are retried until they succeed.

    Its activities refuse to work for a Seed that is being deleted, so that it ends before ``DeleteSeed`` deletes
    anything.
    """

    @workflow.run
    async def run(self, task: SeedTask) -> None:
        # In an earlier version the gardenlet started this workflow, and wrote the status itself.
        reports = workflow.patched("seed-reports-itself")
        if reports:
            await self._step(SeedActivities.report_seed_processing, task, "Report that the seed is being reconciled")
        workflow.set_current_details(f"Seed `{task.name}`: custom resources, gateway with its names, and backup bucket")
        await self._step(SeedActivities.deploy_seed_crds, task, "Apply kinds")
        await asyncio.gather(
            self._gateway(task),
            self._step(SeedActivities.deploy_backup_bucket, task, "Deploy backup bucket"),
        )
        if reports:
            await self._step(SeedActivities.report_seed_ready, task, "Report that the seed is ready")
        workflow.set_current_details(f"Seed `{task.name}` is ready")

    async def _gateway(self, task: SeedTask) -> None:
        await self._step(SeedActivities.deploy_seed_gateway, task, "Deploy gateway")
        if workflow.patched("ingress-dns-of-seed"):
            await self._step(SeedActivities.deploy_seed_ingress_dns, task, "Point ingress domain to gateway")

    async def _step(
        self, step: Callable[[SeedActivities, SeedTask], Awaitable[TaskResult]], task: SeedTask, summary: str
    ) -> None:
        await workflow.execute_activity_method(
            step,
            task,
            task_queue=seed_queue(task.name),
            summary=summary,
            start_to_close_timeout=timedelta(minutes=15),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        )
