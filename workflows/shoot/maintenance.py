"""Maintain a Shoot: one step, started by the Temporal Schedule of its window, or at once by an annotation."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.garden.maintenance import MaintenanceActivities
    from api.contracts.operations import TaskResult
    from api.contracts.schedules import ScheduledShoot, ScheduledTime
    from workflows import options


@workflow.defn
class MaintainShoot:
    """Workflow id: ``maintenance/<namespace>/<name>/<uid>/window-<time or now>``."""

    @workflow.run
    async def run(self, request: ScheduledShoot) -> TaskResult:
        result = await workflow.execute_activity_method(
            MaintenanceActivities.maintain_shoot,
            ScheduledTime(shoot=request.shoot, now=workflow.now()),
            **options.garden_call(f"Maintain {request.shoot}"),
        )
        workflow.set_current_details(f"Shoot `{request.shoot}`: {result.note}")
        return result
