"""Delete the backups of a deleted Shoot at the end of their grace period."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.extensions import ExtensionActivities as Extensions
    from api.contracts.flows import FlowInput, FlowOutcome
    from api.contracts.operations import ShootRef, lifecycle_id
    from workflows import options
    from workflows.shoot.base import OperationWorkflow, ShootFlow, shoot_flow


def delete_backups_id(shoot: ShootRef) -> str:
    """Workflow id."""
    return f"{lifecycle_id(shoot)}/delete-backups"


def delete_backups_flow(request: FlowInput) -> ShootFlow:
    """Deletes the BackupEntry that the deletion of the Shoot has left."""
    flow = shoot_flow(request)
    flow.add(Extensions.delete_backup_entry)
    flow.add(Extensions.wait_backup_entry_deleted, completes="delete_backup_entry", **options.wait(minutes=10))
    return flow


@workflow.defn
class DeleteBackups(OperationWorkflow):
    """Started by the controller-manager (``watchers.kept_backups``), when the seed's gardenlet requests it.

    Workflow id: ``<lifecycle id>/delete-backups``.
    """

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        self.graph: ShootFlow = delete_backups_flow(request)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.graph.run()
