"""The provider-local process: a controller for each kind, and a Temporal worker for long operations."""

import logging
import socket
from datetime import timedelta

from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.provider_local.backup import BackupBucketActuator, BackupEntryActuator
from activities.provider_local.bastion import BastionActuator
from activities.provider_local.cloud import Clouds
from activities.provider_local.control_plane import ControlPlaneActuator
from activities.provider_local.dns_record import DNSRecordActuator
from activities.provider_local.infrastructure import InfrastructureActuator
from activities.provider_local.network import FlannelActuator
from activities.provider_local.operating_system_config import OperatingSystemConfigActuator
from activities.provider_local.operations import ProviderLocalActivities
from activities.provider_local.provider import MANAGER
from activities.provider_local.self_hosted_shoot_exposure import SelfHostedShootExposureActuator
from api.resources import CLUSTER
from kube.cache import Caches, Key
from kube.client import KubeClient
from kube.controller import Controller
from workers.extension.controller import ExtensionController
from workers.extension.heartbeat import run_heartbeat
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.journal import open_journal
from workers.lib.leader import run_as_leader
from workers.lib.runtime import Health, load_config, run_until_signal
from workers.lib.telemetry import observe_requests
from workers.lib.temporal import connect, follow_certificate
from workers.provider_local.access import NAME
from workers.provider_local.config import ProviderLocalConfig
from workers.provider_local.load_balancer import LoadBalancerController
from workers.provider_local.manual_updates import ManualUpdates
from workers.provider_local.operations import InfrastructureOperations, Operations, WorkerActuator
from workers.provider_local.shoots import ShootControllers
from workflows.provider_local import WORKFLOWS
from workflows.provider_local.options import queue

_log = logging.getLogger(__name__)

_STICKY_SECONDS = 0.5
"""Time after which Temporal offers a workflow's task to all workers, because the worker that knows the workflow is dead
or busy."""


async def forget_control_planes(caches: Caches) -> None:
    """Stop the caches of each control plane that has been deleted; run until cancelled.

    The rights of provider-local in a namespace end with the namespace, so the API server would refuse their requests.
    """

    async def forget(key: Key) -> None:
        await caches.forget(key.name)

    controller = Controller("caches of control planes that are gone", forget, workers=1)
    controller.watch(caches.of(CLUSTER), when=lambda event: event.type == "DELETED")
    await controller.run()


async def run(config_path: str) -> None:
    """Run until SIGTERM. After a restart, the process finds its running workflows."""
    config = load_config(ProviderLocalConfig, config_path)
    tracing = observe_requests("provider-local", config.tracing)
    kubeconfig = config.seed_kubeconfig
    seed = KubeClient.from_kubeconfig(kubeconfig) if kubeconfig else KubeClient.in_cluster()
    caches, clouds = Caches(seed), Clouds()
    temporal = await connect(config.temporal, queue(config.seed_name))
    infrastructures = InfrastructureActuator(seed, clouds)
    steps = ProviderLocalActivities(seed, caches, infrastructures)
    own_queue = queue(config.seed_name)
    worker = Worker(
        temporal,
        task_queue=own_queue,
        # The SDK derives the name of the sticky queue from it. Temporal's authorization recognizes the queues of an
        # extension by this prefix.
        identity=f"{own_queue}@{socket.gethostname()}",
        workflows=WORKFLOWS,
        activities=steps.all(),
        interceptors=[
            *await open_journal(config.temporal.journal_directory, temporal),
            ActivityInterceptor(tracing),
        ],
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=_STICKY_SECONDS),
        graceful_shutdown_timeout=timedelta(seconds=5),
    )
    operations = Operations(temporal, config.seed_name)
    simple = [
        ControlPlaneActuator(seed, caches, clouds),
        FlannelActuator(seed, caches),
        OperatingSystemConfigActuator(seed),
        DNSRecordActuator(seed),
        BackupBucketActuator(seed),
        BackupEntryActuator(seed),
    ]
    long = [
        InfrastructureOperations(seed, clouds, operations),
        WorkerActuator(seed, operations),
        BastionActuator(seed, clouds),
        SelfHostedShootExposureActuator(seed, clouds),
    ]
    addresses = config.load_balancer_ip, config.further_load_balancer_ips, config.ipv6_load_balancer_ips
    balancers = [LoadBalancerController(seed, caches, *addresses).run()] if config.load_balancer_ip else []
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    _log.info("provider-local of seed %s is serving queue %s", config.seed_name, own_queue)
    try:
        await run_until_signal(
            worker.run(),
            follow_certificate(worker),
            forget_control_planes(caches),
            run_as_leader(
                seed,
                config.leader_election,
                NAME,
                run_heartbeat(seed, config.heartbeat_namespace, holder=MANAGER),
                *balancers,
                ShootControllers(seed, caches).run(),
                ManualUpdates(seed, caches).run(),
                *(ExtensionController(seed, caches, actuator).run() for actuator in simple),
                *(ExtensionController(seed, caches, actuator, interruptible=True).run() for actuator in long),
            ),
        )
    finally:
        await runner.cleanup()
        await caches.close()
        await clouds.close()
        await seed.close()
        if tracing is not None:
            tracing.close()
