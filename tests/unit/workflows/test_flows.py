"""The graphs of our flows: the ordering invariants of spec/flows.md 6 for every state of a Shoot and its seed."""

from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio import activity

from activities.clusters import Clusters
from api.contracts.flows import FlowInput, SeedFlowInput, ShootFacts, ShootRules, Survey
from api.contracts.operations import GARDEN_QUEUE, OperationType, SeedTask, ShootRef, ShootTask, TaskResult
from api.contracts.rotation import ActiveRotation, Kind, Phase
from kube.cache import Caches
from kube.client import KubeClient
from workers.lib import registry
from workflows.flow import Flow, GraphError, activity_name, title_of
from workflows.options import garden_call
from workflows.seed import SEED_FLOWS
from workflows.shoot.decision import FlowKind
from workflows.shoot.delete import delete_flow
from workflows.shoot.flows import FLOWS
from workflows.shoot.forget import forget_flow
from workflows.shoot.migrate import migrate_flow
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
    failure_tolerance=st.booleans(),
    dual_stack=st.booleans(),
)
SURVEYS = st.tuples(*[st.booleans()] * 4).map(
    lambda each: Survey(namespace=each[0], cluster=each[1], control_plane=each[2], controller_manager=each[3])
)
ALL_THERE = Survey(namespace=True, cluster=True, control_plane=True, controller_manager=True)


def reconcile(facts: ShootFacts) -> Flow:
    return reconcile_flow(FlowInput(task=TASK, facts=facts))


def delete(facts: ShootFacts, survey: Survey) -> Flow:
    return delete_flow(FlowInput(task=TASK, facts=facts), survey)


def violations(flow: Flow, *rules: tuple[str, str]) -> Iterable[str]:
    """Rules (earlier, later) that the order does not keep, among tasks that run."""
    for earlier, later in rules:
        if flow.skipped(earlier) or flow.skipped(later):
            continue
        if not flow.comes_after(later, earlier):
            yield f"{later} may run before {earlier}"


@given(facts=FACTS)
def test_reconcile_keeps_the_order_of_flows_md(facts: ShootFacts) -> None:
    flow = reconcile(facts)
    rules = [
        # 3: what the operation works towards is pinned first
        *(("sync_cluster", name) for name in flow.names if name != "sync_cluster"),
        # 10: etcd before API server before all that needs it
        ("deploy_etcds", "deploy_apiserver"),
        ("wait_etcds", "wait_apiserver"),
        ("wait_backup_entry", "deploy_etcds"),
        ("wait_apiserver", "deploy_resource_manager"),
        ("wait_apiserver", "deploy_kube_controller_manager"),
        ("wait_apiserver", "deploy_machine_controller_manager"),
        ("wait_apiserver", "init_shoot_client"),
        ("wait_infrastructure", "deploy_control_plane_extension"),
        ("wait_infrastructure", "deploy_os_configs"),
        ("wait_infrastructure", "deploy_worker"),
        # tables of section 2
        ("deploy_machine_controller_manager", "deploy_worker"),
        ("wait_machine_deployments", "deploy_autoscaler"),
        ("wait_os_configs", "deploy_worker"),
        ("deploy_node_agent_resources", "deploy_worker"),
        # a kubelet may not be newer than its API server: neither new machines nor running nodes get one before
        ("wait_apiserver", "deploy_worker"),
        ("wait_apiserver", "deploy_node_agent_resources"),
        ("wait_apiserver", "deploy_kube_proxy"),
        ("wait_apiserver", "deploy_scheduler"),
        ("wait_worker", "wait_tunnel"),
        ("wait_infrastructure", "deploy_vpn_server"),
        ("deploy_vpn_server", "wait_tunnel"),
        ("wait_control_plane_extension", "deploy_os_configs"),
        ("init_secrets", "deploy_apiserver"),
        # 12: only after a wholly successful flow
        *((name, "cleanup_secrets") for name in flow.names if name != "cleanup_secrets"),
    ]
    assert list(violations(flow, *rules)) == []


