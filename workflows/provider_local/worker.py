"""Machines of one shoot: make them and wait until they have joined, or delete them."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.provider_local.operations import ExtensionTask, ProviderLocalActivities
    from workflows.provider_local import options

ROLL = timedelta(hours=12)
"""Machines of a pool leave one by one, each in up to its drain timeout; steps that make no progress end sooner."""
DELETE = timedelta(minutes=10)


@workflow.defn
class ReconcileWorker:
    """deploy -> wait until joined and rolled -> remove what the spec no longer asks for.

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
        _enter(task, "removing what is not wanted any more")
        await workflow.execute_activity_method(
            ProviderLocalActivities.remove_unwanted_machines,
            task,
            **options.wait("Remove unwanted machines", ROLL),
        )
        _enter(task, "done")


@workflow.defn
class RestoreWorker:
    """write the machine objects of another seed -> write what belongs to them.

    Whoever looks after machines comes later, and finds them all: nothing is waited for here.
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
    """delete -> wait until the cloud has let all machines go."""

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
