"""The process of an extension in a seed that consists of actuators alone."""

from collections.abc import Callable, Iterable

from activities.extension import Actuator
from api.model import ApiModel
from kube.cache import Caches
from kube.client import KubeClient
from workers.extension.serving import serve
from workers.lib.leader import LeaderElectionConfig, run_as_leader
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal


class ExtensionConfig(ApiModel):
    seed_client_connection: ClientConnection
    heartbeat_namespace: str = ""
    """The extension's own namespace; empty: ``extension-`` and the extension's name."""
    leader_election: LeaderElectionConfig | None = None
    """Unset: there is one replica. The Lease is in the namespace ``extension-`` and the extension's name."""
    health: HealthConfig = HealthConfig()


async def run_extension(
    config_path: str, name: str, actuators: Callable[[KubeClient, Caches], Iterable[Actuator]]
) -> None:
    """Run until SIGTERM. A restarted process continues from the status of the objects."""
    config, own = load_config(ExtensionConfig, config_path), f"extension-{name}"
    election = config.leader_election or LeaderElectionConfig(resource_namespace=own)
    seed = kube_client(config.seed_client_connection)
    caches = Caches(seed)
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    try:
        work = serve(caches, actuators(seed, caches), name=name, namespace=config.heartbeat_namespace or own)
        await run_until_signal(run_as_leader(seed, election, f"gardener-extension-{name}", work))
    finally:
        await runner.cleanup()
        await caches.close()
        await seed.close()
