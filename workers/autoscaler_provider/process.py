"""The provider's process: a gRPC server on a Unix socket that its cluster autoscaler connects to."""

import logging

from grpclib.server import Server

from kube.client import KubeClient
from workers.autoscaler_provider.config import AutoscalerProviderConfig
from workers.autoscaler_provider.provider import CloudProvider
from workers.lib.runtime import Health, load_config, run_until_signal

_log = logging.getLogger(__name__)


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(AutoscalerProviderConfig, config_path)
    kubeconfig = config.seed_kubeconfig
    seed = KubeClient.from_kubeconfig(kubeconfig) if kubeconfig else KubeClient.in_cluster()
    server = Server([CloudProvider(seed, config.namespace, config.node_groups, config.kubelets)])
    await server.start(path=str(config.socket))
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    _log.info("scaling %d node groups of %s", len(config.node_groups), config.namespace)
    try:
        await run_until_signal(server.wait_closed())
    finally:
        server.close()
        await runner.cleanup()
        await seed.close()
