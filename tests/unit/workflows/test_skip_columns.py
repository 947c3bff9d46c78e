"""The skip columns of spec/flows.md 2 and 3: which tasks a Shoot or its seed does without, one row a task.

Left out here are tasks of parts that this project does not have, and those of rotations, which have tests of their own.
"""

import pytest

from api.contracts.flows import FlowInput, ShootFacts, Survey
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.decisions.registrations import Phase
from workflows.flow import Flow
from workflows.shoot.delete import delete_flow
from workflows.shoot.force_delete import force_delete_flow
from workflows.shoot.reconcile import reconcile_flow

TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="0f3c"),
    technical_id="shoot--local--demo",
    seed="seed-1",
    generation=1,
    operation=OperationType.RECONCILE,
)
FACTS = ShootFacts(extensions=dict.fromkeys(Phase, "1"), container_runtimes=True, managed_issuer=True, ssh_access=False)
"""A Shoot that has everything, so that nothing is skipped for want of it."""

# H hibernated, A awake, WL workerless, NB no backup, SR skip-readiness, SSH reached by it.
RECONCILE = {
    "deploy_cloud_secret": "WL",
    "deploy_infrastructure": "WL",
    "wait_infrastructure": "WL SR",
    "wait_api_service": "H",
    "deploy_internal_dns": "H",
    "deploy_external_dns": "H",
    "deploy_backup_entry": "NB",
    "wait_backup_entry": "NB SR",
    "wait_etcds": "H SR",
    "deploy_extensions_before_apiserver": "H",
    "wait_extensions_before_apiserver": "H SR",
    "wait_apiserver": "H SR",
    "wait_resource_manager": "H SR",
    "deploy_control_plane_extension": "WL",
    "wait_control_plane_extension": "WL SR",
    "wait_shoot_namespaces": "H SR",
    "deploy_vpn_server": "WL",
    "deploy_scheduler": "WL",
    "sync_public_sa_keys": "H",
    "wait_extensions_after_apiserver": "SR",
    "wait_stale_extensions_deleted": "H",
    "deploy_container_runtimes": "WL",
    "wait_container_runtimes": "WL",
    "delete_stale_container_runtimes": "WL",
    "wait_stale_container_runtimes_deleted": "WL H",
    "delete_bastions": "WL SSH",
    "deploy_os_configs": "WL",
    "wait_os_configs": "WL",
    "delete_stale_os_configs": "WL",
    "wait_stale_os_configs_deleted": "WL H",
    "deploy_shoot_system": "H",
    "deploy_cluster_identity": "H",
    "deploy_network": "WL",
    "wait_network": "WL SR",
    "deploy_kube_proxy": "WL H",
    "deploy_coredns": "WL H",
    "deploy_node_local_dns": "WL H",
    "deploy_apiserver_proxy": "WL",
    "deploy_vpn_shoot": "WL H",
    "wait_vpn_shoot": "WL H",
    "deploy_metrics_server": "WL H",
    "deploy_node_problem_detector": "WL H",
    "deploy_node_exporter": "WL H",
    "deploy_blackbox_exporter": "WL H",
    "deploy_node_agent_resources": "WL H",
    "deploy_machine_controller_manager": "WL",
    "deploy_worker": "WL",
    "wait_machine_deployments": "WL H SR",
    "deploy_extensions_after_worker": "WL",
    "wait_extensions_after_worker": "WL SR",
    "wait_worker": "WL SR",
    "scale_autoscaler_to_zero": "WL A",
    "scale_machine_controller_manager_to_zero": "WL A",
    "deploy_autoscaler": "WL H",
    "wait_tunnel": "WL H SR",
    "deploy_vpa": "WL",
    "wait_vpa": "WL H SR",
    "wait_os_configs_applied": "WL H",
    "hibernate_control_plane": "A",
    "hibernate_extensions_before_apiserver": "A",
    "wait_extensions_before_apiserver_hibernated": "A",
    "delete_external_dns": "A",
    "delete_internal_dns": "A",
}

