"""Force-delete a Shoot: delete its objects in garden and seed; its owner must delete the resources in the cloud.

No task needs the cloud's credentials or the shoot's API server: extensions see the annotation in the Cluster object and
drop their finalizers without deleting resources. Tasks and order: spec/flows.md 4.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.control_plane import ControlPlaneActivities as ControlPlane
    from activities.seed.etcd import EtcdActivities as Etcds
    from activities.seed.extensions import ExtensionActivities as Extensions
    from activities.seed.force_deletion import ForceDeletionActivities as ForceDeletion
    from activities.seed.issuer import IssuerActivities as Issuer
    from activities.seed.namespace import NamespaceActivities as Namespace
    from activities.seed.shoot_state import ShootStateActivities as ShootStates
    from api.contracts.flows import FlowInput, FlowOutcome
    from workflows import options
    from workflows.shoot.base import OperationWorkflow, ShootFlow, shoot_flow


def force_delete_flow(request: FlowInput) -> ShootFlow:
    """The whole flow; read it from top to bottom. Tasks whose objects do not exist end at once."""
    flow, facts = shoot_flow(request), request.facts
    add, wait = flow.add, options.wait
    workerless = facts.workerless and "workerless"

    # Tell extensions by the Cluster object that the Shoot is force-deleted.
    add(Namespace.sync_cluster)
    add(ForceDeletion.delete_extension_objects, after=["sync_cluster"])
    add(ForceDeletion.wait_extension_objects_deleted, completes="delete_extension_objects", **wait(minutes=5))
    add(Extensions.delete_external_dns, after=["sync_cluster"], **wait(minutes=2))
    add(Extensions.delete_internal_dns, after=["sync_cluster"], **wait(minutes=2))

    # Delete the machine-controller-manager, which deletes machines in the cloud; then delete the objects of machines.
    add(ControlPlane.delete_machine_controller_manager, after=["sync_cluster"], unless=workerless)
    add(
        ForceDeletion.wait_machine_controller_manager_deleted,
        after=["delete_machine_controller_manager"],
        unless=workerless,
        **wait(minutes=2),
    )
    add(
        ForceDeletion.force_delete_machine_objects,
        after=["wait_machine_controller_manager_deleted"],
        unless=workerless,
        **wait(minutes=1),
    )

    # Delete ManagedResources without the objects in the shoot: those are lost with its API server.
    add(ForceDeletion.force_delete_managed_resources, after=["wait_extension_objects_deleted"], **wait(minutes=2))
    released = [
        "wait_extension_objects_deleted",
        "delete_external_dns",
        "delete_internal_dns",
        "force_delete_machine_objects",
        "force_delete_managed_resources",
    ]
    add(Namespace.delete_cluster, after=released)

    # Delete the remaining objects, which are our own.
    add(Etcds.delete_etcds, after=["delete_cluster"])
    add(Etcds.wait_etcds_deleted, after=["delete_etcds"], **wait(minutes=5))
    add(Extensions.delete_backup_entry, after=["wait_etcds_deleted"])
    add(Extensions.wait_backup_entry_deleted, completes="delete_backup_entry", **wait(minutes=10))
    add(Extensions.delete_source_backup_entry, after=["wait_etcds_deleted"])
    add(Extensions.wait_source_backup_entry_deleted, completes="delete_source_backup_entry", **wait(minutes=10))
    add(Issuer.delete_public_sa_keys, after=["delete_cluster"])
    add(
        ForceDeletion.force_delete_configmaps_and_secrets,
        after=["wait_etcds_deleted", "wait_backup_entry_deleted", "wait_source_backup_entry_deleted"],
    )
    add(Namespace.delete_namespace, after=["force_delete_configmaps_and_secrets"])
    add(Namespace.wait_namespace_deleted, after=["delete_namespace"], **wait(minutes=15))
    add(ShootStates.delete_shootstate, after=["delete_namespace"])
    return flow


@workflow.defn
class ForceDeleteShoot(OperationWorkflow):
    """One attempt to force-delete. Workflow id: ``<lifecycle id>/force-delete/<generation>-<n>``."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        self.graph: ShootFlow = force_delete_flow(request)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        self.report(request.task)
        return await self.graph.run()
