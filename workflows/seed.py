"""Flows of a Seed: make the seed ready to host control planes, and remove everything from it again.

The controller-manager starts them (``workers.controller_manager.watchers.seeds``). The gardenlet of the seed runs the
tasks that touch the seed; while it does not run, they wait in the task queue of the seed. Tasks that touch only the
garden run in the controller-manager.
"""

from collections.abc import Callable
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.garden.flows import FlowActivities
    from activities.garden.seeds import GardenSeedActivities as Garden
    from activities.seed.bootstrap import SeedActivities as Seeds
    from activities.seed.seed_extensions import SeedExtensionActivities as Extensions
    from activities.seed.system import SeedSystemActivities as System
    from activities.seed.teardown import SeedTeardownActivities as Teardown
    from api.contracts.flows import FlowOutcome, ReportSeedProgress, SeedFailure, SeedFlowInput
    from api.contracts.operations import SeedTask, seed_queue
    from workflows import options
    from workflows.flow import EVERYTHING, Flow, failed_outcome
    from workflows.shoot.base import OperationWorkflow

SeedFlow = Flow[SeedTask]


def seed_workflow_id(task: SeedTask) -> str:
    """Id of all operations of a Seed: Temporal runs one workflow of an id at a time, so two never overlap."""
    return f"seed/{task.name}/{task.uid}"


def _flow(request: SeedFlowInput) -> SeedFlow:
    """An empty flow for one Seed; by default its tasks run in the task queue of the seed."""
    task = request.task
    return Flow(
        str(task.operation), task, queue=seed_queue(task.name), options=options.seed_call(), attempt=request.attempt
    )


def bootstrap_seed_flow(request: SeedFlowInput) -> SeedFlow:
    """The whole flow; read it from top to bottom."""
    flow = _flow(request)
    add, wait, garden = flow.add, options.wait, options.garden_call

    # Namespace of the seed in the garden, and the seed's kinds.
    add(Garden.deploy_seed_namespace, **garden("Deploy the seed's namespace in the garden"))
    add(Seeds.report_seed_processing)
    add(Seeds.deploy_seed_crds, after=["report_seed_processing"], **wait(minutes=5))

    # Components in the seed.
    add(System.deploy_seed_priority_classes, after=["deploy_seed_crds"])
    add(System.deploy_seed_resource_manager, after=["deploy_seed_priority_classes"], **wait(minutes=6))
    add(System.deploy_seed_excess_capacity, after=["deploy_seed_priority_classes"])
    add(Seeds.deploy_seed_gateway, after=["deploy_seed_resource_manager"], **wait(minutes=15))
    add(Seeds.deploy_seed_ingress_dns, after=["deploy_seed_gateway"], **wait(minutes=15))

    # Extensions of the seed itself.
    add(Extensions.deploy_seed_extensions, after=["deploy_seed_resource_manager"], **wait(minutes=15))

    # Backups.
    add(Seeds.deploy_backup_bucket, after=["deploy_seed_resource_manager"], **wait(minutes=15))

    # Report that the seed is ready.
    add(Seeds.report_seed_ready, after=EVERYTHING)
    return flow


