"""Machines of one shoot: create them and wait until they have joined the cluster, or delete them."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.provider_local.operations import ExtensionTask, ProviderLocalActivities
    from workflows.provider_local import options

ROLL = timedelta(hours=12)
"""Longest rollout of a pool: its machines are drained one after another, each up to its drain timeout. Steps without
progress end earlier."""
DELETE = timedelta(minutes=10)


@workflow.defn
class ReconcileWorker:
    """deploy -> wait until machines have joined and are rolled out -> remove machines that the spec does not want.

    Source: spec/extensions.md 3 (Worker).
    """

    @workflow.run
    async def run(self, task: ExtensionTask) -> None:
        _enter(task, "writing machine deployments")
        await workflow.execute_activity_method(
            ProviderLocalActivities.deploy_machines, task, **options.step("Deploy machines")
        )
        _enter(task, "waiting until machines have joined")
        await workflow.execute_activity_method(
            ProviderLocalActivities.wait_machines, task, **options.wait("Wait until machines have joined", ROLL)
        )
        _enter(task, "removing machines that the spec does not want any more")
        await workflow.execute_activity_method(
            ProviderLocalActivities.remove_unwanted_machines,
            task,
            **options.wait("Remove unwanted machines", ROLL),
        )
        _enter(task, "done")


@workflow.defn
class RestoreWorker:
    """write the machine objects of the source seed -> write the MachineDeployments and MachineClasses for them.

    It waits for nothing: the machine-controller-manager starts later, and finds all machines.
    """

    @workflow.run
    async def run(self, task: ExtensionTask) -> None:
        _enter(task, "restoring machine objects")
        await workflow.execute_activity_method(
            ProviderLocalActivities.restore_machines, task, **options.step("Restore machine objects")
        )
        await workflow.execute_activity_method(
            ProviderLocalActivities.deploy_machines, task, **options.step("Deploy machines")
        )
        _enter(task, "done")


@workflow.defn
class DeleteWorker:
    """delete -> wait until the cloud has deleted all machines."""

    @workflow.run
    async def run(self, task: ExtensionTask) -> None:
        _enter(task, "deleting machines")
        await workflow.execute_activity_method(
            ProviderLocalActivities.delete_machines, task, **options.step("Delete machines")
        )
        await workflow.execute_activity_method(
            ProviderLocalActivities.wait_machines_deleted,
            task,
            **options.wait("Wait until machines are gone", DELETE),
        )
        _enter(task, "done")


def _enter(task: ExtensionTask, phase: str) -> None:
    workflow.set_current_details(f"Worker `{task.namespace}/{task.name}`: **{phase}**")
