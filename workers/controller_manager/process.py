"""The controller-manager: it runs the Shoot workflows, the garden's activities and the garden's controllers."""

import logging
from datetime import timedelta
from pathlib import Path

from prometheus_client import REGISTRY
from pydantic import Field
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from api.contracts.flows import ShootRules
from api.contracts.operations import GARDEN_QUEUE
from api.model import ApiModel
from kube.cache import Caches
from workers.controller_manager.audit import AuditLog
from workers.controller_manager.bastions import BastionConfig, run_bastion_controller
from workers.controller_manager.gardenlet_lifecycle import GardenletLifecycleConfig, run_gardenlet_lifecycle_controller
from workers.controller_manager.installations import run_installation_controller
from workers.controller_manager.lifetime import run_lifetime_controller
from workers.controller_manager.logins import run_login_controller
from workers.controller_manager.managed_seed_sets import ManagedSeedSetConfig, run_managed_seed_set_controller
from workers.controller_manager.managed_seeds import ManagedSeedConfig, run_managed_seed_controller
from workers.controller_manager.metrics import GardenCollector
from workers.controller_manager.plants import PlantConfig, run_plant_controller
from workers.controller_manager.profiles import run_profile_controllers
from workers.controller_manager.project import run_project_controller
from workers.controller_manager.project_quotas import run_project_quota_controllers
from workers.controller_manager.project_usage import (
    ProjectConfig,
    run_project_activity_controller,
    run_stale_project_controller,
)
from workers.controller_manager.protection import run_protection_controllers
from workers.controller_manager.references import run_reference_controllers
from workers.controller_manager.seed_autoscalers import SeedAutoscalerConfig, run_seed_autoscaler_controller
from workers.controller_manager.seed_certificates import run_seed_certificate_controller
from workers.controller_manager.seed_namespaces import run_seed_namespace_controller
from workers.controller_manager.storage_versions import run_storage_version_controller
from workers.controller_manager.versioning import CONTROLLER_MANAGER, deployment_config
from workers.controller_manager.watchers.kept_backups import KeptBackupsWatcher
from workers.controller_manager.watchers.remains import RemainsWatcher
from workers.controller_manager.watchers.rotations import RotationWatcher
from workers.controller_manager.watchers.schedules import ScheduleWatcher
from workers.controller_manager.watchers.seeds import SeedWatcher
from workers.controller_manager.watchers.shoots import ShootWatcher
from workers.controller_manager.workload_identities import (
    WorkloadIdentityConfig,
    run_workload_identity_controllers,
)
from workers.lib import registry
from workers.lib.callers import Callers
from workers.lib.codec import sealings
from workers.lib.heartbeats import THROTTLE, Heartbeats
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.journal import open_journal
from workers.lib.leader import LeaderElectionConfig, run_as_leader
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.telemetry import observe_requests
from workers.lib.temporal import TemporalConnection, connect, follow_certificate
from workers.lib.tracing import TracingConfig
from workflows.garden import WORKFLOWS

log = logging.getLogger(__name__)

_STICKY_SECONDS = 0.5


