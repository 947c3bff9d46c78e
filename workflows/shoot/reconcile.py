"""Create or reconcile a Shoot: its control plane in the seed, its machines, its system components.

A creation is a reconciliation of a Shoot that has no objects yet. Tasks, and when they are skipped: spec/flows.md 2.
Their order keeps all invariants of spec/flows.md 6. Where the table there lets a task wait for more predecessors than
it needs, it waits here only for those that it needs, because users wait for the longest path.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.autoscaler import AutoscalerActivities as Autoscaler
    from activities.seed.control_plane import ControlPlaneActivities as ControlPlane
    from activities.seed.etcd import EtcdActivities as Etcds
    from activities.seed.extensions import ExtensionActivities as Extensions
    from activities.seed.hibernation import HibernationActivities as Hibernation
    from activities.seed.issuer import IssuerActivities as Issuer
    from activities.seed.migration import MigrationActivities as Migration
    from activities.seed.namespace import NamespaceActivities as Namespace
    from activities.seed.observability import ObservabilityActivities as Observability
    from activities.seed.operating_system_configs import OperatingSystemConfigActivities as OperatingSystemConfigs
    from activities.seed.references import ReferenceActivities as References
    from activities.seed.required_extensions import RequiredExtensionActivities as RequiredExtensions
    from activities.seed.secrets import SecretActivities as Secrets
    from activities.seed.static_manifests import StaticManifestActivities as StaticManifests
    from activities.seed.vpa import VpaActivities as Vpa
    from activities.shoot.rotation import RotationActivities as Rotation
    from activities.shoot.system import ShootSystemActivities as ShootSystem
    from api.constants import TASK_RESTART_CONTROL_PLANE_PODS
    from api.flows import FlowInput, FlowOutcome
    from api.operations import OperationType
    from api.registrations import Phase
    from api.rotation import Kind
    from api.rotation import Phase as RotationPhase
    from workflows import options
    from workflows.flow import EVERYTHING
    from workflows.shoot.base import OperationWorkflow, ShootFlow, add_cleanup, add_reseal, shoot_flow


def reconcile_flow(request: FlowInput) -> ShootFlow:
    """The whole flow; read it from top to bottom."""
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

    # Desired state, namespace and credentials of the operation.
    add(Namespace.sync_cluster)
    add(RequiredExtensions.wait_required_extensions, after=["sync_cluster"], **wait(minutes=2))
    # The ShootState may be encrypted for another seed: encrypt it for this one before the first task reads it.
    resealed = ["reseal_shoot_state"] if restoring and request.sources else []
    if resealed:
        add_reseal(flow, request, request.task.seed, resealed[0])
    add(Namespace.deploy_namespace, after=["wait_required_extensions", *resealed])
    add(Namespace.ensure_cluster_identity, after=["deploy_namespace"])
    add(Namespace.deploy_cloud_secret, after=["deploy_namespace"], unless=workerless, inputs=[facts.credentials])
    add(Secrets.init_secrets, after=["deploy_namespace"], completes=resealed[0] if resealed else "")
    add(References.deploy_references, after=["deploy_namespace"])
    base = ["init_secrets"] if workerless else ["init_secrets", "deploy_cloud_secret"]

    # Networks, addresses, DNS records, and the BackupEntry.
    add(
        Extensions.deploy_infrastructure,
        after=[*base, "deploy_references"],
        unless=workerless,
        inputs=[facts.credentials],
    )
    add(
        Extensions.wait_infrastructure,
        completes="deploy_infrastructure",
        unless=workerless or skip_readiness,
        inputs=[facts.credentials],
        **wait(minutes=10),
    )
    add(ControlPlane.deploy_api_service, after=["ensure_cluster_identity", "init_secrets"])
    add(ControlPlane.wait_api_service, after=["deploy_api_service"], unless=asleep, **wait(minutes=10))
    add(ControlPlane.update_advertised_addresses, after=["wait_api_service"])
    add(
        Extensions.deploy_internal_dns,
        after=["wait_api_service", "deploy_references"],
        unless=asleep,
        **wait(minutes=2),
    )
    add(
        Extensions.deploy_external_dns,
        after=["wait_api_service", "deploy_references"],
        unless=asleep,
        **wait(minutes=2),
    )
    no_backup = not facts.backup and "the seed has no backup"
    add(Migration.deploy_source_backup_entry, after=["deploy_namespace"], unless=staying or no_backup)
    add(
        Extensions.wait_source_backup_entry,
        completes="deploy_source_backup_entry",
        unless=staying or no_backup,
        **wait(minutes=10),
    )
    add(Extensions.deploy_backup_entry, after=["deploy_namespace", "wait_source_backup_entry"], unless=no_backup)
    add(
        Extensions.wait_backup_entry,
        completes="deploy_backup_entry",
        unless=no_backup or skip_readiness,
        **wait(minutes=10),
    )

    # The control plane: etcd, then the API server, then the components that need the API server.
    add(
        Migration.copy_etcd_backups,
        after=["wait_backup_entry", "wait_source_backup_entry"],
        unless=staying or no_backup,
    )
    add(
        Migration.wait_etcd_backups_copied,
        completes="copy_etcd_backups",
        unless=staying or no_backup,
        **wait(minutes=11),
    )
    add(Migration.delete_copy_task, after=["wait_etcd_backups_copied"], unless=staying or no_backup)
    # On restore, etcd replicates from the source seed's bucket, and starts to serve once the source's takeover
    # tolerance has passed. So this task waits for the copied backups only if the Shoot is hibernated.
    copied = ["wait_etcd_backups_copied"] if asleep else []
    # Several members take longer: each must trust the new CA of its peers before one presents a new certificate.
    add(
        Etcds.deploy_etcds,
        after=[*base, "wait_backup_entry", *copied],
        **(options.seed_call(minutes=6) if facts.failure_tolerance else {}),
    )
    add(Etcds.wait_etcds, completes="deploy_etcds", unless=ready_unneeded, **wait(minutes=5))
    add(
        Extensions.deploy_extensions_before_apiserver,
        after=["wait_infrastructure", *base],
        inputs=[before or ""],
        unless=asleep or (not before and no_extension),
    )
    add(
        Extensions.wait_extensions_before_apiserver,
        after=["deploy_extensions_before_apiserver"],
        inputs=[before or ""],
        completes="deploy_extensions_before_apiserver",
        unless=ready_unneeded or (not before and no_extension),
        **wait(minutes=facts.extension_minutes),
    )
    # A new API server waits 20 s for its etcd by itself, so its pod may start at the same time as etcd's. Once there is
    # data, the API server starts only after `wait_etcds` has found etcd ready. On restore this is not needed: etcd does
    # not listen before its restored data are complete.
    prerequisites = ["deploy_etcds" if creating or restoring else "wait_etcds", "wait_api_service"]
    if tunnel_first:
        # CA rotation, in this order: the VPN server trusts the new CA; the API server presents a certificate from it;
        # the VPN server presents one; the API server stops trusting the old CA.
        add(ControlPlane.deploy_vpn_server, after=["wait_infrastructure"])
        add(ControlPlane.wait_vpn_server, after=["deploy_vpn_server"], **wait(minutes=3))
        prerequisites.append("wait_vpn_server")
    add(
        ControlPlane.deploy_apiserver, after=[*prerequisites, *(["wait_extensions_before_apiserver"] if before else [])]
    )
    add(ControlPlane.wait_apiserver, after=["deploy_apiserver", "wait_etcds"], unless=ready_unneeded, **wait(minutes=5))
    # One member restores the backup; the other members join it afterwards.
    alone = asleep or staying or (not facts.failure_tolerance and "etcd has one member")
    add(
        Etcds.scale_etcd_after_restore,
        after=["wait_etcds", "wait_apiserver", "wait_etcd_backups_copied"],
        unless=alone,
        **options.seed_call(minutes=6),
    )
    add(
        Etcds.wait_etcds,
        name="wait_etcd_scaled",
        completes="scale_etcd_after_restore",
        unless=alone or skip_readiness,
        **wait(minutes=5),
    )
    # Create the route early: a route to a Service without endpoints is harmless, and users do not wait for it later.
    # Exception, restore: while etcd replicates it can already be read, so route no traffic until `wait_etcds` has
    # found that the source has stopped.
    add(
        ControlPlane.deploy_apiserver_sni,
        after=["deploy_api_service", "init_secrets", *(["wait_etcds"] if restoring else [])],
    )
    add(ControlPlane.deploy_resource_manager, after=["wait_apiserver"])
    add(ControlPlane.wait_resource_manager, after=["deploy_resource_manager"], unless=ready_unneeded, **wait(minutes=5))
    add(
        Extensions.deploy_control_plane_extension,
        after=["wait_infrastructure", "wait_apiserver"],
        unless=workerless,
        inputs=[facts.credentials],
    )
    add(
        Extensions.wait_control_plane_extension,
        completes="deploy_control_plane_extension",
        unless=workerless or skip_readiness,
        **wait(minutes=3),
    )
    add(ControlPlane.deploy_gardener_access, after=["wait_resource_manager", "deploy_internal_dns"])
    add(ControlPlane.init_shoot_client, after=["deploy_gardener_access"])
    other_issuer = not facts.managed_issuer and "no managed issuer"
    add(Issuer.sync_public_sa_keys, after=["init_shoot_client"], unless=asleep or other_issuer)
    # Delete the source's backups once etcd has restored the data, and the backups are copied.
    add(
        Extensions.delete_source_backup_entry,
        after=["wait_etcds", "wait_etcd_backups_copied", "init_shoot_client"],
        unless=staying or no_backup,
    )
    add(
        Extensions.wait_source_backup_entry_deleted,
        completes="delete_source_backup_entry",
        unless=staying or no_backup,
        **wait(minutes=10),
    )
    # In a new cluster the controllers start at the same time as the resource manager, with first tokens of their own:
    # a machine that starts before them waits for its certificate.
    controllers = ["wait_apiserver" if creating else "wait_resource_manager"]
    add(ControlPlane.deploy_kube_controller_manager, after=[*controllers, *base])
    nothing_new = not (new_ca or token_key.preparing) and "no rotation needs it"
    add(
        ControlPlane.restart_control_plane_pods,
        after=["deploy_kube_controller_manager", "wait_control_plane_extension"],
        unless=TASK_RESTART_CONTROL_PLANE_PODS not in facts.tasks and "not asked for",
    )
    add(
        ControlPlane.wait_kube_controller_manager,
        after=["deploy_kube_controller_manager"],
        unless=nothing_new,
        **wait(minutes=3),
    )
    # Publish the new CA in ConfigMaps before new machines start pods: a pod must trust it from its first request on.
    root_ca_unneeded = ready_unneeded or workerless or (not new_ca and "no new CA")
    add(
        Rotation.wait_root_ca_configmaps,
        after=["init_shoot_client", "wait_kube_controller_manager"],
        unless=root_ca_unneeded,
        **wait(minutes=5),
    )
    old_clients_kept = authorities is not RotationPhase.COMPLETING and "no old CA is dropped"
    add(Rotation.drop_old_client_authorities, after=["init_shoot_client"], unless=asleep or old_clients_kept)
    no_new_token_key = not token_key.preparing and "no new service account key"
    add(Rotation.renew_access_tokens, after=["wait_resource_manager"], unless=asleep or no_new_token_key)
    add(
        Rotation.create_sa_secrets,
        after=["init_shoot_client", "wait_kube_controller_manager"],
        unless=asleep or no_new_token_key,
        **wait(minutes=10),
    )
    old_token_key_kept = token_key is not RotationPhase.COMPLETING and "no old service account key is dropped"
    add(
        Rotation.delete_old_sa_secrets,
        after=["init_shoot_client", "deploy_kube_controller_manager"],
        unless=old_token_key_kept,
        **wait(minutes=10),
    )
    # Rewrite all encrypted resources with the new key before the old key is dropped.
    no_new_encryption = encryption_key is not RotationPhase.PREPARING and "no new encryption key"
    old_encryption_kept = encryption_key is not RotationPhase.COMPLETING and "no old encryption key is dropped"
    add(ControlPlane.encrypt_with_new_key, after=["wait_apiserver"], unless=no_new_encryption, **wait(minutes=10))
    add(
        Rotation.rewrite_add_label,
        after=["encrypt_with_new_key", "init_shoot_client"],
        unless=no_new_encryption,
        **wait(minutes=10),
    )
    add(
        Etcds.snapshot_after_rewrite,
        after=["rewrite_add_label"],
        unless=no_new_encryption or no_backup,
        **wait(minutes=10),
    )
    add(
        Rotation.rewrite_remove_label,
        after=["wait_apiserver", "init_shoot_client"],
        unless=old_encryption_kept,
        **wait(minutes=10),
    )
    add(ControlPlane.deploy_scheduler, after=controllers, unless=workerless)
    if not tunnel_first:
        # The tunnel leads to the machines' network, which the status of the Infrastructure names.
        add(ControlPlane.deploy_vpn_server, after=["wait_infrastructure", "wait_resource_manager"], unless=workerless)

    # Extensions that need the API server. They come before the OperatingSystemConfigs, which they may change.
    add(
        Extensions.deploy_extensions_after_apiserver,
        after=["deploy_references", "init_shoot_client"],
        inputs=[after or ""],
        unless=not after and no_extension,
    )
    add(
        Extensions.wait_extensions_after_apiserver,
        after=["deploy_extensions_after_apiserver"],
        inputs=[after or ""],
        completes="deploy_extensions_after_apiserver",
        unless=skip_readiness or (not after and no_extension),
        **wait(minutes=facts.extension_minutes),
    )
    extended = ["wait_extensions_after_apiserver"] if after else []
    add(Extensions.delete_stale_extensions, after=["init_shoot_client"])
    add(
        Extensions.wait_stale_extensions_deleted,
        completes="delete_stale_extensions",
        unless=asleep,
        **wait(minutes=facts.extension_minutes),
    )
    no_runtime = workerless or (not facts.container_runtimes and "no container runtimes")
    add(Extensions.deploy_container_runtimes, after=["init_shoot_client"], unless=no_runtime)
    add(Extensions.wait_container_runtimes, completes="deploy_container_runtimes", unless=no_runtime, **wait(minutes=3))
    add(Extensions.delete_stale_container_runtimes, after=["init_shoot_client"], unless=workerless)
    add(
        Extensions.wait_stale_container_runtimes_deleted,
        completes="delete_stale_container_runtimes",
        unless=machines_unneeded,
        **wait(minutes=3),
    )

    # System components in the shoot.
    add(ShootSystem.deploy_shoot_namespaces, after=["wait_resource_manager"])
    add(ShootSystem.wait_shoot_namespaces, after=["deploy_shoot_namespaces"], unless=ready_unneeded, **wait(minutes=2))
    ssh = facts.ssh_access and "nodes are reached by SSH"
    add(
        Extensions.delete_bastions,
        after=["wait_infrastructure", "wait_control_plane_extension"],
        unless=workerless or ssh,
    )
    add(
        OperatingSystemConfigs.deploy_os_configs,
        unless=workerless,
        after=["wait_infrastructure", "wait_control_plane_extension", "delete_bastions", *extended],
    )
    add(Extensions.wait_os_configs, completes="deploy_os_configs", unless=workerless, **wait(minutes=3))
    add(ShootSystem.deploy_shoot_system, after=["wait_apiserver", *extended], unless=asleep)
    add(ShootSystem.deploy_cluster_identity, after=["ensure_cluster_identity", "wait_shoot_namespaces"], unless=asleep)
    add(StaticManifests.populate_static_manifests, after=["wait_shoot_namespaces"])
    prepared = ["wait_control_plane_extension", "wait_shoot_namespaces", "deploy_scheduler", *extended]
    add(Extensions.deploy_network, after=["wait_infrastructure", "init_shoot_client", *prepared], unless=workerless)
    add(Extensions.wait_network, completes="deploy_network", unless=workerless or skip_readiness, **wait(minutes=3))
    add(ShootSystem.deploy_kube_proxy, after=["init_shoot_client", *prepared], unless=machines_unneeded)
    add(ShootSystem.deploy_coredns, after=["wait_network"], unless=machines_unneeded)
    add(ShootSystem.deploy_node_local_dns, after=["wait_network"], unless=machines_unneeded)
    add(ShootSystem.deploy_apiserver_proxy, after=prepared, unless=workerless)
    add(ShootSystem.deploy_vpn_shoot, after=["deploy_vpn_server", *prepared], unless=machines_unneeded)
    add(ShootSystem.deploy_metrics_server, after=["wait_os_configs", *prepared], unless=machines_unneeded)
    add(ShootSystem.deploy_node_problem_detector, after=["wait_os_configs", *prepared], unless=machines_unneeded)
    add(ShootSystem.deploy_node_exporter, after=prepared, unless=machines_unneeded)
    add(ShootSystem.deploy_blackbox_exporter, after=prepared, unless=machines_unneeded)

    # Machines, and the tunnel from the control plane to them.
    add(
        OperatingSystemConfigs.deploy_node_agent_resources,
        after=["wait_os_configs", "wait_apiserver"],
        unless=machines_unneeded,
    )
    add(Hibernation.scale_autoscaler_to_zero, after=["deploy_namespace"], unless=workerless or awake)
    manager = "deploy_machine_controller_manager"
    if not restoring:
        add(
            ControlPlane.deploy_machine_controller_manager,
            unless=workerless,
            after=["wait_infrastructure", "wait_apiserver", *([] if no_new_token_key else ["create_sa_secrets"])],
        )
    add(
        Extensions.deploy_worker,
        unless=workerless,
        inputs=[facts.credentials],
        after=[
            "wait_infrastructure",
            "deploy_shoot_system",
            "deploy_node_agent_resources",
            "scale_autoscaler_to_zero",
            *([] if restoring else [manager]),
            *([] if root_ca_unneeded else ["wait_root_ca_configmaps"]),
        ],
    )
    add(
        Extensions.wait_machine_deployments,
        completes="deploy_worker",
        unless=workerless or ready_unneeded,
        **wait(minutes=10),
    )
    add(
        Extensions.deploy_extensions_after_worker,
        after=["wait_machine_deployments", "deploy_references", "init_shoot_client"],
        inputs=[after_worker or ""],
        unless=workerless or (not after_worker and no_extension),
    )
    add(
        Extensions.wait_extensions_after_worker,
        after=["deploy_extensions_after_worker"],
        inputs=[after_worker or ""],
        completes="deploy_extensions_after_worker",
        unless=workerless or skip_readiness or (not after_worker and no_extension),
        **wait(minutes=facts.extension_minutes),
    )
    add(
        Extensions.wait_worker,
        after=["deploy_worker", "wait_extensions_after_worker"],
        completes="deploy_worker",
        unless=workerless or (not restoring and skip_readiness),
        **wait(minutes=10),
    )
    if restoring:
        # The machine-controller-manager starts after the Worker has restored all machine objects: it would create
        # each machine again whose object it does not find (invariant 9).
        add(ControlPlane.deploy_machine_controller_manager, after=["wait_worker"], unless=workerless)
    # On restore, the cluster autoscaler starts after all machines are restored: before, it would count too few.
    add(
        Autoscaler.deploy_autoscaler,
        after=["wait_worker" if restoring else "wait_machine_deployments", "init_shoot_client"],
        unless=machines_unneeded,
    )
    # Delete old OperatingSystemConfigs only now: machines that use them are gone after `wait_worker`.
    add(Extensions.delete_stale_os_configs, after=["wait_worker"], unless=workerless)
    add(
        Extensions.wait_stale_os_configs_deleted,
        completes="delete_stale_os_configs",
        unless=machines_unneeded,
        **wait(minutes=3),
    )
    add(
        ShootSystem.wait_vpn_shoot,
        after=["deploy_vpn_shoot", "wait_worker"],
        unless=machines_unneeded,
        **wait(minutes=2),
    )
    add(
        ShootSystem.wait_tunnel,
        unless=workerless or ready_unneeded,
        after=[
            "wait_worker",
            "wait_vpn_shoot",
            "deploy_coredns",
            "deploy_kube_proxy",
            "deploy_metrics_server",
            "deploy_apiserver_proxy",
        ],
        **wait(minutes=15),
    )
    # Users need not wait for observability when the cluster is created or restored. Otherwise the task waits, so that a
    # rotation of its passwords ends only after the old password is refused.
    add(Observability.deploy_observability, after=["wait_tunnel", "init_shoot_client"])
    wait_unneeded = (creating or restoring) and "users need not wait for it"
    add(
        Observability.wait_observability,
        after=["deploy_observability"],
        unless=ready_unneeded or wait_unneeded,
        **wait(minutes=3),
    )
    add(Vpa.deploy_vpa, after=["wait_tunnel", "init_shoot_client"], unless=workerless)
    add(Vpa.wait_vpa, after=["deploy_vpa"], unless=workerless or ready_unneeded or wait_unneeded, **wait(minutes=3))
    # Nodes apply a new configuration one after another, within the time that the Shoot allows: 30 minutes at most.
    add(
        OperatingSystemConfigs.wait_os_configs_applied,
        after=["wait_tunnel"],
        unless=machines_unneeded,
        **wait(minutes=33),
    )

    # Hibernation: no machines, no machine-controller-manager and no control plane run. etcd's data stay.
    add(Hibernation.scale_machine_controller_manager_to_zero, after=["wait_worker"], unless=workerless or awake)
    add(Hibernation.hibernate_control_plane, after=EVERYTHING, unless=awake, **wait(minutes=10))
    add(
        Extensions.deploy_extensions_before_apiserver,
        name="hibernate_extensions_before_apiserver",
        after=["hibernate_control_plane"],
        unless=awake or (not before and no_extension),
    )
    add(
        Extensions.wait_extensions_before_apiserver,
        name="wait_extensions_before_apiserver_hibernated",
        completes="hibernate_extensions_before_apiserver",
        unless=awake or (not before and no_extension),
        **wait(minutes=facts.extension_minutes),
    )
    add(Extensions.delete_external_dns, after=["hibernate_control_plane"], unless=awake, **wait(minutes=2))
    add(Extensions.delete_internal_dns, after=["hibernate_control_plane"], unless=awake, **wait(minutes=2))

    # Delete Secrets that no task reported, after all other tasks (invariant 12).
    add_cleanup(flow, request.task)
    return flow


@workflow.defn
class ReconcileShoot(OperationWorkflow):
    """One attempt to create or reconcile. Workflow id: ``<lifecycle id>/reconcile/<generation>-<n>``."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        self.graph: ShootFlow = reconcile_flow(request)

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        self.report(request.task)
        return await self.graph.run()
