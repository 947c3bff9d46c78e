"""Force-delete a Shoot: delete its objects in garden and seed; its owner must delete the resources in the cloud.

No task needs the cloud's credentials or the shoot's API server: extensions see the annotation in the Cluster object and
drop their finalizers without deleting resources. Tasks and order: spec/flows.md 4.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from api.contracts.flows import FlowInput, FlowOutcome
    from workflows import options
    from workflows.flow import Flow
    from workflows.shoot.base import OperationWorkflow, shoot_flow


def force_delete_flow(request: FlowInput) -> Flow:
    """The whole flow; read it from top to bottom. Tasks whose objects do not exist end at once."""
    flow, facts = shoot_flow(request), request.facts
    add, wait = flow.add, options.wait
    workerless = facts.workerless and "workerless"

    # Tell extensions by the Cluster object that the Shoot is force-deleted.
    add("sync_cluster")
    add("delete_extension_objects", after=["sync_cluster"])
    add("wait_extension_objects_deleted", after=["delete_extension_objects"], completes="delete_extension_objects",
        **wait(minutes=5))  # fmt: skip
    add("delete_external_dns", after=["sync_cluster"], **wait(minutes=2))
    add("delete_internal_dns", after=["sync_cluster"], **wait(minutes=2))

    # Delete the machine-controller-manager, which deletes machines in the cloud; then delete the objects of machines.
    add("delete_machine_controller_manager", after=["sync_cluster"], unless=workerless)
    add("wait_machine_controller_manager_deleted", after=["delete_machine_controller_manager"], unless=workerless,
        **wait(minutes=2))  # fmt: skip
    add("force_delete_machine_objects", after=["wait_machine_controller_manager_deleted"], unless=workerless,
        **wait(minutes=1))  # fmt: skip

    # Delete ManagedResources without the objects in the shoot: those are lost with its API server.
    add("force_delete_managed_resources", after=["wait_extension_objects_deleted"], **wait(minutes=2))
    released = ["wait_extension_objects_deleted", "delete_external_dns", "delete_internal_dns",
                "force_delete_machine_objects", "force_delete_managed_resources"]  # fmt: skip
    add("delete_cluster", after=released)

    # Delete the remaining objects, which are our own.
    add("delete_etcds", after=["delete_cluster"])
    add("wait_etcds_deleted", after=["delete_etcds"], **wait(minutes=5))
    add("delete_backup_entry", after=["wait_etcds_deleted"])
    add("wait_backup_entry_deleted", after=["delete_backup_entry"], completes="delete_backup_entry",
        **wait(minutes=10))  # fmt: skip
    add("delete_source_backup_entry", after=["wait_etcds_deleted"])
    add("wait_source_backup_entry_deleted", after=["delete_source_backup_entry"],
        completes="delete_source_backup_entry", **wait(minutes=10))  # fmt: skip
    add("delete_public_sa_keys", after=["delete_cluster"])
    add("force_delete_configmaps_and_secrets",
        after=["wait_etcds_deleted", "wait_backup_entry_deleted", "wait_source_backup_entry_deleted"])  # fmt: skip
    add("delete_namespace", after=["force_delete_configmaps_and_secrets"])
    add("wait_namespace_deleted", after=["delete_namespace"], **wait(minutes=15))
    add("delete_shootstate", after=["delete_namespace"])
    return flow


@workflow.defn
class ForceDeleteShoot(OperationWorkflow):
    """One attempt to force-delete. Workflow id: ``<lifecycle id>/force-delete/<generation>-<n>``."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        self.graph: Flow = force_delete_flow(request)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        self.report(request.task)
        return await self.graph.run()