def delete_seed_flow(request: SeedFlowInput) -> SeedFlow:
    """The whole flow; read it from top to bottom. Tasks whose objects do not exist end at once."""
    flow = _flow(request)
    add, wait, garden = flow.add, options.wait, options.garden_call

    # Wait until nothing uses the seed.
    add(Garden.wait_seed_unused, **garden("Wait until nothing uses the seed"))

    # Delete what extensions have made for the seed, while their controllers run.
    add(Teardown.delete_seed_extensions, after=["wait_seed_unused"], **wait(minutes=15))
    add(Teardown.delete_seed_ingress_dns, after=["delete_seed_extensions"], **wait(minutes=15))
    add(
        Garden.delete_garden_backup_bucket,
        after=["delete_seed_extensions"],
        **options.garden_wait("Delete the BackupBucket", minutes=15),
    )
    add(Teardown.delete_seed_backup_bucket, after=["delete_garden_backup_bucket"], **wait(minutes=15))

    # Delete the extensions.
    add(
        Garden.delete_controller_installations,
        after=["delete_seed_ingress_dns", "delete_seed_backup_bucket"],
        **options.garden_wait("Delete the ControllerInstallations", minutes=15),
    )

    # Delete components in the seed.
    add(Teardown.delete_seed_gateway, after=["delete_controller_installations"], **wait(minutes=15))
    add(Teardown.delete_seed_secrets, after=["delete_controller_installations"])
    add(System.delete_seed_resource_manager, after=["delete_seed_gateway"], **wait(minutes=6))
    add(System.delete_seed_excess_capacity, after=["wait_seed_unused"])
    add(System.delete_seed_priority_classes, after=["delete_seed_resource_manager", "delete_seed_excess_capacity"])

    # Delete kinds and policies, after all their objects.
    add(Teardown.delete_seed_crds, after=EVERYTHING, **wait(minutes=5))

    # Delete the seed's objects in the garden.
    add(
        Garden.delete_seed_namespace,
        after=["delete_seed_crds"],
        **options.garden_wait("Delete the seed's namespace in the garden", minutes=5),
    )
    add(
        Garden.release_seed,
        after=["delete_seed_namespace"],
        **options.garden_wait("Remove the Seed's finalizer", minutes=2),
    )
    return flow


class SeedOperation(OperationWorkflow):
    """Base of the operations of a Seed."""

    graph: SeedFlow

    async def execute(self, request: SeedFlowInput) -> FlowOutcome:
        """Record the start in the Seed, run the flow, and record its failure; the last task records its success."""
        task = request.task.model_copy(update={"trigger": request.attempt.trigger})
        await workflow.execute_activity_method(
            Garden.start_seed_operation, task, **options.garden_call(f"Start {task.operation}")
        )
        workflow.start_activity_method(
            FlowActivities.report_seed_progress,
            ReportSeedProgress(task=task),
            **options.report("Report progress in the Seed's status"),
        )
        try:
            return await self.graph.run()
        except ApplicationError as error:
            failed = (failed_outcome(error) or FlowOutcome()).failed
            await workflow.execute_activity_method(
                Garden.record_seed_failure,
                SeedFailure(task=task, attempt=request.attempt.number, failed=failed),
                **options.garden_call(f"{task.operation}: Error"),
            )
            raise


@workflow.defn
class BootstrapSeed(SeedOperation):
    """One attempt to make a seed ready. Workflow id: ``seed/<name>/<uid>``."""

    @workflow.init
    def __init__(self, request: SeedFlowInput) -> None:
        self.graph = bootstrap_seed_flow(request)

    @workflow.run
    async def run(self, request: SeedFlowInput) -> FlowOutcome:
        return await self.execute(request)


@workflow.defn
class DeleteSeed(SeedOperation):
    """One attempt to remove everything from a seed. Workflow id: ``seed/<name>/<uid>``."""

    @workflow.init
    def __init__(self, request: SeedFlowInput) -> None:
        self.graph = delete_seed_flow(request)

    @workflow.run
    async def run(self, request: SeedFlowInput) -> FlowOutcome:
        return await self.execute(request)


@dataclass(frozen=True)
class SeedFlowDefinition:
    """A flow of a Seed: its workflow, and its graph."""

    title: str
    """Heading of its page in ``docs/flows``."""
    workflow: type[SeedOperation]
    graph: Callable[[SeedFlowInput], SeedFlow]


SEED_FLOWS = {
    "bootstrap-seed": SeedFlowDefinition("Create or reconcile a Seed", BootstrapSeed, bootstrap_seed_flow),
    "delete-seed": SeedFlowDefinition("Delete a Seed", DeleteSeed, delete_seed_flow),
}
"""The flows of a Seed by the names of their pages: workers, CLI, documentation and tests read this table."""
