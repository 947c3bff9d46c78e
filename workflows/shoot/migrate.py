"""Take a Shoot's control plane down in the seed that it leaves; its machines and all that runs on them go on.

What another seed needs is kept: secrets, machines and extension states in the ShootState, etcd's data in the bucket.
Extensions let go of what they made, and nothing of it is deleted outside the seed. Tasks and order: spec/flows.md 5.

The destination takes part, so that users miss their API server for seconds only. Before the API server stops, an etcd
there holds what the source's bucket does and takes over each delta. Until the final snapshot is there it can only be
read, by an API server that has started by then, and that the gateway leads nobody to.
The restoration that follows finds etcd and API server running, and brings the rest.
"""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from api.flows import FlowInput, FlowOutcome, Survey
    from api.operations import ForwardTask, OperationType, seed_queue
    from workflows import options
    from workflows.flow import EVERYTHING, Flow
    from workflows.shoot.base import OperationWorkflow, add_reseal, shoot_flow


def migrate_flow(request: FlowInput, survey: Survey) -> Flow:
    """The whole flow, to be read from top to bottom."""
    flow, facts = shoot_flow(request), request.facts
    add, wait = flow.add, options.wait
    workerless = facts.workerless and "workerless"
    asleep, awake = facts.hibernated and "hibernated", not facts.hibernated and "awake"
    no_namespace = not survey.namespace and "no namespace"
    no_api_server = no_namespace or (not survey.api_server and "no API server")
    handed_over = no_namespace or (not survey.backups and "the backups are handed over")
    no_etcd = no_namespace or (not survey.api_server and not survey.backups and "no API server and no backups")
    no_machines = no_namespace or workerless

    # What is needed to take it down in good order.
    add("sync_cluster", unless=no_namespace)
    add("deploy_namespace", after=["sync_cluster"], unless=no_namespace)
    add("init_secrets", after=["deploy_namespace"], unless=no_namespace)
    add("deploy_etcds", after=["init_secrets"], unless=no_etcd)
    add("wait_etcds", after=["deploy_etcds"], completes="deploy_etcds", unless=no_etcd, **wait(minutes=5))
    # One that sleeps is woken, but for its machines: only the API server can let go of what it holds.
    add("deploy_apiserver", after=["wait_etcds"], unless=no_api_server or awake)
    add("wait_apiserver", after=["deploy_apiserver"], unless=no_api_server or awake, **wait(minutes=5))
    add("deploy_resource_manager", after=["wait_apiserver"], unless=no_api_server)
    add("wait_resource_manager", after=["deploy_resource_manager"], unless=no_api_server, **wait(minutes=5))

    # Let go of what is in the shoot, then of its machines.
    add("keep_managed_objects", after=["wait_resource_manager"], unless=no_api_server)
    add("delete_managed_resources", after=["keep_managed_objects"], unless=no_namespace)
    add("wait_managed_resources_deleted", after=["delete_managed_resources"], unless=no_namespace,
        **wait(minutes=10))  # fmt: skip
    # First who scales: from then on there are as many machines as the ShootState will say.
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
    # A migration that begins again adds to the ShootState, which may be sealed for the destination by then.
    if request.sources:
        add_reseal(flow, request, request.task.seed, "reseal_shoot_state", unless=no_namespace)
    persisted = [f"wait_{kind}_migrated" for kind in (*early, before)]
    add("persist_shootstate", after=[*persisted, *(["reseal_shoot_state"] if request.sources else [])],
        unless=no_namespace)  # fmt: skip
    readable = "persist_shootstate"
    if request.sources:
        readable = "reseal_shoot_state_there"
        add_reseal(flow, request, request.task.destination, readable, after=["persist_shootstate"], unless=no_namespace)

    # The destination: all that needs neither the last of the data nor the name. Nobody waits for one that sleeps: it
    # goes on sleeping there, and its etcd starts from our copy of its backups once it wakes up.
    nobody_waits = handed_over or asleep
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
    add_there("deploy_api_service", after=["init_secrets_there"], unless=nobody_waits)
    add_there("wait_api_service", minutes=10, after=["deploy_api_service_there"], unless=nobody_waits)
    add_there("deploy_backup_entry", after=["deploy_namespace_there"], unless=handed_over)
    add_there("wait_backup_entry", minutes=10, after=["deploy_backup_entry_there"], completes="deploy_backup_entry",
              unless=handed_over)  # fmt: skip
    add_there("deploy_etcds", unless=nobody_waits,
              after=["init_secrets_there", "wait_source_backup_entry_there", "wait_backup_entry_there"])  # fmt: skip
    add_there("wait_etcd_following", minutes=5, after=["deploy_etcds_there"], unless=nobody_waits)
    prepared = ["wait_etcd_following_there", "deploy_cloud_secret_there", "deploy_references_there",
                "wait_api_service_there"]  # fmt: skip

    # From here on the ShootState is what the destination knows; what it holds may go.
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

    # The names stay as they are until the destination has them.
    records = ["internal_dns", "external_dns"]
    for record in records:
        add(f"migrate_{record}", after=["persist_shootstate"], unless=no_namespace)
        add(f"wait_{record}_migrated", after=[f"migrate_{record}"], completes=f"migrate_{record}",
            unless=no_namespace, **wait(minutes=10))  # fmt: skip
        add(f"delete_{record}", after=[f"wait_{record}_migrated"], unless=no_namespace, **wait(minutes=2))
    let_go = [f"delete_{record}" for record in records]

    # The new API server starts meanwhile, but does not wait for long for the old one to stop.
    prepared += ["wait_shoot_managed_resources_deleted", "wait_etcds", *let_go]
    add_there("deploy_apiserver", after=prepared, unless=nobody_waits)
    add_there("wait_apiserver_reading", minutes=0.5, after=["deploy_apiserver_there"], unless=nobody_waits)

    # The API server stops, and only then is the last snapshot the last: from here on the move can only go on.
    add("flush_etcd", after=[*prepared, "wait_apiserver_reading_there"], unless=no_api_server or handed_over)
    add("delete_apiserver", after=["flush_etcd"], unless=no_namespace)
    add("wait_apiserver_deleted", after=["delete_apiserver"], unless=no_namespace, **wait(minutes=5))
    # Who still has the old answer of the DNS comes here, and is led on.
    add("forward_apiserver_sni", after=["wait_apiserver_deleted"], unless=no_namespace or nobody_waits,
        argument=lambda: ForwardTask(task=request.task, address=flow.said("wait_api_service_there")))  # fmt: skip
    add("delete_apiserver_sni", after=["forward_apiserver_sni"], unless=no_namespace)
    add("snapshot_etcd", after=["wait_apiserver_deleted"], unless=handed_over, **options.seed_call(minutes=6))

    # Names first: they lead nowhere until the gateway there knows of them, which is when etcd has all.
    for record in records:
        add_there(f"deploy_{record}", minutes=2, after=["wait_apiserver_deleted"], unless=nobody_waits)
    add_there("wait_etcd_taken_over", minutes=5, after=["snapshot_etcd"], unless=nobody_waits)
    add_there("deploy_apiserver_sni", after=["wait_etcd_taken_over_there"], unless=nobody_waits)

    # Users are served again; what they do not wait for has left them the machines until now.
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

    add_there("wait_etcds", minutes=5, after=["snapshot_etcd"], completes="deploy_etcds", unless=nobody_waits)
    add_there("wait_apiserver", minutes=5, after=["wait_apiserver_reading_there", "wait_etcds_there"],
              unless=nobody_waits)  # fmt: skip
    # Older snapshots, too: nobody waits for them.
    add_there("copy_etcd_backups", after=["wait_etcds_there"], unless=handed_over)
    add_there("wait_etcd_backups_copied", minutes=11, after=["copy_etcd_backups_there"], completes="copy_etcd_backups",
              unless=handed_over)  # fmt: skip

    # What is left on the source goes once the destination has it, and the destination says so.
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
    """One attempt to leave a seed. Workflow id: ``<lifecycle id>/migrate/<generation>-<n>``."""

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.run_surveyed(request, migrate_flow)
