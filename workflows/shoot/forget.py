"""Clean up a stale control plane: its Shoot was taken over by another seed while this seed was lost.

The cluster runs in the other seed, and this flow must not touch it: machines in the cloud, DNS records and backups
belong to the other seed. So the flow needs the API server of this seed alone. Extensions release their resources as in
a migration, and the objects of machines are deleted without the machines. The last tasks delete the takeover marker in
the bucket, together with the backups there, which the other seed has copied. The marker must stay until then: it keeps
the etcd of this seed from serving. Source: spec/flows.md 8.

If the Shoot was deleted meanwhile, it has no other seed, and this seed deletes its backups itself.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.control_plane import ControlPlaneActivities as ControlPlane
    from activities.seed.etcd import EtcdActivities as Etcds
    from activities.seed.extensions import ExtensionActivities as Extensions
    from activities.seed.force_deletion import ForceDeletionActivities as ForceDeletion
    from activities.seed.migration import MigrationActivities as Migration
    from activities.seed.namespace import NamespaceActivities as Namespace
    from api.contracts.flows import FlowInput, FlowOutcome
    from api.contracts.operations import OperationType, ShootRef, lifecycle_id, seed_queue
    from workflows import options
    from workflows.flow import Call
    from workflows.shoot import release
    from workflows.shoot.base import OperationWorkflow, ShootFlow, shoot_flow

_KINDS = (
    release.WORKER,
    release.NETWORK,
    release.OS_CONFIGS,
    release.CONTAINER_RUNTIMES,
    release.EXTENSIONS,
    release.CONTROL_PLANE,
    release.INFRASTRUCTURE,
)


def forget_id(shoot: ShootRef, seed: str) -> str:
    """Workflow id of the cleanup in one seed."""
    return f"{lifecycle_id(shoot)}/forget/{seed}"


def forget_flow(request: FlowInput) -> ShootFlow:
    """The whole flow; read it from top to bottom. Tasks whose objects do not exist do nothing."""
    flow = shoot_flow(request)
    add, wait = flow.add, options.wait
    deleted = not request.task.destination and "the Shoot is deleted"
    runs_elsewhere = request.task.destination and "another seed has the cluster"
    no_mark = not request.source_entry and "the garden has no BackupEntry of this seed's backups"

    # Stop everything that could still act: machine-controller-manager and API server first.
    add(ControlPlane.delete_machine_controller_manager)
    add(
        ForceDeletion.wait_machine_controller_manager_deleted,
        after=["delete_machine_controller_manager"],
        **wait(minutes=5),
    )
    add(ControlPlane.delete_apiserver)
    add(ControlPlane.wait_apiserver_deleted, after=["delete_apiserver"], **wait(minutes=5))
    add(ControlPlane.delete_apiserver_sni, after=["wait_apiserver_deleted"])
    add(Migration.delete_vpn_server, after=["wait_apiserver_deleted"])
    add(ControlPlane.delete_resource_manager, after=["wait_apiserver_deleted"])

    # Release the resources in the cloud, in the DNS and in the shoot. ManagedResources come first: extensions wait for
    # the deletion of theirs, and without resource manager no component deletes the objects in the shoot any more.
    add(Migration.shallow_delete_machine_objects, after=["wait_machine_controller_manager_deleted"])
    add(ForceDeletion.force_delete_managed_resources, after=["delete_resource_manager"], **wait(minutes=2))
    let_go = ["shallow_delete_machine_objects", "force_delete_managed_resources"]
    for kind in _KINDS:
        asked = add(kind.migrate, after=["wait_machine_controller_manager_deleted", "force_delete_managed_resources"])
        migrated = add(kind.wait_migrated, completes=asked, **wait(minutes=10))
        deleting = add(kind.delete, after=[migrated, "shallow_delete_machine_objects"])
        let_go.append(add(kind.wait_deleted, completes=deleting, **wait(minutes=10)))
    add(Extensions.migrate_internal_dns)
    add(Extensions.wait_internal_dns_migrated, completes="migrate_internal_dns", **wait(minutes=10))
    add(Extensions.delete_internal_dns, after=["wait_internal_dns_migrated"], **wait(minutes=2))
    add(Extensions.migrate_external_dns)
    add(Extensions.wait_external_dns_migrated, completes="migrate_external_dns", **wait(minutes=10))
    add(Extensions.delete_external_dns, after=["wait_external_dns_migrated"], **wait(minutes=2))
    let_go += ["delete_internal_dns", "delete_external_dns"]
    add(Extensions.migrate_backup_entry, after=["wait_apiserver_deleted"], unless=deleted, **wait(minutes=10))

    # Delete the remaining objects, which are our own.
    add(Namespace.delete_cluster, after=[*let_go, "migrate_backup_entry", "delete_apiserver_sni", "delete_vpn_server"])
    add(Etcds.delete_etcds, after=["delete_cluster"])
    add(Etcds.wait_etcds_deleted, after=["delete_etcds"], **wait(minutes=5))
    add(ForceDeletion.force_delete_configmaps_and_secrets, after=["wait_etcds_deleted"])
    add(Namespace.delete_namespace, after=["force_delete_configmaps_and_secrets"])
    add(Namespace.wait_namespace_deleted, after=["delete_namespace"], **wait(minutes=15))

    # Delete the takeover marker: this seed has no etcd any more that could serve without it.
    there = request.task.model_copy(
        update={"seed": request.task.destination, "operation": OperationType.RECONCILE, "destination": ""}
    )
    ordering, waiting = options.seed_call(), wait(minutes=10)
    ordering["task_queue"] = waiting["task_queue"] = seed_queue(there.seed)
    add(
        Call(Extensions.delete_source_backup_entry, lambda: there),
        after=["wait_namespace_deleted"],
        unless=deleted or no_mark,
        **ordering,
    )
    add(
        Call(Extensions.wait_source_backup_entry_deleted, lambda: there),
        completes="delete_source_backup_entry",
        unless=deleted or no_mark,
        **waiting,
    )
    add(Extensions.delete_backup_entry, after=["wait_namespace_deleted"], unless=runs_elsewhere)
    add(
        Extensions.wait_backup_entry_deleted, completes="delete_backup_entry", unless=runs_elsewhere, **wait(minutes=10)
    )
    return flow


@workflow.defn
class ForgetShoot(OperationWorkflow):
    """Started by the controller-manager (``watchers.remains``), when the seed's gardenlet requests it.

    Workflow id: ``<lifecycle id>/forget/<seed>``.

    It is an operation of the seed, not of the Shoot, so it does not appear in the Shoot's status.
    """

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        self.graph: ShootFlow = forget_flow(request)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.graph.run()