@given(facts=FACTS.filter(lambda facts: facts.hibernated))
def test_a_shoot_falls_asleep_from_its_machines_to_its_names(facts: ShootFacts) -> None:
    flow = reconcile(facts)
    rules = [
        # 13: no node when the controller manager stops, and nothing works on what has stopped
        ("scale_autoscaler_to_zero", "deploy_worker"),
        ("wait_worker", "scale_machine_controller_manager_to_zero"),
        ("scale_machine_controller_manager_to_zero", "hibernate_control_plane"),
        *((name, "hibernate_control_plane") for name in flow.names if name.startswith(("deploy", "wait", "init"))),
        ("hibernate_control_plane", "delete_external_dns"),
        ("hibernate_control_plane", "delete_internal_dns"),
    ]
    assert list(violations(flow, *rules)) == []
    waking = {"deploy_internal_dns", "deploy_external_dns", "wait_apiserver", "wait_etcds", "wait_tunnel"}
    assert not waking & set(flow.activities)


@given(facts=FACTS.filter(lambda facts: not facts.hibernated))
def test_nothing_of_a_shoot_that_is_awake_is_put_to_sleep(facts: ShootFacts) -> None:
    stopping = {"hibernate_control_plane", "scale_autoscaler_to_zero", "scale_machine_controller_manager_to_zero",
                "delete_internal_dns"}  # fmt: skip
    assert not stopping & set(reconcile(facts).activities)


def test_a_shoot_that_wakes_up_waits_for_its_observability_only_in_a_rotation_of_passwords() -> None:
    def waits(facts: ShootFacts) -> bool:
        task = TASK.model_copy(update={"operation": OperationType.RECONCILE})
        return not reconcile_flow(FlowInput(task=task, facts=facts)).skipped("wait_observability")

    rotation = ActiveRotation(kind=Kind.OBSERVABILITY, phase=Phase.PREPARING, initiated="2026-11-21T10:00:00Z")
    assert waits(ShootFacts())
    assert not waits(ShootFacts(waking=True))
    assert waits(ShootFacts(waking=True, rotations=(rotation,)))


@given(facts=FACTS)
def test_an_api_server_with_data_starts_only_after_its_etcd(facts: ShootFacts) -> None:
    task = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    again = reconcile_flow(FlowInput(task=task, facts=facts))
    assert again.comes_after("deploy_apiserver", "wait_etcds")


@given(facts=FACTS)
def test_machines_roll_only_after_all_pods_would_trust_the_new_ca(facts: ShootFacts) -> None:
    rotation = ActiveRotation(
        kind=Kind.CERTIFICATE_AUTHORITIES, phase=Phase.PREPARING, initiated="2026-11-21T10:00:00Z"
    )
    rotating = reconcile(facts.model_copy(update={"rotations": (rotation,)}))
    rules = [
        ("wait_apiserver", "deploy_kube_controller_manager"),
        ("wait_kube_controller_manager", "wait_root_ca_configmaps"),
        ("wait_root_ca_configmaps", "deploy_worker"),
    ]
    assert list(violations(rotating, *rules)) == []
    assert rotating.skipped("wait_root_ca_configmaps") in ("", "workerless", "hibernated", "skip-readiness")
    assert reconcile(facts).skipped("wait_root_ca_configmaps")


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.COMPLETING])
def test_the_tunnel_knows_another_ca_before_the_api_server_goes_by_it(phase: Phase) -> None:
    rules = [("wait_vpn_server", "deploy_apiserver"), ("deploy_vpn_server", "deploy_vpn_shoot")]
    assert list(violations(rotating(Kind.CERTIFICATE_AUTHORITIES, phase), *rules)) == []


def rotating(kind: Kind, phase: Phase) -> Flow:
    rotation = ActiveRotation(kind=kind, phase=phase, initiated="2026-11-21T10:00:00Z")
    return reconcile(ShootFacts(rotations=(rotation,)))


def test_machines_roll_only_after_accounts_have_tokens_of_the_new_key() -> None:
    preparing, completing = (rotating(Kind.SERVICE_ACCOUNT_KEY, each) for each in (Phase.PREPARING, Phase.COMPLETING))
    rules = [
        ("wait_kube_controller_manager", "create_sa_secrets"),
        ("create_sa_secrets", "deploy_worker"),
        ("wait_resource_manager", "renew_access_tokens"),
    ]
    assert list(violations(preparing, *rules)) == []
    assert preparing.skipped("delete_old_sa_secrets")
    assert completing.skipped("create_sa_secrets")
    assert not completing.skipped("delete_old_sa_secrets")


