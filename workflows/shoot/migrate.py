"""Migrate a Shoot: delete its control plane in the source seed; its machines and their workloads keep running.

The destination gets the rest: secrets, machines and extension states from the ShootState, etcd's data from the bucket.
Extensions release their resources, and nothing is deleted outside the source. Tasks and order: spec/flows.md 5.

The destination prepares the new control plane during the migration, so that users miss their API server for seconds
only. Before the source's API server stops, the destination's etcd has restored the backups of the source's bucket, and
replicates each new delta snapshot. It is read-only until it has the final snapshot. The destination's API server starts
meanwhile; the gateway routes no traffic to it yet. The restoration that follows finds etcd and API server running, and
deploys the other components.

A control plane that survives the loss of a node can move *live*: no user misses its API server. Members of etcd in the
destination join those in the source, so API servers of both seeds serve. Once the last client of the source's has gone,
the source's members leave. Until the gateway of the destination routes to its API server, a failure ends that: the next
attempt removes the destination's members and moves the control plane as above.
Why: docs/decisions/0026-members-of-two-seeds-in-one-cluster.md.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.autoscaler import AutoscalerActivities as Autoscaler
    from activities.seed.control_plane import ControlPlaneActivities as ControlPlane
    from activities.seed.etcd import EtcdActivities as Etcds
    from activities.seed.etcd_between_seeds import EtcdBetweenSeedsActivities as BetweenSeeds
    from activities.seed.extensions import ExtensionActivities as Extensions
    from activities.seed.force_deletion import ForceDeletionActivities as ForceDeletion
    from activities.seed.migration import MigrationActivities as Migration
    from activities.seed.namespace import NamespaceActivities as Namespace
    from activities.seed.references import ReferenceActivities as References
    from activities.seed.required_extensions import RequiredExtensionActivities as RequiredExtensions
    from activities.seed.secrets import SecretActivities as Secrets
    from activities.seed.shoot_state import ShootStateActivities as ShootStates
    from activities.shoot.system import ShootSystemActivities as ShootSystem
    from api.contracts.flows import FailedTask, FlowInput, FlowOutcome, ShootFacts, Survey
    from api.contracts.operations import ForwardTask, OperationType, OtherMembers, ShootTask, seed_queue
    from workflows import options
    from workflows.flow import EVERYTHING, Activity, Call, Skip, activity_name
    from workflows.shoot import release
    from workflows.shoot.base import OperationWorkflow, ShootFlow, add_reseal, shoot_flow


_JOINING = (
    "expose_etcd_members",
    "expose_etcd_members_there",
    "name_other_etcd_members",
    "name_other_etcd_members_there",
    "join_etcd_there",
    "wait_etcd_joined_there",
    "deploy_apiserver_beside_there",
    "wait_apiserver_beside_there",
)
"""Tasks of a live move before which users notice nothing of the destination."""
_JOINING_MINUTES = 10
"""Limit of time for all attempts of one of these tasks. Others are tried for hours: without them nothing can move."""


def falls_back(facts: ShootFacts, failed: Sequence[FailedTask]) -> bool:
    """Whether the next attempt moves the control plane without moving it live."""
    return facts.live and any(each.name in _JOINING for each in failed)


def migrate_flow(request: FlowInput, survey: Survey) -> ShootFlow:
    """The whole flow; read this page from top to bottom."""
    flow, case = shoot_flow(request), _Case(request, survey)
    _update(flow, case)
    migrated = _release(flow, case)
    _persist(flow, case, migrated)
    prepared = _prepare(flow, case)
    _delete_persisted(flow, case)
    records = _dns_records(flow, case)
    ready = [*prepared, "wait_shoot_managed_resources_deleted", "wait_etcds", *records]
    served = (_api_servers_of_both if case.facts.live else _api_server)(flow, case, ready)
    released = _release_rest(flow, case, served)
    backed_up = (_hand_over_etcd if case.facts.live else _copy_backups)(flow, case)
    _delete_rest(flow, case, [backed_up, *records, *released])
    return flow


class _Case:
    """Facts of one migration, and its reasons to skip tasks; a reason is false if it does not hold."""

    def __init__(self, request: FlowInput, survey: Survey) -> None:
        facts = request.facts
        self.request, self.facts = request, facts
        self.there = request.task.model_copy(
            update={"seed": request.task.destination, "operation": OperationType.RESTORE}
        )
        self.readable = "reseal_shoot_state_there" if request.sources else "persist_shootstate"
        """Task after which the destination can read the ShootState."""
        self.early = [release.NETWORK, release.OS_CONFIGS, release.WORKER]
        """Kinds whose objects are in the ShootState."""
        if facts.container_runtimes:
            self.early.append(release.CONTAINER_RUNTIMES)

        self.workerless = facts.workerless and "workerless"
        self.asleep, self.awake = facts.hibernated and "hibernated", not facts.hibernated and "awake"
        self.no_namespace = not survey.namespace and "no namespace"
        self.foreign = survey.foreign and "the namespace belongs to another Shoot"
        self.no_api_server = self.no_namespace or (not survey.api_server and "no API server")
        self.handed_over = self.no_namespace or (not survey.backups and "the backups are handed over")
        self.no_etcd = self.no_namespace or (
            not survey.api_server and not survey.backups and "no API server and no backups"
        )
        self.no_machines = self.no_namespace or self.workerless
        self.preparation_unneeded = self.handed_over or self.asleep


def _add_there(
    flow: ShootFlow,
    case: _Case,
    activity: Activity[Any],
    *,
    name: str = "",
    minutes: float = 0,
    after: Sequence[str] = (),
    completes: str = "",
    other: str = "",
    unless: Skip,
) -> None:
    """Add a task that runs in the destination; ``other``: the task whose note says where the source's members are."""
    name = f"{name or activity_name(activity)}_there"
    chosen = options.wait(minutes=minutes) if minutes else options.seed_call()
    if name in _JOINING:
        chosen = options.bounded(chosen, _JOINING_MINUTES)
    chosen["task_queue"] = seed_queue(case.there.seed)
    flow.add(
        _about(flow, activity, case.there, other) if other else Call(activity, lambda: case.there),
        name=name,
        after=[*(after or filter(None, [completes])), case.readable],
        completes=completes,
        unless=unless,
        **chosen,
    )


