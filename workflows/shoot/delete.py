"""Delete a Shoot: the objects of its users, its machines, its control plane, its DNS records and backups.

If there was a control plane, the flow first makes it work again: only its controllers can delete load balancers and
volumes. Tasks and order: spec/flows.md 3.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.autoscaler import AutoscalerActivities as Autoscaler
    from activities.seed.control_plane import ControlPlaneActivities as ControlPlane
    from activities.seed.etcd import EtcdActivities as Etcds
    from activities.seed.extensions import ExtensionActivities as Extensions
    from activities.seed.issuer import IssuerActivities as Issuer
    from activities.seed.namespace import NamespaceActivities as Namespace
    from activities.seed.references import ReferenceActivities as References
    from activities.seed.required_extensions import RequiredExtensionActivities as RequiredExtensions
    from activities.seed.secrets import SecretActivities as Secrets
    from activities.seed.shoot_state import ShootStateActivities as ShootStates
    from activities.shoot.cleanup import CleanupActivities as Cleanup
    from activities.shoot.system import ShootSystemActivities as ShootSystem
    from api.contracts.flows import FlowInput, FlowOutcome, Survey
    from workflows import options
    from workflows.flow import EVERYTHING
    from workflows.shoot.base import OperationWorkflow, ShootFlow, shoot_flow


def delete_flow(request: FlowInput, survey: Survey) -> ShootFlow:
    """The whole flow; read it from top to bottom."""
    flow, facts = shoot_flow(request), request.facts
    add, wait = flow.add, options.wait
    workerless = facts.workerless and "workerless"
    no_namespace = not survey.namespace and "no namespace"
    # The namespace belongs to another Shoot, so objects of these names must stay.
    foreign = survey.foreign and "the namespace belongs to another Shoot"
    no_machines = foreign or workerless
    no_cluster = no_namespace or (not survey.cluster and "no API server")
    no_control_plane = workerless or no_cluster or (not survey.control_plane and "no ControlPlane")
    no_manager = no_cluster or (not survey.controller_manager and "no kube-controller-manager before")
    extended_unneeded = no_cluster or (facts.skip_cleanup and "skip-cleanup")

    # Bring the control plane up to date: users may have corrected credentials, or the Shoot may be hibernated.
    add(Namespace.sync_cluster, unless=no_namespace)
    add(RequiredExtensions.wait_required_extensions, after=["sync_cluster"], unless=no_namespace, **wait(minutes=2))
    add(Namespace.deploy_namespace, after=["wait_required_extensions"], unless=no_namespace)
    add(Namespace.ensure_cluster_identity, after=["deploy_namespace"], unless=no_namespace)
    add(
        Namespace.deploy_cloud_secret,
        after=["deploy_namespace"],
        unless=no_namespace or workerless,
        inputs=[facts.credentials],
    )
    add(Secrets.init_secrets, after=["deploy_namespace"], unless=no_namespace)
    add(References.deploy_references, after=["deploy_namespace"], unless=no_namespace)
    add(ControlPlane.deploy_api_service, after=["ensure_cluster_identity", "init_secrets"], unless=no_cluster)
    add(ControlPlane.wait_api_service, after=["deploy_api_service"], unless=no_cluster, **wait(minutes=10))
    add(ControlPlane.update_advertised_addresses, after=["wait_api_service"], unless=no_cluster)
    add(Extensions.deploy_internal_dns, after=["wait_api_service"], unless=no_cluster, **wait(minutes=2))
    add(Etcds.deploy_etcds, after=["init_secrets", "deploy_cloud_secret"], unless=no_cluster)
    add(Etcds.wait_etcds, completes="deploy_etcds", unless=no_cluster, **wait(minutes=5))
    add(ControlPlane.deploy_apiserver, after=["wait_etcds", "wait_api_service"], unless=no_cluster)
    add(ControlPlane.wait_apiserver, after=["deploy_apiserver"], unless=no_cluster, **wait(minutes=5))
    add(ControlPlane.deploy_apiserver_sni, after=["wait_apiserver"], unless=no_cluster)
    add(ControlPlane.deploy_resource_manager, after=["wait_apiserver"], unless=no_cluster)
    add(ControlPlane.wait_resource_manager, after=["deploy_resource_manager"], unless=no_cluster, **wait(minutes=5))
    add(
        Extensions.deploy_control_plane_extension,
        after=["wait_resource_manager"],
        unless=no_control_plane,
        inputs=[facts.credentials],
    )
    add(
        Extensions.wait_control_plane_extension,
        completes="deploy_control_plane_extension",
        unless=no_control_plane,
        **wait(minutes=3),
    )
    add(ControlPlane.deploy_gardener_access, after=["wait_resource_manager", "deploy_internal_dns"], unless=no_cluster)
    add(ControlPlane.init_shoot_client, after=["deploy_gardener_access"], unless=no_cluster)
    add(
        ControlPlane.deploy_kube_controller_manager,
        after=["wait_control_plane_extension", "init_shoot_client"],
        unless=no_cluster,
    )

    # Delete the cluster autoscaler: while pods are deleted it must neither create nor delete machines.
    add(Autoscaler.delete_autoscaler, after=["init_shoot_client"], unless=no_namespace or workerless, **wait(minutes=2))

    # Delete the objects of users: webhooks first, because they could reject the other deletions.
    add(Cleanup.clean_webhooks, after=["init_shoot_client"], unless=no_cluster, **wait(minutes=10))
    add(
        Cleanup.wait_kube_controller_manager_active,
        after=["clean_webhooks", "deploy_kube_controller_manager"],
        unless=no_manager,
        **wait(minutes=5),
    )
    add(
        Cleanup.clean_extended_apis,
        after=["wait_kube_controller_manager_active", "delete_autoscaler"],
        unless=extended_unneeded,
        **wait(minutes=10),
    )
    add(
        Cleanup.clean_kubernetes_resources,
        after=["clean_extended_apis", "wait_control_plane_extension"],
        unless=no_cluster,
        **wait(minutes=10),
    )

    # A hibernated cluster has no pods of the metrics server. Delete its APIService: no namespace can end while an API
    # does not answer.
    add(
        ShootSystem.delete_metrics_server,
        after=["clean_extended_apis"],
        unless=no_cluster or workerless or (not facts.hibernated and "awake"),
    )

    # Machines, and the other resources that extensions made for them.
    add(Extensions.delete_network, after=["clean_kubernetes_resources"], unless=no_machines)
    add(Extensions.wait_network_deleted, completes="delete_network", unless=no_machines, **wait(minutes=3))
    add(
        ControlPlane.deploy_machine_controller_manager,
        after=["clean_kubernetes_resources"],
        unless=no_cluster or workerless,
    )
    add(Extensions.delete_worker, after=["deploy_machine_controller_manager"], unless=no_machines)
    add(Extensions.wait_worker_deleted, completes="delete_worker", unless=no_machines, **wait(minutes=10))
    add(ControlPlane.delete_machine_controller_manager, after=["wait_worker_deleted"], unless=no_machines)
    add(Extensions.delete_os_configs, after=["wait_worker_deleted"], unless=no_machines)
    add(Extensions.wait_os_configs_deleted, completes="delete_os_configs", unless=no_machines, **wait(minutes=3))
    add(
        ShootSystem.delete_managed_resources,
        after=["clean_kubernetes_resources", "wait_worker_deleted"],
        unless=no_namespace,
    )
    add(
        ShootSystem.wait_managed_resources_deleted,
        after=["delete_managed_resources"],
        unless=no_namespace,
        **wait(minutes=10),
    )
    add(Extensions.delete_container_runtimes, after=["clean_kubernetes_resources"], unless=no_machines)
    add(
        Extensions.wait_container_runtimes_deleted,
        completes="delete_container_runtimes",
        unless=no_machines,
        **wait(minutes=3),
    )
    # Extensions that are deleted before the API server, and those that no registration declares any more.
    add(
        Extensions.delete_extensions_before_apiserver,
        after=["wait_managed_resources_deleted", "wait_os_configs_deleted"],
        unless=foreign,
    )
    add(
        Extensions.wait_extensions_before_apiserver_deleted,
        completes="delete_extensions_before_apiserver",
        unless=foreign,
        **wait(minutes=facts.extension_minutes),
    )
    add(
        Extensions.delete_control_plane_extension,
        unless=no_machines,
        after=[
            "wait_managed_resources_deleted",
            "wait_os_configs_deleted",
            "delete_machine_controller_manager",
            "wait_network_deleted",
            "wait_container_runtimes_deleted",
            "wait_extensions_before_apiserver_deleted",
        ],
    )
    add(
        Extensions.wait_control_plane_extension_deleted,
        completes="delete_control_plane_extension",
        unless=no_machines,
        **wait(minutes=3),
    )

    # Wait for the ManagedResources of extensions, too: without API server their objects could not be deleted.
    add(
        ShootSystem.wait_shoot_managed_resources_deleted,
        after=[
            "wait_managed_resources_deleted",
            "wait_extensions_before_apiserver_deleted",
            "wait_control_plane_extension_deleted",
        ],
        unless=no_namespace,
        **wait(minutes=10),
    )

    # The control plane, API server first; its DNS records after it, when they are of no use any more.
    add(ControlPlane.delete_apiserver, after=["wait_shoot_managed_resources_deleted"], unless=no_namespace)
    add(ControlPlane.wait_apiserver_deleted, after=["delete_apiserver"], unless=no_namespace, **wait(minutes=5))
    add(Extensions.delete_extensions_after_apiserver, after=["wait_apiserver_deleted"], unless=foreign)
    add(
        Extensions.wait_extensions_after_apiserver_deleted,
        completes="delete_extensions_after_apiserver",
        unless=foreign,
        **wait(minutes=facts.extension_minutes),
    )
    add(ControlPlane.delete_apiserver_sni, after=["wait_apiserver_deleted"], unless=no_namespace)
    add(ControlPlane.delete_api_service, after=["delete_apiserver_sni"], unless=no_namespace)
    add(ControlPlane.delete_resource_manager, after=["wait_apiserver_deleted"], unless=no_namespace)
    add(Issuer.delete_public_sa_keys, after=["wait_apiserver_deleted"])
    add(Extensions.delete_external_dns, after=["wait_apiserver_deleted"], unless=no_namespace, **wait(minutes=2))
    add(Extensions.delete_infrastructure, after=["wait_control_plane_extension_deleted"], unless=no_machines)
    add(
        Extensions.wait_infrastructure_deleted,
        completes="delete_infrastructure",
        unless=no_machines,
        **wait(minutes=10),
    )
    last = [
        "delete_api_service",
        "delete_resource_manager",
        "delete_external_dns",
        "wait_infrastructure_deleted",
        "wait_extensions_after_apiserver_deleted",
    ]
    add(References.delete_references, after=last, unless=no_namespace)
    add(Extensions.delete_internal_dns, after=last, unless=no_namespace, **wait(minutes=2))
    add(Etcds.delete_etcds, after=last, unless=no_namespace)
    add(Etcds.wait_etcds_deleted, after=["delete_etcds"], unless=no_namespace, **wait(minutes=5))
    add(Extensions.delete_backup_entry, after=["wait_etcds_deleted"])
    add(Extensions.wait_backup_entry_deleted, completes="delete_backup_entry", **wait(minutes=10))
    add(Extensions.delete_source_backup_entry, after=["wait_etcds_deleted"])
    add(Extensions.wait_source_backup_entry_deleted, completes="delete_source_backup_entry", **wait(minutes=10))
    add(Namespace.delete_namespace, after=["delete_internal_dns", "delete_references", "wait_etcds_deleted"])
    add(Namespace.wait_namespace_deleted, after=["delete_namespace"], **wait(minutes=15))
    add(ShootStates.delete_shootstate, after=["delete_namespace"])
    add(Namespace.delete_cluster, after=EVERYTHING, unless=foreign)
    return flow


@workflow.defn
class DeleteShoot(OperationWorkflow):
    """One attempt to delete. Workflow id: ``<lifecycle id>/delete/<generation>-<n>``."""

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.run_surveyed(request, delete_flow)
