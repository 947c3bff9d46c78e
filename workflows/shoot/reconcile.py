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
    from activities.shoot.dual_stack import DualStackActivities as DualStack
    from activities.shoot.rotation import RotationActivities as Rotation
    from activities.shoot.system import ShootSystemActivities as ShootSystem
    from api.constants import TASK_RESTART_CONTROL_PLANE_PODS
    from api.contracts.flows import FlowInput, FlowOutcome
    from api.contracts.operations import OperationType
    from api.contracts.rotation import Kind
    from api.contracts.rotation import Phase as RotationPhase
    from api.decisions.registrations import Phase
    from workflows import options
    from workflows.flow import EVERYTHING
    from workflows.shoot.base import OperationWorkflow, ShootFlow, add_cleanup, add_reseal, shoot_flow


def reconcile_flow(request: FlowInput) -> ShootFlow:
    """The whole flow; read this page from top to bottom."""
    flow, case = shoot_flow(request), _Case(request)
    base = _desired_state(flow, case)
    _networks(flow, case, base)
    _etcd_and_apiserver(flow, case, base)
    _components_of_apiserver(flow, case)
    controllers = _controllers(flow, case, base)
    _credentials(flow, case)
    _scheduler_and_tunnel(flow, case, controllers)
    extended = _extensions(flow, case)
    _system_components(flow, case, extended)
    _machines(flow, case)
    _observability(flow, case)
    _hibernation(flow, case)
    # Delete Secrets that no task reported, after all other tasks (invariant 12).
    add_cleanup(flow, request.task)
    return flow


class _Case:
    """Facts of one reconciliation, and its reasons to skip tasks; a reason is false if it does not hold."""

    def __init__(self, request: FlowInput) -> None:
        self.request, self.facts = request, request.facts
        facts, operation = request.facts, request.task.operation
        self.creating = operation is OperationType.CREATE
        self.restoring = operation is OperationType.RESTORE
        self.authorities = facts.phase(Kind.CERTIFICATE_AUTHORITIES)
        self.new_ca = self.authorities.preparing
        self.token_key = facts.phase(Kind.SERVICE_ACCOUNT_KEY)
        self.encryption_key = facts.phase(Kind.ETCD_ENCRYPTION_KEY)
        # Digests of the Extensions of each phase.
        self.extensions_before = facts.extensions.get(Phase.BEFORE_API_SERVER, "")
        self.extensions_after = facts.extensions.get(Phase.AFTER_API_SERVER, "")
        self.extensions_after_worker = facts.extensions.get(Phase.AFTER_WORKER, "")

        self.workerless = facts.workerless and "workerless"
        self.asleep, self.awake = facts.hibernated and "hibernated", not facts.hibernated and "awake"
        self.machines_unneeded = self.workerless or self.asleep
        self.skip_readiness = facts.skip_readiness and "skip-readiness"
        self.ready_unneeded = self.asleep or self.skip_readiness
        self.staying = not self.restoring and "the control plane does not come from another seed"
        self.no_backup = not facts.backup and "the seed has no backup"
        self.no_extension_before = not self.extensions_before and "no such extension"
        self.no_extension_after = not self.extensions_after and "no such extension"
        self.no_extension_after_worker = not self.extensions_after_worker and "no such extension"
        self.no_new_token_key = not self.token_key.preparing and "no new service account key"
        self.root_ca_unneeded = self.ready_unneeded or self.workerless or (not self.new_ca and "no new CA")
        self.networks = ["wait_infrastructure"] if facts.dual_stack and not facts.workerless else []
        """Tasks after which the Shoot's networks are known, if its spec does not name all of them."""
        self.tunnel_first = self.authorities.in_progress and not self.machines_unneeded


