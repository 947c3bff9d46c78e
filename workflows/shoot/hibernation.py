"""Hibernate or wake up a Shoot by its schedules: one step, started by a Temporal Schedule.

The activity reads the Shoot and decides from it whether a switch is due. So a late, repeated or outdated start does no
harm.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.garden.hibernation import SwitchActivities
    from api.contracts.operations import TaskResult
    from api.contracts.schedules import ScheduledShoot, ScheduledTime
    from workflows import options


@workflow.defn
class SwitchHibernation:
    """Workflow id: ``hibernation/<namespace>/<name>/<uid>/<edge>-<time>``."""

    @workflow.run
    async def run(self, request: ScheduledShoot) -> TaskResult:
        result = await workflow.execute_activity_method(
            SwitchActivities.switch_hibernation,
            ScheduledTime(shoot=request.shoot, now=workflow.now()),
            **options.garden_call(f"Switch hibernation of {request.shoot}"),
        )
        workflow.set_current_details(f"Shoot `{request.shoot}`: {result.note}")
        return result