class ControllerManagerConfig(ApiModel):
    garden_client_connection: ClientConnection
    temporal: TemporalConnection
    health: HealthConfig = HealthConfig()
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
    shoots: ShootRules = ShootRules()
    gardenlet_lifecycle: GardenletLifecycleConfig = GardenletLifecycleConfig()
    bastions: BastionConfig = BastionConfig()
    projects: ProjectConfig = ProjectConfig()
    workload_identities: WorkloadIdentityConfig = WorkloadIdentityConfig()
    plants: PlantConfig = PlantConfig()
    managed_seeds: ManagedSeedConfig = ManagedSeedConfig()
    managed_seed_sets: ManagedSeedSetConfig = ManagedSeedSetConfig()
    seed_autoscalers: SeedAutoscalerConfig = SeedAutoscalerConfig()
    tracing: TracingConfig | None = None
    audit_log: Path | None = None
    """File that gets one JSON line for each operation that has ended. None: there is no audit log."""
    controllers: bool = True
    """Off for an earlier version that runs beside the current one until its flows have ended."""
    require_caller: bool = False
    """Refuse updates of users, such as repairs and completions of rotations, whose author Temporal does not name. See
    ``workers.lib.callers``."""
    max_cached_workflows: int = 500
    """Number of workflows that the process keeps in memory. For any other workflow it reads the whole history first."""
    sticky_seconds: float = Field(default=_STICKY_SECONDS, gt=0)
    """Time after which Temporal offers a workflow's task to all workers, because the worker that knows the workflow is
    dead or busy. A busy garden needs a longer time: else busy workers read whole histories, and are busier for it."""
    max_concurrent_workflow_tasks: int = Field(default=10, ge=2)
    """Maximum number of workflow tasks that the process works on at once; others wait in Temporal. All share one core:
    if they were many, each would take longer than Temporal waits for it (``workflows.options.WORKFLOW_TASK``), and
    would be done again."""
    max_concurrent_activities: int = 5000
    """Maximum number of concurrent activities. Each running operation has one long-lived activity. If these activities
    filled all slots, no other activity could run and no operation could end."""


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(ControllerManagerConfig, config_path)
    tracing = observe_requests("controller-manager", config.tracing)
    garden = kube_client(config.garden_client_connection)
    caches = Caches(garden)
    temporal = await connect(config.temporal)
    audit = [AuditLog(config.audit_log, garden)] if config.audit_log else []
    worker = Worker(
        temporal,
        task_queue=GARDEN_QUEUE,
        workflows=WORKFLOWS,
        activities=registry.garden_activities(
            garden, caches, config.shoots, sealings(config.temporal.codec_key_file, config.temporal.shared_key_file)
        ),
        interceptors=[
            *await open_journal(config.temporal.journal_directory, temporal),
            Callers(required=config.require_caller),
            Heartbeats(),
            ActivityInterceptor(tracing),
            *audit,
        ],
        max_heartbeat_throttle_interval=THROTTLE,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=config.max_concurrent_workflow_tasks,
        max_cached_workflows=config.max_cached_workflows,
        max_concurrent_activities=config.max_concurrent_activities,
        deployment_config=deployment_config(config.temporal.versioning, CONTROLLER_MANAGER),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=config.sticky_seconds),
        graceful_shutdown_timeout=timedelta(seconds=10),
    )
    REGISTRY.register(GardenCollector(caches))
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    log.info("serving queue %s", GARDEN_QUEUE)
    try:
        parts = [worker.run(), follow_certificate(worker)]
        if config.controllers:
            controllers = [
                RotationWatcher(caches, temporal).run(),
                ShootWatcher(caches, temporal, tracing).run(),
                ScheduleWatcher(caches, temporal).run(),
                SeedWatcher(garden, caches, temporal).run(),
                RemainsWatcher(garden, caches, temporal).run(),
                KeptBackupsWatcher(garden, caches, temporal).run(),
                run_project_controller(garden, caches),
                run_stale_project_controller(garden, caches, config.projects),
                run_project_activity_controller(garden, caches),
                run_project_quota_controllers(garden, caches, config.projects.quotas),
                run_reference_controllers(garden, caches),
                run_profile_controllers(garden, caches),
                run_protection_controllers(garden, caches),
                run_installation_controller(garden, caches),
                run_storage_version_controller(garden),
                run_login_controller(garden, caches),
                run_lifetime_controller(garden, caches),
                run_bastion_controller(garden, caches, config.bastions),
                run_plant_controller(garden, caches, config.plants),
                run_managed_seed_set_controller(garden, caches, config.managed_seed_sets),
                run_seed_autoscaler_controller(garden, caches, config.seed_autoscalers),
                run_seed_certificate_controller(garden, caches),
                run_managed_seed_controller(garden, caches, config.managed_seeds, config.temporal),
                run_seed_namespace_controller(garden, caches),
                run_workload_identity_controllers(garden, caches, config.workload_identities),
                run_gardenlet_lifecycle_controller(garden, caches, config.gardenlet_lifecycle),
            ]
            parts.append(run_as_leader(garden, config.leader_election, "gardener-controller-manager", *controllers))
        await run_until_signal(*parts)
    finally:
        await runner.cleanup()
        await caches.close()
        await garden.close()
        if tracing is not None:
            tracing.close()
