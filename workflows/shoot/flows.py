"""The flows of a Shoot, one definition each: lifecycle, workers, CLI, documentation and tests read this table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from api.contracts.flows import FlowInput, FlowOutcome, Survey
    from workflows.shoot.base import ShootFlow
    from workflows.shoot.decision import FlowKind
    from workflows.shoot.delete import DeleteShoot, delete_flow
    from workflows.shoot.delete_backups import DeleteBackups, delete_backups_flow
    from workflows.shoot.force_delete import ForceDeleteShoot, force_delete_flow
    from workflows.shoot.forget import ForgetShoot, forget_flow
    from workflows.shoot.migrate import MigrateShoot, migrate_flow
    from workflows.shoot.reconcile import ReconcileShoot, reconcile_flow

ALL_EXISTS = Survey(
    namespace=True, cluster=True, control_plane=True, controller_manager=True, api_server=True, backups=True
)
"""Survey of a seed that has everything: with it a flow has all its tasks."""


class FlowWorkflow(Protocol):
    async def run(self, request: FlowInput, /) -> FlowOutcome: ...


@dataclass(frozen=True)
class FlowDefinition:
    """A flow: its workflow, and its graph with or without a survey of the seed."""

    title: str
    """Heading of its page in ``docs/flows``."""
    workflow: type[FlowWorkflow]
    graph: Callable[[FlowInput], ShootFlow] | None = None
    surveyed: Callable[[FlowInput, Survey], ShootFlow] | None = None
    """The graph, if its tasks depend on the objects that exist in the seed."""

    def build(self, request: FlowInput, survey: Survey = ALL_EXISTS) -> ShootFlow:
        """Build the graph."""
        if self.surveyed is not None:
            return self.surveyed(request, survey)
        if self.graph is None:
            raise TypeError(f"flow {self.title!r} has no graph")
        return self.graph(request)


FLOWS: dict[FlowKind, FlowDefinition] = {
    FlowKind.RECONCILE: FlowDefinition("Create or reconcile a Shoot", ReconcileShoot, reconcile_flow),
    FlowKind.RESTORE: FlowDefinition(
        "Restore a Shoot's control plane from another seed", ReconcileShoot, reconcile_flow
    ),
    FlowKind.MIGRATE: FlowDefinition(
        "Migrate a Shoot's control plane to another seed", MigrateShoot, surveyed=migrate_flow
    ),
    FlowKind.DELETE: FlowDefinition("Delete a Shoot", DeleteShoot, surveyed=delete_flow),
    FlowKind.FORCE_DELETE: FlowDefinition("Force-delete a Shoot", ForceDeleteShoot, force_delete_flow),
    FlowKind.FORGET: FlowDefinition(
        "Clean up a control plane that another seed has taken over", ForgetShoot, forget_flow
    ),
    FlowKind.DELETE_BACKUPS: FlowDefinition(
        "Delete the backups of a deleted Shoot", DeleteBackups, delete_backups_flow
    ),
}
