"""The ordering invariants of spec/flows.md 6, for flows of generated Shoots; one test per flow, numbers as there."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from api.constants import ANSWERED_TASKS
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
    operation=OperationType.CREATE,
)
FACTS = st.builds(
    ShootFacts,
    workerless=st.booleans(),
    hibernated=st.booleans(),
    backup=st.booleans(),
    skip_readiness=st.booleans(),
    skip_cleanup=st.booleans(),
    container_runtimes=st.booleans(),
    extensions=st.dictionaries(st.sampled_from(list(Phase)).map(str), st.just("1")),
    tasks=st.lists(st.sampled_from(ANSWERED_TASKS), unique=True).map(tuple),
)
SURVEYS = st.tuples(*[st.booleans()] * 4).map(
    lambda each: Survey(namespace=each[0], cluster=each[1], control_plane=each[2], controller_manager=each[3])
)


def violations(flow: Flow, *rules: tuple[str, str]) -> Iterable[str]:
    """Rules (earlier, later) that the order does not keep, among tasks that run."""
    for earlier, later in rules:
        if flow.skipped(earlier) or flow.skipped(later):
            continue
        if not flow.comes_after(later, earlier):
            yield f"{later} may run before {earlier}"


@given(facts=FACTS, operation=st.sampled_from([OperationType.CREATE, OperationType.RECONCILE]))
def test_reconcile(facts: ShootFacts, operation: OperationType) -> None:
    flow = reconcile_flow(FlowInput(task=TASK.model_copy(update={"operation": operation}), facts=facts))
    others = [name for name in flow.names if name not in ("sync_cluster", "wait_required_extensions")]
    rules = [
        # extensions read in the Cluster what they work towards, and must be there
        *(("wait_required_extensions", name) for name in others),
        ("deploy_references", "deploy_infrastructure"),
        # 10: etcd before API server before what lives on it; Infrastructure before what builds on it
        *((earlier, later) for earlier, later in pairwise(
            ["deploy_backup_entry", "wait_backup_entry", "deploy_etcds", "deploy_apiserver", "wait_apiserver",
             "deploy_resource_manager", "wait_resource_manager", "init_shoot_client"])),
        *(("wait_apiserver" if operation is OperationType.CREATE else "wait_resource_manager", later) for later in
          ("deploy_kube_controller_manager", "deploy_scheduler")),
        *(("wait_infrastructure", later) for later in
          ("deploy_control_plane_extension", "deploy_os_configs", "deploy_worker", "deploy_network")),
        # the phases of extensions
        ("wait_infrastructure", "deploy_extensions_before_apiserver"),
        ("wait_extensions_before_apiserver", "deploy_apiserver"),
        ("wait_apiserver", "deploy_extensions_after_apiserver"),
        *(("wait_extensions_after_apiserver", later) for later in
          ("deploy_os_configs", "deploy_network", "deploy_shoot_system", "deploy_worker", "deploy_metrics_server")),
        ("deploy_worker", "deploy_extensions_after_worker"),
        ("wait_machine_deployments", "deploy_extensions_after_worker"),
        ("wait_extensions_after_worker", "wait_worker"),
        # machines are made of configurations that are there, and keep theirs until they are gone
        ("wait_os_configs", "deploy_worker"),
        ("wait_worker", "delete_stale_os_configs"),
        ("deploy_kube_controller_manager", "restart_control_plane_pods"),
        # 13: machines, then control plane; who comes before the API server sleeps after it
        ("wait_worker", "hibernate_control_plane"),
        ("wait_extensions_after_apiserver", "hibernate_control_plane"),
        ("hibernate_control_plane", "hibernate_extensions_before_apiserver"),
        # 12: only after a wholly successful flow
        *((name, "cleanup_secrets") for name in flow.names if name != "cleanup_secrets"),
    ]  # fmt: skip
    assert list(violations(flow, *rules)) == []


@given(facts=FACTS, survey=SURVEYS)
def test_delete(facts: ShootFacts, survey: Survey) -> None:
    task = TASK.model_copy(update={"operation": OperationType.DELETE})
    flow = delete_flow(FlowInput(task=task, facts=facts), survey)
    cleanup = ["clean_webhooks", "wait_kube_controller_manager_active", "clean_extended_apis"]
    extensions = "wait_extensions_before_apiserver_deleted"
    rules = [
        # 14: user webhooks first, the controller manager active, then what users made
        *pairwise([*cleanup, "clean_kubernetes_resources"]),
        *((each, "clean_kubernetes_resources") for each in cleanup),
        # load balancers and volumes before nodes, nodes and ControlPlane before Infrastructure
        *(("clean_kubernetes_resources", later) for later in
          ("delete_network", "delete_worker", "delete_container_runtimes", "delete_managed_resources")),
        *((earlier, "delete_infrastructure") for earlier in
          ("wait_worker_deleted", "wait_control_plane_extension_deleted")),
        # machines keep their configuration and their manager to the end
        *(("wait_worker_deleted", later) for later in ("delete_os_configs", "delete_machine_controller_manager")),
        # extensions clean up in the shoot while its API server answers
        ("wait_managed_resources_deleted", "delete_extensions_before_apiserver"),
        (extensions, "delete_control_plane_extension"),
        ("wait_container_runtimes_deleted", "delete_control_plane_extension"),
        *((each, "delete_apiserver") for each in
          (extensions, "wait_managed_resources_deleted", "wait_shoot_managed_resources_deleted")),
        ("wait_apiserver_deleted", "delete_extensions_after_apiserver"),
        # the API server before its external name; internal name, etcd, namespace last
        ("wait_apiserver_deleted", "delete_external_dns"),
        *((earlier, later) for later in ("delete_internal_dns", "delete_etcds", "delete_references") for earlier in
          ("wait_infrastructure_deleted", "wait_extensions_after_apiserver_deleted", "delete_external_dns")),
        *((earlier, "delete_namespace") for earlier in
          ("delete_internal_dns", "wait_etcds_deleted", "delete_references")),
        # 15: the Cluster object goes last
        *((name, "delete_cluster") for name in flow.names if name != "delete_cluster"),
    ]  # fmt: skip
    assert list(violations(flow, *rules)) == []


@given(facts=FACTS, survey=SURVEYS)
def test_every_flow_waits_for_nothing_that_it_does_not_do(facts: ShootFacts, survey: Survey) -> None:
    """A wait whose other half is skipped would wait for somebody else, or for ever."""
    task = FlowInput(task=TASK, facts=facts)
    for flow in (reconcile_flow(task), delete_flow(task, survey), force_delete_flow(task)):
        for name in flow.names:
            begun = flow._tasks[name].completes
            assert not begun or flow.skipped(name) or not flow.skipped(begun)


@given(facts=FACTS)
def test_force_delete(facts: ShootFacts) -> None:
    task = TASK.model_copy(update={"operation": OperationType.DELETE})
    flow = force_delete_flow(FlowInput(task=task, facts=facts))
    rules = [
        # extensions must see that the cloud is given up before they are asked to let go
        *(("sync_cluster", name) for name in flow.names if name != "sync_cluster"),
        # a controller that still runs would bring back what is deleted
        ("wait_machine_controller_manager_deleted", "force_delete_machine_objects"),
        ("wait_extension_objects_deleted", "force_delete_managed_resources"),
        # 14: etcd and namespace last
        ("force_delete_managed_resources", "delete_etcds"),
        ("delete_external_dns", "delete_etcds"),
        ("delete_internal_dns", "delete_etcds"),
        ("wait_etcds_deleted", "delete_backup_entry"),
        ("wait_etcds_deleted", "force_delete_configmaps_and_secrets"),
        ("wait_backup_entry_deleted", "delete_namespace"),
        # 15: the Cluster object goes while there is a namespace, and after all that reads it
        ("wait_extension_objects_deleted", "delete_cluster"),
        ("delete_external_dns", "delete_cluster"),
        ("delete_internal_dns", "delete_cluster"),
        ("delete_cluster", "delete_namespace"),
        ("delete_namespace", "wait_namespace_deleted"),
    ]
    assert list(violations(flow, *rules)) == []
    needs_the_cloud = {"delete_infrastructure", "delete_worker", "deploy_cloud_secret"}
    needs_the_shoot = {"init_shoot_client", "clean_kubernetes_resources", "wait_shoot_managed_resources_deleted"}
    assert not (needs_the_cloud | needs_the_shoot) & set(flow.names)