def _about(flow: ShootFlow, activity: Activity[Any], task: ShootTask, other: str) -> Call:
    """A task for the members in the other seed, where ``other`` has found them."""
    return Call(activity, lambda: OtherMembers.from_note(task, flow.result_note(other)))


def _update(flow: ShootFlow, case: _Case) -> None:
    """Bring up to date the components that the migration itself needs."""
    add, wait = flow.add, options.wait
    add(Namespace.sync_cluster, unless=case.no_namespace)
    add(Namespace.deploy_namespace, after=["sync_cluster"], unless=case.no_namespace)
    add(Secrets.init_secrets, after=["deploy_namespace"], unless=case.no_namespace)
    add(Etcds.deploy_etcds, after=["init_secrets"], unless=case.no_etcd)
    add(Etcds.wait_etcds, completes="deploy_etcds", unless=case.no_etcd, **wait(minutes=5))
    # Wake up a hibernated control plane, without its machines: the resource manager needs the API server to release the
    # objects in the shoot.
    add(ControlPlane.deploy_apiserver, after=["wait_etcds"], unless=case.no_api_server or case.awake)
    add(
        ControlPlane.wait_apiserver,
        after=["deploy_apiserver"],
        unless=case.no_api_server or case.awake,
        **wait(minutes=5),
    )
    add(ControlPlane.deploy_resource_manager, after=["wait_apiserver"], unless=case.no_api_server)
    add(
        ControlPlane.wait_resource_manager,
        after=["deploy_resource_manager"],
        unless=case.no_api_server,
        **wait(minutes=5),
    )