def _desired_state(flow: ShootFlow, case: _Case) -> list[str]:
    """Desired state, namespace and credentials; returns the tasks after which Secrets of the operation exist."""
    add, wait = flow.add, options.wait
    add(Namespace.sync_cluster)
    # All later tasks read from the Cluster object whether the Shoot is changing from IPv4 to both families.
    if case.facts.dual_stack:
        add(DualStack.begin_dual_stack_migration, after=["sync_cluster"])
    stated = "begin_dual_stack_migration" if case.facts.dual_stack else "sync_cluster"
    add(RequiredExtensions.wait_required_extensions, after=[stated], **wait(minutes=2))
    # The ShootState may be encrypted for another seed: encrypt it for this one before the first task reads it.
    resealed = ["reseal_shoot_state"] if case.restoring and case.request.sources else []
    if resealed:
        add_reseal(flow, case.request, case.request.task.seed, resealed[0])
    add(Namespace.deploy_namespace, after=["wait_required_extensions", *resealed])
    add(Namespace.ensure_cluster_identity, after=["deploy_namespace"])
    add(
        Namespace.deploy_cloud_secret,
        after=["deploy_namespace"],
        unless=case.workerless,
        inputs=[case.facts.credentials],
    )
    add(Secrets.init_secrets, after=["deploy_namespace"], completes=resealed[0] if resealed else "")
    add(References.deploy_references, after=["deploy_namespace"])
    return ["init_secrets"] if case.workerless else ["init_secrets", "deploy_cloud_secret"]


def _networks(flow: ShootFlow, case: _Case, base: list[str]) -> None:
    """Networks, addresses, DNS records, and the BackupEntry."""
    add, wait = flow.add, options.wait
    add(
        Extensions.deploy_infrastructure,
        after=[*base, "deploy_references"],
        unless=case.workerless,
        inputs=[case.facts.credentials],
    )
    add(
        Extensions.wait_infrastructure,
        completes="deploy_infrastructure",
        unless=case.workerless or case.skip_readiness,
        inputs=[case.facts.credentials],
        **wait(minutes=10),
    )
    add(ControlPlane.deploy_api_service, after=["ensure_cluster_identity", "init_secrets"])
    add(ControlPlane.wait_api_service, after=["deploy_api_service"], unless=case.asleep, **wait(minutes=10))
    add(ControlPlane.update_advertised_addresses, after=["wait_api_service"])
    add(
        Extensions.deploy_internal_dns,
        after=["wait_api_service", "deploy_references"],
        unless=case.asleep,
        **wait(minutes=2),
    )
    add(
        Extensions.deploy_external_dns,
        after=["wait_api_service", "deploy_references"],
        unless=case.asleep,
        **wait(minutes=2),
    )
    add(Migration.deploy_source_backup_entry, after=["deploy_namespace"], unless=case.staying or case.no_backup)
    add(
        Extensions.wait_source_backup_entry,
        completes="deploy_source_backup_entry",
        unless=case.staying or case.no_backup,
        **wait(minutes=10),
    )
    add(Extensions.deploy_backup_entry, after=["deploy_namespace", "wait_source_backup_entry"], unless=case.no_backup)
    add(
        Extensions.wait_backup_entry,
        completes="deploy_backup_entry",
        unless=case.no_backup or case.skip_readiness,
        **wait(minutes=10),
    )


