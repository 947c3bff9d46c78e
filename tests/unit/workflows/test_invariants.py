"""The ordering invariants of spec/flows.md 6, for flows of generated Shoots; one test per flow, numbers as there."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from api.flows import FlowInput, ShootFacts
from api.operations import OperationType, ShootRef, ShootTask
from workflows.flow import Flow
from workflows.shoot.force_delete import force_delete_flow

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
)


def violations(flow: Flow, *rules: tuple[str, str]) -> Iterable[str]:
    """Rules (earlier, later) that the order does not keep, among tasks that run."""
    for earlier, later in rules:
        if flow.skipped(earlier) or flow.skipped(later):
            continue
        if not flow.comes_after(later, earlier):
            yield f"{later} may run before {earlier}"


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