def _release(flow: ShootFlow, case: _Case) -> list[str]:
    """Release the objects in the shoot, then the machines; returns the tasks before the ShootState is written."""
    add, wait = flow.add, options.wait
    add(Migration.keep_managed_objects, after=["wait_resource_manager"], unless=case.no_api_server)
    add(ShootSystem.delete_managed_resources, after=["keep_managed_objects"], unless=case.no_namespace)
    add(
        ShootSystem.wait_managed_resources_deleted,
        after=["delete_managed_resources"],
        unless=case.no_namespace,
        **wait(minutes=10),
    )
    # Stop the cluster autoscaler first, so that the number of machines stays the one that the ShootState holds.
    add(Autoscaler.delete_autoscaler, after=["keep_managed_objects"], unless=case.no_machines, **wait(minutes=2))
    add(
        ControlPlane.delete_machine_controller_manager,
        after=["wait_managed_resources_deleted", "delete_autoscaler"],
        unless=case.no_machines,
    )
    add(
        ForceDeletion.wait_machine_controller_manager_deleted,
        after=["delete_machine_controller_manager"],
        unless=case.no_machines,
        **wait(minutes=5),
    )
    migrated = []
    for kind in case.early:
        asked = add(kind.migrate, after=["wait_machine_controller_manager_deleted"], unless=case.no_machines)
        migrated.append(add(kind.wait_migrated, completes=asked, unless=case.no_machines, **wait(minutes=10)))
    add(
        Extensions.migrate_extensions_before_apiserver,
        after=["wait_managed_resources_deleted"],
        unless=case.no_namespace,
    )
    add(
        Extensions.wait_extensions_before_apiserver_migrated,
        completes="migrate_extensions_before_apiserver",
        unless=case.no_namespace,
        **wait(minutes=case.facts.extension_minutes),
    )
    migrated.append("wait_extensions_before_apiserver_migrated")
    return migrated


def _persist(flow: ShootFlow, case: _Case, migrated: list[str]) -> None:
    """Write the ShootState, readable for the destination."""
    add = flow.add
    # A migration that starts again adds to the ShootState, which may already be encrypted for the destination.
    request, resealed = case.request, []
    if request.sources:
        resealed = [add_reseal(flow, request, request.task.seed, "reseal_shoot_state", unless=case.no_namespace)]
    add(ShootStates.persist_shootstate, after=[*migrated, *resealed], unless=case.no_namespace)
    if request.sources:
        there = request.task.destination
        add_reseal(flow, request, there, case.readable, after=["persist_shootstate"], unless=case.no_namespace)