def _etcd_and_apiserver(flow: ShootFlow, case: _Case, base: list[str]) -> None:
    """The control plane: etcd, then the API server."""
    add, wait = flow.add, options.wait
    parted = []
    if case.restoring and case.facts.fell_back:
        # First: the copy of the backups makes the source's members stop, and those here may need them for a quorum.
        parted = [add(Etcds.part_from_lost_seed, after=["init_secrets", "wait_backup_entry"], **wait(minutes=7))]
    add(
        Migration.copy_etcd_backups,
        after=["wait_backup_entry", "wait_source_backup_entry", *parted],
        unless=case.staying or case.no_backup,
    )
    add(
        Migration.wait_etcd_backups_copied,
        completes="copy_etcd_backups",
        unless=case.staying or case.no_backup,
        **wait(minutes=11),
    )
    add(Migration.delete_copy_task, after=["wait_etcd_backups_copied"], unless=case.staying or case.no_backup)
    # On restore, etcd replicates from the source seed's bucket, and starts to serve once the source's takeover
    # tolerance has passed. So this task waits for the copied backups only if the Shoot is hibernated.
    copied = ["wait_etcd_backups_copied"] if case.asleep else []
    # Several members take longer: each must trust the new CA of its peers before one presents a new certificate.
    add(
        Etcds.deploy_etcds,
        after=[*base, "wait_backup_entry", *copied, *parted],
        **(options.seed_call(minutes=6) if case.facts.failure_tolerance else {}),
    )
    add(Etcds.wait_etcds, completes="deploy_etcds", unless=case.ready_unneeded, **wait(minutes=5))
    add(
        Extensions.deploy_extensions_before_apiserver,
        after=["wait_infrastructure", *base],
        inputs=[case.extensions_before],
        unless=case.asleep or case.no_extension_before,
    )
    add(
        Extensions.wait_extensions_before_apiserver,
        inputs=[case.extensions_before],
        completes="deploy_extensions_before_apiserver",
        unless=case.ready_unneeded or case.no_extension_before,
        **wait(minutes=case.facts.extension_minutes),
    )
    # A new API server waits 20 s for its etcd by itself, so its pod may start at the same time as etcd's. Once there is
    # data, the API server starts only after `wait_etcds` has found etcd ready. On restore this is not needed: etcd does
    # not listen before its restored data are complete.
    prerequisites = ["deploy_etcds" if case.creating or case.restoring else "wait_etcds", "wait_api_service"]
    # The networks of IPv6 are in the status of the Infrastructure.
    prerequisites += case.networks
    if case.tunnel_first:
        # CA rotation, in this order: the VPN server trusts the new CA; the API server presents a certificate from it;
        # the VPN server presents one; the API server stops trusting the old CA.
        add(ControlPlane.deploy_vpn_server, after=["wait_infrastructure"])
        add(ControlPlane.wait_vpn_server, after=["deploy_vpn_server"], **wait(minutes=3))
        prerequisites.append("wait_vpn_server")
    add(
        ControlPlane.deploy_apiserver,
        after=[*prerequisites, *(["wait_extensions_before_apiserver"] if case.extensions_before else [])],
    )
    add(
        ControlPlane.wait_apiserver,
        after=["deploy_apiserver", "wait_etcds"],
        unless=case.ready_unneeded,
        **wait(minutes=5),
    )
    # One member restores the backup; the other members join it afterwards.
    alone = case.asleep or case.staying or (not case.facts.failure_tolerance and "etcd has one member")
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
        unless=alone or case.skip_readiness,
        **wait(minutes=5),
    )