def test_old_client_authorities_are_dropped_once_no_api_server_trusts_them() -> None:
    """One that goes by them still would write them down again."""
    preparing, completing = (
        rotating(Kind.CERTIFICATE_AUTHORITIES, each) for each in (Phase.PREPARING, Phase.COMPLETING)
    )
    assert list(violations(completing, ("wait_apiserver", "drop_old_client_authorities"))) == []
    assert preparing.skipped("drop_old_client_authorities")
    assert not completing.skipped("drop_old_client_authorities")


def test_an_encryption_key_is_dropped_after_the_rewrite_and_a_full_snapshot() -> None:
    preparing, completing = (rotating(Kind.ETCD_ENCRYPTION_KEY, each) for each in (Phase.PREPARING, Phase.COMPLETING))
    rules = [
        ("wait_apiserver", "encrypt_with_new_key"),
        ("encrypt_with_new_key", "rewrite_add_label"),
        ("rewrite_add_label", "snapshot_after_rewrite"),
        ("snapshot_after_rewrite", "cleanup_secrets"),
    ]
    assert list(violations(preparing, *rules)) == []
    assert not any(preparing.skipped(name) for rule in rules for name in rule)
    assert preparing.skipped("rewrite_remove_label")
    assert list(violations(completing, ("wait_apiserver", "rewrite_remove_label"))) == []
    assert completing.skipped("rewrite_add_label")
    assert not completing.skipped("rewrite_remove_label")


@given(facts=FACTS, survey=SURVEYS, api_server=st.booleans(), backups=st.booleans())
def test_migrate_keeps_the_order_of_flows_md(
    facts: ShootFacts, survey: Survey, api_server: bool, backups: bool
) -> None:
    task = TASK.model_copy(update={"operation": OperationType.MIGRATE, "destination": "seed-2"})
    there = survey.model_copy(update={"api_server": api_server, "backups": backups})
    flow = migrate_flow(FlowInput(task=task, facts=facts), there)
    early = ("network", "os_configs", "worker")
    rules = [
        # 1: never two API servers for one cluster: no client is routed to the second before the first has gone and the
        # second one's etcd has taken over the final snapshot
        ("wait_apiserver_deleted", "deploy_apiserver_sni_there"),
        ("snapshot_etcd", "wait_etcd_taken_over_there"),
        ("wait_etcd_taken_over_there", "deploy_apiserver_sni_there"),
        ("wait_etcd_following_there", "delete_apiserver"),
        ("wait_etcd_following_there", "deploy_apiserver_there"),
        ("wait_apiserver_reading_there", "delete_apiserver"),
        # 2: the API server is gone, then the last snapshot, then the backups are handed over, then etcd, then the rest
        ("wait_apiserver_deleted", "snapshot_etcd"),
        ("snapshot_etcd", "wait_etcds_there"),
        ("snapshot_etcd", "copy_etcd_backups_there"),
        ("snapshot_etcd", "migrate_backup_entry"),
        ("migrate_backup_entry", "delete_etcds"),
        ("wait_etcds_deleted", "delete_namespace"),
        # 3: after the machine controller manager is gone and extensions have let go, before anything is deleted
        ("wait_machine_controller_manager_deleted", "persist_shootstate"),
        # the manager deletes machines that the autoscaler chose: none is chosen when the manager is deleted
        ("delete_autoscaler", "delete_machine_controller_manager"),
        ("keep_managed_objects", "delete_autoscaler"),
        *((f"wait_{kind}_migrated", "persist_shootstate") for kind in early),
        *(("persist_shootstate", f"delete_{kind}") for kind in early),
        ("persist_shootstate", "shallow_delete_machine_objects"),
        # 4: what extensions have not let go of, its deletion would destroy
        *((f"wait_{kind}_migrated", f"delete_{kind}") for kind in (*early, "control_plane_extension", "internal_dns")),
        ("keep_managed_objects", "delete_managed_resources"),
        # 5: the destination makes no secret before it can read those of the source
        ("persist_shootstate", "init_secrets_there"),
        # 6: the destination's etcd knows the source's bucket when it starts, and the source's ends after all is copied
        ("wait_source_backup_entry_there", "deploy_etcds_there"),
        ("wait_etcds_there", "migrate_backup_entry"),
        ("wait_etcd_backups_copied_there", "migrate_backup_entry"),
        ("delete_internal_dns", "deploy_internal_dns_there"),
        ("delete_external_dns", "deploy_external_dns_there"),
        # a hibernated one is served, to controllers of the seed alone, so that objects can be released
        ("wait_etcds", "deploy_apiserver"),
        ("wait_apiserver", "deploy_resource_manager"),
        # what can be prepared is, before users miss anything
        *((name, "delete_apiserver") for name in ("wait_api_service_there", "wait_source_backup_entry_there")),
        *((name, "delete_apiserver") for name in ("flush_etcd", "delete_internal_dns", "delete_external_dns")),
        *((name, "delete_cluster") for name in flow.names if name != "delete_cluster"),
    ]
    assert list(violations(flow, *rules)) == []