def _prepare(flow: ShootFlow, case: _Case) -> list[str]:
    """Prepare the destination: everything that needs neither the final snapshot nor the DNS records.

    Skip etcd and API server of a hibernated Shoot: it stays hibernated, and its etcd starts from the copied backups
    when it wakes up. Returns the tasks after which the API server can start.
    """
    add_there = partial(_add_there, flow, case)
    add_there(Namespace.sync_cluster, unless=case.handed_over)
    add_there(
        RequiredExtensions.wait_required_extensions, minutes=2, after=["sync_cluster_there"], unless=case.handed_over
    )
    add_there(Namespace.deploy_namespace, after=["wait_required_extensions_there"], unless=case.handed_over)
    add_there(Migration.deploy_source_backup_entry, after=["deploy_namespace_there"], unless=case.handed_over)
    add_there(
        Extensions.wait_source_backup_entry,
        minutes=10,
        completes="deploy_source_backup_entry_there",
        unless=case.handed_over,
    )
    add_there(
        Namespace.deploy_cloud_secret, after=["deploy_namespace_there"], unless=case.workerless or case.handed_over
    )
    add_there(References.deploy_references, after=["deploy_namespace_there"], unless=case.handed_over)
    add_there(Secrets.init_secrets, after=["deploy_namespace_there"], unless=case.handed_over)
    add_there(ControlPlane.deploy_api_service, after=["init_secrets_there"], unless=case.preparation_unneeded)
    add_there(
        ControlPlane.wait_api_service, minutes=10, after=["deploy_api_service_there"], unless=case.preparation_unneeded
    )
    add_there(Extensions.deploy_backup_entry, after=["deploy_namespace_there"], unless=case.handed_over)
    add_there(
        Extensions.wait_backup_entry,
        minutes=10,
        completes="deploy_backup_entry_there",
        unless=case.handed_over,
    )
    needed = ["init_secrets_there", "wait_source_backup_entry_there", "wait_backup_entry_there"]
    if case.facts.live:
        _join_etcd(flow, case, needed)
    else:
        undone = _undo_joining(flow, case) if case.facts.fell_back else []
        add_there(Etcds.deploy_etcds, unless=case.preparation_unneeded, after=[*needed, *undone])
        add_there(
            Migration.wait_etcd_following, minutes=5, after=["deploy_etcds_there"], unless=case.preparation_unneeded
        )
    return [
        "wait_etcd_joined_there" if case.facts.live else "wait_etcd_following_there",
        "deploy_cloud_secret_there",
        "deploy_references_there",
        "wait_api_service_there",
    ]


def _join_etcd(flow: ShootFlow, case: _Case, needed: list[str]) -> None:
    """Members of etcd-main in the destination join those in the source, by the gateways of both seeds."""
    add_there, unless = partial(_add_there, flow, case), case.preparation_unneeded
    bounded = options.bounded(options.seed_call(), _JOINING_MINUTES)
    flow.add(BetweenSeeds.expose_etcd_members, after=["wait_etcds"], unless=unless, **bounded)
    add_there(BetweenSeeds.expose_etcd_members, after=["deploy_namespace_there"], unless=unless)
    flow.add(
        _about(flow, BetweenSeeds.name_other_etcd_members, case.request.task, "expose_etcd_members_there"),
        after=["expose_etcd_members_there"],
        unless=unless,
        **bounded,
    )
    add_there(
        BetweenSeeds.name_other_etcd_members,
        after=["expose_etcd_members", "deploy_namespace_there"],
        other="expose_etcd_members",
        unless=unless,
    )
    add_there(
        Etcds.join_etcd,
        after=[*needed, "name_other_etcd_members", "name_other_etcd_members_there"],
        other="expose_etcd_members",
        unless=unless,
    )
    add_there(BetweenSeeds.wait_etcd_joined, minutes=9, completes="join_etcd_there", unless=unless)


def _undo_joining(flow: ShootFlow, case: _Case) -> list[str]:
    """Take the destination's members out of the source's etcd, and delete what they ran for."""
    add, add_there, unless = flow.add, partial(_add_there, flow, case), case.preparation_unneeded
    add_there(ControlPlane.delete_apiserver, after=["deploy_namespace_there"], unless=unless)
    add_there(BetweenSeeds.let_other_seed_lead, after=["delete_apiserver_there"], unless=unless)
    add(
        BetweenSeeds.remove_other_etcd_members,
        after=["wait_etcds", "let_other_seed_lead_there"],
        unless=unless,
        **options.wait(minutes=2),
    )
    add_there(Etcds.delete_etcds, after=["remove_other_etcd_members"], name="delete_joined_etcds", unless=unless)
    add_there(
        Etcds.wait_etcds_deleted,
        after=["delete_joined_etcds_there"],
        name="wait_joined_etcds_deleted",
        minutes=5,
        unless=unless,
    )
    add_there(BetweenSeeds.hide_etcd_members, after=["wait_joined_etcds_deleted_there"], unless=unless)
    add(BetweenSeeds.hide_etcd_members, after=["hide_etcd_members_there"], unless=unless)
    return ["hide_etcd_members"]


