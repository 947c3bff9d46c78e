"""Make a seed ready to host control planes: kinds, gateway, backup bucket."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from activities.seed.bootstrap import SeedActivities
    from api.operations import SeedTask, seed_queue


def seed_workflow_id(task: SeedTask) -> str:
    """One workflow per generation and start of a gardenlet."""
    return f"seed/{task.name}/{task.uid}/{task.generation}"


@workflow.defn
class ReconcileSeed:
    """Started by the gardenlet of the seed; retried until it succeeds or a newer generation replaces it."""

    @workflow.run
    async def run(self, task: SeedTask) -> None:
        options = workflow.ActivityConfig(
            task_queue=seed_queue(task.name),
            start_to_close_timeout=timedelta(minutes=15),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        )
        workflow.set_current_details(f"Seed `{task.name}`: custom resources, gateway and backup bucket")
        await workflow.execute_activity_method(SeedActivities.deploy_seed_crds, task, summary="Apply kinds", **options)
        await asyncio.gather(
            workflow.execute_activity_method(
                SeedActivities.deploy_seed_gateway, task, summary="Deploy gateway", **options
            ),
            workflow.execute_activity_method(
                SeedActivities.deploy_backup_bucket, task, summary="Deploy backup bucket", **options
            ),
        )
        workflow.set_current_details(f"Seed `{task.name}` is ready")