def test_the_cleanup_of_a_lost_seed_keeps_the_order_of_flows_md() -> None:
    task = TASK.model_copy(update={"operation": OperationType.MIGRATE, "destination": "seed-2"})
    flow = forget_flow(FlowInput(task=task, facts=ShootFacts()))
    released = ("worker", "network", "os_configs", "container_runtimes", "extensions", "control_plane_extension",
                "infrastructure")  # fmt: skip
    ours = ("delete_etcds", "force_delete_configmaps_and_secrets", "delete_namespace")
    rules = [
        # no controller of machines, and no API server, runs when their objects are deleted
        ("wait_machine_controller_manager_deleted", "shallow_delete_machine_objects"),
        ("wait_apiserver_deleted", "delete_resource_manager"),
        ("delete_resource_manager", "force_delete_managed_resources"),
        *(("force_delete_managed_resources", f"migrate_{kind}") for kind in released),
        # what extensions have not let go of, its deletion would destroy
        *((f"wait_{kind}_migrated", f"delete_{kind}") for kind in (*released, "internal_dns", "external_dns")),
        *((f"wait_{kind}_deleted", "delete_cluster") for kind in released),
        *((name, later) for later in ours for name in ("force_delete_managed_resources", "migrate_backup_entry")),
        # the mark in the bucket is there for as long as an etcd is
        ("wait_etcds_deleted", "delete_namespace"),
        ("wait_namespace_deleted", "delete_source_backup_entry"),
    ]
    assert list(violations(flow, *rules)) == []
    there = {activity for activity, queue in flow.activities.items() if queue == "seed-seed-2"}
    assert there == {"delete_source_backup_entry", "wait_source_backup_entry_deleted"}


def test_a_seed_that_is_back_deletes_the_backups_of_a_shoot_that_is_deleted_last_of_all() -> None:
    """No other seed has copied them, or would take the mark out of the bucket."""
    task = TASK.model_copy(update={"operation": OperationType.MIGRATE})
    flow = forget_flow(FlowInput(task=task, facts=ShootFacts()))
    for name in ("migrate_backup_entry", "delete_source_backup_entry", "wait_source_backup_entry_deleted"):
        assert flow.skipped(name) == "the Shoot is deleted"
    assert set(flow.activities.values()) == {f"seed-{task.seed}"}
    assert list(violations(flow, ("wait_namespace_deleted", "delete_backup_entry"))) == []


def test_a_cleanup_without_a_takeover_marker_has_no_task_in_another_seed() -> None:
    """Remains of another lost seed in the garden do not concern this one."""
    task = TASK.model_copy(update={"operation": OperationType.MIGRATE, "destination": "seed-2"})
    flow = forget_flow(FlowInput(task=task, facts=ShootFacts(), source_entry=False))
    assert flow.skipped("delete_source_backup_entry")
    assert flow.skipped("wait_source_backup_entry_deleted")
    marked = forget_flow(FlowInput(task=task, facts=ShootFacts()))
    assert not marked.skipped("delete_source_backup_entry")