def _delete_persisted(flow: ShootFlow, case: _Case) -> None:
    """The ShootState is complete: delete the objects in the source that it holds."""
    add, wait = flow.add, options.wait
    gone = []
    for kind in case.early:
        deleting = add(kind.delete, after=["persist_shootstate"], unless=case.no_machines)
        gone.append(add(kind.wait_deleted, completes=deleting, unless=case.no_machines, **wait(minutes=3)))
    add(Migration.shallow_delete_machine_objects, after=["persist_shootstate"], unless=case.no_machines)
    add(Extensions.delete_extensions_before_apiserver, after=["persist_shootstate"], unless=case.no_namespace)
    add(
        Extensions.wait_extensions_before_apiserver_deleted,
        completes="delete_extensions_before_apiserver",
        unless=case.no_namespace,
        **wait(minutes=case.facts.extension_minutes),
    )
    gone += ["wait_extensions_before_apiserver_deleted", "shallow_delete_machine_objects"]
    add(Extensions.migrate_control_plane_extension, after=gone, unless=case.no_machines)
    add(
        Extensions.wait_control_plane_extension_migrated,
        completes="migrate_control_plane_extension",
        unless=case.no_machines,
        **wait(minutes=3),
    )
    add(
        Extensions.delete_control_plane_extension,
        after=["wait_control_plane_extension_migrated"],
        unless=case.no_machines,
    )
    add(
        Extensions.wait_control_plane_extension_deleted,
        completes="delete_control_plane_extension",
        unless=case.no_machines,
        **wait(minutes=3),
    )
    add(
        ShootSystem.wait_shoot_managed_resources_deleted,
        after=[
            "wait_managed_resources_deleted",
            "wait_control_plane_extension_deleted",
            "wait_extensions_before_apiserver_deleted",
        ],
        unless=case.no_namespace,
        **wait(minutes=10),
    )


def _dns_records(flow: ShootFlow, case: _Case) -> list[str]:
    """Release the DNS records: they stay unchanged in the DNS until the destination takes them over."""
    add, wait = flow.add, options.wait
    add(Extensions.migrate_internal_dns, after=["persist_shootstate"], unless=case.no_namespace)
    add(
        Extensions.wait_internal_dns_migrated,
        completes="migrate_internal_dns",
        unless=case.no_namespace,
        **wait(minutes=10),
    )
    add(
        Extensions.delete_internal_dns,
        after=["wait_internal_dns_migrated"],
        unless=case.no_namespace,
        **wait(minutes=2),
    )
    add(Extensions.migrate_external_dns, after=["persist_shootstate"], unless=case.no_namespace)
    add(
        Extensions.wait_external_dns_migrated,
        completes="migrate_external_dns",
        unless=case.no_namespace,
        **wait(minutes=10),
    )
    add(
        Extensions.delete_external_dns,
        after=["wait_external_dns_migrated"],
        unless=case.no_namespace,
        **wait(minutes=2),
    )
    return ["delete_internal_dns", "delete_external_dns"]


