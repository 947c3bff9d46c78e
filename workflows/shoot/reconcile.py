"""Create or reconcile a Shoot: its control plane in the seed, its machines, its system components.

A creation is a reconciliation with nothing there yet. Tasks, and when they are skipped: spec/flows.md 2. Their
order keeps all invariants of spec/flows.md 6; where the table there lets a task wait for more than it needs, it
starts as soon as it has what it needs, because users wait for the sum.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from api.constants import TASK_RESTART_CONTROL_PLANE_PODS
    from api.flows import FlowInput, FlowOutcome
    from api.operations import OperationType
    from api.registrations import Phase
    from api.rotation import Kind
    from api.rotation import Phase as RotationPhase
    from workflows import options
    from workflows.flow import EVERYTHING, Flow
    from workflows.shoot.base import OperationWorkflow, add_reseal, cleanup_argument, shoot_flow


def reconcile_flow(request: FlowInput) -> Flow:
    """The whole flow, to be read from top to bottom."""
    flow, facts = shoot_flow(request), request.facts
    add, wait = flow.add, options.wait
    workerless = facts.workerless and "workerless"
    asleep, awake = facts.hibernated and "hibernated", not facts.hibernated and "awake"
    skip_readiness = facts.skip_readiness and "skip-readiness"
    ready_unneeded = asleep or skip_readiness
    creating = request.task.operation is OperationType.CREATE
    restoring = request.task.operation is OperationType.RESTORE
    staying = not restoring and "the control plane does not come from another seed"
    machines_unneeded = workerless or asleep
    authorities = facts.phase(Kind.CERTIFICATE_AUTHORITIES)
    new_ca = authorities.preparing
    tunnel_first = authorities.in_progress and not machines_unneeded
    token_key = facts.phase(Kind.SERVICE_ACCOUNT_KEY)
    encryption_key = facts.phase(Kind.ETCD_ENCRYPTION_KEY)
    before, after, after_worker = (
        facts.extensions.get(phase) for phase in (Phase.BEFORE_API_SERVER, Phase.AFTER_API_SERVER, Phase.AFTER_WORKER)
    )
    no_extension = "no such extension"

    # What the operation works towards, where it works, and with which keys.
    add("sync_cluster")
    add("wait_required_extensions", after=["sync_cluster"], **wait(minutes=2))
    # What another seed has sealed is sealed for this one, before the first task reads it.
    resealed = ["reseal_shoot_state"] if restoring and request.sources else []
    if resealed:
        add_reseal(flow, request, request.task.seed, resealed[0])
    add("deploy_namespace", after=["wait_required_extensions", *resealed])
    add("ensure_cluster_identity", after=["deploy_namespace"])
    add("deploy_cloud_secret", after=["deploy_namespace"], unless=workerless, inputs=[facts.credentials])
    add("init_secrets", after=["deploy_namespace"], completes=resealed[0] if resealed else "")
    add("deploy_references", after=["deploy_namespace"])
    base = ["init_secrets"] if workerless else ["init_secrets", "deploy_cloud_secret"]

    # Networks, addresses, names, and a place for backups.
    add("deploy_infrastructure", after=[*base, "deploy_references"], unless=workerless, inputs=[facts.credentials])
    add("wait_infrastructure", after=["deploy_infrastructure"], completes="deploy_infrastructure",
        unless=workerless or skip_readiness, inputs=[facts.credentials], **wait(minutes=10))  # fmt: skip
    add("deploy_api_service", after=["ensure_cluster_identity", "init_secrets"])
    add("wait_api_service", after=["deploy_api_service"], unless=asleep, **wait(minutes=10))
    add("update_advertised_addresses", after=["wait_api_service"])
    add("deploy_internal_dns", after=["wait_api_service", "deploy_references"], unless=asleep, **wait(minutes=2))
    add("deploy_external_dns", after=["wait_api_service", "deploy_references"], unless=asleep, **wait(minutes=2))
    no_backup = not facts.backup and "the seed has no backup"
    add("deploy_source_backup_entry", after=["deploy_namespace"], unless=staying or no_backup)
    add("wait_source_backup_entry", after=["deploy_source_backup_entry"], completes="deploy_source_backup_entry",
        unless=staying or no_backup, **wait(minutes=10))  # fmt: skip
    add("deploy_backup_entry", after=["deploy_namespace", "wait_source_backup_entry"], unless=no_backup)
    add("wait_backup_entry", after=["deploy_backup_entry"], completes="deploy_backup_entry",
        unless=no_backup or skip_readiness, **wait(minutes=10))  # fmt: skip

    # The control plane: etcd, then the API server, then all that lives on it.
    add("copy_etcd_backups", after=["wait_backup_entry", "wait_source_backup_entry"], unless=staying or no_backup)
    add("wait_etcd_backups_copied", after=["copy_etcd_backups"], completes="copy_etcd_backups",
        unless=staying or no_backup, **wait(minutes=11))  # fmt: skip
    add("delete_copy_task", after=["wait_etcd_backups_copied"], unless=staying or no_backup)
    # An etcd that finds the old seed's bucket follows it by itself, until whoever served there must have stopped.
    copied = ["wait_etcd_backups_copied"] if asleep else []
    # Several members trust new peers one after the other before they show new certificates.
    add("deploy_etcds", after=[*base, "wait_backup_entry", *copied],
        **(options.seed_call(minutes=6) if facts.failure_tolerance else {}))  # fmt: skip
    add("wait_etcds", after=["deploy_etcds"], completes="deploy_etcds", unless=ready_unneeded, **wait(minutes=5))
    add("deploy_extensions_before_apiserver", after=["wait_infrastructure", *base], inputs=[before or ""],
        unless=asleep or (not before and no_extension))  # fmt: skip
    add("wait_extensions_before_apiserver", after=["deploy_extensions_before_apiserver"], inputs=[before or ""],
        completes="deploy_extensions_before_apiserver", unless=ready_unneeded or (not before and no_extension),
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    # A new API server waits 20 s for its etcd by itself, so its pod may start beside etcd's. Later on there is
    # data: it must be seen to be there first. Etcd does not listen before what it restores is complete.
    prerequisites = ["deploy_etcds" if creating or restoring else "wait_etcds", "wait_api_service"]
    if tunnel_first:
        # The seed's end of the tunnel trusts a new CA before the API server shows a certificate by it, and shows one
        # by it before the API server gives up the old CA.
        add("deploy_vpn_server", after=["wait_infrastructure"])
        add("wait_vpn_server", after=["deploy_vpn_server"], **wait(minutes=3))
        prerequisites.append("wait_vpn_server")
    add("deploy_apiserver", after=[*prerequisites, *(["wait_extensions_before_apiserver"] if before else [])])
    add("wait_apiserver", after=["deploy_apiserver", "wait_etcds"], unless=ready_unneeded, **wait(minutes=5))
    # A backup is restored by one member, which the others join.
    alone = asleep or staying or (not facts.failure_tolerance and "etcd has one member")
    add("scale_etcd_after_restore", after=["wait_etcds", "wait_apiserver", "wait_etcd_backups_copied"], unless=alone,
        **options.seed_call(minutes=6))  # fmt: skip
    add("wait_etcd_scaled", activity="wait_etcds", after=["scale_etcd_after_restore"],
        completes="scale_etcd_after_restore", unless=alone or skip_readiness, **wait(minutes=5))  # fmt: skip
    # A route to a Service without endpoints harms nobody, so users need not wait for it afterwards. But an etcd that
    # follows a seed which is lost since can be read from: nobody is led to its API server before that seed has stopped.
    add("deploy_apiserver_sni", after=["deploy_api_service", "init_secrets", *(["wait_etcds"] if restoring else [])])
    add("deploy_resource_manager", after=["wait_apiserver"])
    add("wait_resource_manager", after=["deploy_resource_manager"], unless=ready_unneeded, **wait(minutes=5))
    add("deploy_control_plane_extension", after=["wait_infrastructure", "wait_apiserver"], unless=workerless,
        inputs=[facts.credentials])  # fmt: skip
    add("wait_control_plane_extension", after=["deploy_control_plane_extension"],
        completes="deploy_control_plane_extension", unless=workerless or skip_readiness,
        **wait(minutes=3))  # fmt: skip
    add("deploy_gardener_access", after=["wait_resource_manager", "deploy_internal_dns"])
    add("init_shoot_client", after=["deploy_gardener_access"])
    other_issuer = not facts.managed_issuer and "no managed issuer"
    add("sync_public_sa_keys", after=["init_shoot_client"], unless=asleep or other_issuer)
    # The source's data may go once they are seen to be restored.
    add("delete_source_backup_entry", after=["wait_etcds", "wait_etcd_backups_copied", "init_shoot_client"],
        unless=staying or no_backup)  # fmt: skip
    add("wait_source_backup_entry_deleted", after=["delete_source_backup_entry"],
        completes="delete_source_backup_entry", unless=staying or no_backup, **wait(minutes=10))  # fmt: skip
    # A new cluster's controllers start beside the resource manager, with first tokens of their own: a machine that
    # comes before them waits for its certificate.
    controllers = ["wait_apiserver" if creating else "wait_resource_manager"]
    add("deploy_kube_controller_manager", after=[*controllers, *base])
    nothing_new = not (new_ca or token_key.preparing) and "nobody waits for new credentials"
    add("restart_control_plane_pods", after=["deploy_kube_controller_manager", "wait_control_plane_extension"],
        unless=TASK_RESTART_CONTROL_PLANE_PODS not in facts.tasks and "not asked for")  # fmt: skip
    add("wait_kube_controller_manager", after=["deploy_kube_controller_manager"], unless=nothing_new,
        **wait(minutes=3))  # fmt: skip
    # Pods are to trust the new CA from their first request on, and machines bring new pods.
    root_ca_unneeded = ready_unneeded or workerless or (not new_ca and "no new CA")
    add("wait_root_ca_configmaps", after=["init_shoot_client", "wait_kube_controller_manager"],
        unless=root_ca_unneeded, **wait(minutes=5))  # fmt: skip
    old_clients_kept = authorities is not RotationPhase.COMPLETING and "no old CA goes"
    add("drop_old_client_authorities", after=["init_shoot_client"], unless=asleep or old_clients_kept)
    no_new_token_key = not token_key.preparing and "no new service account key"
    add("renew_access_tokens", after=["wait_resource_manager"], unless=asleep or no_new_token_key)
    add("create_sa_secrets", after=["init_shoot_client", "wait_kube_controller_manager"],
        unless=asleep or no_new_token_key, **wait(minutes=10))  # fmt: skip
    old_token_key_kept = token_key is not RotationPhase.COMPLETING and "no old service account key goes"
    add("delete_old_sa_secrets", after=["init_shoot_client", "deploy_kube_controller_manager"],
        unless=old_token_key_kept, **wait(minutes=10))  # fmt: skip
    # Whatever is stored is written anew with a new key before the old one goes.
    no_new_encryption = encryption_key is not RotationPhase.PREPARING and "no new encryption key"
    old_encryption_kept = encryption_key is not RotationPhase.COMPLETING and "no old encryption key goes"
    add("encrypt_with_new_key", after=["wait_apiserver"], unless=no_new_encryption, **wait(minutes=10))
    add("rewrite_add_label", after=["encrypt_with_new_key", "init_shoot_client"], unless=no_new_encryption,
        **wait(minutes=10))  # fmt: skip
    add("snapshot_after_rewrite", after=["rewrite_add_label"], unless=no_new_encryption or no_backup,
        **wait(minutes=10))  # fmt: skip
    add("rewrite_remove_label", after=["wait_apiserver", "init_shoot_client"], unless=old_encryption_kept,
        **wait(minutes=10))  # fmt: skip
    add("deploy_scheduler", after=controllers, unless=workerless)
    if not tunnel_first:
        # Only the infrastructure knows the machines' network, and the tunnel leads there.
        add("deploy_vpn_server", after=["wait_infrastructure", "wait_resource_manager"], unless=workerless)

    # Extensions that need the API server: others may change what is sent to nodes, so they come first.
    add("deploy_extensions_after_apiserver", after=["deploy_references", "init_shoot_client"], inputs=[after or ""],
        unless=not after and no_extension)  # fmt: skip
    add("wait_extensions_after_apiserver", after=["deploy_extensions_after_apiserver"], inputs=[after or ""],
        completes="deploy_extensions_after_apiserver",
        unless=skip_readiness or (not after and no_extension),
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    extended = ["wait_extensions_after_apiserver"] if after else []
    add("delete_stale_extensions", after=["init_shoot_client"])
    add("wait_stale_extensions_deleted", after=["delete_stale_extensions"], completes="delete_stale_extensions",
        unless=asleep, **wait(minutes=facts.extension_minutes))  # fmt: skip
    no_runtime = workerless or (not facts.container_runtimes and "no container runtimes")
    add("deploy_container_runtimes", after=["init_shoot_client"], unless=no_runtime)
    add("wait_container_runtimes", after=["deploy_container_runtimes"], completes="deploy_container_runtimes",
        unless=no_runtime, **wait(minutes=3))  # fmt: skip
    add("delete_stale_container_runtimes", after=["init_shoot_client"], unless=workerless)
    add("wait_stale_container_runtimes_deleted", after=["delete_stale_container_runtimes"],
        completes="delete_stale_container_runtimes", unless=machines_unneeded, **wait(minutes=3))  # fmt: skip

    # What users and nodes find in the cluster.
    add("deploy_shoot_namespaces", after=["wait_resource_manager"])
    add("wait_shoot_namespaces", after=["deploy_shoot_namespaces"], unless=ready_unneeded, **wait(minutes=2))
    ssh = facts.ssh_access and "nodes are reached by SSH"
    add("delete_bastions", after=["wait_infrastructure", "wait_control_plane_extension"], unless=workerless or ssh)
    add("deploy_os_configs", unless=workerless,
        after=["wait_infrastructure", "wait_control_plane_extension", "delete_bastions", *extended])  # fmt: skip
    add("wait_os_configs", after=["deploy_os_configs"], completes="deploy_os_configs",
        unless=workerless, **wait(minutes=3))  # fmt: skip
    add("deploy_shoot_system", after=["wait_apiserver", *extended], unless=asleep)
    add("deploy_cluster_identity", after=["ensure_cluster_identity", "wait_shoot_namespaces"], unless=asleep)
    add("populate_static_manifests", after=["wait_shoot_namespaces"])
    prepared = ["wait_control_plane_extension", "wait_shoot_namespaces", "deploy_scheduler", *extended]
    add("deploy_network", after=["wait_infrastructure", "init_shoot_client", *prepared], unless=workerless)
    add("wait_network", after=["deploy_network"], completes="deploy_network", unless=workerless or skip_readiness,
        **wait(minutes=3))  # fmt: skip
    add("deploy_kube_proxy", after=["init_shoot_client", *prepared], unless=machines_unneeded)
    add("deploy_coredns", after=["wait_network"], unless=machines_unneeded)
    add("deploy_node_local_dns", after=["wait_network"], unless=machines_unneeded)
    add("deploy_apiserver_proxy", after=prepared, unless=workerless)
    add("deploy_vpn_shoot", after=["deploy_vpn_server", *prepared], unless=machines_unneeded)
    add("deploy_metrics_server", after=["wait_os_configs", *prepared], unless=machines_unneeded)
    add("deploy_node_problem_detector", after=["wait_os_configs", *prepared], unless=machines_unneeded)
    add("deploy_node_exporter", after=prepared, unless=machines_unneeded)
    add("deploy_blackbox_exporter", after=prepared, unless=machines_unneeded)

    # Machines, and the way back to them.
    add("deploy_node_agent_resources", after=["wait_os_configs", "wait_apiserver"], unless=machines_unneeded)
    add("scale_autoscaler_to_zero", after=["deploy_namespace"], unless=workerless or awake)
    manager = "deploy_machine_controller_manager"
    if not restoring:
        add(manager, unless=workerless,
            after=["wait_infrastructure", "wait_apiserver",
                   *([] if no_new_token_key else ["create_sa_secrets"])])  # fmt: skip
    add("deploy_worker", unless=workerless, inputs=[facts.credentials],
        after=["wait_infrastructure", "deploy_shoot_system", "deploy_node_agent_resources", "scale_autoscaler_to_zero",
               *([] if restoring else [manager]),
               *([] if root_ca_unneeded else ["wait_root_ca_configmaps"])])  # fmt: skip
    add("wait_machine_deployments", after=["deploy_worker"], completes="deploy_worker",
        unless=workerless or ready_unneeded, **wait(minutes=10))  # fmt: skip
    add("deploy_extensions_after_worker", after=["wait_machine_deployments", "deploy_references", "init_shoot_client"],
        inputs=[after_worker or ""], unless=workerless or (not after_worker and no_extension))  # fmt: skip
    add("wait_extensions_after_worker", after=["deploy_extensions_after_worker"], inputs=[after_worker or ""],
        completes="deploy_extensions_after_worker",
        unless=workerless or skip_readiness or (not after_worker and no_extension),
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    add("wait_worker", after=["deploy_worker", "wait_extensions_after_worker"], completes="deploy_worker",
        unless=workerless or (not restoring and skip_readiness), **wait(minutes=10))  # fmt: skip
    if restoring:
        # It must find all machines that run: what it misses it would make anew (invariant 9).
        add(manager, after=["wait_worker"], unless=workerless)
    # Machines of another seed must all be there before it looks.
    add("deploy_autoscaler", after=["wait_worker" if restoring else "wait_machine_deployments", "init_shoot_client"],
        unless=machines_unneeded)  # fmt: skip
    # Machines of the pool's former configuration are gone only now.
    add("delete_stale_os_configs", after=["wait_worker"], unless=workerless)
    add("wait_stale_os_configs_deleted", after=["delete_stale_os_configs"], completes="delete_stale_os_configs",
        unless=machines_unneeded, **wait(minutes=3))  # fmt: skip
    add("wait_vpn_shoot", after=["deploy_vpn_shoot", "wait_worker"], unless=machines_unneeded,
        **wait(minutes=2))  # fmt: skip
    add("wait_tunnel", unless=workerless or ready_unneeded,
        after=["wait_worker", "wait_vpn_shoot", "deploy_coredns", "deploy_kube_proxy", "deploy_metrics_server",
               "deploy_apiserver_proxy"], **wait(minutes=15))  # fmt: skip
    # Users have their cluster by then; who asks for a new password waits until the old one is refused.
    add("deploy_observability", after=["wait_tunnel", "init_shoot_client"])
    nobody_waits = (creating or restoring) and "nobody waits for it"
    add("wait_observability", after=["deploy_observability"], unless=ready_unneeded or nobody_waits,
        **wait(minutes=3))  # fmt: skip
    add("deploy_vpa", after=["wait_tunnel", "init_shoot_client"], unless=workerless)
    add("wait_vpa", after=["deploy_vpa"], unless=workerless or ready_unneeded or nobody_waits, **wait(minutes=3))
    # Nodes take turns within the time that the Shoot gives them, half an hour at most.
    add("wait_os_configs_applied", after=["wait_tunnel"], unless=machines_unneeded, **wait(minutes=33))

    # Asleep, nothing of it runs: not a machine, nor who looks after machines, nor the control plane. Its data stay.
    add("scale_machine_controller_manager_to_zero", after=["wait_worker"], unless=workerless or awake)
    add("hibernate_control_plane", after=EVERYTHING, unless=awake, **wait(minutes=10))
    add("hibernate_extensions_before_apiserver", activity="deploy_extensions_before_apiserver",
        after=["hibernate_control_plane"], unless=awake or (not before and no_extension))  # fmt: skip
    add("wait_extensions_before_apiserver_hibernated", activity="wait_extensions_before_apiserver",
        after=["hibernate_extensions_before_apiserver"], completes="hibernate_extensions_before_apiserver",
        unless=awake or (not before and no_extension), **wait(minutes=facts.extension_minutes))  # fmt: skip
    add("delete_external_dns", after=["hibernate_control_plane"], unless=awake, **wait(minutes=2))
    add("delete_internal_dns", after=["hibernate_control_plane"], unless=awake, **wait(minutes=2))

    # What no task named is not needed any more; only after everything else (invariant 12).
    add("cleanup_secrets", after=EVERYTHING, argument=cleanup_argument(flow, request.task), only_if_whole=True)
    return flow


@workflow.defn
class ReconcileShoot(OperationWorkflow):
    """One attempt to create or reconcile. Workflow id: ``<lifecycle id>/reconcile/<generation>-<n>``."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        self.graph: Flow = reconcile_flow(request)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        self.report(request.task)
        return await self.graph.run()