@given(facts=FACTS)
def test_a_restore_keeps_the_order_of_flows_md(facts: ShootFacts) -> None:
    task = TASK.model_copy(update={"operation": OperationType.RESTORE})
    flow = reconcile_flow(FlowInput(task=task, facts=facts))
    rules = [
        # 1: no client is routed to an API server that reads the replicated data while the source may serve
        ("wait_etcds", "deploy_apiserver_sni"),
        # 6: etcd finds what the source left, or its copy when it wakes up; the source's data go when they are both
        ("wait_source_backup_entry", "deploy_etcds"),
        ("wait_source_backup_entry", "deploy_backup_entry"),
        ("wait_etcds", "delete_source_backup_entry"),
        ("wait_etcd_backups_copied", "delete_source_backup_entry"),
        *([("wait_etcd_backups_copied", "deploy_etcds")] if facts.hibernated else []),
        # 7: one member until the API server is ready
        ("wait_apiserver", "scale_etcd_after_restore"),
        # 9: machine objects exist before their controllers run
        ("wait_worker", "deploy_machine_controller_manager"),
        ("wait_worker", "deploy_autoscaler"),
    ]
    assert list(violations(flow, *rules)) == []


@given(facts=FACTS, survey=SURVEYS)
def test_delete_keeps_the_order_of_flows_md(facts: ShootFacts, survey: Survey) -> None:
    flow = delete(facts, survey)
    cleanup = ("clean_webhooks", "clean_extended_apis", "clean_kubernetes_resources")
    rules = [
        # 14: user webhooks first
        *(("clean_webhooks", each) for each in cleanup[1:]),
        # the controller manager is active before anything it must release is deleted
        *(("wait_kube_controller_manager_active", each) for each in cleanup[1:]),
        # no machine comes or goes for pods that are cleaned up
        *(("delete_autoscaler", each) for each in cleanup[1:]),
        # load balancers and volumes before nodes
        ("clean_kubernetes_resources", "delete_worker"),
        # nodes and ControlPlane before Infrastructure
        ("wait_worker_deleted", "delete_infrastructure"),
        ("wait_control_plane_extension_deleted", "delete_infrastructure"),
        ("wait_worker_deleted", "delete_machine_controller_manager"),
        ("wait_managed_resources_deleted", "delete_apiserver"),
        ("wait_shoot_managed_resources_deleted", "delete_apiserver"),
        ("wait_control_plane_extension_deleted", "wait_shoot_managed_resources_deleted"),
        # the API server before its external name; internal name, etcd, namespace last
        ("wait_apiserver_deleted", "delete_external_dns"),
        ("wait_infrastructure_deleted", "delete_internal_dns"),
        ("wait_apiserver_deleted", "delete_etcds"),
        ("wait_etcds_deleted", "delete_namespace"),
        ("wait_etcds_deleted", "delete_backup_entry"),
        # 15: the Cluster object goes last
        *((name, "delete_cluster") for name in flow.names if name != "delete_cluster"),
    ]
    assert list(violations(flow, *rules)) == []


@given(facts=FACTS)
def test_a_deletion_without_a_namespace_creates_nothing(facts: ShootFacts) -> None:
    nothing = Survey(namespace=False, cluster=False, control_plane=False, controller_manager=False)
    built = [name for name in delete(facts, nothing).activities if name.startswith(("deploy", "init", "clean"))]
    assert built == []


@given(facts=FACTS)
def test_a_deletion_never_starts_an_api_server_that_was_not_there(facts: ShootFacts) -> None:
    half = Survey(namespace=True, cluster=False, control_plane=False, controller_manager=False)
    assert not {"deploy_etcds", "deploy_apiserver", "deploy_kube_controller_manager"} & set(
        delete(facts, half).activities
    )


def test_a_workerless_shoot_needs_no_infrastructure_and_no_credentials() -> None:
    running = set(reconcile(ShootFacts(workerless=True)).activities)
    assert not running & {"deploy_infrastructure", "deploy_worker", "deploy_cloud_secret", "deploy_network"}
    assert {"deploy_apiserver", "deploy_resource_manager", "deploy_kube_controller_manager"} <= running


@given(facts=FACTS, survey=SURVEYS)
def test_every_wait_comes_after_the_task_that_it_waits_for(facts: ShootFacts, survey: Survey) -> None:
    for flow in (reconcile(facts), delete(facts, survey)):
        for name in flow.names:
            if not name.startswith("wait_"):
                continue
            what = name.removeprefix("wait_")
            begun = f"delete_{what.removesuffix('_deleted')}" if what.endswith("_deleted") else f"deploy_{what}"
            if begun in flow.names:
                assert flow.comes_after(name, begun)


