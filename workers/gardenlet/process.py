"""The gardenlet process: one Temporal worker for its seed's task queue, and the controllers.

The worker takes tasks from that queue. Nothing else here uses Temporal: a gardenlet starts no workflow. It requests
workflows from the controller-manager by annotations of its Seed and its BackupEntries.
"""

import logging
from datetime import timedelta

from temporalio.worker import Worker

from activities.clusters import Clusters
from activities.secrets.manager import SecretsManager
from activities.seed.system import apply_priority_classes
from api.constants import GARDEN_NAMESPACE
from api.contracts.operations import seed_queue
from workers.etcd.controller import EtcdController
from workers.etcd.copy_backups import CopyBackupsController
from workers.gardenlet.backup_buckets import BackupBucketController
from workers.gardenlet.backup_entries import BackupEntryController
from workers.gardenlet.bastions import BastionController
from workers.gardenlet.care import CareController, Watchdog, Weeder
from workers.gardenlet.cluster_status import ClusterStatusController
from workers.gardenlet.config import GardenletConfig
from workers.gardenlet.eviction_requirements import EvictionRequirements
from workers.gardenlet.extension_access import ExtensionAccessController
from workers.gardenlet.garden_access import GardenAccess, GardenAccessController
from workers.gardenlet.installations import GARDEN_TOKENS, InstallationController
from workers.gardenlet.kept_backups import KeptBackupsController
from workers.gardenlet.managed_seeds import ManagedSeedController
from workers.gardenlet.namespace_guard import NamespaceGuard
from workers.gardenlet.network_policies import NetworkPolicyController
from workers.gardenlet.ownership import OwnershipController
from workers.gardenlet.remains import RemainsController
from workers.gardenlet.required_installations import RequiredInstallations
from workers.gardenlet.seed import SeedController
from workers.gardenlet.seed_care import SeedCare
from workers.gardenlet.self_upgrade import SelfUpgrade
from workers.gardenlet.shoot_states import ShootStateController
from workers.gardenlet.token_requestor import TokenRequestor
from workers.lib import registry
from workers.lib.codec import sealings
from workers.lib.heartbeats import THROTTLE, Heartbeats
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.journal import open_journal
from workers.lib.leader import run_as_leader
from workers.lib.reload import follow_configuration
from workers.lib.runtime import Health, adjust_logging, kube_client, load_config, run_until_signal
from workers.lib.telemetry import observe_requests
from workers.lib.temporal import connect, follow_certificate
from workers.lib.token_requestor import TokenRequestor as GardenTokens

log = logging.getLogger(__name__)


async def run(config_path: str) -> None:
    """Run until SIGTERM. Activities in flight get 10 s to end; another gardenlet runs those that do not."""
    config = load_config(GardenletConfig, config_path)
    adjust_logging(config.log_level, config.log_format)
    tracing = observe_requests("gardenlet", config.tracing)
    SecretsManager.key_algorithm = config.secrets.key_algorithm
    seed_name = config.seed_config.metadata["name"]
    health = Health()
    runner = await health.serve(config.health)
    connection = config.garden_client_connection
    seed = kube_client(config.seed_client_connection)
    access = GardenAccess(seed, seed_name, connection) if connection.kubeconfig_secret else None
    clusters = Clusters(
        garden=await access.connect() if access else kube_client(connection),
        seed=seed,
        seed_name=seed_name,
        sealing=sealings(config.temporal.codec_key_file, config.temporal.shared_key_file)(seed_name),
    )
    await apply_priority_classes(clusters.seed)
    temporal = await connect(config.temporal, seed_queue(seed_name))
    worker = Worker(
        temporal,
        task_queue=seed_queue(seed_name),
        activities=registry.seed_activities(
            clusters,
            vpn_network=config.vpn.network,
            delta_snapshot_period=config.etcd.delta_snapshot_period,
            image_digest=config.etcd.image_digest,
            retention=config.backup_entry.retention,
            identity=config.identity,
            handlers=config.exposure_class_handlers,
            network_policies=config.network_policies.enabled,
            node_logs=config.logging.node_logs,
        ),
        interceptors=[
            *await open_journal(config.temporal.journal_directory, temporal),
            Heartbeats(),
            ActivityInterceptor(tracing),
            NamespaceGuard(clusters),
        ],
        max_heartbeat_throttle_interval=THROTTLE,
        max_concurrent_activities=config.max_concurrent_activities,
        graceful_shutdown_timeout=timedelta(seconds=10),
    )
    health.ready = True
    log.info("gardenlet of seed %s is serving queue %s", seed_name, seed_queue(seed_name))
    try:
        await run_until_signal(
            worker.run(),
            follow_certificate(worker),
            follow_configuration(config_path, config),
            *([access.follow(clusters.garden)] if access else []),
            run_as_leader(
                clusters.seed,
                config.leader_election,
                "gardenlet",
                SeedController(clusters, config.seed_config, config.identity, config.resources).run(),
                GardenAccessController(clusters, access).run(),
                ExtensionAccessController(clusters).run(),
                InstallationController(clusters).run(),
                EtcdController(clusters.seed, clusters.seed_caches, config.etcd.takeover_tolerance).run(),
                CopyBackupsController(clusters.seed, clusters.seed_caches, config.etcd.takeover_tolerance).run(),
                BastionController(clusters).run(),
                CareController(clusters, config.shoot_care).run(),
                Watchdog(clusters, config.watchdog).run(),
                Weeder(clusters, config.watchdog).run(),
                RequiredInstallations(clusters).run(),
                SeedCare(clusters, config.seed_care, config.shoot_care, config.gateways).run(),
                ClusterStatusController(clusters).run(),
                OwnershipController(clusters, config.etcd.takeover_tolerance).run(),
                RemainsController(clusters).run(),
                NetworkPolicyController(clusters, enabled=config.network_policies.enabled).run(),
                BackupBucketController(clusters).run(),
                BackupEntryController(clusters).run(),
                KeptBackupsController(clusters, config.backup_entry.retention).run(),
                ManagedSeedController(clusters, config).run(),
                SelfUpgrade(clusters, config).run(),
                EvictionRequirements(clusters).run(),
                ShootStateController(clusters, config.shoot_state.sync_period).run(),
                TokenRequestor(clusters).run(),
                GardenTokens(
                    source=clusters.seed,
                    source_caches=clusters.seed_caches,
                    target=clusters.garden,
                    namespaces=[None],
                    secret_class=GARDEN_NAMESPACE,
                    labels=GARDEN_TOKENS,
                ).run(),
            ),
        )
    finally:
        await runner.cleanup()
        await clusters.close()
        if tracing is not None:
            tracing.close()