def _api_servers_of_both(flow: ShootFlow, case: _Case, ready: list[str]) -> list[str]:
    """The destination's API server serves beside the source's, then users go to it alone.

    Returns the tasks after which they do.
    """
    add, add_there, unless = flow.add, partial(_add_there, flow, case), case.preparation_unneeded
    add_there(ControlPlane.deploy_apiserver, name="deploy_apiserver_beside", after=ready, unless=unless)
    add_there(BetweenSeeds.wait_apiserver_beside, minutes=6, completes="deploy_apiserver_beside_there", unless=unless)
    add_there(ControlPlane.deploy_vpn_server, after=["init_secrets_there"], unless=unless or case.workerless)
    add_there(
        ControlPlane.wait_vpn_server, minutes=3, after=["deploy_vpn_server_there"], unless=unless or case.workerless
    )
    add_there(
        ControlPlane.deploy_apiserver_sni, after=["wait_apiserver_beside_there", "wait_vpn_server_there"], unless=unless
    )
    for deploy in (Extensions.deploy_internal_dns, Extensions.deploy_external_dns):
        add_there(deploy, minutes=2, after=["deploy_apiserver_sni_there"], unless=unless)
    _forward(flow, case, ["deploy_internal_dns_there", "deploy_external_dns_there"])
    # From now on the API server in the destination needs the tunnel to the nodes, and connects at once.
    add(Migration.delete_vpn_server, after=["delete_apiserver_sni"], unless=case.no_machines)
    add(ControlPlane.drain_apiserver, after=["delete_apiserver_sni"], unless=case.no_namespace)
    add(
        ControlPlane.wait_apiserver_deleted,
        after=["drain_apiserver"],
        unless=case.no_namespace,
        **options.wait(minutes=5),
    )
    add(ControlPlane.delete_apiserver, after=["wait_apiserver_deleted"], unless=case.no_namespace)
    return ["delete_apiserver", "deploy_apiserver_sni_there"]


def _hand_over_etcd(flow: ShootFlow, case: _Case) -> str:
    """The source's members leave. Returns the task after which the source's backups are not needed any more."""
    add_there, unless = partial(_add_there, flow, case), case.handed_over
    flow.add(BetweenSeeds.let_other_seed_lead, after=["delete_apiserver"], unless=unless, **options.wait(minutes=2))
    add_there(BetweenSeeds.remove_other_etcd_members, minutes=2, after=["let_other_seed_lead"], unless=unless)
    add_there(Etcds.end_etcd_joining, after=["remove_other_etcd_members_there"], unless=unless)
    add_there(Etcds.wait_etcds, minutes=5, completes="end_etcd_joining_there", unless=unless)
    add_there(BetweenSeeds.back_up_handed_over_etcd, minutes=10, after=["wait_etcds_there"], unless=unless)
    add_there(BetweenSeeds.hide_etcd_members, after=["back_up_handed_over_etcd_there"], unless=unless)
    return _copy_older_backups(flow, case, "hide_etcd_members_there")


def _forward(flow: ShootFlow, case: _Case, after: list[str]) -> None:
    """Forward clients that still use the old DNS answer to the destination."""
    flow.add(
        Call(
            ControlPlane.forward_apiserver_sni,
            lambda: ForwardTask(task=case.request.task, address=flow.result_note("wait_api_service_there")),
        ),
        after=after,
        unless=case.no_namespace or case.preparation_unneeded,
    )
    flow.add(ControlPlane.delete_apiserver_sni, after=["forward_apiserver_sni"], unless=case.no_namespace)


def _api_server(flow: ShootFlow, case: _Case, ready: list[str]) -> list[str]:
    """Stop the API server, take the final snapshot, and serve users from the destination.

    Returns the tasks after which it serves them.
    """
    add, wait = flow.add, options.wait
    add_there = partial(_add_there, flow, case)
    # Start the new API server before the old one stops. Start it late: it waits for a short time only until its etcd
    # accepts writes.
    add_there(ControlPlane.deploy_apiserver, after=ready, unless=case.preparation_unneeded)
    add_there(
        ControlPlane.wait_apiserver_reading,
        minutes=0.5,
        after=["deploy_apiserver_there"],
        unless=case.preparation_unneeded,
    )

    # Stop the API server, then take the final snapshot, which no write can follow. From here on the move cannot be
    # aborted.
    add(
        Migration.flush_etcd,
        after=[*ready, "wait_apiserver_reading_there"],
        unless=case.no_api_server or case.handed_over,
    )
    add(ControlPlane.delete_apiserver, after=["flush_etcd"], unless=case.no_namespace)
    add(ControlPlane.wait_apiserver_deleted, after=["delete_apiserver"], unless=case.no_namespace, **wait(minutes=5))
    _forward(flow, case, ["wait_apiserver_deleted"])
    add(
        Migration.snapshot_etcd,
        after=["wait_apiserver_deleted"],
        unless=case.handed_over,
        **options.seed_call(minutes=6),
    )

    # Change the DNS records early: the destination's gateway routes these names only after `deploy_apiserver_sni`, once
    # etcd there has all data.
    for deploy in (Extensions.deploy_internal_dns, Extensions.deploy_external_dns):
        add_there(deploy, minutes=2, after=["wait_apiserver_deleted"], unless=case.preparation_unneeded)
    add_there(Migration.wait_etcd_taken_over, minutes=5, after=["snapshot_etcd"], unless=case.preparation_unneeded)
    add_there(ControlPlane.deploy_apiserver_sni, after=["wait_etcd_taken_over_there"], unless=case.preparation_unneeded)
    return ["wait_apiserver_deleted", "snapshot_etcd", "deploy_apiserver_sni_there"]


