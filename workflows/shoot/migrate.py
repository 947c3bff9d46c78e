"""Migrate a Shoot: delete its control plane in the source seed; its machines and their workloads keep running.

The destination gets the rest: secrets, machines and extension states from the ShootState, etcd's data from the bucket.
Extensions release their resources, and nothing is deleted outside the source. Tasks and order: spec/flows.md 5.

The destination prepares the new control plane during the migration, so that users miss their API server for seconds
only. Before the source's API server stops, the destination's etcd has restored the backups of the source's bucket, and
replicates each new delta snapshot. It is read-only until it has the final snapshot. The destination's API server starts
meanwhile; the gateway routes no traffic to it yet. The restoration that follows finds etcd and API server running, and
deploys the other components.
"""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from api.contracts.flows import FlowInput, FlowOutcome, Survey
    from api.contracts.operations import ForwardTask, OperationType, seed_queue
    from workflows import options
    from workflows.flow import EVERYTHING, Flow
    from workflows.shoot.base import OperationWorkflow, add_reseal, shoot_flow


def migrate_flow(request: FlowInput, survey: Survey) -> Flow:
    """The whole flow; read it from top to bottom."""
    flow, facts = shoot_flow(request), request.facts
    add, wait = flow.add, options.wait
    workerless = facts.workerless and "workerless"
    asleep, awake = facts.hibernated and "hibernated", not facts.hibernated and "awake"
    no_namespace = not survey.namespace and "no namespace"
    no_api_server = no_namespace or (not survey.api_server and "no API server")
    handed_over = no_namespace or (not survey.backups and "the backups are handed over")
    no_etcd = no_namespace or (not survey.api_server and not survey.backups and "no API server and no backups")
    no_machines = no_namespace or workerless

    # Bring up to date the components that the migration itself needs.
    add("sync_cluster", unless=no_namespace)
    add("deploy_namespace", after=["sync_cluster"], unless=no_namespace)
    add("init_secrets", after=["deploy_namespace"], unless=no_namespace)
    add("deploy_etcds", after=["init_secrets"], unless=no_etcd)
    add("wait_etcds", after=["deploy_etcds"], completes="deploy_etcds", unless=no_etcd, **wait(minutes=5))
    # Wake up a hibernated control plane, without its machines: the resource manager needs the API server to release the
    # objects in the shoot.
    add("deploy_apiserver", after=["wait_etcds"], unless=no_api_server or awake)
    add("wait_apiserver", after=["deploy_apiserver"], unless=no_api_server or awake, **wait(minutes=5))
    add("deploy_resource_manager", after=["wait_apiserver"], unless=no_api_server)
    add("wait_resource_manager", after=["deploy_resource_manager"], unless=no_api_server, **wait(minutes=5))

    # Release the objects in the shoot, then the machines.
    add("keep_managed_objects", after=["wait_resource_manager"], unless=no_api_server)
    add("delete_managed_resources", after=["keep_managed_objects"], unless=no_namespace)
    add("wait_managed_resources_deleted", after=["delete_managed_resources"], unless=no_namespace,
        **wait(minutes=10))  # fmt: skip
    # Stop the cluster autoscaler first, so that the number of machines stays the one that the ShootState holds.
    add("delete_autoscaler", after=["keep_managed_objects"], unless=no_machines, **wait(minutes=2))
    add("delete_machine_controller_manager", after=["wait_managed_resources_deleted", "delete_autoscaler"],
        unless=no_machines)  # fmt: skip
    add("wait_machine_controller_manager_deleted", after=["delete_machine_controller_manager"], unless=no_machines,
        **wait(minutes=5))  # fmt: skip
    early = ("network", "os_configs", "worker", *(["container_runtimes"] if facts.container_runtimes else []))
    for kind in early:
        add(f"migrate_{kind}", after=["wait_machine_controller_manager_deleted"], unless=no_machines)
        add(f"wait_{kind}_migrated", after=[f"migrate_{kind}"], completes=f"migrate_{kind}", unless=no_machines,
            **wait(minutes=10))  # fmt: skip
    before = "extensions_before_apiserver"
    add(f"migrate_{before}", after=["wait_managed_resources_deleted"], unless=no_namespace)
    add(f"wait_{before}_migrated", after=[f"migrate_{before}"], completes=f"migrate_{before}", unless=no_namespace,
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    # A migration that starts again adds to the ShootState, which may already be encrypted for the destination.
    if request.sources:
        add_reseal(flow, request, request.task.seed, "reseal_shoot_state", unless=no_namespace)
    persisted = [f"wait_{kind}_migrated" for kind in (*early, before)]
    add("persist_shootstate", after=[*persisted, *(["reseal_shoot_state"] if request.sources else [])],
        unless=no_namespace)  # fmt: skip
    readable = "persist_shootstate"
    if request.sources:
        readable = "reseal_shoot_state_there"
        add_reseal(flow, request, request.task.destination, readable, after=["persist_shootstate"], unless=no_namespace)

    # Prepare the destination: everything that needs neither the final snapshot nor the DNS records. Skip etcd and API
    # server of a hibernated Shoot: it stays hibernated, and its etcd starts from the copied backups when it wakes up.
    preparation_unneeded = handed_over or asleep
    there = request.task.model_copy(update={"seed": request.task.destination, "operation": OperationType.RESTORE})

    def add_there(name: str, minutes: float = 0, **declared: Any) -> None:
        chosen = wait(minutes=minutes) if minutes else options.seed_call()
        chosen["task_queue"] = seed_queue(there.seed)
        declared["after"] = [*declared["after"], readable]
        if completes := declared.get("completes"):
            declared["completes"] = f"{completes}_there"
        add(f"{name}_there", activity=name, argument=lambda: there, **declared, **chosen)

    add_there("sync_cluster", after=[], unless=handed_over)
    add_there("wait_required_extensions", minutes=2, after=["sync_cluster_there"], unless=handed_over)
    add_there("deploy_namespace", after=["wait_required_extensions_there"], unless=handed_over)
    add_there("deploy_source_backup_entry", after=["deploy_namespace_there"], unless=handed_over)
    add_there("wait_source_backup_entry", minutes=10, after=["deploy_source_backup_entry_there"],
              completes="deploy_source_backup_entry", unless=handed_over)  # fmt: skip
    add_there("deploy_cloud_secret", after=["deploy_namespace_there"], unless=workerless or handed_over)
    add_there("deploy_references", after=["deploy_namespace_there"], unless=handed_over)
    add_there("init_secrets", after=["deploy_namespace_there"], unless=handed_over)
    add_there("deploy_api_service", after=["init_secrets_there"], unless=preparation_unneeded)
    add_there("wait_api_service", minutes=10, after=["deploy_api_service_there"], unless=preparation_unneeded)
    add_there("deploy_backup_entry", after=["deploy_namespace_there"], unless=handed_over)
    add_there("wait_backup_entry", minutes=10, after=["deploy_backup_entry_there"], completes="deploy_backup_entry",
              unless=handed_over)  # fmt: skip
    add_there("deploy_etcds", unless=preparation_unneeded,
              after=["init_secrets_there", "wait_source_backup_entry_there", "wait_backup_entry_there"])  # fmt: skip
    add_there("wait_etcd_following", minutes=5, after=["deploy_etcds_there"], unless=preparation_unneeded)
    prepared = ["wait_etcd_following_there", "deploy_cloud_secret_there", "deploy_references_there",
                "wait_api_service_there"]  # fmt: skip

    # The ShootState is complete: delete the objects in the source that it holds.
    for kind in early:
        add(f"delete_{kind}", after=["persist_shootstate"], unless=no_machines)
        add(f"wait_{kind}_deleted", after=[f"delete_{kind}"], completes=f"delete_{kind}", unless=no_machines,
            **wait(minutes=3))  # fmt: skip
    add("shallow_delete_machine_objects", after=["persist_shootstate"], unless=no_machines)
    add(f"delete_{before}", after=["persist_shootstate"], unless=no_namespace)
    add(f"wait_{before}_deleted", after=[f"delete_{before}"], completes=f"delete_{before}", unless=no_namespace,
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    gone = [*(f"wait_{kind}_deleted" for kind in (*early, before)), "shallow_delete_machine_objects"]
    add("migrate_control_plane_extension", after=gone, unless=no_machines)
    add("wait_control_plane_extension_migrated", after=["migrate_control_plane_extension"],
        completes="migrate_control_plane_extension", unless=no_machines, **wait(minutes=3))  # fmt: skip
    add("delete_control_plane_extension", after=["wait_control_plane_extension_migrated"], unless=no_machines)
    add("wait_control_plane_extension_deleted", after=["delete_control_plane_extension"],
        completes="delete_control_plane_extension", unless=no_machines, **wait(minutes=3))  # fmt: skip
    add("wait_shoot_managed_resources_deleted",
        after=["wait_managed_resources_deleted", "wait_control_plane_extension_deleted", f"wait_{before}_deleted"],
        unless=no_namespace,
        **wait(minutes=10))  # fmt: skip

    # Release the DNS records: they stay unchanged in the DNS until the destination takes them over.
    records = ["internal_dns", "external_dns"]
    for record in records:
        add(f"migrate_{record}", after=["persist_shootstate"], unless=no_namespace)
        add(f"wait_{record}_migrated", after=[f"migrate_{record}"], completes=f"migrate_{record}",
            unless=no_namespace, **wait(minutes=10))  # fmt: skip
        add(f"delete_{record}", after=[f"wait_{record}_migrated"], unless=no_namespace, **wait(minutes=2))
    let_go = [f"delete_{record}" for record in records]

    # Start the new API server before the old one stops. Start it late: it waits for a short time only until its etcd
    # accepts writes.
    prepared += ["wait_shoot_managed_resources_deleted", "wait_etcds", *let_go]
    add_there("deploy_apiserver", after=prepared, unless=preparation_unneeded)
    add_there("wait_apiserver_reading", minutes=0.5, after=["deploy_apiserver_there"], unless=preparation_unneeded)

    # Stop the API server, then take the final snapshot, which no write can follow. From here on the move cannot be
    # aborted.
    add("flush_etcd", after=[*prepared, "wait_apiserver_reading_there"], unless=no_api_server or handed_over)
    add("delete_apiserver", after=["flush_etcd"], unless=no_namespace)
    add("wait_apiserver_deleted", after=["delete_apiserver"], unless=no_namespace, **wait(minutes=5))
    # Forward clients that still use the old DNS answer to the destination.
    add("forward_apiserver_sni", after=["wait_apiserver_deleted"], unless=no_namespace or preparation_unneeded,
        argument=lambda: ForwardTask(
            task=request.task, address=flow.result_note("wait_api_service_there")))  # fmt: skip
    add("delete_apiserver_sni", after=["forward_apiserver_sni"], unless=no_namespace)
    add("snapshot_etcd", after=["wait_apiserver_deleted"], unless=handed_over, **options.seed_call(minutes=6))

    # Change the DNS records early: the destination's gateway routes these names only after `deploy_apiserver_sni`, once
    # etcd there has all data.
    for record in records:
        add_there(f"deploy_{record}", minutes=2, after=["wait_apiserver_deleted"], unless=preparation_unneeded)
    add_there("wait_etcd_taken_over", minutes=5, after=["snapshot_etcd"], unless=preparation_unneeded)
    add_there("deploy_apiserver_sni", after=["wait_etcd_taken_over_there"], unless=preparation_unneeded)

    # The API server serves users again. Now release what machines needed until here, and what users do not wait for.
    served = ["wait_apiserver_deleted", "snapshot_etcd", "deploy_apiserver_sni_there"]
    add("delete_vpn_server", after=served, unless=no_machines)
    for kind in ("extensions_after_apiserver", "infrastructure"):
        unneeded = no_machines if kind == "infrastructure" else no_namespace
        add(f"migrate_{kind}", after=served, unless=unneeded)
        add(f"wait_{kind}_migrated", after=[f"migrate_{kind}"], completes=f"migrate_{kind}", unless=unneeded,
            **wait(minutes=10))  # fmt: skip
        add(f"delete_{kind}", after=[f"wait_{kind}_migrated"], unless=unneeded, **wait(minutes=2))
        add(f"wait_{kind}_deleted", after=[f"delete_{kind}"], completes=f"delete_{kind}", unless=unneeded,
            **wait(minutes=10))  # fmt: skip
        let_go.append(f"wait_{kind}_deleted")

    add_there("wait_etcds", minutes=5, after=["snapshot_etcd"], completes="deploy_etcds", unless=preparation_unneeded)
    add_there("wait_apiserver", minutes=5, after=["wait_apiserver_reading_there", "wait_etcds_there"],
              unless=preparation_unneeded)  # fmt: skip
    # Copy older snapshots, too; users do not wait for that.
    add_there("copy_etcd_backups", after=["wait_etcds_there"], unless=handed_over)
    add_there("wait_etcd_backups_copied", minutes=11, after=["copy_etcd_backups_there"], completes="copy_etcd_backups",
              unless=handed_over)  # fmt: skip

    # Delete the rest in the source once the destination has reported that it has copied the backups.
    add("migrate_backup_entry", after=["wait_etcd_backups_copied_there", *let_go], unless=no_namespace,
        **wait(minutes=10))  # fmt: skip
    add("delete_etcds", after=["migrate_backup_entry"], unless=no_namespace)
    add("wait_etcds_deleted", after=["delete_etcds"], unless=no_namespace, **wait(minutes=5))
    add("delete_namespace", after=["wait_etcds_deleted"])
    add("wait_namespace_deleted", after=["delete_namespace"], **wait(minutes=15))
    add("delete_cluster", after=EVERYTHING, unless=survey.foreign and "the namespace belongs to another Shoot")
    return flow


@workflow.defn
class MigrateShoot(OperationWorkflow):
    """One attempt to migrate. Workflow id: ``<lifecycle id>/migrate/<generation>-<n>``."""

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.run_surveyed(request, migrate_flow)