def _components_of_apiserver(flow: ShootFlow, case: _Case) -> None:
    """The route to the API server, and components that need the API server."""
    add, wait = flow.add, options.wait
    # Create the route early: a route to a Service without endpoints is harmless, and users do not wait for it later.
    # Exception, restore: while etcd replicates it can already be read, so route no traffic until `wait_etcds` has
    # found that the source has stopped.
    add(
        ControlPlane.deploy_apiserver_sni,
        after=["deploy_api_service", "init_secrets", *(["wait_etcds"] if case.restoring else [])],
    )
    add(ControlPlane.deploy_resource_manager, after=["wait_apiserver"])
    add(
        ControlPlane.wait_resource_manager,
        after=["deploy_resource_manager"],
        unless=case.ready_unneeded,
        **wait(minutes=5),
    )
    add(
        Extensions.deploy_control_plane_extension,
        after=["wait_infrastructure", "wait_apiserver"],
        unless=case.workerless,
        inputs=[case.facts.credentials],
    )
    add(
        Extensions.wait_control_plane_extension,
        completes="deploy_control_plane_extension",
        unless=case.workerless or case.skip_readiness,
        **wait(minutes=3),
    )
    add(ControlPlane.deploy_gardener_access, after=["wait_resource_manager", "deploy_internal_dns"])
    add(ControlPlane.init_shoot_client, after=["deploy_gardener_access"])
    other_issuer = not case.facts.managed_issuer and "no managed issuer"
    add(Issuer.sync_public_sa_keys, after=["init_shoot_client"], unless=case.asleep or other_issuer)
    # Delete the source's backups once etcd has restored the data, and the backups are copied.
    add(
        Extensions.delete_source_backup_entry,
        after=["wait_etcds", "wait_etcd_backups_copied", "init_shoot_client"],
        unless=case.staying or case.no_backup,
    )
    add(
        Extensions.wait_source_backup_entry_deleted,
        completes="delete_source_backup_entry",
        unless=case.staying or case.no_backup,
        **wait(minutes=10),
    )


def _controllers(flow: ShootFlow, case: _Case, base: list[str]) -> list[str]:
    """The kube-controller-manager; returns the task after which controllers start."""
    add, wait = flow.add, options.wait
    # In a new cluster the controllers start at the same time as the resource manager, with first tokens of their own:
    # a machine that starts before them waits for its certificate.
    controllers = ["wait_apiserver" if case.creating else "wait_resource_manager"]
    add(ControlPlane.deploy_kube_controller_manager, after=[*controllers, *case.networks, *base])
    nothing_new = not (case.new_ca or case.token_key.preparing) and "no rotation needs it"
    add(
        ControlPlane.restart_control_plane_pods,
        after=["deploy_kube_controller_manager", "wait_control_plane_extension"],
        unless=TASK_RESTART_CONTROL_PLANE_PODS not in case.facts.tasks and "not asked for",
    )
    add(
        ControlPlane.wait_kube_controller_manager,
        after=["deploy_kube_controller_manager"],
        unless=nothing_new,
        **wait(minutes=3),
    )
    return controllers


def _credentials(flow: ShootFlow, case: _Case) -> None:
    """Steps of rotations that need the new control plane."""
    add, wait = flow.add, options.wait
    # Publish the new CA in ConfigMaps before new machines start pods: a pod must trust it from its first request on.
    add(
        Rotation.wait_root_ca_configmaps,
        after=["init_shoot_client", "wait_kube_controller_manager"],
        unless=case.root_ca_unneeded,
        **wait(minutes=5),
    )
    old_clients_kept = case.authorities is not RotationPhase.COMPLETING and "no old CA is dropped"
    add(Rotation.drop_old_client_authorities, after=["init_shoot_client"], unless=case.asleep or old_clients_kept)
    add(Rotation.renew_access_tokens, after=["wait_resource_manager"], unless=case.asleep or case.no_new_token_key)
    add(
        Rotation.create_sa_secrets,
        after=["init_shoot_client", "wait_kube_controller_manager"],
        unless=case.asleep or case.no_new_token_key,
        **wait(minutes=10),
    )
    old_token_key_kept = case.token_key is not RotationPhase.COMPLETING and "no old service account key is dropped"
    add(
        Rotation.delete_old_sa_secrets,
        after=["init_shoot_client", "deploy_kube_controller_manager"],
        unless=old_token_key_kept,
        **wait(minutes=10),
    )
    # Rewrite all encrypted resources with the new key before the old key is dropped.
    no_new_encryption = case.encryption_key is not RotationPhase.PREPARING and "no new encryption key"
    old_encryption_kept = case.encryption_key is not RotationPhase.COMPLETING and "no old encryption key is dropped"
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
        unless=no_new_encryption or case.no_backup,
        **wait(minutes=10),
    )
    add(
        Rotation.rewrite_remove_label,
        after=["wait_apiserver", "init_shoot_client"],
        unless=old_encryption_kept,
        **wait(minutes=10),
    )