def _release_rest(flow: ShootFlow, case: _Case, served: list[str]) -> list[str]:
    """Users are served again: release what machines needed until here, and what users do not wait for."""
    add, wait = flow.add, options.wait
    if not case.facts.live:
        add(Migration.delete_vpn_server, after=served, unless=case.no_machines)
    last = ((release.EXTENSIONS_AFTER_API_SERVER, case.no_namespace), (release.INFRASTRUCTURE, case.no_machines))
    released = []
    for kind, unneeded in last:
        asked = add(kind.migrate, after=served, unless=unneeded)
        migrated = add(kind.wait_migrated, completes=asked, unless=unneeded, **wait(minutes=10))
        deleting = add(kind.delete, after=[migrated], unless=unneeded, **wait(minutes=2))
        released.append(add(kind.wait_deleted, completes=deleting, unless=unneeded, **wait(minutes=10)))
    return released


def _copy_backups(flow: ShootFlow, case: _Case) -> str:
    """Copy older snapshots, too: users do not wait for that. Returns the task that waits for it."""
    add_there = partial(_add_there, flow, case)
    add_there(
        Etcds.wait_etcds,
        minutes=5,
        after=["snapshot_etcd"],
        completes="deploy_etcds_there",
        unless=case.preparation_unneeded,
    )
    add_there(
        ControlPlane.wait_apiserver,
        minutes=5,
        after=["wait_apiserver_reading_there", "wait_etcds_there"],
        unless=case.preparation_unneeded,
    )
    return _copy_older_backups(flow, case, "wait_etcds_there")


def _copy_older_backups(flow: ShootFlow, case: _Case, after: str) -> str:
    add_there = partial(_add_there, flow, case)
    add_there(Migration.copy_etcd_backups, after=[after], unless=case.handed_over)
    add_there(
        Migration.wait_etcd_backups_copied,
        minutes=11,
        completes="copy_etcd_backups_there",
        unless=case.handed_over,
    )
    return "wait_etcd_backups_copied_there"


def _delete_rest(flow: ShootFlow, case: _Case, released: list[str]) -> None:
    """Delete the rest in the source once the destination has reported that it has the backups."""
    add, wait = flow.add, options.wait
    add(
        Extensions.migrate_backup_entry,
        after=released,
        unless=case.no_namespace,
        **wait(minutes=10),
    )
    add(Etcds.delete_etcds, after=["migrate_backup_entry"], unless=case.no_namespace)
    add(Etcds.wait_etcds_deleted, after=["delete_etcds"], unless=case.no_namespace, **wait(minutes=5))
    add(Namespace.delete_namespace, after=["wait_etcds_deleted"])
    add(Namespace.wait_namespace_deleted, after=["delete_namespace"], **wait(minutes=15))
    add(Namespace.delete_cluster, after=EVERYTHING, unless=case.foreign)


@workflow.defn
class MigrateShoot(OperationWorkflow):
    """One attempt to migrate. Workflow id: ``<lifecycle id>/migrate/<generation>-<n>``."""

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await self.run_surveyed(request, migrate_flow)
