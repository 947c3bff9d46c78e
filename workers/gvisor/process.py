"""The process of the extension runtime-gvisor in a seed."""

from api.model import ApiModel
from kube.cache import Caches
from workers.extension import serve
from workers.gvisor.actuator import NAME, GvisorActuator
from workers.lib.leader import LeaderElectionConfig, run_as_leader
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal


class GvisorConfig(ApiModel):
    seed_client_connection: ClientConnection
    heartbeat_namespace: str = f"extension-{NAME}"
    """The extension's own namespace."""
    leader_election: LeaderElectionConfig = LeaderElectionConfig(resource_namespace=f"extension-{NAME}")
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    """Run until SIGTERM. A restarted process continues from the status of the objects."""
    config = load_config(GvisorConfig, config_path)
    seed = kube_client(config.seed_client_connection)
    caches = Caches(seed)
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    try:
        work = serve(caches, [GvisorActuator(seed, caches)], name=NAME, namespace=config.heartbeat_namespace)
        await run_until_signal(run_as_leader(seed, config.leader_election, f"gardener-extension-{NAME}", work))
    finally:
        await runner.cleanup()
        await caches.close()
        await seed.close()