def test_every_wait_uses_the_trigger_of_its_deploy_task() -> None:
    """A deploy that was kept wrote the trigger of its own attempt; its wait would never see another."""
    triggered = (
        "infrastructure",
        "control_plane_extension",
        "os_configs",
        "network",
        "worker",
        "backup_entry",
        "etcds",
    )
    for graph in (reconcile(ShootFacts()), delete(ShootFacts(), ALL_THERE)):
        for each in triggered:
            if f"wait_{each}" in graph.names:
                assert graph._tasks[f"wait_{each}"].completes == f"deploy_{each}"


def test_each_kind_of_flow_has_a_definition() -> None:
    assert set(FLOWS) == set(FlowKind)


@pytest.mark.parametrize("kind", FlowKind)
def test_every_activity_of_a_flow_is_offered_by_the_worker_of_its_queue(kind: FlowKind) -> None:
    """Otherwise the task of a class of activities that no worker registers would fail only when it starts."""
    seed = registry.seed_activities(cast(Clusters, None), vpn_network="")
    garden = registry.garden_activities(cast(KubeClient, None), cast(Caches, None), ShootRules())
    offered = [(activity_name(each), False) for each in seed] + [(activity_name(each), True) for each in garden]
    task = TASK.model_copy(update={"destination": "seed-2"})
    flow = FLOWS[kind].build(FlowInput(task=task, facts=ShootFacts(), sources=("seed-2",)))
    assert {(name, queue == GARDEN_QUEUE) for name, queue in flow.activities.items()} <= set(offered)


def seed_flow(name: str) -> Flow:
    task = SeedTask(name="seed-1", uid="5eed", generation=1, trigger="", operation=OperationType.DELETE)
    return SEED_FLOWS[name].graph(SeedFlowInput(task=task))


@pytest.mark.parametrize("name", SEED_FLOWS)
def test_every_activity_of_a_seed_s_flow_is_offered_by_the_worker_of_its_queue(name: str) -> None:
    seed = registry.seed_activities(cast(Clusters, None), vpn_network="")
    garden = registry.garden_activities(cast(KubeClient, None), cast(Caches, None), ShootRules())
    offered = {(activity_name(each), False) for each in seed} | {(activity_name(each), True) for each in garden}
    assert {(each, queue == GARDEN_QUEUE) for each, queue in seed_flow(name).activities.items()} <= offered


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("wait_seed_unused", "delete_seed_extensions"),
        ("delete_seed_extensions", "delete_controller_installations"),
        ("delete_seed_ingress_dns", "delete_controller_installations"),
        ("delete_garden_backup_bucket", "delete_seed_backup_bucket"),
        ("delete_seed_backup_bucket", "delete_controller_installations"),
        ("delete_seed_ingress_dns", "delete_seed_gateway"),
        ("delete_controller_installations", "delete_seed_crds"),
        ("delete_seed_gateway", "delete_seed_crds"),
        ("delete_seed_crds", "delete_seed_namespace"),
    ],
)
def test_a_seed_is_deleted_in_order(earlier: str, later: str) -> None:
    """Extensions release what they have made before they go, and kinds go after their objects."""
    assert seed_flow("delete-seed").comes_after(later, earlier)


def test_the_ends_of_a_seed_s_flows_come_after_all_other_tasks() -> None:
    for name, last in (("bootstrap-seed", "report_seed_ready"), ("delete-seed", "release_seed")):
        graph = seed_flow(name)
        assert all(graph.comes_after(last, each) for each in graph.names if each != last)


# The graph itself


class Steps:
    """Activities of the graphs below."""

    @activity.defn
    async def a(self, task: ShootTask) -> TaskResult:
        return TaskResult()

    @activity.defn
    async def b(self, task: ShootTask) -> TaskResult:
        return TaskResult()

    @activity.defn
    async def c(self, task: ShootTask) -> TaskResult:
        return TaskResult()


def flow() -> Flow:
    return Flow("Test", TASK, queue="q", options=garden_call("test"))


def test_a_task_cannot_be_added_twice() -> None:
    graph = flow()
    graph.add(Steps.a)
    with pytest.raises(GraphError, match="declared twice"):
        graph.add(Steps.a)