# NS no namespace, CL no API server or Infrastructure, CPN no ControlPlane, KCM none before, SC skip-cleanup.
_CLUSTER = "NS CL"
DELETE = {
    **dict.fromkeys(
        ("sync_cluster", "wait_required_extensions", "deploy_namespace", "ensure_cluster_identity", "init_secrets",
         "deploy_references", "delete_managed_resources", "wait_managed_resources_deleted",
         "wait_shoot_managed_resources_deleted", "delete_apiserver", "wait_apiserver_deleted", "delete_apiserver_sni",
         "delete_api_service", "delete_resource_manager", "delete_external_dns", "delete_internal_dns",
         "delete_references", "delete_etcds", "wait_etcds_deleted"),
        "NS",
    ),
    "deploy_cloud_secret": "NS WL",
    "delete_autoscaler": "NS WL",
    **dict.fromkeys(
        ("deploy_api_service", "wait_api_service", "update_advertised_addresses", "deploy_internal_dns", "deploy_etcds",
         "wait_etcds", "deploy_apiserver", "wait_apiserver", "deploy_apiserver_sni", "deploy_resource_manager",
         "wait_resource_manager", "deploy_gardener_access", "init_shoot_client", "deploy_kube_controller_manager",
         "clean_webhooks", "clean_kubernetes_resources"),
        _CLUSTER,
    ),
    "deploy_control_plane_extension": f"{_CLUSTER} CPN WL",
    "wait_control_plane_extension": f"{_CLUSTER} CPN WL",
    "wait_kube_controller_manager_active": f"{_CLUSTER} KCM",
    "clean_extended_apis": f"{_CLUSTER} SC",
    "deploy_machine_controller_manager": f"{_CLUSTER} WL",
    **dict.fromkeys(
        ("delete_network", "wait_network_deleted", "delete_worker", "wait_worker_deleted",
         "delete_machine_controller_manager", "delete_os_configs", "wait_os_configs_deleted",
         "delete_container_runtimes", "wait_container_runtimes_deleted", "delete_control_plane_extension",
         "wait_control_plane_extension_deleted", "delete_infrastructure", "wait_infrastructure_deleted"),
        "WL",
    ),
}  # fmt: skip
FORCE_DELETE = dict.fromkeys(
    (
        "delete_machine_controller_manager",
        "wait_machine_controller_manager_deleted",
        "force_delete_machine_objects",
    ),
    "WL",
)


def _input(**facts: bool) -> FlowInput:
    return FlowInput(task=TASK, facts=FACTS.model_copy(update=facts))


def _delete(missing: str = "", **facts: bool) -> Flow:
    there = dict.fromkeys(("namespace", "cluster", "control_plane", "controller_manager"), True)
    if missing:
        there[missing] = False
    return delete_flow(_input(**facts), Survey.model_validate(there))


def _check(table: dict[str, str], codes: str, flow: Flow) -> None:
    expected = {name for name, column in table.items() if set(column.split()) & set(codes.split())}
    assert {name for name in table if flow.skipped(name)} == expected


@pytest.mark.parametrize(
    ("codes", "facts"),
    [
        ("A", {}),
        ("H", {"hibernated": True}),
        ("A WL", {"workerless": True}),
        ("A NB", {"backup": False}),
        ("A SR", {"skip_readiness": True}),
        ("A SSH", {"ssh_access": True}),
        ("H WL SR", {"hibernated": True, "workerless": True, "skip_readiness": True}),
    ],
)
def test_reconcile_skips_what_its_column_says(codes: str, facts: dict[str, bool]) -> None:
    _check(RECONCILE, codes, reconcile_flow(_input(**facts)))


@pytest.mark.parametrize(
    ("codes", "missing", "facts"),
    [
        ("", "", {}),
        ("NS", "namespace", {}),
        ("CL", "cluster", {}),
        ("CPN", "control_plane", {}),
        ("KCM", "controller_manager", {}),
        ("WL", "", {"workerless": True}),
        ("SC", "", {"skip_cleanup": True}),
        ("", "", {"skip_readiness": True}),
    ],
)
def test_delete_skips_what_its_column_says(codes: str, missing: str, facts: dict[str, bool]) -> None:
    _check(DELETE, codes, _delete(missing, **facts))


@pytest.mark.parametrize(("codes", "facts"), [("", {}), ("WL", {"workerless": True}), ("", {"hibernated": True})])
def test_force_delete_skips_what_its_column_says(codes: str, facts: dict[str, bool]) -> None:
    _check(FORCE_DELETE, codes, force_delete_flow(_input(**facts)))


@pytest.mark.parametrize(
    ("table", "flow"),
    [(RECONCILE, reconcile_flow(_input())), (DELETE, _delete()), (FORCE_DELETE, force_delete_flow(_input()))],
    ids=["reconcile", "delete", "force-delete"],
)
def test_every_row_is_of_a_task_that_is_there(table: dict[str, str], flow: Flow) -> None:
    assert set(table) - set(flow.names) == set()