def _scheduler_and_tunnel(flow: ShootFlow, case: _Case, controllers: list[str]) -> None:
    """The scheduler, and the control plane's end of the tunnel to the machines."""
    add = flow.add
    add(ControlPlane.deploy_scheduler, after=controllers, unless=case.workerless)
    if not case.tunnel_first:
        # The tunnel leads to the machines' network, which the status of the Infrastructure names.
        add(
            ControlPlane.deploy_vpn_server,
            after=["wait_infrastructure", "wait_resource_manager"],
            unless=case.workerless,
        )


def _extensions(flow: ShootFlow, case: _Case) -> list[str]:
    """Extensions that need the API server; returns the task after which they are ready.

    They come before the OperatingSystemConfigs, which they may change.
    """
    add, wait = flow.add, options.wait
    add(
        Extensions.deploy_extensions_after_apiserver,
        after=["deploy_references", "init_shoot_client"],
        inputs=[case.extensions_after],
        unless=case.no_extension_after,
    )
    add(
        Extensions.wait_extensions_after_apiserver,
        inputs=[case.extensions_after],
        completes="deploy_extensions_after_apiserver",
        unless=case.skip_readiness or case.no_extension_after,
        **wait(minutes=case.facts.extension_minutes),
    )
    add(Extensions.delete_stale_extensions, after=["init_shoot_client"])
    add(
        Extensions.wait_stale_extensions_deleted,
        completes="delete_stale_extensions",
        unless=case.asleep,
        **wait(minutes=case.facts.extension_minutes),
    )
    no_runtime = case.workerless or (not case.facts.container_runtimes and "no container runtimes")
    add(Extensions.deploy_container_runtimes, after=["init_shoot_client"], unless=no_runtime)
    add(Extensions.wait_container_runtimes, completes="deploy_container_runtimes", unless=no_runtime, **wait(minutes=3))
    add(Extensions.delete_stale_container_runtimes, after=["init_shoot_client"], unless=case.workerless)
    add(
        Extensions.wait_stale_container_runtimes_deleted,
        completes="delete_stale_container_runtimes",
        unless=case.machines_unneeded,
        **wait(minutes=3),
    )
    return ["wait_extensions_after_apiserver"] if case.extensions_after else []


def _system_components(flow: ShootFlow, case: _Case, extended: list[str]) -> None:
    """System components in the shoot."""
    add, wait = flow.add, options.wait
    add(ShootSystem.deploy_shoot_namespaces, after=["wait_resource_manager"])
    add(
        ShootSystem.wait_shoot_namespaces,
        after=["deploy_shoot_namespaces"],
        unless=case.ready_unneeded,
        **wait(minutes=2),
    )
    ssh = case.facts.ssh_access and "nodes are reached by SSH"
    add(
        Extensions.delete_bastions,
        after=["wait_infrastructure", "wait_control_plane_extension"],
        unless=case.workerless or ssh,
    )
    # A runtime's extension adds its programs to the OperatingSystemConfigs while they are written.
    runtimes = ["wait_container_runtimes"] if case.facts.container_runtimes else []
    add(
        OperatingSystemConfigs.deploy_os_configs,
        unless=case.workerless,
        after=["wait_infrastructure", "wait_control_plane_extension", "delete_bastions", *extended, *runtimes],
    )
    add(Extensions.wait_os_configs, completes="deploy_os_configs", unless=case.workerless, **wait(minutes=3))
    add(ShootSystem.deploy_shoot_system, after=["wait_apiserver", *extended], unless=case.asleep)
    add(
        ShootSystem.deploy_cluster_identity,
        after=["ensure_cluster_identity", "wait_shoot_namespaces"],
        unless=case.asleep,
    )
    add(StaticManifests.populate_static_manifests, after=["wait_shoot_namespaces"])
    prepared = ["wait_control_plane_extension", "wait_shoot_namespaces", "deploy_scheduler", *extended]
    add(
        Extensions.deploy_network, after=["wait_infrastructure", "init_shoot_client", *prepared], unless=case.workerless
    )
    add(
        Extensions.wait_network,
        completes="deploy_network",
        unless=case.workerless or case.skip_readiness,
        **wait(minutes=3),
    )
    add(ShootSystem.deploy_kube_proxy, after=["init_shoot_client", *prepared], unless=case.machines_unneeded)
    add(ShootSystem.deploy_coredns, after=["wait_network"], unless=case.machines_unneeded)
    add(ShootSystem.deploy_node_local_dns, after=["wait_network"], unless=case.machines_unneeded)
    add(ShootSystem.deploy_apiserver_proxy, after=prepared, unless=case.workerless)
    add(ShootSystem.deploy_vpn_shoot, after=["deploy_vpn_server", *prepared], unless=case.machines_unneeded)
    add(ShootSystem.deploy_metrics_server, after=["wait_os_configs", *prepared], unless=case.machines_unneeded)
    add(ShootSystem.deploy_node_problem_detector, after=["wait_os_configs", *prepared], unless=case.machines_unneeded)
    add(ShootSystem.deploy_node_exporter, after=prepared, unless=case.machines_unneeded)
    add(ShootSystem.deploy_blackbox_exporter, after=prepared, unless=case.machines_unneeded)


