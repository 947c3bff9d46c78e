"""Delete a Shoot: the objects of its users, its machines, its control plane, its DNS records and backups.

If there was a control plane, the flow first makes it work again: only its controllers can delete load balancers and
volumes. Tasks and order: spec/flows.md 3.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from api.contracts.flows import FlowInput, FlowOutcome, Survey
    from workflows import options
    from workflows.flow import EVERYTHING, Flow
    from workflows.shoot.base import OperationWorkflow, shoot_flow


def delete_flow(request: FlowInput, survey: Survey) -> Flow:
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
    add("sync_cluster", unless=no_namespace)
    add("wait_required_extensions", after=["sync_cluster"], unless=no_namespace, **wait(minutes=2))
    add("deploy_namespace", after=["wait_required_extensions"], unless=no_namespace)
    add("ensure_cluster_identity", after=["deploy_namespace"], unless=no_namespace)
    add("deploy_cloud_secret", after=["deploy_namespace"], unless=no_namespace or workerless,
        inputs=[facts.credentials])  # fmt: skip
    add("init_secrets", after=["deploy_namespace"], unless=no_namespace)
    add("deploy_references", after=["deploy_namespace"], unless=no_namespace)
    add("deploy_api_service", after=["ensure_cluster_identity", "init_secrets"], unless=no_cluster)
    add("wait_api_service", after=["deploy_api_service"], unless=no_cluster, **wait(minutes=10))
    add("update_advertised_addresses", after=["wait_api_service"], unless=no_cluster)
    add("deploy_internal_dns", after=["wait_api_service"], unless=no_cluster, **wait(minutes=2))
    add("deploy_etcds", after=["init_secrets", "deploy_cloud_secret"], unless=no_cluster)
    add("wait_etcds", after=["deploy_etcds"], completes="deploy_etcds", unless=no_cluster, **wait(minutes=5))
    add("deploy_apiserver", after=["wait_etcds", "wait_api_service"], unless=no_cluster)
    add("wait_apiserver", after=["deploy_apiserver"], unless=no_cluster, **wait(minutes=5))
    add("deploy_apiserver_sni", after=["wait_apiserver"], unless=no_cluster)
    add("deploy_resource_manager", after=["wait_apiserver"], unless=no_cluster)
    add("wait_resource_manager", after=["deploy_resource_manager"], unless=no_cluster, **wait(minutes=5))
    add("deploy_control_plane_extension", after=["wait_resource_manager"], unless=no_control_plane,
        inputs=[facts.credentials])  # fmt: skip
    add("wait_control_plane_extension", after=["deploy_control_plane_extension"],
        completes="deploy_control_plane_extension", unless=no_control_plane, **wait(minutes=3))  # fmt: skip
    add("deploy_gardener_access", after=["wait_resource_manager", "deploy_internal_dns"], unless=no_cluster)
    add("init_shoot_client", after=["deploy_gardener_access"], unless=no_cluster)
    add("deploy_kube_controller_manager", after=["wait_control_plane_extension", "init_shoot_client"],
        unless=no_cluster)  # fmt: skip

    # Delete the cluster autoscaler: while pods are deleted it must neither create nor delete machines.
    add("delete_autoscaler", after=["init_shoot_client"], unless=no_namespace or workerless, **wait(minutes=2))

    # Delete the objects of users: webhooks first, because they could reject the other deletions.
    add("clean_webhooks", after=["init_shoot_client"], unless=no_cluster, **wait(minutes=10))
    add("wait_kube_controller_manager_active", after=["clean_webhooks", "deploy_kube_controller_manager"],
        unless=no_manager, **wait(minutes=5))  # fmt: skip
    add("clean_extended_apis", after=["wait_kube_controller_manager_active", "delete_autoscaler"],
        unless=extended_unneeded, **wait(minutes=10))  # fmt: skip
    add("clean_kubernetes_resources", after=["clean_extended_apis", "wait_control_plane_extension"],
        unless=no_cluster, **wait(minutes=10))  # fmt: skip

    # A hibernated cluster has no pods of the metrics server. Delete its APIService: no namespace can end while an API
    # does not answer.
    add("delete_metrics_server", after=["clean_extended_apis"],
        unless=no_cluster or workerless or (not facts.hibernated and "awake"))  # fmt: skip

    # Machines, and the other resources that extensions made for them.
    add("delete_network", after=["clean_kubernetes_resources"], unless=no_machines)
    add("wait_network_deleted", after=["delete_network"], completes="delete_network", unless=no_machines,
        **wait(minutes=3))  # fmt: skip
    add("deploy_machine_controller_manager", after=["clean_kubernetes_resources"], unless=no_cluster or workerless)
    add("delete_worker", after=["deploy_machine_controller_manager"], unless=no_machines)
    add("wait_worker_deleted", after=["delete_worker"], completes="delete_worker", unless=no_machines,
        **wait(minutes=10))  # fmt: skip
    add("delete_machine_controller_manager", after=["wait_worker_deleted"], unless=no_machines)
    add("delete_os_configs", after=["wait_worker_deleted"], unless=no_machines)
    add("wait_os_configs_deleted", after=["delete_os_configs"], completes="delete_os_configs", unless=no_machines,
        **wait(minutes=3))  # fmt: skip
    add("delete_managed_resources", after=["clean_kubernetes_resources", "wait_worker_deleted"], unless=no_namespace)
    add("wait_managed_resources_deleted", after=["delete_managed_resources"], unless=no_namespace,
        **wait(minutes=10))  # fmt: skip
    add("delete_container_runtimes", after=["clean_kubernetes_resources"], unless=no_machines)
    add("wait_container_runtimes_deleted", after=["delete_container_runtimes"], completes="delete_container_runtimes",
        unless=no_machines, **wait(minutes=3))  # fmt: skip
    # Extensions that are deleted before the API server, and those that no registration declares any more.
    add("delete_extensions_before_apiserver", after=["wait_managed_resources_deleted", "wait_os_configs_deleted"],
        unless=foreign)  # fmt: skip
    add("wait_extensions_before_apiserver_deleted", after=["delete_extensions_before_apiserver"],
        completes="delete_extensions_before_apiserver", unless=foreign,
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    add("delete_control_plane_extension", unless=no_machines,
        after=["wait_managed_resources_deleted", "wait_os_configs_deleted", "delete_machine_controller_manager",
               "wait_network_deleted", "wait_container_runtimes_deleted",
               "wait_extensions_before_apiserver_deleted"])  # fmt: skip
    add("wait_control_plane_extension_deleted", after=["delete_control_plane_extension"],
        completes="delete_control_plane_extension", unless=no_machines, **wait(minutes=3))  # fmt: skip

    # Wait for the ManagedResources of extensions, too: without API server their objects could not be deleted.
    add("wait_shoot_managed_resources_deleted",
        after=["wait_managed_resources_deleted", "wait_extensions_before_apiserver_deleted",
               "wait_control_plane_extension_deleted"], unless=no_namespace,
        **wait(minutes=10))  # fmt: skip

    # The control plane, API server first; its DNS records after it, when they are of no use any more.
    add("delete_apiserver", after=["wait_shoot_managed_resources_deleted"], unless=no_namespace)
    add("wait_apiserver_deleted", after=["delete_apiserver"], unless=no_namespace, **wait(minutes=5))
    add("delete_extensions_after_apiserver", after=["wait_apiserver_deleted"], unless=foreign)
    add("wait_extensions_after_apiserver_deleted", after=["delete_extensions_after_apiserver"],
        completes="delete_extensions_after_apiserver", unless=foreign,
        **wait(minutes=facts.extension_minutes))  # fmt: skip
    add("delete_apiserver_sni", after=["wait_apiserver_deleted"], unless=no_namespace)
    add("delete_api_service", after=["delete_apiserver_sni"], unless=no_namespace)
    add("delete_resource_manager", after=["wait_apiserver_deleted"], unless=no_namespace)
    add("delete_public_sa_keys", after=["wait_apiserver_deleted"])
    add("delete_external_dns", after=["wait_apiserver_deleted"], unless=no_namespace, **wait(minutes=2))
    add("delete_infrastructure", after=["wait_control_plane_extension_deleted"], unless=no_machines)
    add("wait_infrastructure_deleted", after=["delete_infrastructure"], completes="delete_infrastructure",
        unless=no_machines, **wait(minutes=10))  # fmt: skip
    last = ["delete_api_service", "delete_resource_manager", "delete_external_dns", "wait_infrastructure_deleted",
            "wait_extensions_after_apiserver_deleted"]  # fmt: skip
    add("delete_references", after=last, unless=no_namespace)
    add("delete_internal_dns", after=last, unless=no_namespace, **wait(minutes=2))
    add("delete_etcds", after=last, unless=no_namespace)
    add("wait_etcds_deleted", after=["delete_etcds"], unless=no_namespace, **wait(minutes=5))
    add("delete_backup_entry", after=["wait_etcds_deleted"])
    add("wait_backup_entry_deleted", after=["delete_backup_entry"], completes="delete_backup_entry",
        **wait(minutes=10))  # fmt: skip
    add("delete_source_backup_entry", after=["wait_etcds_deleted"])
    add("wait_source_backup_entry_deleted", after=["delete_source_backup_entry"],
        completes="delete_source_backup_entry", **wait(minutes=10))  # fmt: skip
    add("delete_namespace", after=["delete_internal_dns", "delete_references", "wait_etcds_deleted"])
    add("wait_namespace_deleted", after=["delete_namespace"], **wait(minutes=15))
    add("delete_shootstate", after=["delete_namespace"])
    add("delete_cluster", after=EVERYTHING, unless=foreign)
    return flow


@workflow.defn
class DeleteShoot(OperationWorkflow):
    """One attempt to delete. Workflow id: ``<lifecycle id>/delete/<generation>-<n>``."""

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.run_surveyed(request, delete_flow)