def test_only_activities_can_be_tasks() -> None:
    with pytest.raises(TypeError, match=r"activity\.defn"):
        flow().add(cast(Any, Flow.run))


def test_one_activity_can_run_in_several_tasks() -> None:
    graph = flow()
    assert (graph.add(Steps.a), graph.add(Steps.a, name="again", after=["a"])) == ("a", "again")
    assert (graph.title("again"), graph.activities) == ("Again", {"a": GARDEN_QUEUE})


def test_a_task_comes_after_the_task_that_it_completes() -> None:
    graph = flow()
    graph.add(Steps.a)
    graph.add(Steps.b, completes="a")
    graph.add(Steps.c, completes="a", after=["b"])
    assert (graph.after("b"), graph.after("c")) == (("a",), ("b",))


def test_a_predecessor_must_be_there_so_there_is_no_cycle() -> None:
    graph = flow()
    with pytest.raises(GraphError, match="comes after b, which is not declared"):
        graph.add(Steps.a, after=["b"])


def test_a_task_runs_again_after_a_change_of_its_input_and_not_of_the_time() -> None:
    def digest(task: ShootTask, *inputs: str) -> str:
        graph = Flow("Test", task, queue="q", options=garden_call("test"))
        graph.add(Steps.a, inputs=inputs)
        return graph._tasks["a"].digest

    assert digest(TASK) == digest(TASK.model_copy(update={"trigger": "2026-01-01T00:00:00Z"}))
    assert digest(TASK) != digest(TASK.model_copy(update={"generation": 2}))
    assert digest(TASK, "secret/1") != digest(TASK, "secret/2")


def test_every_task_stands_once_in_the_tree_and_below_a_predecessor() -> None:
    graph = reconcile(ShootFacts())
    names = [name for _, name in graph.tree()]
    assert sorted(names) == sorted(graph.names)
    for place, name in enumerate(names):
        assert not graph.after(name) or set(names[:place]) & set(graph.after(name))


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("deploy_apiserver_sni", "Deploy API server SNI"),
        ("wait_worker", "Wait for worker"),
        ("init_secrets", "Init secrets"),
    ],
)
def test_titles_are_made_of_names(name: str, title: str) -> None:
    assert title_of(name) == title


@pytest.mark.parametrize("operation", OperationType)
@pytest.mark.parametrize("tolerant", [True, False])
def test_only_a_control_plane_that_is_restored_gets_its_other_members_later(
    operation: OperationType, tolerant: bool
) -> None:
    task = TASK.model_copy(update={"operation": operation})
    flow = reconcile_flow(FlowInput(task=task, facts=ShootFacts(failure_tolerance=tolerant)))
    scaled = {"scale_etcd_after_restore", "wait_etcd_scaled"}
    expected = scaled if tolerant and operation is OperationType.RESTORE else set()
    assert {name for name in scaled if not flow.skipped(name)} == expected


def test_components_with_networks_of_both_families_wait_for_the_infrastructure_that_names_them() -> None:
    """Without them, the first nodes of a new Shoot would get networks of IPv4 alone, and keep them."""
    flow = reconcile(ShootFacts(dual_stack=True))
    networks = ("deploy_apiserver", "deploy_kube_controller_manager", "deploy_network", "deploy_kube_proxy")
    rules = [("wait_infrastructure", each) for each in networks]
    rules += [("begin_dual_stack_migration", each) for each in ("deploy_infrastructure", *networks)]
    rules += [(each, "check_node_pod_cidrs") for each in ("wait_worker", "wait_network", "deploy_coredns")]

    assert list(violations(flow, *rules)) == []


@given(facts=FACTS.filter(lambda facts: not facts.dual_stack))
def test_a_shoot_of_one_family_has_no_task_of_the_migration(facts: ShootFacts) -> None:
    """Histories of running flows replay: they have no such task."""
    assert not {"begin_dual_stack_migration", "check_node_pod_cidrs"} & set(reconcile(facts).names)


@given(facts=FACTS.filter(lambda facts: facts.dual_stack and (facts.hibernated or facts.workerless)))
def test_networks_of_nodes_are_checked_only_where_there_are_nodes(facts: ShootFacts) -> None:
    assert reconcile(facts).skipped("check_node_pod_cidrs")
