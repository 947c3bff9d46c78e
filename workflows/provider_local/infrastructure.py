"""Delete the namespace of a shoot in the cloud. That takes as long as its last machine takes to stop."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.provider_local.operations import ExtensionTask, ProviderLocalActivities
    from workflows.provider_local import options

DELETE = timedelta(minutes=10)


@workflow.defn
class DeleteInfrastructure:
    """delete the namespace -> wait until it is gone."""

    @workflow.run
    async def run(self, task: ExtensionTask) -> None:
        workflow.set_current_details(f"Infrastructure `{task.namespace}/{task.name}`: **deleting namespace**")
        gone = await workflow.execute_activity_method(
            ProviderLocalActivities.delete_cloud_namespace, task, **options.step("Delete cloud namespace")
        )
        if not gone:
            await workflow.execute_activity_method(
                ProviderLocalActivities.wait_cloud_namespace_deleted,
                task,
                **options.wait("Wait until the cloud namespace is gone", DELETE),
            )
        workflow.set_current_details(f"Infrastructure `{task.namespace}/{task.name}`: **done**")