def _machines(flow: ShootFlow, case: _Case) -> None:
    """Machines, and the tunnel from the control plane to them."""
    add, wait = flow.add, options.wait
    add(
        OperatingSystemConfigs.deploy_node_agent_resources,
        after=["wait_os_configs", "wait_apiserver"],
        unless=case.machines_unneeded,
    )
    add(Hibernation.scale_autoscaler_to_zero, after=["deploy_namespace"], unless=case.workerless or case.awake)
    manager = "deploy_machine_controller_manager"
    if not case.restoring:
        add(
            ControlPlane.deploy_machine_controller_manager,
            unless=case.workerless,
            after=["wait_infrastructure", "wait_apiserver", *([] if case.no_new_token_key else ["create_sa_secrets"])],
        )
    add(
        Extensions.deploy_worker,
        unless=case.workerless,
        inputs=[case.facts.credentials],
        after=[
            "wait_infrastructure",
            "deploy_shoot_system",
            "deploy_node_agent_resources",
            "scale_autoscaler_to_zero",
            *([] if case.restoring else [manager]),
            *([] if case.root_ca_unneeded else ["wait_root_ca_configmaps"]),
        ],
    )
    add(
        Extensions.wait_machine_deployments,
        completes="deploy_worker",
        unless=case.workerless or case.ready_unneeded,
        **wait(minutes=10),
    )
    add(
        Extensions.deploy_extensions_after_worker,
        after=["wait_machine_deployments", "deploy_references", "init_shoot_client"],
        inputs=[case.extensions_after_worker],
        unless=case.workerless or case.no_extension_after_worker,
    )
    add(
        Extensions.wait_extensions_after_worker,
        inputs=[case.extensions_after_worker],
        completes="deploy_extensions_after_worker",
        unless=case.workerless or case.skip_readiness or case.no_extension_after_worker,
        **wait(minutes=case.facts.extension_minutes),
    )
    add(
        Extensions.wait_worker,
        after=["deploy_worker", "wait_extensions_after_worker"],
        completes="deploy_worker",
        unless=case.workerless or (not case.restoring and case.skip_readiness),
        **wait(minutes=10),
    )
    if case.restoring:
        # The machine-controller-manager starts after the Worker has restored all machine objects: it would create
        # each machine again whose object it does not find (invariant 9).
        add(ControlPlane.deploy_machine_controller_manager, after=["wait_worker"], unless=case.workerless)
    # On restore, the cluster autoscaler starts after all machines are restored: before, it would count too few.
    add(
        Autoscaler.deploy_autoscaler,
        after=["wait_worker" if case.restoring else "wait_machine_deployments", "init_shoot_client"],
        unless=case.machines_unneeded,
    )
    # Delete old OperatingSystemConfigs only now: machines that use them are gone after `wait_worker`.
    add(Extensions.delete_stale_os_configs, after=["wait_worker"], unless=case.workerless)
    add(
        Extensions.wait_stale_os_configs_deleted,
        completes="delete_stale_os_configs",
        unless=case.machines_unneeded,
        **wait(minutes=3),
    )
    add(
        ShootSystem.wait_vpn_shoot,
        after=["deploy_vpn_shoot", "wait_worker"],
        unless=case.machines_unneeded,
        **wait(minutes=2),
    )
    add(
        ShootSystem.wait_tunnel,
        unless=case.workerless or case.ready_unneeded,
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


def _observability(flow: ShootFlow, case: _Case) -> None:
    """Observability, autoscaling of pods, and the configuration of nodes."""
    add, wait = flow.add, options.wait
    # Users need not wait for observability when the cluster is created or restored, or wakes up. Otherwise the task
    # waits, so that a rotation of its passwords ends only after the old password is refused.
    add(Observability.deploy_observability, after=["wait_tunnel", "init_shoot_client"])
    waking = case.facts.waking and case.facts.phase(Kind.OBSERVABILITY) is RotationPhase.NONE
    wait_unneeded = (case.creating or case.restoring or waking) and "users need not wait for it"
    add(
        Observability.wait_observability,
        after=["deploy_observability"],
        unless=case.ready_unneeded or wait_unneeded,
        **wait(minutes=3),
    )
    add(Vpa.deploy_vpa, after=["wait_tunnel", "init_shoot_client"], unless=case.workerless)
    add(
        Vpa.wait_vpa,
        after=["deploy_vpa"],
        unless=case.workerless or case.ready_unneeded or wait_unneeded,
        **wait(minutes=3),
    )
    if case.facts.dual_stack:
        add(
            DualStack.check_node_pod_cidrs,
            after=["wait_worker", "wait_network", "wait_tunnel", "deploy_coredns", "wait_apiserver"],
            unless=case.machines_unneeded,
        )
    # Nodes apply a new configuration one after another, within the time that the Shoot allows: 30 minutes at most.
    add(
        OperatingSystemConfigs.wait_os_configs_applied,
        after=["wait_tunnel"],
        unless=case.machines_unneeded,
        **wait(minutes=33),
    )


def _hibernation(flow: ShootFlow, case: _Case) -> None:
    """Hibernation: no machines, no machine-controller-manager and no control plane run. etcd's data stay."""
    add, wait = flow.add, options.wait
    add(
        Hibernation.scale_machine_controller_manager_to_zero,
        after=["wait_worker"],
        unless=case.workerless or case.awake,
    )
    add(Hibernation.hibernate_control_plane, after=EVERYTHING, unless=case.awake, **wait(minutes=10))
    add(
        Extensions.deploy_extensions_before_apiserver,
        name="hibernate_extensions_before_apiserver",
        after=["hibernate_control_plane"],
        unless=case.awake or case.no_extension_before,
    )
    add(
        Extensions.wait_extensions_before_apiserver,
        name="wait_extensions_before_apiserver_hibernated",
        completes="hibernate_extensions_before_apiserver",
        unless=case.awake or case.no_extension_before,
        **wait(minutes=case.facts.extension_minutes),
    )
    add(Extensions.delete_external_dns, after=["hibernate_control_plane"], unless=case.awake, **wait(minutes=2))
    add(Extensions.delete_internal_dns, after=["hibernate_control_plane"], unless=case.awake, **wait(minutes=2))


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
